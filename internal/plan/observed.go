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
	// Job is nil if there is no job with that name.
	Job *v1alpha1.SingletonJob
	// Pods are all pods that have the job's name label, no matter what created them.
	Pods []*corev1.Pod
	// Lease is the Lease of the job's name.
	Lease Lease
	// Trials are what this process has seen of the Lease's last tenures, oldest first (Trials.See).
	Trials []Trial
	// Workload is the workload in spec.workloadRef; nil if that is not set.
	Workload *Workload
	// Volumes are the claims that the pods share, if the operator can read them.
	Volumes []Volume
	// Hashed is the value from the last plan for this job, if any.
	Hashed Hashed
	// Children are the other objects that were created for the job.
	Children Children
	// OutOfService are the nodes that an administrator declared to be out of service.
	OutOfService map[string]bool
	// NotReady are those nodes of the pods that do not report ready: the last reported status of the pods on them may be stale.
	NotReady map[string]bool
	// Nodes are all nodes. They are read only if pods share one. NodesUnknown: the operator has no permission to read nodes.
	Nodes        []*corev1.Node
	NodesUnknown bool
	// Settings are the operator's settings, for every pod.
	Settings inject.Settings
	// Now is the operator's wall clock. It dates what the operator writes; safety never depends on it.
	Now time.Time
	// Server is the time of the API server's clock, zero if no recent response contained it. It is read for jobs that run to completion.
	Server time.Time
	// Turn: it is this job's turn in a fleet-wide rollout. It is read for jobs that ask for it (Plan.AsksTurn).
	Turn bool
	// Refused is what the API server just rejected, in the order of the requests.
	Refused []Refusal
	// Previous has the kinds and names of objects of a previous job with this name. They occupy the names of this job's objects until the
	// Kubernetes garbage collector deletes them. The last attempt to create this job's objects found them.
	Previous []string
	// OverQuota is how long a quota has rejected a pod, 0 if none does.
	OverQuota time.Duration
	// Remembered is how long a tenure may last that only this process's memory still knows of; 0 if there is none.
	Remembered time.Duration
	// Entrypoint is the result of the lookup, for a job that AsksForEntrypoint.
	Entrypoint Lookup
	// EventsUnknown: this process does not know which changes of holder have Events.
	EventsUnknown bool
	// Unannounced is the lowest token of a change of holder whose Event this process failed to write, or may have failed to write; 0 if
	// there is none.
	Unannounced int64
}

// Lookup is the lookup of an image's entrypoint.
type Lookup struct {
	// Found is nil until the lookup succeeds.
	Found *v1alpha1.Entrypoint
	// Reason is the reason of the conditions; EntrypointUnknown if it is empty.
	Reason string
	// Problem says why the lookup has not succeeded. The text stays the same as long as the cause does. It is empty if there is no known
	// problem.
	Problem string
	// Retry is how long until the next attempt; 0 while one is in progress, or if there will be none.
	Retry time.Duration
}

// Refusal is a rejection by the API server that a retry does not change soon.
type Refusal struct {
	Verb Verb
	// Text describes the request and the answer.
	Text string
	// Pods: without this object there are no new pods.
	Pods bool
}

// Presence says whether the Lease exists and whose it is.
type Presence uint8

// The values of Presence.
const (
	Absent Presence = iota
	// Foreign: the Lease lacks the operator's label.
	Foreign
	Ours
)

// Lease is what is known of the Lease.
type Lease struct {
	Presence Presence
	Record   lease.Record
	// Claim says for which job the Lease is kept.
	Claim Claim
	// Unchanged is how long this process has seen the current UID and revision, on a monotonic clock. The Lease may have been unchanged for
	// longer, but never for less.
	Unchanged time.Duration
	// SinceRenewal is how long this process has seen no renewal, whatever else was written. Renewed: this process has seen the current
	// holder acquire or renew. If not, the last renewal may be older.
	SinceRenewal time.Duration
	Renewed      bool
	// Last is the newest state that this process saw of a Lease that is now absent; nil if it saw none.
	Last *Lease
}

// tellsOf reports whether the runs that a Lease records are those of the job with that UID. Each run names its job. The claim alone is not
// enough: it can be lost, and a pod of a previous job can take the Lease after it was claimed.
func (l *Lease) tellsOf(uid string) bool {
	now := l.Record.Runs.Now
	return now.IsOf(uid) || now.ID == "" && l.Claim.JobUID == uid
}

// clock returns the API server's time, or this process's own time if that is unknown.
func (o *Observed) clock() time.Time { return cmp.Or(o.Server, o.Now) }

// ClaimAnnotation on the Lease holds its Claim. Only operators use it; agents leave it unchanged.
const ClaimAnnotation = "singletonjob.io/claim"

// Claim says for which job a Lease is kept, because the Lease outlives its job.
type Claim struct {
	// JobUID is the UID of the job.
	JobUID string
	// Before is the token of the last tenure before the job's first one. The job's history contains only higher tokens.
	Before int64
}

func (c Claim) String() string { return c.JobUID + "," + strconv.FormatInt(c.Before, 10) }

// ParseClaim parses the result of String. Invalid text yields an empty Claim.
func ParseClaim(s string) Claim {
	uid, number, _ := strings.Cut(s, ",")
	before, err := strconv.ParseInt(number, 10, 64)
	if err != nil || uid == "" || before < 0 {
		return Claim{}
	}
	return Claim{JobUID: uid, Before: before}
}

// Children are the objects of a job other than its pods; nil for a missing one.
type Children struct {
	ServiceAccount *corev1.ServiceAccount
	Role           *rbacv1.Role
	RoleBinding    *rbacv1.RoleBinding
	Budget         *policyv1.PodDisruptionBudget
	// Service and OtherService are the results of ServicesOf.
	Service, OtherService *corev1.Service
}

// Has reports whether an object of the child's kind exists.
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
