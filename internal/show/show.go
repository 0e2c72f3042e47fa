// Package show turns what is known of a job into the output of kubectl singleton: facts into a view of plain values, and the view
// into text. It sends no requests and reads no clock.
package show

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// Facts hold what is known of a job at one moment.
type Facts struct {
	Job *v1alpha1.SingletonJob
	// Lease is the job's Lease. It is nil if there is none, if it is not a SingletonJob's, or if the user may not read it; NoLease
	// then gives the reason.
	Lease   *lease.Record
	NoLease string
	// Renewed is the time of the Lease's last renewal: by the holder's clock, or the time at which this program saw it.
	Renewed time.Time
	Pods    []corev1.Pod
	// Zones are the zones of the candidates' nodes, by node, as far as they are known.
	Zones map[string]string
	Now   time.Time
	// Evidence is set for explanations only.
	Evidence
}

// Job is the view of a job, and the output of -o json and yaml. New fields may be added.
type Job struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Active is the current tenure, or nil.
	Active *Tenure `json:"active,omitempty"`
	// Token is the token of the current or last tenure, and 0 before the first tenure.
	Token      int64       `json:"token"`
	Conditions []Condition `json:"conditions,omitempty"`
	Lease      Lease       `json:"lease"`
	Rollout    Rollout     `json:"rollout"`
	// Runs are the runs of a job that runs to completion; nil for a continuous job.
	Runs       *Runs                   `json:"runs,omitempty"`
	Candidates []Candidate             `json:"candidates,omitempty"`
	Failovers  int64                   `json:"failovers"`
	Handovers  int64                   `json:"handovers"`
	Changes    []v1alpha1.TenureChange `json:"changes,omitempty"`
}

// Tenure is the active Pod and its tenure.
type Tenure struct {
	Pod   string     `json:"pod"`
	Node  string     `json:"node,omitempty"`
	Token int64      `json:"token"`
	Since *time.Time `json:"since,omitempty"`
}

// Condition is one of the job's conditions.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// Lease is the job's lock. Left is negative if the lease has run out.
type Lease struct {
	Holder   string     `json:"holder,omitempty"`
	Settings string     `json:"settings,omitempty"`
	Renewed  *time.Time `json:"renewed,omitempty"`
	Left     *Duration  `json:"left,omitempty"`
	// Unknown is the reason why nothing is known of the Lease.
	Unknown string `json:"unknown,omitempty"`
}

// Rollout counts the candidates.
type Rollout struct {
	Desired int32 `json:"desired"`
	Total   int32 `json:"total"`
	Ready   int32 `json:"ready"`
	Updated int32 `json:"updated"`
	// Observed: the operator has seen the last change of the spec.
	Observed bool `json:"observed"`
}

// Candidate is a Pod of the job.
type Candidate struct {
	Pod  string `json:"pod"`
	Node string `json:"node,omitempty"`
	// Zone is the node's topology.kubernetes.io/zone; empty if it has none, or if the user may not read Nodes.
	Zone string `json:"zone,omitempty"`
	// Role is "active" or "standby".
	Role  string `json:"role"`
	Ready bool   `json:"ready"`
	// State is one or two words: ready, CrashLoopBackOff, Pending, Terminating.
	State   string `json:"state"`
	Version string `json:"version,omitempty"`
	// Restarts of the gated container.
	Restarts int32     `json:"restarts"`
	Created  time.Time `json:"created"`
}

// Duration is a duration in Go's notation.
type Duration time.Duration

// MarshalText makes it readable in JSON and YAML.
func (d Duration) MarshalText() ([]byte, error) {
	return []byte(time.Duration(d).Round(time.Millisecond).String()), nil
}

// desired is the number of candidates that there should be now: none while the job is idle.
func desired(job *v1alpha1.SingletonJob) int32 {
	if job.Status.Candidates.Total == 0 && condition(job, v1alpha1.ConditionProtected).Reason == v1alpha1.ReasonResting {
		return 0
	}
	return job.Spec.Candidates
}

// View computes the view of a job.
func View(f Facts) Job {
	job := f.Job
	v := Job{
		Namespace: job.Namespace, Name: job.Name, Token: job.Status.FencingToken,
		Lease: viewLease(f), Candidates: candidates(f),
		Failovers: job.Status.Failovers, Handovers: job.Status.Handovers, Changes: job.Status.History,
		Rollout: Rollout{
			Desired: desired(job), Total: job.Status.Candidates.Total, Ready: job.Status.Candidates.Ready,
			Updated: job.Status.Candidates.Updated, Observed: job.Status.ObservedGeneration >= job.Generation,
		},
	}
	for _, c := range job.Status.Conditions {
		v.Conditions = append(v.Conditions, Condition{c.Type, string(c.Status), c.Reason, c.Message})
	}
	if f.Lease != nil {
		v.Token = max(v.Token, f.Lease.Token)
	}
	v.Active, v.Runs = active(f, v.Candidates), viewRuns(f)
	return v
}

