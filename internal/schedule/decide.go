package schedule

import "time"

// Facts are what the Lease records about a schedule's ticks. The zero value is never correct: Settled is at least the Lease's
// creation time. Only Started, Ended and Resumed change Facts, and the same write must store the change.
type Facts struct {
	// Settled is the instant up to which all ticks are accounted for: run, missed, skipped, or in a time without ticks. It is the
	// latest of the newest started tick, the Lease's creation, and the last change or resumption of the schedule. It only grows.
	Settled Stamp
	// Local is the time on the zone's clock at the newest started tick; 0 if there is none since cron or timeZone changed. It
	// prevents a second tick for a civil time that newer time zone tables move to later.
	Local Stamp
	// Passed are ticks that came due while earlier ticks were caught up under OverlapSkip: they are skipped. It is empty if Settled
	// covers everything.
	Passed Span
	// Running: a run is in progress. It has started and its result is not final. This includes the time between two attempts.
	Running bool
	// Since is Now of the decision that started the current run.
	Since Stamp
	// Freed is the time at which the last run ended; 0 if there was none.
	Freed Stamp
	// Suspended is the time since which there are no ticks; 0 if the schedule is not suspended.
	Suspended Stamp
}

// Span is the instants after From and not after To.
type Span struct{ From, To Stamp }

// Clocks are the two clocks that must agree on the time.
type Clocks struct {
	// Wall is this machine's clock.
	Wall time.Time
	// Server is the API server's clock: the Date of a response plus the time since then, by a monotonic clock. Date has no
	// fraction, so it is up to a second late. The zero value means that there was no response.
	Server time.Time
}

// Now is the time that both clocks have reached. If they disagree it is the earlier time, which loses no ticks.
func (c Clocks) Now() time.Time {
	if c.Server.IsZero() || c.Wall.Before(c.Server) {
		return c.Wall
	}
	return c.Server
}

// Later is the time that one of the clocks has reached.
func (c Clocks) Later() time.Time {
	if c.Server.After(c.Wall) {
		return c.Server
	}
	return c.Wall
}

// Disagree reports whether both clocks are known and at least one is wrong.
func (c Clocks) Disagree() bool { return c.agree() == ClocksDisagree }

// agree returns what is wrong with the clocks, or NotDue if nothing is.
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

// Verdict is what to do, or the reason why nothing starts.
type Verdict string

// The verdicts.
const (
	// Start the run of Decision.Tick. The candidate whose write of the start succeeds has started it.
	Start Verdict = "Start"
	// Replace the current run: stop it, and decide again when it has ended.
	Replace Verdict = "Replace"
	// NotDue: there is no tick to start.
	NotDue Verdict = "NotDue"
	// Running: a run is in progress. Ticks that come due wait or are skipped.
	Running Verdict = "Running"
	// Suspended: the schedule is suspended.
	Suspended Verdict = "Suspended"
	// ClocksDisagree: at least one of the two clocks is wrong.
	ClocksDisagree Verdict = "ClocksDisagree"
	// NoServerClock: no response of the API server has given the time.
	NoServerClock Verdict = "NoServerClock"
	// Ahead: Settled is in the future, because both clocks were wrong in the past. Nothing is due until that time.
	Ahead Verdict = "Ahead"
)

// Decision is what to do now.
type Decision struct {
	Verdict Verdict
	// Tick is the tick to start; 0 unless the verdict is Start or Replace. Local is the time on the zone's clock at that tick.
	Tick, Local Stamp
	// Now is the time on which the decision is based.
	Now Stamp
	// Tally is the outcome of the ticks before the one to start, or of those until now. It becomes final with the write that starts
	// a run. Until then it is provisional: a tick that is Late now may be Expired later.
	Tally Tally
	// Next is the first tick after now; 0 if there is none or none is known.
	Next Stamp
	// Wait is the time after which to decide again if nothing else happens; 0 if only new facts can change the decision.
	Wait time.Duration
}

const (
	// recheck is the time until clocks that disagree are compared again.
	recheck = 10 * time.Second
	// longestWait bounds the wait for a tick, because clocks can be set in the meantime.
	longestWait = time.Hour
)

// Decide returns what to do. Facts must have been read no earlier than Clocks.Server, because the write that starts a run replaces
// them.
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

// nextOf is Next with 0 for none.
func (t ticks) nextOf(after Stamp) (tick Stamp, ok bool) {
	if tick, ok = t.next(after); !ok {
		tick = 0
	}
	return tick, ok
}

// ticks returns the schedule's ticks that are not settled.
func (f Facts) ticks(s *Schedule) ticks {
	t := ticks{Schedule: s}
	if away := f.Local - f.Settled; f.Local != 0 && away > -turnback && away < turnback { // otherwise somebody has edited it
		t.shown = f.Local
	}
	return t
}

// choose returns the tick to start, if one is due.
func (d *Decision) choose(f Facts, c Clocks, t ticks) {
	spec := t.spec
	// Use the server's clock: the other clock may be behind it, which must not extend the deadline.
	expired, _ := StampOf(c.Server.Add(-spec.StartingDeadline))
	expired = min(max(expired, f.Settled), d.Now)
	skip := f.skipped(spec, d.Now)
	if f.Running {
		d.Verdict = Running
	}
	due := skip.without(t.between(expired, d.Now))
	over := 0 // the number of oldest ticks that are not started
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

// take returns what to do with a tick that is due.
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

// between lists the ticks after one instant and not after another. The two instants are at most startingDeadline apart.
func (t ticks) between(after, to Stamp) (list []Stamp) {
	for tick, ok := t.next(after); ok && tick <= to; tick, ok = t.next(tick) {
		list = append(list, tick)
	}
	return list
}

// passed are disjoint spans, in order, whose ticks must not start.
type passed []Span

// skipped are the spans during which runs were in progress, under OverlapSkip.
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

// underWay is the span of the current run.
func (f Facts) underWay(now Stamp) Span {
	if !f.Running {
		return Span{}
	}
	return Span{f.Since, now}
}

// without removes from a list what is in the spans.
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
