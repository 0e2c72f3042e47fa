package adopt

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

// facts hold everything that the next step depends on.
type facts struct {
	ref      v1alpha1.WorkloadRef
	workload *plan.Workload
	// desired is the job to create. job is the existing job of that name, or nil.
	desired, job *v1alpha1.SingletonJob
	// other is the name of another SingletonJob that has this workload, or empty.
	other string
	// replicas is the number that the user gave for the way back, or 0. pods are the candidates that exist; both are for that way only.
	replicas int32
	pods     []string
	// keeper is what sets the workload's replicas, as far as its labels and annotations tell.
	keeper keeper
}

// step is the next thing to do.
type step uint8

const (
	refuse step = iota
	create
	record
	scale
	suspend
	restore
	remove
	wait
	report
)

// next decides the next step and gives the reason. scaled reports whether this call of Run has scaled the workload to 0.
func next(f facts, scaled bool) (todo step, why string) {
	switch {
	case !f.workload.Exists:
		return refuse, fmt.Sprintf("%s does not exist, or is being deleted", f.ref)
	case f.other != "":
		return refuse, fmt.Sprintf("%s already belongs to the SingletonJob %s: a workload can have only one SingletonJob", f.ref, f.other)
	case f.job == nil:
		return first(f)
	}
	return withJob(f, scaled)
}

// withJob decides the next step if a job of that name exists.
func withJob(f facts, scaled bool) (todo step, why string) {
	switch {
	case f.job.Spec.WorkloadRef == nil || *f.job.Spec.WorkloadRef != f.ref:
		return refuse, fmt.Sprintf("the SingletonJob %s exists and does not belong to %s: give another name with --name", f.job.Name, f.ref)
	case f.job.DeletionTimestamp != nil:
		return refuse, fmt.Sprintf("the SingletonJob %s is being deleted: wait until it no longer exists", f.job.Name)
	case f.job.Spec.Suspend:
		return refuse, fmt.Sprintf("the SingletonJob %s is suspended, so no process would run: set its spec.suspend to false", f.job.Name)
	}
	active := meta.FindStatusCondition(f.job.Status.Conditions, v1alpha1.ConditionActive)
	changes := meta.FindStatusCondition(f.job.Status.Conditions, v1alpha1.ConditionProgressing)
	if active == nil || changes == nil || f.job.Status.ObservedGeneration != f.job.Generation {
		return wait, "waiting for the operator to see the SingletonJob " + f.job.Name
	}
	switch active.Reason {
	case v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonLeaseConflict, v1alpha1.ReasonWorkloadTaken:
		return refuse, fmt.Sprintf("the SingletonJob %s starts no process: %s", f.job.Name, active.Message)
	}
	return withOperator(f, active, changes, scaled)
}

// withOperator decides the next step once the operator waits for the workload's Pods to end, or for its own process to run.
func withOperator(f facts, active, changes *metav1.Condition, scaled bool) (todo step, why string) {
	switch {
	case f.workload.Replicas != 0 && scaled:
		return refuse, fmt.Sprintf("%s was scaled to 0 and has %d replicas again: find what sets them, such as an autoscaler or a tool that syncs, "+
			"and set 0 replicas there (%s); then run this again", f.ref, f.workload.Replicas, f.keeper.set(f.ref, 0))
	case f.workload.Replicas != 0 && changes.Reason != v1alpha1.ReasonWorkloadRunning:
		return wait, "waiting for the operator to see that " + f.ref.String() + " runs: " + changes.Message
	case f.workload.Replicas != 0 && inject.Unknown(plan.Effective(f.job, f.workload)):
		return wait, "waiting until the operator knows what the image runs, before scaling anything: " + active.Message
	case f.workload.Replicas != 0 && f.job.Annotations[ReplicasAnnotation] != recordOf(f.workload)[ReplicasAnnotation]:
		return record, fmt.Sprintf("recording in the SingletonJob %s that %s has %d replicas, for --undo", f.job.Name, f.ref, f.workload.Replicas)
	case f.workload.Replicas != 0:
		return scale, fmt.Sprintf("scaling %s from %d to 0", f.ref, f.workload.Replicas)
	case changes.Reason == v1alpha1.ReasonWorkloadRunning, changes.Reason == v1alpha1.ReasonWorkloadSettling:
		return wait, "waiting: " + changes.Message // also if the job's process already runs beside it
	case active.Status == metav1.ConditionTrue:
		return report, fmt.Sprintf("%s is a singleton: %s is active on %s with token %d", f.ref, f.job.Status.ActivePod, f.job.Status.ActiveNode, f.job.Status.FencingToken)
	}
	return wait, "waiting: " + active.Message
}

// first makes every check that is possible before the first write.
func first(f facts) (todo step, why string) {
	if faults := plan.Faults(f.desired, f.workload); len(faults) > 0 {
		return refuse, fmt.Sprintf("the Pod template of %s cannot be used for a SingletonJob: %v", f.ref, faults.ToAggregate())
	}
	return create, fmt.Sprintf("creating the SingletonJob %s, which starts no process while %s runs", f.desired.Name, f.ref)
}
