package plan

import "time"

// conflictPeriod is how often a Lease that is somebody else's is looked at: those are not watched.
const conflictPeriod = 30 * time.Second

// alarm is the soonest of several times to come; 0 for none.
type alarm time.Duration

// in adds one that comes after a while; it is past if that is not positive.
func (a *alarm) in(left time.Duration) {
	if left > 0 && (*a == 0 || alarm(left) < *a) {
		*a = alarm(left)
	}
}

// wakeOf is when the next thing happens by time alone; 0 for never. What happens by a write is heard. putOff: a write to the
// Lease waits for the next renewal.
func wakeOf(state State, t *tenure, m *members, now time.Time, putOff bool) time.Duration {
	var a alarm
	switch state {
	case LeaseConflict:
		a.in(conflictPeriod)
	case Suspending:
		a.in(m.strayLeft(now))
	case Serving:
		wakeForMembers(&a, t, m)
	case Collecting, Deleting, InvalidSpec, LeaseMissing, LeaseUnclaimed, HolderDead, Suspended:
	}
	if t.holder.named {
		wakeForHolder(&a, t, putOff)
	}
	return time.Duration(a)
}

func wakeForHolder(a *alarm, t *tenure, putOff bool) {
	a.in(t.holder.limits.renewDeadline - t.Unchanged)
	if putOff { // renewals wake nobody
		a.in(t.holder.limits.retryPeriod / 2)
	}
	a.in(t.holder.limits.duration - t.Unchanged)
	if t.seemsOver {
		a.in(t.unheard())
	}
	if t.death != nil {
		a.in(t.death.after - t.Unchanged)
	}
}

// wakeForMembers is when the holder is soaked in a rollout, when a candidate that is not ready has not been for long, and when
// a failed one is replaced, or no longer of interest.
func wakeForMembers(a *alarm, t *tenure, m *members) {
	if m.fleet.outdated() && t.holder.ours {
		a.in(t.unsoaked())
	}
	for _, c := range m.candidates {
		if c.live() && !c.ready {
			a.in(progressDeadline - c.unready)
		}
	}
	for _, c := range m.failing {
		a.in(c.failure.delayed())
		if !m.lacking() {
			a.in(c.failure.shownFor())
		}
	}
}
