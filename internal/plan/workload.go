package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// Workload is what spec.workloadRef names, as the API server has it now.
type Workload struct {
	// Exists: it is there, and not being deleted. Denied is the answer of an API server that does not let it be read.
	Exists bool
	Denied string

	UID        types.UID
	Generation int64
	// Replicas is what it asks for. Settled: its controller has seen that, and reports that there are none.
	Replicas int32
	Settled  bool
	// Lagging are the ReplicaSets of a Deployment whose controller has not carried out yet that they ask for none: it may make a pod
	// once more, though the Deployment reports that there is none. Not looked for while Replicas is not 0.
	Lagging  []string
	Template corev1.PodTemplateSpec
	// Claims are the names of its volume claim templates.
	Claims []string
	// Pods are those that its selector matches, whoever controls them. They are not looked for while Replicas is not 0.
	Pods []*corev1.Pod
	// Owners are the workloads, as WorkloadRef.String writes them, that the controllers of these pods run pods for. A controller
	// that is not among them is gone, or nothing owns it.
	Owners map[types.UID]string
	// Others are the other SingletonJobs of the namespace; those of other workloads may be left out.
	Others []*v1alpha1.SingletonJob
}

// WorkloadAnnotation of a candidate names the workload whose template it was made from, whatever its job's is by now.
const WorkloadAnnotation = "singletonjob.io/workload"

// takenLabels are those by which the controllers of workloads know their pods.
var takenLabels = []string{"pod-template-hash", "controller-revision-hash", "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"}

// Effective is a copy of a job with the pod template that its pods are made from. Where that is a workload's it stands in
// spec.template, in place of the reference; a job whose workload is not known keeps that, and has no template.
func Effective(observed *v1alpha1.SingletonJob, w *Workload) *v1alpha1.SingletonJob {
	job := observed.DeepCopy()
	if job.Spec.WorkloadRef == nil || job.HasTemplate() || w == nil || !w.Exists {
		return job
	}
	job.Spec.WorkloadRef = nil
	w.Template.DeepCopyInto(&job.Spec.Template)
	for _, label := range takenLabels {
		delete(job.Spec.Template.Labels, label)
	}
	return job
}

// faultsOf are what keeps a workload that there is from being run by a SingletonJob.
func faultsOf(ref *v1alpha1.WorkloadRef, w *Workload) field.ErrorList {
	if ref == nil || w == nil || len(w.Claims) == 0 {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec", "workloadRef"), fmt.Sprintf("%s has volumeClaimTemplates (%s), which give each pod "+
		"its own volume, but the next holder must continue with the data of the last one: name one claim in the volumes of its template, as "+
		"persistentVolumeClaim, or use a sink outside of the pod", ref, strings.Join(w.Claims, ", ")))}
}

var well verdict

// Faults are the rules that a job breaks with its effective template.
func Faults(observed *v1alpha1.SingletonJob, w *Workload) field.ErrorList {
	return append(v1alpha1.Validate(Effective(observed, w)), faultsOf(observed.Spec.WorkloadRef, w)...)
}

