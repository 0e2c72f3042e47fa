package schedule

// Outcome is what became of a tick that was not run.
type Outcome uint8

// The outcomes.
const (
	// Expired: missed, since it was not started before its startingDeadline.
	Expired Outcome = iota
	// Overtaken: missed, since a newer one came due before it was started, and not all are made up for.
	Overtaken
	// Late: missed, since it could have been started for longer than OnTime and was not, and nothing is made up for.
	Late
	// Backlog: missed, since more than MaxBacklog newer ones were due as well.
	Backlog
	// Withdrawn: missed, since it was not started before the schedule was suspended.
	Withdrawn
	// Overlapped: skipped, since it came due during a run.
	Overlapped
	outcomes
)

func (o Outcome) String() string {
	return [...]string{"Expired", "Overtaken", "Late", "Backlog", "Withdrawn", "Overlapped"}[o]
}

// Tally counts ticks by what became of them. Index it by Outcome.
type Tally [outcomes]Lot

// Lot is a number of ticks, with the first and the last of them.
type Lot struct {
	Count       int64
	First, Last Stamp
}

// Missed is how many ticks should have been run and were not.
func (t *Tally) Missed() (n int64) {
	for o := range Overlapped {
		n += t[o].Count
	}
	return n
}

// Skipped is how many ticks were passed over, as the policy has it.
func (t *Tally) Skipped() int64 { return t[Overlapped].Count }

func (t *Tally) list(o Outcome, list []Stamp) {
	if len(list) > 0 {
		t.add(o, Lot{int64(len(list)), list[0], list[len(list)-1]})
	}
}

func (t *Tally) span(o Outcome, of ticks, parts []Span) {
	for _, s := range parts {
		if n := of.count(s.From, s.To); n > 0 {
			first, _ := of.next(s.From)
			t.add(o, Lot{n, first, of.last(s.From, s.To)})
		}
	}
}

func (t *Tally) add(o Outcome, lot Lot) {
	if had := t[o]; had.Count > 0 {
		lot.Count, lot.First = lot.Count+had.Count, min(lot.First, had.First)
		lot.Last = max(lot.Last, had.Last)
	}
	t[o] = lot
}
