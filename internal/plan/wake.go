package plan

import (
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/schedule"
)

// conflictPeriod is how often a Lease that belongs to another component is read: such Leases are not watched.
const conflictPeriod = 30 * time.Second

// workloadPeriod is how often the operator looks for pods of a workload that runs although it is scaled to 0, because these pods are not
// watched. It also looks for them before it creates a pod.
const workloadPeriod = 10 * time.Minute

// alarm is the earliest of several future times; 0 for none.
type alarm time.Duration

// in adds a time that comes after left. It is ignored if left is not positive.
func (a *alarm) in(left time.Duration) {
	if left > 0 && (*a == 0 || alarm(left) < *a) {
		*a = alarm(left)
	}
}

// wake is what is due next, and what postpones it.
type wake struct {
	// by is the earliest time that is due in any case. silence is the earliest one that is due if the Lease has not changed for that long.
	// Each renewal postpones silence, so a job whose holder renews costs nothing. 0 for never.
	by, silence alarm
	// renewal: the next renewal must be handled.
	renewal bool
}

// unlessRenewed adds the time at which a Lease will have been unchanged for limit.
func (w *wake) unlessRenewed(unchanged, limit time.Duration) {
	if limit > unchanged {
		w.silence.in(limit)
	}
}

// first returns the earliest time if there is no event before, not even a renewal; 0 for never.
func (w *wake) first(unchanged time.Duration) time.Duration {
	a := w.by
	a.in(time.Duration(w.silence) - unchanged)
	return time.Duration(a)
}

// wakeOf returns everything that becomes due without a write by another component. The operator learns of writes through watches. later is
// a wanted write to the Lease, whether it can be done now or not.
func wakeOf(state State, j *job, t *tenure, m *members, r *runs, o *Observed, later *LeaseWrite) wake {
	var w wake
	a := &w.by
	if state.keepsRuns() || state == LeaseUnclaimed {
		wakeForRuns(a, j, t, m, r, o.Now)
	}
	wakeForState(a, state, j, t, m, o)
	switch {
	case t.holder.named:
		wakeForHolder(&w, t, putOff(state, t, later))
		w.renewal = t.awaitsRenewal(state == LeaseUnclaimed || later != nil || t.unclaimed())
		waits := len(m.strangers) > 0 || r != nil && r.blind
		if state == LeaseUnclaimed && waits && !t.quiet() { // when it is quiet, the waiting claim is no longer the next step
			w.unlessRenewed(t.Unchanged, t.Unchanged+t.missed()-t.SinceRenewal)
		}
	case (r != nil || state == Suspending) && t.Presence == Ours && !t.Record.Free(): // someone cleared the holder's name, and the holder may still run
		w.unlessRenewed(t.Unchanged, t.holder.limits.duration)
	}
	return w
}

// wakeForState adds what a state waits for.
func wakeForState(a *alarm, state State, j *job, t *tenure, m *members, o *Observed) {
	switch state {
	case LeaseConflict:
		a.in(conflictPeriod)
	case Suspending:
		a.in(m.strayLeft(o.Now))
	case Blocked:
		wakeForWorkload(a, o)
		wakeForLookup(a, o.Entrypoint)
		a.in(m.move.left)
		wakeForTardy(a, j, m)
	case EntrypointUnknown:
		wakeForLookup(a, o.Entrypoint)
		a.in(m.move.left) // for its text in the status
		wakeForTardy(a, j, m)
	case Resting:
		wakeForTardy(a, j, m)
	case Serving:
		wakeForMembers(a, j, t, m)
		a.in(inSuccession(state, t, m, o.Children.Service))
		if o.Workload != nil {
			a.in(workloadPeriod)
		}
	case LeaseMissing, LeaseUnclaimed:
		for _, pod := range m.strangers {
			a.in(strangerLeft(pod, o.clock()))
		}
	case Collecting, Deleting, InvalidSpec, HolderDead, Suspended:
	}
}

// wakeForHolder adds the times when a holder is reported as stopped, when its lease has expired, and when proof of its death is accepted.
// It also adds the time when a write that waits for a renewal can be done.
func wakeForHolder(w *wake, t *tenure, putOff bool) {
	w.unlessRenewed(t.Unchanged, t.holder.limits.renewDeadline)
	w.unlessRenewed(t.Unchanged, t.holder.limits.duration)
	if putOff {
		w.by.in(t.holder.limits.retryPeriod / 2)
	}
	if t.seemsOver {
		w.by.in(t.unheard())
	}
	if t.death != nil {
		w.unlessRenewed(t.Unchanged, t.death.after)
	}
}

// awaitsRenewal reports whether the next renewal changes more than the renewal time. It does if a holder that was reported as stopped acts
// again, or if a write can be done that would otherwise make candidates wait again.
func (t *tenure) awaitsRenewal(putOff bool) bool {
	return t.holder.ours && !t.acts() || t.seemsOver || t.holder.Pod != "" && t.quiet() && putOff
}

// wakeForMembers adds these times:
//   - when the holder is soaked in a rollout, or one of the earlier version has lasted so long that a shorter time is no longer enough;
//   - when a handover that was not taken is requested again;
//   - when a candidate has not been ready for too long, or the wait for a surge pod is over;
//   - when a standby on the holder's node is moved, or that is given up;
//   - when a failed candidate is replaced, or no longer kept.
func wakeForMembers(a *alarm, j *job, t *tenure, m *members) {
	if (m.fleet.outdated() || j.Status.FleetRollout == v1alpha1.FleetRolloutUnderWay) && t.holder.ours {
		if left, ready := t.unsoaked(j.updated(), j.preparation()); ready {
			a.in(left)
		}
		a.in(t.untried(j.updated(), j.preparation()))
	}
	if t.wasNotTaken() {
		a.in(notTakenFor - t.seen)
	}
	a.in(m.noRoom)
	a.in(m.move.left)
	wakeForTardy(a, j, m)
	for _, c := range m.failing {
		a.in(c.failure.delayed())
		if !m.lacking() {
			a.in(c.failure.shownFor())
		}
	}
}

// wakeForTardy adds the time when a candidate has not been ready for too long.
func wakeForTardy(a *alarm, j *job, m *members) {
	for _, c := range m.candidates {
		if c.live() && !c.ready {
			a.in(j.strategy.deadline - c.unready)
		}
	}
}

// longestRest limits how long a job that waits for a tick is left alone, because clocks can be set in that time.
const (
	longestRest = time.Hour
	blindRetry  = time.Second
	apartRetry  = 10 * time.Second
)

// wakeForRuns adds the times when pods begin or cease to be needed.
func wakeForRuns(a *alarm, j *job, t *tenure, m *members, r *runs, now time.Time) {
	if r == nil {
		return
	}
	switch {
	case r.blind && r.apart:
		a.in(apartRetry)
	case r.blind:
		a.in(blindRetry)
	case r.wanted != nil && r.stamp == 0: // the status reports that, until an answer has the time
		a.in(apartRetry)
	}
	if d := expiresIn(j, r, now); d != nil {
		a.in(max(*d, time.Millisecond))
	}
	if r.wanted == nil || r.suspend {
		return
	}
	if r.decision.Next != 0 {
		a.in(min(r.untilLead(), longestRest))
		a.in(min(r.decision.Next.Time().Sub(r.at), longestRest))
	}
	if r.decision.Verdict == schedule.Start {
		if !r.overdue(t, m) {
			a.in(overdueAfter)
		}
		a.in(r.decision.Tick.Time().Add(r.wanted.Spec().StartingDeadline).Sub(r.at))
	}
}
