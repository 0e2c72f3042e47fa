package plan

import (
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/schedule"
)

// conflictPeriod is how often a Lease that is somebody else's is looked at: those are not watched.
const conflictPeriod = 30 * time.Second

// workloadPeriod is how often the pods of a workload are looked at for one that runs though it is scaled to 0: they are not watched. Before
// a pod is made they are looked at anyway.
const workloadPeriod = 10 * time.Minute

// alarm is the soonest of several times to come; 0 for none.
type alarm time.Duration

// in adds one that comes after a while; it is past if that is not positive.
func (a *alarm) in(left time.Duration) {
	if left > 0 && (*a == 0 || alarm(left) < *a) {
		*a = alarm(left)
	}
}

// wake is what is due next, and what puts it off.
type wake struct {
	// by is the soonest of what comes by time alone, and silence of what comes when the Lease has not changed for so long: each
	// renewal puts that off, so that a job whose holder renews costs nothing. 0 for never.
	by, silence alarm
	// renewal: the next renewal is news.
	renewal bool
}

// unlessRenewed adds what happens when a Lease that has been unchanged for a while has been so for longer.
func (w *wake) unlessRenewed(unchanged, limit time.Duration) {
	if limit > unchanged {
		w.silence.in(limit)
	}
}

// first is when the first of all comes if nothing is heard, no renewal either; 0 for never.
func (w *wake) first(unchanged time.Duration) time.Duration {
	a := w.by
	a.in(time.Duration(w.silence) - unchanged)
	return time.Duration(a)
}

// wakeOf is all that becomes due though nobody writes anything. What happens by a write is heard. later is a write to the Lease that is
// wanted, whether it can be made now or not.
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
		if state == LeaseUnclaimed && waits && !t.quiet() { // when it is, the claim that waits comes first no more
			w.unlessRenewed(t.Unchanged, t.Unchanged+t.missed()-t.SinceRenewal)
		}
	case (r != nil || state == Suspending) && t.Presence == Ours && !t.Record.Free(): // somebody has blanked the holder, who may run
		w.unlessRenewed(t.Unchanged, t.holder.limits.duration)
	}
	return w
}

// wakeForState is what a state waits for.
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
		a.in(m.move.left) // for what is told of it
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

// wakeForHolder is when a holder is said to have stopped, when its lease has run out, when proof of its death is believed, and when a write
// that waits for its renewal can be made.
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

// awaitsRenewal reports whether a renewal changes more than when it was: a holder that was said to have stopped acts, or a write that would
// make candidates wait anew can be made.
func (t *tenure) awaitsRenewal(putOff bool) bool {
	return t.holder.ours && !t.acts() || t.seemsOver || t.holder.Pod != "" && t.quiet() && putOff
}

// wakeForMembers is when the holder is soaked in a rollout, or one of the version before has lasted so long that less no longer does, when
// a handover that was not taken is asked for again, when a candidate that is not ready has not been for long, when room for one
// pod more was waited for long enough, when a standby on the holder's node is moved, or that is given up, and when a failed
// candidate is replaced, or no longer of interest.
func wakeForMembers(a *alarm, j *job, t *tenure, m *members) {
	if (m.fleet.outdated() || j.Status.FleetRollout == v1alpha1.FleetRolloutUnderWay) && t.holder.ours {
		a.in(t.unsoaked(j.updated(), j.preparation()))
		a.in(t.untried(j.updated(), j.preparation()))
	}
	if t.wasNotTaken() {
		a.in(notTakenFor - t.age)
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

// wakeForTardy is when a candidate that is not ready has not been for long.
func wakeForTardy(a *alarm, j *job, m *members) {
	for _, c := range m.candidates {
		if c.live() && !c.ready {
			a.in(j.strategy.deadline - c.unready)
		}
	}
}

// longestRest bounds how long a job that waits for a tick is left alone: clocks are set meanwhile.
const (
	longestRest = time.Hour
	blindRetry  = time.Second
	apartRetry  = 10 * time.Second
)

// wakeForRuns is when pods are needed, or no longer, by time alone.
func wakeForRuns(a *alarm, j *job, t *tenure, m *members, r *runs, now time.Time) {
	if r == nil {
		return
	}
	switch {
	case r.blind && r.apart:
		a.in(apartRetry)
	case r.blind:
		a.in(blindRetry)
	case r.wanted != nil && r.stamp == 0: // which is told, and by an answer no longer so
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
