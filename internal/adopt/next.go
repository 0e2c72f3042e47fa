package adopt

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

// facts are all that the next step depends on.
type facts struct {
	ref      v1alpha1.WorkloadRef
	workload *plan.Workload
	// desired is the job to be made; job is the one of that name, nil if there is none.
	desired, job *v1alpha1.SingletonJob
	// other is another SingletonJob of the workload, if there is one.
	other string
}

// step is what is to be done.
type step uint8

const (
	refuse step = iota
	create
	scale
	wait
	report
)

// next decides what is to be done, and says why. scaled: this run has scaled the workload to 0.
func next(f facts, scaled bool) (todo step, why string) {
	switch {
	case !f.workload.Exists:
		return refuse, fmt.Sprintf("%s does not exist, or is being deleted", f.ref)
	case f.other != "":
		return refuse, fmt.Sprintf("%s is the workload of the SingletonJob %s: one has it", f.ref, f.other)
	case f.job == nil:
		return first(f)
	}
	return withJob(f, scaled)
}

// withJob is what is next once there is a job of the name.
func withJob(f facts, scaled bool) (todo step, why string) {
	switch {
	case f.job.Spec.WorkloadRef == nil || *f.job.Spec.WorkloadRef != f.ref:
		return refuse, fmt.Sprintf("the SingletonJob %s exists and is not of %s: give another name", f.job.Name, f.ref)
	case f.job.DeletionTimestamp != nil:
		return refuse, fmt.Sprintf("the SingletonJob %s is being deleted: wait until it is gone", f.job.Name)
	case f.job.Spec.Suspend:
		return refuse, fmt.Sprintf("the SingletonJob %s is suspended, so nothing would run: set its spec.suspend to false", f.job.Name)
	}
	active := meta.FindStatusCondition(f.job.Status.Conditions, v1alpha1.ConditionActive)
	changes := meta.FindStatusCondition(f.job.Status.Conditions, v1alpha1.ConditionProgressing)
	if active == nil || changes == nil || f.job.Status.ObservedGeneration != f.job.Generation {
		return wait, "waiting for the operator to see the SingletonJob " + f.job.Name
	}
	switch active.Reason {
	case v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonLeaseConflict, v1alpha1.ReasonWorkloadTaken:
		return refuse, fmt.Sprintf("the SingletonJob %s starts nothing: %s", f.job.Name, active.Message)
	}
	return withOperator(f, active, changes, scaled)
}

// withOperator is what is next once the operator waits for the workload to be gone, or for its own process to run.
func withOperator(f facts, active, changes *metav1.Condition, scaled bool) (todo step, why string) {
	switch {
	case f.workload.Replicas != 0 && scaled:
		return refuse, fmt.Sprintf("%s was scaled to 0 and has %d replicas again: what sets them is to be told of 0 first, an autoscaler of its own "+
			"or a tool that syncs; then run this again", f.ref, f.workload.Replicas)
	case f.workload.Replicas != 0 && changes.Reason != v1alpha1.ReasonWorkloadRunning:
		return wait, "waiting for the operator to see that " + f.ref.String() + " runs: " + changes.Message
	case f.workload.Replicas != 0 && inject.Unknown(plan.Effective(f.job, f.workload)):
		return wait, "waiting until it is known what the image runs, before anything is scaled: " + active.Message
	case f.workload.Replicas != 0:
		return scale, fmt.Sprintf("scaling %s from %d to 0", f.ref, f.workload.Replicas)
	case changes.Reason == v1alpha1.ReasonWorkloadRunning, changes.Reason == v1alpha1.ReasonWorkloadSettling:
		return wait, "waiting: " + changes.Message // also where the job's process runs already, beside it
	case active.Status == metav1.ConditionTrue:
		return report, fmt.Sprintf("%s is a singleton: %s is active on %s with token %d", f.ref, f.job.Status.ActivePod, f.job.Status.ActiveNode, f.job.Status.FencingToken)
	}
	return wait, "waiting: " + active.Message
}

// first checks all that can be before anything is written.
func first(f facts) (todo step, why string) {
	if faults := plan.Faults(f.desired, f.workload); len(faults) > 0 {
		return refuse, fmt.Sprintf("the pod template of %s cannot be a SingletonJob's: %v", f.ref, faults.ToAggregate())
	}
	return create, fmt.Sprintf("creating the SingletonJob %s, which starts nothing while %s runs", f.desired.Name, f.ref)
}
