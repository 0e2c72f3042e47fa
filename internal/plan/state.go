package plan

// State names the situation that a job is in.
type State uint8

// The states. In each but Serving and Suspending there is at most one thing to do, and what can be done after it is decided
// anew when it was done.
const (
	// Collecting: there is no such job; its Lease is deleted once no tenure can last.
	Collecting State = iota
	// Deleting: the job waits for its dependents to be deleted first, or for somebody's finalizer.
	Deleting
	// InvalidSpec: the spec breaks a rule. What runs goes on.
	InvalidSpec
	// LeaseConflict: the Lease of the job's name is somebody else's.
	LeaseConflict
	// LeaseMissing: no pod is made before there is a Lease.
	LeaseMissing
	// LeaseUnclaimed: the Lease is kept for an earlier job of the name, or lacks what the spec says of it.
	LeaseUnclaimed
	// HolderDead: there is proof that the holder's process is dead.
	HolderDead
	// Suspending: spec.suspend is set, and pods are left.
	Suspending
	// Suspended: spec.suspend is set, and no pod is left.
	Suspended
	// Serving: candidates are kept, replaced, rolled out.
	Serving
)

func (s State) String() string {
	return [...]string{
		"Collecting", "Deleting", "InvalidSpec", "LeaseConflict", "LeaseMissing", "LeaseUnclaimed", "HolderDead",
		"Suspending", "Suspended", "Serving",
	}[s]
}

// checks are tried in this order; the first that holds names the state.
var checks = []struct {
	state State
	holds func(*facts) bool
}{
	{Collecting, jobIsGone},
	{Deleting, jobIsBeingDeleted},
	{InvalidSpec, specBreaksARule},
	{LeaseConflict, leaseIsForeign},
	{LeaseMissing, leaseIsAbsent},
	{LeaseUnclaimed, leaseIsNotThisJobs},
	{HolderDead, (*facts).dead},
	{Suspending, suspendedPodsAreLeft},
	{Suspended, jobIsSuspended},
}

func (f *facts) state() State {
	for _, c := range checks {
		if c.holds(f) {
			return c.state
		}
	}
	return Serving
}

func jobIsGone(f *facts) bool         { return f.Job == nil }
func jobIsBeingDeleted(f *facts) bool { return f.job.DeletionTimestamp != nil }
func specBreaksARule(f *facts) bool   { return len(f.faults) > 0 }
func leaseIsForeign(f *facts) bool    { return f.Lease.Presence == Foreign }
func leaseIsAbsent(f *facts) bool     { return f.Lease.Presence == Absent }
func leaseIsNotThisJobs(f *facts) bool {
	return f.unclaimed() && (!f.quiet() || f.badTokenBase() != "")
}

func suspendedPodsAreLeft(f *facts) bool { return f.job.Spec.Suspend && len(f.candidates) > 0 }
func jobIsSuspended(f *facts) bool       { return f.job.Spec.Suspend }

// reports tells whether there is a job whose status is written.
func (s State) reports() bool { return s != Collecting }
