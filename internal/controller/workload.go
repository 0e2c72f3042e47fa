package controller

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plan"
	"github.com/singletonjob/operator/internal/workload"
)

// observeWorkload reads what spec.workloadRef names, from the API server: an old state of it might have it scaled to 0 when it
// no longer is. The cache only tells when to look.
func (r *Reconciler) observeWorkload(ctx context.Context, o *observation) error {
	if o.Job == nil || o.Job.Spec.WorkloadRef == nil {
		return nil
	}
	w, selector, err := workload.Read(ctx, r.Live, o.Namespace, *o.Job.Spec.WorkloadRef)
	o.Workload = w
	if err == nil && w.Exists && w.Replicas == 0 {
		err = r.observeWhatIsLeft(ctx, o, selector)
	}
	switch {
	case apierrors.IsForbidden(err):
		o.Workload = &plan.Workload{Denied: err.Error()}
		return nil
	case err != nil:
		return err
	case !o.Workload.Exists:
		return nil
	}
	return r.observeOthers(ctx, o)
}

// observeWhatIsLeft looks at what may run yet for a workload that is scaled to 0. The pods come last, so that those are among them
// that a ReplicaSet made before it had none to make.
func (r *Reconciler) observeWhatIsLeft(ctx context.Context, o *observation, by *metav1.LabelSelector) error {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		return fmt.Errorf("read the selector of %s: %w", o.Job.Spec.WorkloadRef, err)
	}
	if err := r.observeReplicaSets(ctx, o, selector); err != nil {
		return err
	}
	return r.observeStrangers(ctx, o, selector)
}

// observeReplicaSets asks the API server for a Deployment's ReplicaSets, until for this generation of it all were seen to have
// carried out that they ask for no pods: from then on only a change of the Deployment changes them.
func (r *Reconciler) observeReplicaSets(ctx context.Context, o *observation, selector labels.Selector) (err error) {
	w := o.Workload
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	at := settledAt{w.UID, w.Generation}
	if o.Job.Spec.WorkloadRef.Kind != v1alpha1.WorkloadDeployment || r.memory.isSettled(key, at) {
		return nil
	}
	if w.Lagging, err = workload.Lagging(ctx, r.Live, o.Namespace, w.UID, selector); err != nil {
		return err
	}
	if w.Settled && len(w.Lagging) == 0 {
		r.memory.setSettled(key, at)
	}
	return nil
}

// observeOthers finds the other jobs of the same workload.
func (r *Reconciler) observeOthers(ctx context.Context, o *observation) error {
	var jobs v1alpha1.SingletonJobList
	if err := r.Client.List(ctx, &jobs, client.InNamespace(o.Namespace), client.MatchingFields{workloadIndex: o.Job.Spec.WorkloadRef.String()}); err != nil {
		return fmt.Errorf("list the SingletonJobs of %s: %w", o.Job.Spec.WorkloadRef, err)
	}
	for i := range jobs.Items {
		if jobs.Items[i].UID != o.Job.UID {
			o.Workload.Others = append(o.Workload.Others, &jobs.Items[i])
		}
	}
	return nil
}

// observeStrangers finds the pods that the workload's selector matches, and for which workloads they are run.
func (r *Reconciler) observeStrangers(ctx context.Context, o *observation, selector labels.Selector) (err error) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if o.Workload.Pods, err = r.pods(ctx, r.Live, key, client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return err
	}
	owners := map[types.UID]string{}
	for _, pod := range o.Workload.Pods {
		owner := metav1.GetControllerOf(pod)
		if owner == nil || owner.UID == o.Job.UID || owners[owner.UID] != "" {
			continue
		}
		runs, err := r.runs(ctx, o.Namespace, owner)
		if err != nil {
			return err
		}
		if runs != "" {
			owners[owner.UID] = runs
		}
	}
	o.Workload.Owners = owners
	return nil
}

// runs is the workload that the controller of a pod runs it for, as WorkloadRef.String says it; empty if that controller is
// gone, or a ReplicaSet that nothing owns, which a Deployment adopts.
func (r *Reconciler) runs(ctx context.Context, namespace string, owner *metav1.OwnerReference) (string, error) {
	key := types.NamespacedName{Namespace: namespace, Name: owner.Name}
	switch owner.APIVersion + " " + owner.Kind {
	case appsv1.SchemeGroupVersion.String() + " ReplicaSet":
		set := &metav1.PartialObjectMetadata{}
		set.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
		set, err := get(ctx, r.Live, key, set)
		if err != nil || set == nil || set.UID != owner.UID || metav1.GetControllerOf(set) == nil {
			return "", err
		}
		owner = metav1.GetControllerOf(set)
	case v1alpha1.GroupVersion.String() + " " + v1alpha1.Kind:
		job, err := get(ctx, r.Live, key, &v1alpha1.SingletonJob{})
		if err != nil || job == nil || job.UID != owner.UID {
			return "", err
		}
		if ref := job.Spec.WorkloadRef; ref != nil {
			return ref.String(), nil
		}
	}
	return owner.Kind + "/" + owner.Name, nil
}

func workloadOf(o client.Object) []string {
	if job, ok := o.(*v1alpha1.SingletonJob); ok && job.Spec.WorkloadRef != nil {
		return []string{job.Spec.WorkloadRef.String()}
	}
	return nil
}

// jobsOf are the jobs that take their template from a workload of some kind.
func (r *Reconciler) jobsOf(kind v1alpha1.WorkloadKind) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []ctrl.Request {
		workload := v1alpha1.WorkloadRef{Kind: kind, Name: o.GetName()}
		return r.jobsOfWorkload(ctx, o.GetNamespace(), workload.String())
	}
}

// jobsBeside are those that have the workload of a job, which may wait for it to be gone, or to have another.
func (r *Reconciler) jobsBeside(ctx context.Context, o client.Object) []ctrl.Request {
	var requests []ctrl.Request
	for _, of := range workloadOf(o) {
		requests = append(requests, r.jobsOfWorkload(ctx, o.GetNamespace(), of)...)
	}
	return requests
}

func (r *Reconciler) jobsOfWorkload(ctx context.Context, namespace, of string) []ctrl.Request {
	var jobs v1alpha1.SingletonJobList
	if err := r.Client.List(ctx, &jobs, client.InNamespace(namespace), client.MatchingFields{workloadIndex: of}, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has stopped
	}
	requests := make([]ctrl.Request, len(jobs.Items))
	for i := range jobs.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&jobs.Items[i])
	}
	return requests
}

// onlyNames is all of a workload that is kept in memory: that it has changed is what matters.
func onlyNames(object any) (any, error) {
	is, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	lean := &metav1.PartialObjectMetadata{TypeMeta: is.TypeMeta}
	lean.Namespace, lean.Name, lean.UID, lean.ResourceVersion = is.Namespace, is.Name, is.UID, is.ResourceVersion
	return lean, nil
}