// active is the tenure that the operator reports. The Lease can already show a later tenure, but a holder is not active until its
// process runs, and only the operator knows that.
func active(f Facts, all []Candidate) *Tenure {
	s := &f.Job.Status
	if s.ActivePod == "" {
		return nil
	}
	t := &Tenure{Pod: s.ActivePod, Node: s.ActiveNode, Token: s.FencingToken}
	if s.ActiveSince != nil {
		t.Since = new(s.ActiveSince.UTC())
	}
	if holder := Holder(f); holder != "" && holder != t.Pod { // it has just taken over
		t = &Tenure{Pod: holder, Token: f.Lease.Token, Since: new(time.UnixMicro(f.Lease.AcquireTime).UTC())}
		if i := slices.IndexFunc(all, func(c Candidate) bool { return c.Pod == holder }); i >= 0 {
			t.Node = all[i].Node
		}
	}
	return t
}

// Holder is the Pod that the Lease names as holder, or empty.
func Holder(f Facts) string {
	if f.Lease == nil {
		return ""
	}
	id, _ := lease.ParseIdentity(f.Lease.Holder)
	return id.Pod
}

func viewLease(f Facts) Lease {
	v := Lease{Settings: f.Job.Status.LeaseSummary, Unknown: f.NoLease}
	if f.Lease == nil {
		return v
	}
	v.Holder = cmp.Or(Holder(f), f.Lease.Holder)
	if v.Holder != "" && !f.Renewed.IsZero() {
		v.Renewed = new(f.Renewed.UTC())
		v.Left = new(Duration(f.Renewed.Add(f.Lease.Duration).Sub(f.Now)))
	}
	return v
}

func candidates(f Facts) []Candidate {
	var all []Candidate
	for i := range f.Pods {
		pod := &f.Pods[i]
		if owner := metav1.GetControllerOf(pod); owner != nil && owner.UID != f.Job.UID {
			continue
		}
		all = append(all, candidate(f, pod))
	}
	slices.SortFunc(all, func(a, b Candidate) int {
		if (a.Role == contract.RoleActive) != (b.Role == contract.RoleActive) {
			return cmp.Compare(a.Role, b.Role) // active comes first
		}
		return cmp.Compare(a.Pod, b.Pod)
	})
	return all
}

func candidate(f Facts, pod *corev1.Pod) Candidate {
	c := Candidate{
		Pod: pod.Name, Node: pod.Spec.NodeName, Role: contract.RoleStandby, Version: pod.Labels[contract.TemplateHashLabel],
		Ready: podReady(pod), Zone: f.Zones[pod.Spec.NodeName], State: state(pod), Created: pod.CreationTimestamp.UTC(),
	}
	if holder := Holder(f); holder == pod.Name || holder == "" && f.Lease == nil && f.Job.Status.ActivePod == pod.Name {
		c.Role = contract.RoleActive
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == GatedName(pod) {
			c.Restarts = s.RestartCount
		}
	}
	return c
}

// GatedName is the name of a Pod's gated container: the one that the operator recorded when it created the Pod, or else the first
// one.
func GatedName(pod *corev1.Pod) string {
	if name := pod.Annotations[contract.GatedAnnotation]; name != "" || len(pod.Spec.Containers) == 0 {
		return name
	}
	return pod.Spec.Containers[0].Name
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// state describes a Pod in a few words, like kubectl get pods.
func state(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "Terminating"
	case pod.Status.Reason != "":
		return pod.Status.Reason
	case podReady(pod):
		return "ready"
	}
	for _, s := range statuses(pod) {
		if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			return w.Reason
		}
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return cmp.Or(t.Reason, "Error")
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason
		}
	}
	if pod.Status.Phase == corev1.PodRunning {
		return "not ready"
	}
	return cmp.Or(string(pod.Status.Phase), "Pending")
}

// statuses are the statuses of a Pod's containers, in start order.
func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// condition is the job's condition of this type, or the zero value.
func condition(job *v1alpha1.SingletonJob, name string) metav1.Condition {
	if c := meta.FindStatusCondition(job.Status.Conditions, name); c != nil {
		return *c
	}
	return metav1.Condition{Type: name}
}

// Ago formats a time span as kubectl formats ages: two units at most, nothing finer than a second.
func Ago(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return itoa(int64(d/time.Second)) + "s"
	case d < 10*time.Minute:
		return spans(d, time.Minute, "m", time.Second, "s")
	case d < 3*time.Hour:
		return spans(d, time.Minute, "m", 0, "")
	case d < 8*time.Hour:
		return spans(d, time.Hour, "h", time.Minute, "m")
	case d < 2*day:
		return spans(d, time.Hour, "h", 0, "")
	case d < 8*day:
		return spans(d, day, "d", time.Hour, "h")
	}
	return spans(d, day, "d", 0, "")
}

func spans(d, unit time.Duration, name string, finer time.Duration, finerName string) string {
	var out strings.Builder
	out.WriteString(itoa(int64(d/unit)) + name)
	if finer > 0 && d%unit >= finer {
		out.WriteString(itoa(int64(d%unit/finer)) + finerName)
	}
	return out.String()
}
