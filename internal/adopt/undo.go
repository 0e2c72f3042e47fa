package adopt

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/plan"
	"github.com/singletonjob/operator/internal/show"
)

// ReplicasAnnotation on a SingletonJob is the number of replicas that its workload had before it was adopted. The SingletonJob is deleted
// only after the workload has them again, so an interruption does not lose them.
const ReplicasAnnotation = "singletonjob.io/workload-replicas"

// MaxRecorded is the highest number that is taken from the annotation. A user who may only write SingletonJobs could otherwise have any
// number of Pods created by the user who goes back. Options.Replicas has no such limit.
const MaxRecorded = 1000

// recordOf returns the annotation for a workload, nil if it has no replicas.
func recordOf(w *plan.Workload) map[string]string {
	if w.Replicas == 0 {
		return nil
	}
	return map[string]string{ReplicasAnnotation: strconv.Itoa(int(w.Replicas))}
}

// recorded returns the number of replicas to go back to, or 0 and why it is not known.
func (f facts) recorded() (replicas int32, why string) {
	const give = ": give the number with --replicas"
	if f.replicas != 0 {
		return f.replicas, ""
	}
	if f.job == nil {
		return 0, fmt.Sprintf("no SingletonJob of %s exists that records its replicas%s", f.ref, give)
	}
	text, has := f.job.Annotations[ReplicasAnnotation]
	if !has {
		return 0, fmt.Sprintf("the SingletonJob %s lacks the annotation %s, which records the replicas of %s%s", f.job.Name, ReplicasAnnotation, f.ref, give)
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 || n > MaxRecorded {
		const shown = 40
		return 0, fmt.Sprintf("the annotation %s of the SingletonJob %s is %q, which is no number from 1 to %d%s",
			ReplicasAnnotation, f.job.Name, plan.Shorten(show.Clean(text), shown), MaxRecorded, give)
	}
	return int32(n), ""
}

// back decides the next step on the way back and gives the reason. The SingletonJob is suspended until its Pods no longer exist, then the
// workload is scaled up, and then the SingletonJob is deleted. scaled reports whether this call of Run has scaled the workload up.
func back(f facts, scaled bool) (todo step, why string) {
	switch {
	case !f.workload.Exists:
		return refuse, fmt.Sprintf("%s does not exist, or is being deleted", f.ref)
	case f.job != nil && (f.job.Spec.WorkloadRef == nil || *f.job.Spec.WorkloadRef != f.ref):
		return refuse, fmt.Sprintf("the SingletonJob %s does not belong to %s: give another name with --name", f.job.Name, f.ref)
	case f.other != "":
		return refuse, fmt.Sprintf("%s also belongs to the SingletonJob %s, whose process could run beside it: delete that one, or name it with --name", f.ref, f.other)
	case f.job == nil && f.workload.Replicas != 0:
		return report, fmt.Sprintf("%s runs by itself, with %d replicas, and belongs to no SingletonJob", f.ref, f.workload.Replicas)
	}
	if _, unknown := f.recorded(); unknown != "" && f.workload.Replicas == 0 {
		return refuse, unknown
	}
	if f.job == nil {
		return f.restored(scaled)
	}
	return backWithJob(f, scaled)
}

// backWithJob decides the next step while the SingletonJob exists.
func backWithJob(f facts, scaled bool) (todo step, why string) {
	name := f.job.Name
	switch {
	case f.job.DeletionTimestamp != nil && f.workload.Replicas == 0:
		return refuse, fmt.Sprintf("the SingletonJob %s is being deleted: wait until it no longer exists, then run this again with --replicas", name)
	case f.job.DeletionTimestamp != nil:
		return wait, fmt.Sprintf("waiting until the SingletonJob %s no longer exists", name)
	case !f.job.Spec.Suspend:
		return suspend, fmt.Sprintf("suspending the SingletonJob %s, so that its Pods end", name)
	}
	active := meta.FindStatusCondition(f.job.Status.Conditions, v1alpha1.ConditionActive)
	switch {
	case active == nil || f.job.Status.ObservedGeneration != f.job.Generation:
		return wait, "waiting for the operator to see that the SingletonJob " + name + " is suspended"
	case active.Reason == v1alpha1.ReasonInvalidSpec, active.Reason == v1alpha1.ReasonLeaseConflict:
		return refuse, fmt.Sprintf("the operator does not stop the SingletonJob %s: %s", name, active.Message)
	case active.Reason != v1alpha1.ReasonSuspended:
		return wait, "waiting: " + active.Message
	case f.workload.Replicas == 0 || len(f.pods) > 0:
		return f.restored(scaled)
	}
	return remove, fmt.Sprintf("deleting the SingletonJob %s, because %s runs by itself", name, f.ref)
}

// restored decides the next step when nothing creates candidates any more: to wait for the last ones, and then to scale the workload up.
func (f facts) restored(scaled bool) (todo step, why string) {
	replicas, _ := f.recorded()
	switch {
	case len(f.pods) > 0:
		return wait, fmt.Sprintf("waiting until the Pod %s no longer exists", f.pods[0])
	case scaled:
		return refuse, fmt.Sprintf("%s was scaled to %d and has 0 replicas again (%s); then run this again", f.ref, replicas, f.keeper.set(f.ref, replicas))
	}
	return restore, fmt.Sprintf("scaling %s to %d", f.ref, replicas)
}

// candidates returns the names of the Pods that may still run a process of the SingletonJob, or of one with the workload that no longer
// exists.
func (r *run) candidates(ctx context.Context, job *v1alpha1.SingletonJob) ([]string, error) {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list the Pods of namespace %s: %w", r.Namespace, err)
	}
	var names []string
	for i := range pods.Items {
		pod := &pods.Items[i]
		made := pod.Annotations[plan.WorkloadAnnotation] == r.ref.String() || job != nil && metav1.IsControlledBy(pod, job) ||
			r.JobName != "" && pod.Labels[contract.NameLabel] == r.JobName
		if ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed; made && !ended {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// previewUndo reports what Run would do on the way back.
func (r *run) previewUndo(ctx context.Context, f facts, todo step, why string) error {
	if todo == report {
		_, err := fmt.Fprintln(r.Out, why)
		return err
	}
	var would []string
	if f.job != nil && !f.job.Spec.Suspend {
		would = append(would, "suspend the SingletonJob "+f.job.Name)
	}
	would = append(would, "wait until its Pods no longer exist")
	if f.workload.Replicas == 0 {
		replicas, _ := f.recorded()
		would = append(would, fmt.Sprintf("scale %s to %d", r.ref, replicas))
		f.workload.Replicas = replicas
	}
	if f.job != nil {
		would = append(would, "delete the SingletonJob "+f.job.Name)
	}
	_, err := fmt.Fprintln(r.Out, "would "+strings.Join(would, ", then "))
	r.notes(ctx, f)
	return err
}
