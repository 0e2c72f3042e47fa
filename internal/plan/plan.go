// Package plan decides what the operator does: a pure function from what was observed to what shall happen.
//
// It has no client, no clock and no operating system, so every decision is a table row. [Decide] names the situation
// from a closed list ([State]), by an ordered list of checks that reads as the specification, and one switch turns the
// situation into a [Plan].
//
// An operator that is wrong, stale, doubled or dead may cost availability, never exclusivity. Two rules carry that: every
// write to the Lease names the exact object that was judged, by UID and resourceVersion, and nothing but proof of death
// (death.go) or time (lease.go) ever frees a Lease that has a holder.
package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

// Observed is everything that a decision depends on.
type Observed struct {
	Namespace, Name string
	// Job is nil when there is none of that name.
	Job *v1alpha1.SingletonJob
	// Pods are all that carry the job's name label, whoever made them.
	Pods []*corev1.Pod
	// Lease is the Lease of the job's name.
	Lease Lease
	// Children are the other objects that were made for the job.
	Children Children
	// OutOfService tells the nodes that an administrator declared to be shut down.
	OutOfService map[string]bool
	// Settings are the operator's own, for every pod.
	Settings inject.Settings
	// Now is the operator's wall clock. It dates what the operator writes; safety never depends on it.
	Now time.Time
	// Refused is what the API server would not do when it was asked just now, in the order of asking.
	Refused []Refusal
	// Remembered is how long a tenure may last of which nothing is left but this process's memory; 0 for none.
	Remembered time.Duration
	// Untold says that this process does not know which Events of the stored history were written.
	Untold bool
}

// Refusal is an answer of the API server that asking again does not change soon.
type Refusal struct {
	// Text says what was asked for and what was answered.
	Text string
	// Pods: there are no new pods without it.
	Pods bool
}

// Presence tells whose Lease there is.
type Presence uint8

// What can stand under a Lease's name.
const (
	Absent Presence = iota
	// Foreign: it lacks the operator's label.
	Foreign
	Ours
)

// Lease is what is known of the Lease.
type Lease struct {
	Presence Presence
	Record   lease.Record
	// Claim says for which job the Lease is kept.
	Claim Claim
	// Unchanged is how long this process has seen the present UID and revision, on a clock that only goes forward. The
	// Lease may have been unchanged for longer, never for less.
	Unchanged time.Duration
	// Silent is how long this process has seen no renewal, whatever else was written. Renewed: it has seen the present holder
	// acquire or renew; if not, the holder may be silent for longer.
	Silent  time.Duration
	Renewed bool
	// Last is the newest that this process saw of a Lease that is now absent; nil if it saw none.
	Last *Lease
}

// Child is an object that the operator makes for a job.
type Child interface {
	metav1.Object
	runtime.Object
}

// Plan is what shall be done, in the order of its fields.
type Plan struct {
	State State
	// Lease is the write to the Lease.
	Lease *LeaseWrite
	// Relabel are roles to change; who loses "active" comes before who gets it.
	Relabel []Relabel
	// Apply are objects that are missing or differ, complete, and that no pod can be without.
	Apply []Child
	// Adopt are pods without a controller that belong to the job.
	Adopt  []PodRef
	Delete []PodRef
	Create []*corev1.Pod
	// Also are other objects that are missing or differ; nothing waits for them.
	Also []Child
	// Status is what to write if it differs from what is stored; nil for no write.
	Status *v1alpha1.SingletonJobStatus
	// Changes are the changes of holder that Status tells of for the first time.
	Changes []v1alpha1.TenureChange
	// Events are to be written once Status is stored.
	Events []Event
	// Reasons say why, for the log.
	Reasons Reasons
	// Wake is when to decide again if nothing is heard before; 0 for never.
	Wake time.Duration
}

// LeaseOp is what to do to the Lease.
type LeaseOp uint8

// The writes to a Lease. Each is conditional: on there being none, or on Record's UID and Revision.
const (
	CreateLease LeaseOp = iota
	UpdateLease
	DeleteLease
)

// LeaseWrite is a conditional write to the Lease.
type LeaseWrite struct {
	Op     LeaseOp
	Record lease.Record
	Claim  Claim
}

// PodRef names one pod, not a later one of that name.
type PodRef struct {
	Name string
	UID  types.UID
}

// Relabel gives a pod its role.
type Relabel struct {
	PodRef
	Role string
}

// Decide is total: every observation has a plan.
func Decide(o Observed) Plan {
	f := gather(o)
	state := f.state()
	p := Plan{State: state}
	switch state {
	case Collecting:
		p.Lease = f.collect()
	case InvalidSpec, LeaseConflict, Suspended:
		// Nothing is touched.
	case Deleting:
		// Nothing is made any more. What lives is seen to until it is gone.
		if f.Lease.Presence == Ours && f.dead() {
			p.Lease = f.release()
		}
	case LeaseMissing:
		p.Lease = f.newLease()
	case LeaseUnclaimed:
		p.Lease = f.keepFor()
	case HolderDead:
		p.Lease = f.release()
	case Suspending:
		p.Apply, p.Also = f.children()
		p.Delete = f.suspend()
	case Serving:
		f.serve(&p)
	}
	if state.reports() {
		p.Relabel = f.relabel()
		p.Status, p.Changes = f.status(p)
		p.Events = f.events(p.Status, p.Changes)
	}
	p.Reasons = f.reasons(p)
	p.Wake = f.wake(p)
	return p
}
