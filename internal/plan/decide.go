package plan

import "time"

// Decide is total: every observation has a plan.
func Decide(o Observed) Plan {
	if o.Job == nil {
		return collecting(&o)
	}
	j := jobOf(o.Job)
	t := tenureOf(j, j.leases()[0], &o)
	m := membersOf(j, t, o.Pods, o.Now)
	news := changesOf(j, t)
	next := Next(m.fleet)
	request := handOver(t, m, successor(t, m, next))

	p := Plan{State: stateOf(j, t, m), Relabel: relabel(t, m)}
	switch p.State {
	case Collecting, InvalidSpec, LeaseConflict, Suspended:
		// Nothing is touched.
	case Deleting:
		// Nothing is made any more. What lives is seen to until it is gone.
		if t.dead() {
			p.Lease = release(t, o.Now)
		}
	case LeaseMissing:
		p.Lease = newLease(j, &o)
	case LeaseUnclaimed:
		p.Lease = keepFor(t)
	case HolderDead:
		p.Lease = release(t, o.Now)
	case Suspending:
		p.Apply, p.Also = children(j, t, o.Children, o.Pods)
		p.Delete = suspend(m, o.Now)
	case Serving:
		p.Apply, p.Also = children(j, t, o.Children, o.Pods)
		p.Adopt = adopt(m)
		p.Delete = append(m.remains(), victims(m, next)...)
		p.Create = newPods(j, m, &o, m.creatable(next.Create))
		if !t.quiet() {
			p.Lease = request
		}
	}
	p.Status, p.Changes = statusOf(p.State, j, t, m, news, &o, handing(t, p.Lease))
	p.Events = eventsOf(j, t, news, &o, &p)
	p.Reasons = reasonsOf(j, t, m, &p)
	p.Wake = wakeOf(p.State, t, m, o.Now, putOff(p.State, t, request))
	return p
}

// stateOf tries the states in their order; the first that holds names the job's.
func stateOf(j *job, t *tenure, m *members) State {
	switch {
	case j.DeletionTimestamp != nil:
		return Deleting
	case len(j.faults) > 0:
		return InvalidSpec
	case t.Presence == Foreign:
		return LeaseConflict
	case t.Presence == Absent:
		return LeaseMissing
	case t.unclaimed() && (!t.quiet() || t.badTokenBase != ""):
		return LeaseUnclaimed
	case t.dead():
		return HolderDead
	case j.Spec.Suspend && len(m.candidates) > 0:
		return Suspending
	case j.Spec.Suspend:
		return Suspended
	}
	return Serving
}

// collecting is the plan where there is no job: its Lease goes once no tenure can last.
func collecting(o *Observed) Plan {
	p := Plan{State: Collecting, Lease: collect(o), Reasons: roles()}
	if p.Lease != nil {
		p.Reasons.add("Lease", o.Name, "the job is gone, and no tenure can last")
	}
	var a alarm
	if o.Lease.Presence == Ours && len(o.Pods) == 0 {
		a.in(Left(o.Lease.Record, o.Lease.Unchanged))
	}
	a.in(o.Remembered)
	p.Wake = time.Duration(a)
	return p
}

// handing reports whether the holder is asked to hand over, already or by this write.
func handing(t *tenure, w *LeaseWrite) bool {
	asked := t.Record.Handover
	if w != nil && w.Op == UpdateLease {
		asked = w.Record.Handover
	}
	return asked.To != "" && t.holder.named
}

// putOff reports whether a write to the Lease waits for the next renewal.
func putOff(state State, t *tenure, request *LeaseWrite) bool {
	if t.Presence != Ours || t.holder.Pod == "" || !t.quiet() || !t.acts() {
		return false
	}
	switch state {
	case Suspending, Suspended:
		return t.unclaimed()
	case Serving:
		return t.unclaimed() || request != nil
	default:
		return false
	}
}
