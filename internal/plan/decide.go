package plan

import (
	"slices"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// Decide is a total function: every observation has a plan.
func Decide(o Observed) Plan {
	if o.Job == nil {
		return collecting(&o)
	}
	j := jobOf(&o)
	j.await(o.Entrypoint)
	t := tenureOf(j, j.leases()[0], &o)
	r := runsOf(j, t, &o)
	m := membersOf(j, t, r, &o)
	asked := switchoverOf(j, t, m)
	m.seekMove(j, t, asked, &o)
	news := changesOf(j, t, r)
	next := Next(m.fleet)
	wanted := requestOf(asked, t, m, next)
	request := handOver(t, m, wanted)

	p := Plan{State: stateOf(j, t, m, r), Relabel: relabel(t, m), Hashed: j.hashed}
	p.Agents = m.agents()
	p.FleetRollout = m.fleetRollout(p.State, j)
	p.AsksTurn = p.FleetRollout == v1alpha1.FleetRolloutWaiting && m.turn.asks
	p.Service = service(p.State, j, t, m, &o.Children)
	p.carryOut(&decided{j, t, m, r, &o, next, wanted, request})
	var later *LeaseWrite
	if p.State == Serving {
		later = request
	}
	if write := runsWrite(t, r); write != nil && p.State.keepsRuns() {
		if later = write; !t.quiet() || t.expired() {
			p.Lease = write
		}
	}
	p.Status, p.Changes = statusOf(p.State, j, t, m, r, news, &o, p.FleetRollout, handover{asked, handing(t, p.Lease)})
	left := expiresIn(j, r, o.Now)
	p.Expired = p.State == Resting && p.Status == nil && left != nil && *left <= 0 && len(p.Adopt) == 0 // adopted pods are deleted with it
	p.Events = eventsOf(j, t, r, news, &o, &p)
	p.Prompt = isPrompt(j, &p)
	forgets := p.forget(j, t, r)
	p.Reasons = reasonsOf(j, t, m, r, &p)
	due := wakeOf(p.State, j, t, m, r, &o, later)
	due.renewal = due.renewal || forgets && t.quiet()
	p.Wake, p.Due, p.Silence, p.Renewal = due.first(t.Unchanged), time.Duration(due.by), time.Duration(due.silence), due.renewal
	return p
}

// isPrompt reports whether the status must be stored in the same pass. Other jobs may wait for a place in a rollout of the fleet. Or what
// the status and its Events report is no longer seen once the Lease is written. A condition that does not last needs no report.
func isPrompt(j *job, p *Plan) bool {
	if p.Status == nil {
		return false
	}
	if p.Status.FleetRollout != j.Status.FleetRollout {
		return true
	}
	return p.Lease != nil && (len(p.Changes) > 0 || slices.ContainsFunc(p.Events, func(e Event) bool { return !alarming[e.Reason] }))
}

// forget removes from the Lease what the status records, and reports whether there is anything to remove, now or after the next renewal.
func (p *Plan) forget(j *job, t *tenure, r *runs) bool {
	stored := &j.Status
	if p.Status != nil {
		stored = p.Status
	}
	write := forget(j, t, r, stored)
	if write == nil || !p.State.keepsRuns() {
		return false
	}
	if p.Lease == nil && !t.quiet() {
		p.Told = write
	}
	return true
}

// decided are the values from which a plan is built, each computed from the ones before it.
type decided struct {
	j       *job
	t       *tenure
	m       *members
	r       *runs
	o       *Observed
	next    Step
	wanted  lease.Handover
	request *LeaseWrite
}

// carryOut sets what is done in the plan's state.
func (p *Plan) carryOut(d *decided) {
	j, t, m, o := d.j, d.t, d.m, d.o
	switch p.State {
	case Collecting, LeaseConflict, Suspended:
		// Nothing is changed.
	case InvalidSpec:
		if j.borrowed {
			p.Apply, p.Also = children(j, t, o.Children, o.Pods)
		}
	case Deleting:
		// Nothing is created any more. The Lease of a dead holder is still released.
		if t.dead() {
			p.Lease = release(t, o.Now)
		}
	case LeaseMissing, LeaseUnclaimed:
		p.claim(d)
	case HolderDead:
		p.Lease = release(t, o.Now)
	case Suspending, Resting, Blocked, EntrypointUnknown, Serving:
		// The running process continues, and the objects that it needs are kept.
		p.Apply, p.Also = children(j, t, o.Children, o.Pods)
		if p.Adopt = adopt(m); len(p.Adopt) == 0 {
			p.change(d)
		}
	}
}

// change sets what is done to pods and requested from the holder, once all pods belong to the job.
func (p *Plan) change(d *decided) {
	j, t, m, o := d.j, d.t, d.m, d.o
	switch p.State {
	case Suspending:
		p.Delete = suspend(m, o.Now)
	case Resting:
		p.Delete = rest(m, d.r)
	case Serving:
		p.Delete = append(m.remains(), victims(m, d.next, d.wanted.To)...)
		p.Create = newPods(j, m, o, m.creatable(d.next.Create))
		p.Move = newMove(j, t, m, o, d.next)
		if !t.quiet() {
			p.Lease = d.request
		}
	default: // existing pods stay
	}
}

// claim makes the Lease this job's.
func (p *Plan) claim(d *decided) {
	p.Delete = dismissed(d.t, d.m)
	switch {
	case len(d.m.strangers) > 0 && !d.claimed(): // their agents would start its runs as those of a previous job
	case p.State == LeaseMissing:
		p.Lease = newLease(d.j, d.o)
	default:
		p.Lease = keepFor(d.t, d.r)
	}
}

// claimed reports whether the Lease records no runs of another job.
func (d *decided) claimed() bool {
	if d.r != nil {
		return d.r.mine
	}
	return d.t.Claim.JobUID == string(d.j.UID)
}

// keepsRuns reports whether the record of runs in the Lease is kept up to date.
func (s State) keepsRuns() bool {
	return s == Serving || s == Resting || s == Suspending || s == Suspended || s == Blocked || s == EntrypointUnknown
}

// stateOf tries the states in order and returns the first one that applies.
func stateOf(j *job, t *tenure, m *members, r *runs) State {
	switch {
	case j.DeletionTimestamp != nil:
		return Deleting
	case len(j.faults) > 0 && !j.borrowed:
		return InvalidSpec
	case t.Presence == Foreign:
		return LeaseConflict
	case t.Presence == Absent:
		return LeaseMissing
	case t.unclaimed() && (!t.quiet() || t.badTokenBase != ""):
		return LeaseUnclaimed
	case t.dead():
		return HolderDead
	case r != nil && !r.ours && r.Bad == "":
		return LeaseUnclaimed
	}
	return stateToBe(j, t, m, r)
}

// stateToBe returns the state of a job whose Lease is in order.
func stateToBe(j *job, t *tenure, m *members, r *runs) State {
	suspended := j.Spec.Suspend && !r.outlasts()
	switch {
	case r.final():
		return Resting
	case suspended && (len(m.candidates) > 0 || t.lasts()):
		return Suspending
	case suspended:
		return Suspended
	case len(j.faults) > 0:
		return InvalidSpec
	case j.awaits:
		return EntrypointUnknown
	case j.blocked.reason != "":
		return Blocked
	case !r.needed():
		return Resting
	}
	return Serving
}

// collecting returns the plan for a job that does not exist: its Lease is deleted once no tenure can last.
func collecting(o *Observed) Plan {
	p := Plan{State: Collecting, Lease: collect(o), Reasons: roles()}
	if p.Lease != nil {
		p.Reasons.add("Lease", o.Name, "the job no longer exists, and no tenure can last")
	}
	var a alarm
	if o.Lease.Presence == Ours && len(o.Pods) == 0 {
		a.in(Left(o.Lease.Record, o.Lease.Unchanged))
	}
	a.in(o.Remembered)
	p.Wake, p.Due = time.Duration(a), time.Duration(a)
	return p
}

// handing reports whether the holder is asked to hand over, already or by this write.
func handing(t *tenure, w *LeaseWrite) bool {
	asked := t.Record.Handover
	if w != nil && w.Verb == Update {
		asked = w.Record.Handover
	}
	return asked.To != "" && t.holder.named
}

// putOff reports whether a write to the Lease waits for the next renewal. later is a write that does not follow from the state alone.
func putOff(state State, t *tenure, later *LeaseWrite) bool {
	if t.Presence != Ours || t.holder.Pod == "" || !t.quiet() || !t.acts() {
		return false
	}
	switch state {
	case LeaseUnclaimed:
		return true
	case Suspending, Suspended, Blocked, EntrypointUnknown, Resting, Serving:
		return t.unclaimed() || later != nil
	default:
		return false
	}
}
