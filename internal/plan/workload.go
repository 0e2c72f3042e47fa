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

// Workload is the workload in spec.workloadRef, as the API server has it now.
type Workload struct {
	// Exists: the workload exists and is not being deleted. Denied is the API server's answer if the operator has no permission to read it.
	Exists bool
	Denied string
	// Namesake is the kind of a workload of the other kind that has this name. It is not looked up while Exists.
	Namesake v1alpha1.WorkloadKind

	UID        types.UID
	Generation int64
	// Replicas is the desired number. Settled: the controller has observed that number, and reports that there are no replicas.
	Replicas int32
	Settled  bool
	// Lagging are the ReplicaSets of a Deployment whose controller has not acted on the scaling to 0 yet. Such a ReplicaSet may create a
	// pod again, although the Deployment reports none. They are not looked up while Replicas is not 0.
	Lagging  []string
	Template corev1.PodTemplateSpec
	// Claims are the names of the workload's volume claim templates.
	Claims []string
	// Pods are the pods that the workload's selector matches, whatever controls them. They are not looked up while Replicas is not 0.
	Pods []*corev1.Pod
	// Owners maps the controllers of these pods to the workloads, as WorkloadRef.String writes them, for which they run pods. A controller
	// that is not in the map no longer exists, or has no owner.
	Owners map[types.UID]string
	// Autoscalers are the HorizontalPodAutoscalers that scale the workload. Budgets are the PodDisruptionBudgets, except those of
	// SingletonJobs, that match the candidates. A change of them may be seen BesidePeriod late or,
	// if there were none, when something else happens.
	Autoscalers, Budgets []string
	// Others are the other SingletonJobs of the namespace. Those with other workloads can be left out.
	Others []*v1alpha1.SingletonJob
}

// WorkloadAnnotation on a candidate names the workload whose template it was created from, even if its job now has another one.
const WorkloadAnnotation = "singletonjob.io/workload"

// takenLabels are the labels by which the controllers of workloads find their pods.
var takenLabels = []string{"pod-template-hash", "controller-revision-hash", "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"}

// Effective returns a copy of a job with the pod template that its pods are created from. A workload's template is put into spec.template,
// and the reference is removed. If the workload is unknown, the job keeps the reference and has no template.
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

// faultsOf returns why a SingletonJob can't run an existing workload.
func faultsOf(ref *v1alpha1.WorkloadRef, w *Workload) field.ErrorList {
	if ref == nil || w == nil || len(w.Claims) == 0 {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec", "workloadRef"), fmt.Sprintf("%s has volumeClaimTemplates (%s), which give each pod "+
		"its own volume, but the next holder must continue with the data of the last one: name one claim in the volumes of its template, as "+
		"persistentVolumeClaim, or use a sink outside of the pod", ref, strings.Join(w.Claims, ", ")))}
}

var well verdict

// Faults returns the rules that a job breaks with its effective template.
func Faults(observed *v1alpha1.SingletonJob, w *Workload) field.ErrorList {
	return append(v1alpha1.Validate(Effective(observed, w)), faultsOf(observed.Spec.WorkloadRef, w)...)
}

// blockedBy returns why nothing can be started for a job with a workload, zero if nothing prevents it.
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
	case w == nil || !w.Exists && w.Denied == "" && w.Namesake == "":
		return missing("does not exist or is being deleted: create it, with replicas: 0")
	case !w.Exists && w.Denied == "":
		return missing("does not exist, but %s/%s does: set spec.workloadRef.kind to %[1]s, or create the other", w.Namesake, ref.Name)
	case !w.Exists:
		return verdict{v1alpha1.ReasonWorkloadDenied, fmt.Sprintf("the operator has no permission to read %s in spec.workloadRef, or what belongs to it: %s%s",
			ref, bounded(w.Denied, maxDetail), nothing)}
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

// withBeside adds what the workload's chart has beside it to the verdict on a job's changes. Only verdicts of a fixed text are added to: an
// addition to one that quotes a Pod's trouble would be quoted the next time.
func (v verdict) withBeside(job *v1alpha1.SingletonJob, w *Workload) verdict {
	if w == nil || v.reason != v1alpha1.ReasonUpToDate && v.reason != v1alpha1.ReasonWorkloadRunning {
		return v
	}
	if len(w.Budgets) > 0 {
		v.message += fmt.Sprintf("; the PodDisruptionBudget %s also matches the candidates, and Kubernetes evicts no pod that has two, so drains wait: remove it, in the chart's values",
			bounded(strings.Join(w.Budgets, ", "), maxDetail))
	}
	if len(w.Autoscalers) > 0 {
		v.message += fmt.Sprintf("; the HorizontalPodAutoscaler %s scales %s as soon as it has a replica, and not the SingletonJob: remove it, in the chart's values",
			bounded(strings.Join(w.Autoscalers, ", "), maxDetail), job.Spec.WorkloadRef)
	}
	return v
}

// elderOf returns the name of the oldest SingletonJob with the same workload, empty if that is the job itself.
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

// outside returns the names of the pods that may run the workload's template and that the job's Lease does not control. These are the
// workload's own pods, pods without an owner or whose owner no longer exists, and pods of another SingletonJob with this workload. The
// selector may also match pods of other workloads; these do not count.
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
	// leavingPeriod is how often the operator looks for pods that must terminate and for lagging ReplicaSets, because those are not
	// watched.
	leavingPeriod = time.Second
	// BesidePeriod is how often the operator looks again for autoscalers and budgets if it has named some.
	BesidePeriod = time.Minute
	// deniedPeriod is how often the operator tries again to read what it has no permission to read.
	deniedPeriod = 30 * time.Second
)

// wakeForWorkload adds the time to look again for changes that are not watched.
func wakeForWorkload(a *alarm, o *Observed) {
	switch w := o.Workload; {
	case w == nil:
	case w.Denied != "":
		a.in(deniedPeriod)
	case len(outside(o.Job, w)) > 0, len(w.Lagging) > 0:
		a.in(leavingPeriod)
	case len(w.Autoscalers)+len(w.Budgets) > 0:
		a.in(BesidePeriod)
	}
}

// blockedTurned announces that nothing can be started. That can end and begin again under the same status of a condition, so the Event's
// name depends on the state of the workload.
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
