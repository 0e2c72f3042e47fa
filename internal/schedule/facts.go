package schedule

// Started are the facts after the start that a decision asked for. The write that stores them is the start, and adds d.Tally to
// what was missed and skipped.
func (f Facts) Started(d Decision) Facts {
	f = f.bounded()
	if d.Verdict != Start {
		return f
	}
	f.Settled, f.Local = max(f.Settled, d.Tick), d.Local
	f.Running, f.Since = true, d.Now
	if f.Passed.To <= f.Settled {
		f.Passed = Span{}
	}
	return f.begun()
}

// begun are the facts of a run that has just been started. What earlier runs have taken up after that was so by clocks that both were
// wrong: those ticks are yet to come, and this run's are before them, where one span has no place for them.
func (f Facts) begun() Facts {
	if f.Passed.From > f.Since {
		f.Passed = Span{}
	}
	return f
}

// Ended are the facts after the run's last word, which has to be stored in the same write, with what became of the ticks that it
// settles. at is Clocks.Now: where only one clock is wrong, it burns no ticks.
//
// Under OverlapSkip the run has taken up its ticks from its start to its end. Where earlier ones still wait to be made up for, that
// stands beside Settled, as one span: what comes due between two runs of one backlog is taken up with them.
func (f Facts) Ended(s *Schedule, at Stamp) (Facts, Tally) {
	var tally Tally
	f = f.bounded()
	if !f.Running {
		return f, tally
	}
	if f.Suspended != 0 {
		at = min(at, f.Suspended) // after which there are no ticks
	}
	at = min(max(at, f.Since), maxStamp)
	f.Running, f.Freed = false, at
	if s.spec.Overlap != OverlapSkip {
		return f, tally
	}
	t := f.ticks(s)
	if f.Passed != (Span{}) && t.count(f.Settled, f.Passed.From) == 0 { // nothing waits before it
		tally.span(Overlapped, t, []Span{{max(f.Settled, f.Passed.From), f.Passed.To}})
		f = f.settle(f.Passed.To)
	}
	switch {
	case f.Passed != (Span{}):
		f.Passed.To = max(f.Passed.To, at)
	case t.count(f.Settled, f.Since) > 0:
		f.Passed = Span{f.Since, at}
	default:
		tally.span(Overlapped, t, []Span{{f.Settled, at}})
		f = f.settle(at)
	}
	return f, tally
}

// Replaces reports whether a run is stopped for the next.
func (s *Schedule) Replaces() bool { return s.spec.Overlap == OverlapReplace }

// StartedByHand are the facts after the start of a run that the schedule did not ask for. Its ticks stand as they are, but for what
// comes due during the run.
func (f Facts) StartedByHand(at Stamp) Facts {
	f = f.bounded()
	f.Running, f.Since = true, max(bounded(at), f.Since)
	return f.begun()
}

// Unscheduled are the facts after the end of a run of a job without a schedule.
func (f Facts) Unscheduled(at Stamp) Facts {
	f = f.bounded()
	f.Running, f.Freed = false, bounded(at)
	return f
}

// SuspendedAt are the facts after the schedule was suspended. What is due by then is not started any more, nor is it while a
// suspension is all that is known.
func (f Facts) SuspendedAt(at Stamp) Facts {
	if f = f.bounded(); f.Suspended == 0 {
		f.Suspended = max(bounded(at), 1)
	}
	return f
}

// ChangedAt are the facts after cron or timeZone changed: the new ticks begin then, and what the old ones had due is dropped with them.
func (f Facts) ChangedAt(at Stamp) Facts {
	f = f.bounded()
	f = f.settle(bounded(at))
	f.Local, f.Passed = 0, Span{}
	if f.Running {
		f.Since = max(f.Since, f.Settled)
	}
	return f
}

// Resumed are the facts after the schedule was resumed, with what became of the ticks from before it was suspended. at is the API
// server's time: too early a one would have ticks come due that did not exist.
func (f Facts) Resumed(s *Schedule, at Stamp) (Facts, Tally) {
	var tally Tally
	f, at = f.bounded(), bounded(at)
	if f.Suspended == 0 {
		return f, tally
	}
	t, to := f.ticks(s), min(f.Suspended, at)
	skip := f.skipped(s.spec, to)
	tally.span(Withdrawn, t, skip.before(Span{f.Settled, to}))
	tally.span(Overlapped, t, skip.upTo(f.Settled, to))
	f = f.settle(at)
	f.Suspended = 0
	if f.Running {
		f.Since = max(f.Since, at)
	}
	return f, tally
}

// settle accounts for all ticks up to an instant.
func (f Facts) settle(at Stamp) Facts {
	f.Settled = max(f.Settled, at)
	if f.Passed.To <= f.Settled {
		f.Passed = Span{}
	}
	return f
}

// bounded are the facts with instants that exist: anybody may have written them.
func (f Facts) bounded() Facts {
	for _, s := range []*Stamp{&f.Settled, &f.Local, &f.Passed.From, &f.Passed.To, &f.Since, &f.Freed, &f.Suspended} {
		*s = bounded(*s)
	}
	return f
}

func bounded(s Stamp) Stamp { return min(max(s, 0), maxStamp) }
