package schedule

// Started returns the facts after the start that a decision demands. The write that stores them is the start, and it adds d.Tally
// to the missed and skipped counts.
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

// begun returns the facts of a run that has just started. If earlier runs took up time after that, both clocks were wrong then. Those
// ticks are still to come. This run's span lies before them, and one span has no room for both.
func (f Facts) begun() Facts {
	if f.Passed.From > f.Since {
		f.Passed = Span{}
	}
	return f
}

// Ended returns the facts after the run's final result, and what became of the ticks that it settles. Both must be stored in one
// write. at is Clocks.Now: if only one clock is wrong, it loses no ticks.
//
// Under OverlapSkip, the run has taken up its ticks from its start to its end. If earlier ticks still wait to be caught up, that is
// recorded next to Settled as one span. Ticks that come due between two runs of one backlog are taken up with it.
func (f Facts) Ended(s *Schedule, at Stamp) (Facts, Tally) {
	var tally Tally
	f = f.bounded()
	if !f.Running {
		return f, tally
	}
	if f.Suspended != 0 {
		at = min(at, f.Suspended) // there are no ticks after that
	}
	at = min(max(at, f.Since), maxStamp)
	f.Running, f.Freed = false, at
	if s.spec.Overlap != OverlapSkip {
		return f, tally
	}
	t := f.ticks(s)
	if f.Passed != (Span{}) && t.count(f.Settled, f.Passed.From) == 0 { // no tick waits before it
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

// Replaces reports whether the next tick stops a run.
func (s *Schedule) Replaces() bool { return s.spec.Overlap == OverlapReplace }

// StartedByHand returns the facts after the start of a run that the schedule did not request. Its ticks do not change, except those
// that come due during the run.
func (f Facts) StartedByHand(at Stamp) Facts {
	f = f.bounded()
	f.Running, f.Since = true, max(bounded(at), f.Since)
	return f.begun()
}

// Unscheduled returns the facts after the end of a run of a job without a schedule.
func (f Facts) Unscheduled(at Stamp) Facts {
	f = f.bounded()
	f.Running, f.Freed = false, bounded(at)
	return f
}

// SuspendedAt returns the facts after the schedule was suspended. Ticks due by then do not start any more, not even while the
// suspension is all that is known.
func (f Facts) SuspendedAt(at Stamp) Facts {
	if f = f.bounded(); f.Suspended == 0 {
		f.Suspended = max(bounded(at), 1)
	}
	return f
}

// ChangedAt returns the facts after cron or timeZone changed: the new ticks start then, and due ticks of the old schedule are
// dropped.
func (f Facts) ChangedAt(at Stamp) Facts {
	f = f.bounded()
	f = f.settle(bounded(at))
	f.Local, f.Passed = 0, Span{}
	if f.Running {
		f.Since = max(f.Since, f.Settled)
	}
	return f
}

// Resumed returns the facts after the schedule was resumed, and what became of the ticks from before the suspension. The argument at is
// the API server's time. A time that is too early would make ticks come due that did not exist.
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

// bounded limits the facts to valid instants, because anybody may have written them.
func (f Facts) bounded() Facts {
	for _, s := range []*Stamp{&f.Settled, &f.Local, &f.Passed.From, &f.Passed.To, &f.Since, &f.Freed, &f.Suspended} {
		*s = bounded(*s)
	}
	return f
}

func bounded(s Stamp) Stamp { return min(max(s, 0), maxStamp) }
