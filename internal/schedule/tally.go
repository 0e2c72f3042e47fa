package schedule

// Outcome is what became of a tick that was not run.
type Outcome uint8

// The outcomes.
const (
	// Expired: missed, because it did not start before its startingDeadline.
	Expired Outcome = iota
	// Overtaken: missed, because a newer tick came due before it started, and catchUp is not All.
	Overtaken
	// Late: missed, because it did not start within OnTime of when it could have, and catchUp is Skip.
	Late
	// Backlog: missed, because more than MaxBacklog newer ticks were due as well.
	Backlog
	// Withdrawn: missed, because it did not start before the schedule was suspended.
	Withdrawn
	// Overlapped: skipped, because it came due during a run.
	Overlapped
	outcomes
)

func (o Outcome) String() string {
	return [...]string{"Expired", "Overtaken", "Late", "Backlog", "Withdrawn", "Overlapped"}[o]
}

// Tally counts ticks by outcome. Index it by Outcome.
type Tally [outcomes]Lot

// Lot is a number of ticks, with the first and the last of them.
type Lot struct {
	Count       int64
	First, Last Stamp
}

// Missed is the number of ticks that should have run and did not.
func (t *Tally) Missed() (n int64) {
	for o := range Overlapped {
		n += t[o].Count
	}
	return n
}

// Skipped is the number of ticks that were skipped by policy.
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
