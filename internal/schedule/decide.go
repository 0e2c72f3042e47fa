package schedule

import "time"

// Facts are what is known of a schedule's ticks: what the Lease says. The zero value is never right: Settled is the Lease's
// creation at least. Only Started, Ended and Resumed change them, together with the write that does what they say.
type Facts struct {
	// Settled is the instant up to which all ticks are accounted for: run, missed, skipped, or of a time in which there were none.
	// It is the greatest of the newest tick that was started, the Lease's creation, and the last time that the schedule was changed
	// or resumed. It only grows.
	Settled Stamp
	// Local is what the zone's clock showed at the newest tick that was started; 0 if there is none since cron or timeZone changed.
	// It keeps a civil time from having a second tick when newer tables of zones have it come later.
	Local Stamp
	// Passed are ticks that came due while earlier ones were made up for under OverlapSkip: they are skipped. It is empty where Settled
	// tells all.
	Passed Span
	// Running says that a run is under way: it was started, and there is no final word on it. Between two attempts it is, too.
	Running bool
	// Since is Now of the decision that started the run under way.
	Since Stamp
	// Freed is when the last run ended; 0 if there was none.
	Freed Stamp
	// Suspended is since when ticks do not exist; 0 if they do.
	Suspended Stamp
}

// Span are the instants after From and not after To.
type Span struct{ From, To Stamp }

// Clocks are the two that have to agree on the time.
type Clocks struct {
	// Wall is this machine's clock.
	Wall time.Time
	// Server is the API server's: the Date of an answer, and the time since, by a clock that is not set. Date has no parts of a
	// second, so it is up to a second late. The zero value says that there was none.
	Server time.Time
}

// Now is the time that both clocks have reached. Where they do not agree it is the earlier one, which burns no ticks.
func (c Clocks) Now() time.Time {
	if c.Server.IsZero() || c.Wall.Before(c.Server) {
		return c.Wall
	}
	return c.Server
}

// Later is the time that one of them has reached.
func (c Clocks) Later() time.Time {
	if c.Server.After(c.Wall) {
		return c.Server
	}
	return c.Wall
}

// Disagree reports whether there are two, of which one is wrong, or both are.
func (c Clocks) Disagree() bool { return c.agree() == ClocksDisagree }

// agree says what is wrong with the clocks; NotDue if nothing is.
func (c Clocks) agree() Verdict {
	if c.Server.IsZero() {
		return NoServerClock
	}
	for _, t := range []time.Time{c.Wall, c.Server} {
		if _, ok := StampOf(t); !ok {
			return ClocksDisagree
		}
	}
	if d := c.Wall.Sub(c.Server); d > Tolerance || d < -Tolerance {
		return ClocksDisagree
	}
	return NotDue
}

// Verdict is what to do, or why nothing is started.
type Verdict string

// The verdicts.
const (
	// Start the run of Decision.Tick. Who wins the write that says so has started it.
	Start Verdict = "Start"
	// Replace the run under way: stop it, and decide again when it has ended.
	Replace Verdict = "Replace"
	// NotDue: there is no tick to start.
	NotDue Verdict = "NotDue"
	// Running: a run is under way, and what comes due waits or is skipped.
	Running Verdict = "Running"
	// Suspended: the schedule is.
	Suspended Verdict = "Suspended"
	// ClocksDisagree: one of the two clocks is wrong, or both are.
	ClocksDisagree Verdict = "ClocksDisagree"
	// NoServerClock: no answer of the API server said what time it is.
	NoServerClock Verdict = "NoServerClock"
	// Ahead: Settled is in the future, so the clocks once agreed on a wrong time. Nothing is due until then.
	Ahead Verdict = "Ahead"
)

// Decision is what to do now.
type Decision struct {
	Verdict Verdict
	// Tick is the tick to start; 0 unless the verdict is Start or Replace. Local is what the zone's clock shows then.
	Tick, Local Stamp
	// Now is the time that was decided by.
	Now Stamp
	// Tally says what became of the ticks before the one to start, or of those until now. With the write that starts a run it counts
	// for good; until then it is what it would be by now, and a tick that is Late now may be Expired later.
	Tally Tally
	// Next is the first tick after now; 0 if there is none, or none is known.
	Next Stamp
	// Wait is after what time to decide again if nothing else happens; 0 where only new facts can change the decision.
	Wait time.Duration
}

const (
	// recheck is when clocks that disagree are compared again.
	recheck = 10 * time.Second
	// longestWait bounds a wait for a tick: clocks are set meanwhile.
	longestWait = time.Hour
)

