// Package plan decides what the operator does: a pure function from what was observed to what shall happen.
//
// It has no client, no clock and no operating system, so every decision is a table row. [Decide] computes a few values, each
// once and from the ones before it: the job (its spec with defaults), the tenure (what its Lease says, and how far that is
// believed), and the members (its pods). It names the state from a closed list ([State]), and one switch turns the state
// into a [Plan].
//
// A tenure and the pods around it are a group: those of which one acts and the others stand by for it. A job has one group
// today, and may have several side by side one day, each with a Lease of its own. So a function of this package asks its
// tenure which Lease is meant; job.leases alone says how many there are.
//
// An operator that is wrong, stale, doubled or dead may cost availability, never exclusivity. Two rules carry that: every
// write to the Lease names the exact object that was decided on, by UID and resourceVersion, and nothing but proof of death
// (death.go) or time (lease.go) ever frees a Lease that has a holder.
package plan

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// Plan is what shall be done, in the order of its fields.
type Plan struct {
	State State
	// Lease is the write to the Lease.
	Lease *LeaseWrite
	// Service is the write to the job's Service.
	Service *ServiceWrite
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
	// Move is a pod to make for the sake of one that shares the holder's node; nothing waits for it, and nothing fails with it.
	Move *Move
	// Status is what to write if it differs from what is stored; nil for no write.
	Status *v1alpha1.SingletonJobStatus
	// Changes are the changes of holder that Status records for the first time.
	Changes []v1alpha1.TenureChange
	// Events are to be emitted once Status is stored.
	Events []Event
	// Told is the write by which the Lease forgets what is told, once Status is stored; nil for none, and beside Lease always.
	Told *LeaseWrite
	// Expired: the job is to be deleted, since it is finished and was kept for as long as it asks for.
	Expired bool
	// FleetRollout is what the status says, and AsksTurn that the job waits and could begin now: with Turn the plan is another.
	FleetRollout v1alpha1.FleetRollout
	AsksTurn     bool
	// Agents are the candidates by the image that their agents are of, UnknownAgent for those that do not say it.
	Agents map[string]int
	// Hashed is to be observed the next time.
	Hashed Hashed
	// Reasons say why, for the log.
	Reasons Reasons
	// Wake is when to decide again if nothing is heard before, no renewal either; 0 for never. It is the sooner of two: Due, which
	// comes though the Lease is renewed, and when the Lease has been unchanged for as long as Silence, which a renewal puts off.
	Wake, Due, Silence time.Duration
	// Renewal: decide again at the next renewal, too.
	Renewal bool
}

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
	// LeaseUnclaimed: the Lease is kept for a previous job of the name, or lacks what the spec says of it. What says when runs are due
	// stands there before the first pod that could start one.
	LeaseUnclaimed
	// HolderDead: there is proof that the holder's process is dead.
	HolderDead
	// Suspending: spec.suspend is set, and pods are left, or somebody may act.
	Suspending
	// Suspended: spec.suspend is set, no pod is left, and nobody can act.
	Suspended
	// Blocked: the workload that the job has its template from is missing, another job's, or runs by itself.
	Blocked
	// EntrypointUnknown: no pod can be made before it is known what the image runs. What runs goes on.
	EntrypointUnknown
	// Resting: no run is open, asked for or due soon, so that no candidate is needed.
	Resting
	// Serving: candidates are kept, replaced, rolled out.
	Serving
)

func (s State) String() string {
	return [...]string{
		"Collecting", "Deleting", "InvalidSpec", "LeaseConflict", "LeaseMissing", "LeaseUnclaimed", "HolderDead",
		"Suspending", "Suspended", "Blocked", "EntrypointUnknown", "Resting", "Serving",
	}[s]
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
	// Event, unless nil, tells what the write does: to be emitted once that is stored, and not before. Who decided on an old Lease
	// would tell what never was.
	Event *Event
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

// Move is one pod more, for another node. That it is tried is noted first, so that it is not tried again soon.
type Move struct {
	// Beside is the standby that is to go, and Note what is written to its MoveAnnotation.
	Beside PodRef
	Note   string
	Pod    *corev1.Pod
}

// Child is an object that the operator makes for a job.
type Child interface {
	metav1.Object
	runtime.Object
}

// Event is a Kubernetes Event about the job. Its name follows from what it says, so that it is emitted once, however
// often it is tried.
type Event struct {
	Name    string
	Type    string
	Reason  string
	Message string
}

// Reasons say why each write of a plan is made, for the log: by kind and name of the object.
type Reasons map[string]string

// Of is why an object is written.
func (r Reasons) Of(kind, name string) string {
	return cmp.Or(r[kind+"/"+name], r[kind])
}

func (r Reasons) add(kind, name, why string) {
	key := strings.TrimSuffix(kind+"/"+name, "/")
	if before := r[key]; before != "" {
		why = before + "; " + why
	}
	r[key] = why
}
