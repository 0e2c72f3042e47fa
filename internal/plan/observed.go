package plan

import (
	"cmp"
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
	// Workload is what spec.workloadRef names; nil without one.
	Workload *Workload
	// Volumes are the claims that the pods share, as far as there are such claims and the operator may read them.
	Volumes []Volume
	// Hashed is what the last plan for this job has said, if any.
	Hashed Hashed
	// Children are the other objects that were made for the job.
	Children Children
	// OutOfService are the nodes that an administrator declared to be shut down.
	OutOfService map[string]bool
	// NotReady are the nodes of pods that do not say that they are ready: what was said last of the pods there may be old.
	NotReady map[string]bool
	// Nodes are all that there are, read where pods share one; NodesUnknown: the operator may not read any.
	Nodes        []*corev1.Node
	NodesUnknown bool
	// Settings are the operator's own, for every pod.
	Settings inject.Settings
	// Now is the operator's wall clock. It dates what the operator writes; safety never depends on it.
	Now time.Time
	// Server is the time of the API server's clock, zero where no recent answer has told it. Read for jobs that run to completion.
	Server time.Time
	// Turn: it is this job's turn in a rollout of all jobs. Read for jobs that ask for it (Plan.AsksTurn).
	Turn bool
	// Refused is what the API server would not do when it was asked just now, in the order of asking.
	Refused []Refusal
	// Previous are the objects of a previous job of the name that stand where this one's shall be, until Kubernetes' garbage
	// collector has deleted them: kinds and names, found when they were to be made just now.
	Previous []string
	// OverQuota is for how long a quota has refused a pod, 0 if none does.
	OverQuota time.Duration
	// Remembered is how long a tenure may last of which nothing is left but this process's memory; 0 for none.
	Remembered time.Duration
	// Entrypoint is what is known of the image, for a job that AsksForEntrypoint.
	Entrypoint Lookup
	// EventsUnknown says that this process does not know which changes of holder have their Events.
	EventsUnknown bool
	// Unannounced is the lowest token of a change of holder of which this process has failed to write the Event, or may have; 0
	// for none.
	Unannounced int64
}

// Lookup is the search for what an image runs by itself.
type Lookup struct {
	// Found is nil until it has succeeded.
	Found *v1alpha1.Entrypoint
	// Problem says why it has not, in words that stay the same while the cause does; empty while none is known.
	Problem string
	// Retry is how long until it is tried again; 0 while it is under way, or will not be.
	Retry time.Duration
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

// tellsOf reports whether the runs that a Lease tells of are those of the job with that UID. Whose a run is, it says itself: the claim may
// be lost, and a pod of a previous job may have taken the Lease after it was claimed.
func (l *Lease) tellsOf(uid string) bool {
	now := l.Record.Runs.Now
	return now.IsOf(uid) || now.ID == "" && l.Claim.JobUID == uid
}

// clock is the time: the API server's, or this process's own where that is not known.
func (o *Observed) clock() time.Time { return cmp.Or(o.Server, o.Now) }

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
	// Service and OtherService are as ServicesOf has them.
	Service, OtherService *corev1.Service
}

// Has reports whether there is one of the child's kind.
func (c Children) Has(child Child) bool {
	switch child.(type) {
	case *corev1.ServiceAccount:
		return c.ServiceAccount != nil
	case *rbacv1.Role:
		return c.Role != nil
	case *rbacv1.RoleBinding:
		return c.RoleBinding != nil
	case *policyv1.PodDisruptionBudget:
		return c.Budget != nil
	}
	return true
}
