package plan

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

// Observed is everything that a decision depends on.
type Observed struct {
	Namespace, Name string
	// Job is nil when there is none of that name.
	Job *v1alpha1.SingletonJob
	// Pods are all that carry the job's name label, no matter who made them.
	Pods []*corev1.Pod
	// Lease is the Lease of the job's name.
	Lease Lease
	// Children are the other objects that were made for the job.
	Children Children
	// OutOfService are the nodes that an administrator declared to be shut down.
	OutOfService map[string]bool
	// Settings are the operator's own, for every pod.
	Settings inject.Settings
	// Now is the operator's wall clock. It dates what the operator writes; safety never depends on it.
	Now time.Time
	// Refused is what the API server would not do when it was asked just now, in the order of asking.
	Refused []Refusal
	// Remembered is how long a tenure may last of which nothing is left but this process's memory; 0 for none.
	Remembered time.Duration
	// EventsUnknown says that this process does not know which Events of the stored history were emitted.
	EventsUnknown bool
}

// Refusal is an answer of the API server that asking again does not change soon.
type Refusal struct {
	// Text says what was asked for and what was answered.
	Text string
	// Pods: there are no new pods without it.
	Pods bool
}

// Presence says whose Lease there is.
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
	// SinceRenewal is how long this process has seen no renewal, whatever else was written. Renewed: it has seen the present
	// holder acquire or renew; if not, the last renewal may be older.
	SinceRenewal time.Duration
	Renewed      bool
	// Last is the newest that this process saw of a Lease that is now absent; nil if it saw none.
	Last *Lease
}

// ClaimAnnotation on the Lease holds its Claim. It is between operators only; agents leave it as it is.
const ClaimAnnotation = "singletonjob.io/claim"

// Claim says for which job a Lease is kept, since it outlives its job.
type Claim struct {
	// JobUID is the job's.
	JobUID string
	// Before is the token of the last tenure before the job's first: that and lower ones are not in its history.
	Before int64
}

func (c Claim) String() string { return c.JobUID + "," + strconv.FormatInt(c.Before, 10) }

// ParseClaim reads String's result; what can't be read claims nothing.
func ParseClaim(s string) Claim {
	uid, number, _ := strings.Cut(s, ",")
	before, err := strconv.ParseInt(number, 10, 64)
	if err != nil || uid == "" || before < 0 {
		return Claim{}
	}
	return Claim{JobUID: uid, Before: before}
}

// Children are the objects that stand beside the pods; nil for one that is missing.
type Children struct {
	ServiceAccount *corev1.ServiceAccount
	Role           *rbacv1.Role
	RoleBinding    *rbacv1.RoleBinding
	Budget         *policyv1.PodDisruptionBudget
}