// Decide says what is to be done. Facts must have been read no earlier than Clocks.Server was, since the write that starts a run
// replaces them.
func (s *Schedule) Decide(f Facts, c Clocks) Decision {
	if wrong := c.agree(); wrong != NotDue {
		return Decision{Verdict: wrong, Wait: recheck}
	}
	f = f.bounded()
	now, _ := StampOf(c.Now())
	d := Decision{Verdict: NotDue, Now: now}
	if f.Suspended != 0 {
		d.Verdict = Suspended
		return d
	}
	t := f.ticks(s)
	d.Next, _ = t.nextOf(max(now, f.Settled))
	if f.Settled <= now {
		d.choose(f, c, t)
	} else if f.Settled.Time().Sub(c.Now()) > 2*Tolerance {
		d.Verdict = Ahead
	}
	switch {
	case d.Verdict == Start, d.Verdict == Replace, d.Next == 0:
	case d.Verdict == Running && s.spec.Overlap != OverlapReplace:
	default:
		d.Wait = min(max(d.Next.Time().Sub(c.Now()), time.Millisecond), longestWait)
	}
	return d
}

// nextOf is next, with 0 for none.
func (t ticks) nextOf(after Stamp) (tick Stamp, ok bool) {
	if tick, ok = t.next(after); !ok {
		tick = 0
	}
	return tick, ok
}

// ticks are those of a schedule, as far as they are not settled.
func (f Facts) ticks(s *Schedule) ticks {
	t := ticks{Schedule: s}
	if away := f.Local - f.Settled; f.Local != 0 && away > -turnback && away < turnback { // else somebody has edited it
		t.shown = f.Local
	}
	return t
}

// choose finds the tick to start, if one is due.
func (d *Decision) choose(f Facts, c Clocks, t ticks) {
	spec := t.spec
	// Of the server's clock: the other may be behind it, which gives no more time.
	expired, _ := StampOf(c.Server.Add(-spec.StartingDeadline))
	expired = min(max(expired, f.Settled), d.Now)
	skip := f.skipped(spec, d.Now)
	if f.Running {
		d.Verdict = Running
	}
	due := skip.without(t.between(expired, d.Now))
	over := 0 // so many of the oldest are not started
	switch {
	case spec.CatchUp == CatchUpAll:
		over = max(0, len(due)-MaxBacklog)
		d.Tally.list(Backlog, due[:over])
	case len(due) > 0:
		over = len(due) - 1
		d.Tally.list(Overtaken, due[:over])
	}
	due = due[over:]
	if spec.CatchUp == CatchUpSkip && len(due) == 1 && !f.Running && late(c, max(due[0], f.Freed)) {
		d.Tally.list(Late, due)
		due = nil
	}
	upTo := d.Now
	if len(due) > 0 && d.take(f, spec) {
		d.Tick, d.Local = due[0], t.Local(due[0])
		upTo = d.Tick
	}
	d.Tally.span(Expired, t, skip.before(Span{f.Settled, expired}))
	d.Tally.span(Overlapped, t, skip.upTo(f.Settled, upTo))
}

// take says what to do with a tick that is due.
func (d *Decision) take(f Facts, spec Spec) bool {
	switch {
	case !f.Running:
		d.Verdict = Start
	case spec.Overlap == OverlapReplace:
		d.Verdict = Replace
	default:
		return false
	}
	return true
}

// late reports whether a tick that could have been started at an instant is too late for CatchUpSkip.
func late(c Clocks, since Stamp) bool { return c.Server.Sub(since.Time()) >= OnTime }

// between lists the ticks after one instant and not after another. They are at most startingDeadline apart.
func (t ticks) between(after, to Stamp) (list []Stamp) {
	for tick, ok := t.next(after); ok && tick <= to; tick, ok = t.next(tick) {
		list = append(list, tick)
	}
	return list
}

// passed are spans without ticks to start, in order and apart from one another.
type passed []Span

// skipped are the spans that runs have taken up, under OverlapSkip.
func (f Facts) skipped(spec Spec, now Stamp) (p passed) {
	if spec.Overlap != OverlapSkip {
		return nil
	}
	end := f.Settled
	for _, s := range []Span{f.Passed, f.underWay(now)} {
		if s.From = max(s.From, end); s.From < s.To {
			p, end = append(p, s), s.To
		}
	}
	return p
}

// underWay is the time of the run that is.
func (f Facts) underWay(now Stamp) Span {
	if !f.Running {
		return Span{}
	}
	return Span{f.Since, now}
}

// without is a list without what is in the spans.
func (p passed) without(list []Stamp) (rest []Stamp) {
	for _, tick := range list {
		in := false
		for _, s := range p {
			in = in || s.From < tick && tick <= s.To
		}
		if !in {
			rest = append(rest, tick)
		}
	}
	return rest
}

// upTo are the parts of the spans after one instant and not after another.
func (p passed) upTo(from, to Stamp) (parts []Span) {
	for _, s := range p {
		parts = append(parts, Span{max(s.From, from), min(s.To, to)})
	}
	return parts
}

// before are the parts of a span that are in none of p.
func (p passed) before(of Span) (parts []Span) {
	for _, s := range p {
		parts = append(parts, Span{of.From, min(of.To, s.From)})
		of.From = max(of.From, s.To)
	}
	return append(parts, of)
}
