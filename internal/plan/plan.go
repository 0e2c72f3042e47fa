// Package plan decides what the operator does: a pure function from what was observed to what must happen.
//
// It has no client, no clock and no operating system, so every decision can be tested as a table row. [Decide] computes a few values, each
// once and from the ones before it. These are the job (its spec with defaults), the tenure (what its Lease records, and how far that is
// believed), and the members (its pods). It selects the state from a closed list ([State]), and one switch turns the state into a [Plan].
//
// A tenure and the pods around it are a group: one pod acts and the others are its standbys. A job has one group today. It may have several
// one day, each with its own Lease. So a function of this package takes the name of the Lease from its tenure, and only job.leases says how
// many there are.
//
// An operator that is wrong, stale, doubled or dead can cost availability, but never exclusivity. Two rules ensure that. Every write to the
// Lease names the exact object that was decided on, by UID and resourceVersion. And only proof of death (death.go) or time (lease.go) frees
// a Lease that has a holder.
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

// Plan is what must be done, in the order of its fields.
type Plan struct {
	State State
	// Lease is the write to the Lease.
	Lease *LeaseWrite
	// Service is the write to the job's Service.
	Service *ServiceWrite
	// Relabel are roles to change. The pod that loses "active" comes before the pod that gets it.
	Relabel []Relabel
	// Apply are complete objects that are missing or differ, and without which no pod can exist.
	Apply []Child
	// Adopt are pods without a controller that belong to the job.
	Adopt  []PodRef
	Delete []PodRef
	Create []*corev1.Pod
	// Also are other objects that are missing or differ. Nothing waits for them.
	Also []Child
	// Move is a pod to create because a standby shares the holder's node. Nothing waits for it, and if it fails, nothing else fails.
	Move *Move
	// Status is the status to write if it differs from the stored one; nil for no write.
	Status *v1alpha1.SingletonJobStatus
	// Prompt: Status must not wait for further changes, because it, or an Event with it, tells what the next plan may not see any more.
	Prompt bool
	// Changes are the changes of holder that Status records for the first time.
	Changes []v1alpha1.TenureChange
	// Events are to be emitted once Status is stored.
	Events []Event
	// Told is the write that removes from the Lease what the status records, once Status is stored. It is nil if there is no such write,
	// and always if Lease is set.
	Told *LeaseWrite
	// Expired: the job must be deleted, because it is finished and its TTL has passed.
	Expired bool
	// FleetRollout is the value for the status. AsksTurn: the job waits and could begin now; with Turn set, the plan would be different.
	FleetRollout v1alpha1.FleetRollout
	AsksTurn     bool
	// Agents counts the candidates by the image of their agents. UnknownAgent stands for those that record no image.
	Agents map[string]int
	// Hashed is the value to observe the next time.
	Hashed Hashed
	// Reasons say why, for the log.
	Reasons Reasons
	// Wake is when to decide again if there is no event before, not even a renewal; 0 for never. It is the earlier of two times. Due comes
	// even if the Lease is renewed. The other comes when the Lease has been unchanged for Silence; a renewal postpones it.
	Wake, Due, Silence time.Duration
	// Renewal: also decide again at the next renewal.
	Renewal bool
}

// State names the situation of a job.
type State uint8

// The states. In every state but Serving and Suspending there is at most one thing to do. The next step is decided when it is done.
const (
	// Collecting: there is no such job; its Lease is deleted once no tenure can last.
	Collecting State = iota
	// Deleting: the job waits until its dependents are deleted, or for another component's finalizer.
	Deleting
	// InvalidSpec: the spec breaks a rule. The running process continues.
	InvalidSpec
	// LeaseConflict: the Lease with the job's name does not belong to the operator.
	LeaseConflict
	// LeaseMissing: no pod is created before the Lease exists.
	LeaseMissing
	// LeaseUnclaimed: the Lease is kept for a previous job with this name, or lacks something that the spec says. The Lease says when runs
	// are due before the first pod exists that could start one.
	LeaseUnclaimed
	// HolderDead: there is proof that the holder's process is dead.
	HolderDead
	// Suspending: spec.suspend is set, and pods are left, or a process may still act.
	Suspending
	// Suspended: spec.suspend is set, no pod is left, and no process can act.
	Suspended
	// Blocked: the workload that provides the template is missing, belongs to another job, or runs by itself.
	Blocked
	// EntrypointUnknown: no pod can be created before the entrypoint of the image is known. The running process continues.
	EntrypointUnknown
	// Resting: no run is open, requested or due soon, so no candidate is needed.
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

// Verb is what a request does to an object.
type Verb uint8

// The values of Verb.
const (
	Create Verb = iota
	Update
	Delete
)

// LeaseWrite is a conditional write to the Lease: it requires that there is none, or that it still has Record's UID and Revision.
type LeaseWrite struct {
	Verb   Verb
	Record lease.Record
	Claim  Claim
	// Event, if not nil, describes the effect of the write. It is emitted only after the write is stored: an operator that decided on a
	// stale Lease would otherwise report something that never happened.
	Event *Event
}

// PodRef identifies one pod, and no later pod with the same name.
type PodRef struct {
	Name string
	UID  types.UID
}

// Relabel gives a pod its role.
type Relabel struct {
	PodRef
	Role string
}

// Move is one additional pod, for another node. The attempt is recorded first, so that it is not repeated soon.
type Move struct {
	// Beside is the standby to remove, and Note is the value of its MoveAnnotation.
	Beside PodRef
	Note   string
	Pod    *corev1.Pod
}

// Child is an object that the operator creates for a job.
type Child interface {
	metav1.Object
	runtime.Object
}

// Event is a Kubernetes Event about the job. Its name follows from its contents, so that it is emitted once, no matter how often it is
// tried.
type Event struct {
	Name    string
	Type    string
	Reason  string
	Message string
}

// Reasons say why each write of a plan is done, for the log: by kind and name of the object.
type Reasons map[string]string

// Of returns why an object is written.
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