// blockedBy is why nothing may be started for a job of a workload, zero if all is well.
func blockedBy(job *v1alpha1.SingletonJob, w *Workload) verdict {
	ref := job.Spec.WorkloadRef
	if ref == nil || job.HasTemplate() {
		return well
	}
	const nothing = "; nothing is started until then, and a running process continues"
	missing := func(format string, args ...any) verdict {
		return verdict{v1alpha1.ReasonWorkloadMissing, fmt.Sprintf("%s in spec.workloadRef ", ref) + fmt.Sprintf(format, args...) + nothing}
	}
	running := func(format string, args ...any) verdict {
		return verdict{v1alpha1.ReasonWorkloadRunning, fmt.Sprintf(format, args...) + nothing}
	}
	settling := func(who string) verdict {
		return verdict{v1alpha1.ReasonWorkloadSettling, fmt.Sprintf("%s is scaled to 0, but the controller of %s has not acted on that yet%s", ref, who, nothing)}
	}
	switch {
	case w == nil || !w.Exists && w.Denied == "":
		return missing("does not exist or is being deleted: create it, with replicas: 0")
	case !w.Exists:
		return missing("can't be read: %s", bounded(w.Denied, maxDetail))
	}
	if elder := elderOf(job, w.Others); elder != "" {
		return verdict{v1alpha1.ReasonWorkloadTaken, fmt.Sprintf("%s is the workload of the SingletonJob %s, which is older: delete one of the two%s", ref, elder, nothing)}
	}
	switch left := outside(job, w); {
	case w.Replicas != 0:
		return running("%s has %d replicas, and no lease keeps them from acting: set replicas to 0 where it is set, in the chart's values or with "+
			"kubectl scale, and remove anything that sets it again", ref, w.Replicas)
	case len(left) > 0:
		return running("pods of %s still exist, and no lease keeps them from acting: wait until %s no longer exists (on a lost node: until that node is back, "+
			"or declared out of service)", ref, left[0])
	case !w.Settled:
		return settling(ref.String())
	case len(w.Lagging) > 0:
		return settling("ReplicaSet/" + w.Lagging[0])
	}
	return well
}

// elderOf is the first SingletonJob that had the same workload, empty for the job itself.
func elderOf(job *v1alpha1.SingletonJob, others []*v1alpha1.SingletonJob) string {
	first := job
	for _, other := range others {
		same := other.Spec.WorkloadRef != nil && *other.Spec.WorkloadRef == *job.Spec.WorkloadRef
		if same && cmp.Or(other.CreationTimestamp.Compare(first.CreationTimestamp.Time), cmp.Compare(other.UID, first.UID)) < 0 {
			first = other
		}
	}
	if first == job {
		return ""
	}
	return first.Name
}

// outside are the names of the pods that may run what the workload's template says, and that the job's Lease does not keep
// from it: its own, those that nothing owns or whose owner is gone, and those of another SingletonJob of it. Other workloads
// may have labels that its selector matches, too.
func outside(job *v1alpha1.SingletonJob, w *Workload) []string {
	var names []string
	for _, pod := range w.Pods {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		ours := pod.Labels[contract.NameLabel] == job.Name && gated(pod) != ""
		if controller := metav1.GetControllerOf(pod); controller != nil {
			this := job.Spec.WorkloadRef.String()
			runs, exists := w.Owners[controller.UID]
			elsewhere := exists && runs != this && pod.Annotations[WorkloadAnnotation] != this
			ours = ours || elsewhere || controller.UID == job.UID
		}
		if !ended && !ours {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

const (
	// leavingPeriod is how often pods are looked for that are to go, and ReplicaSets that lag, since those are not watched.
	leavingPeriod = time.Second
	// deniedPeriod is how often what may not be read is asked for again.
	deniedPeriod = 30 * time.Second
)

// wakeForWorkload is when to look again for what nobody hears of.
func wakeForWorkload(a *alarm, o *Observed) {
	switch w := o.Workload; {
	case w == nil:
	case w.Denied != "":
		a.in(deniedPeriod)
	case len(outside(o.Job, w)) > 0, len(w.Lagging) > 0:
		a.in(leavingPeriod)
	}
}

// blockedTurned announces that nothing may be started. That may end and come back under one status of a condition, so the
// name of the Event is that of the workload's state.
func blockedTurned(j *job, w *Workload, c *metav1.Condition) Event {
	id := fnv.New32()
	if w != nil {
		_, _ = fmt.Fprint(id, w.UID, w.Generation)
	}
	_, _ = fmt.Fprint(id, j.Generation, c.Message)
	return Event{
		Name: fmt.Sprintf("%s.%s-%x", j.Name, strings.ToLower(c.Reason), id.Sum32()),
		Type: corev1.EventTypeWarning, Reason: c.Reason, Message: c.Message,
	}
}
