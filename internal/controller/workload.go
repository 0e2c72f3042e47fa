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

// observeWorkload reads the workload of spec.workloadRef from the API server: an old state could show 0 replicas after it was
// scaled up. The cache only triggers the reconcile.
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
		return r.observeNamesake(ctx, o)
	}
	if err := r.observeBeside(ctx, o); err != nil {
		return err
	}
	return r.observeOthers(ctx, o)
}

// observeBeside looks for autoscalers of the workload and for budgets that match the candidates, at each change of the workload and else
// once in a period. They only help to explain, so it is no fault if the operator has no right to list them.
func (r *Reconciler) observeBeside(ctx context.Context, o *observation) (err error) {
	w, key := o.Workload, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	found, known := r.memory.foundBeside(key, settledAt{w.UID, w.Generation}, o.Now)
	if !known {
		found = beside{of: settledAt{w.UID, w.Generation}, at: o.Now}
		if found.autoscalers, err = workload.Autoscalers(ctx, r.Live, o.Namespace, *o.Job.Spec.WorkloadRef); err != nil && !apierrors.IsForbidden(err) {
			return err
		}
		if found.budgets, err = workload.Budgets(ctx, r.Live, o.Namespace, w.Template.Labels); err != nil && !apierrors.IsForbidden(err) {
			return err
		}
		r.memory.setBeside(key, found)
	}
	w.Autoscalers, w.Budgets = found.autoscalers, found.budgets
	return nil
}

// observeNamesake looks whether a missing workload is there as the other kind. Users mistake the kind of a chart's workload.
func (r *Reconciler) observeNamesake(ctx context.Context, o *observation) error {
	other := v1alpha1.WorkloadStatefulSet
	if o.Job.Spec.WorkloadRef.Kind == other {
		other = v1alpha1.WorkloadDeployment
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(string(other)))
	object, err := get(ctx, r.Live, types.NamespacedName{Namespace: o.Namespace, Name: o.Job.Spec.WorkloadRef.Name}, object)
	switch {
	case apierrors.IsForbidden(err): // this only helps to explain
		return nil
	case err != nil:
		return err
	case object != nil && object.DeletionTimestamp == nil:
		o.Workload.Namesake = other
	}
	return nil
}

// observeWhatIsLeft looks for what may still run for a workload that is scaled to 0. It reads the Pods last, so that they include
// those that a ReplicaSet created before it learned of 0.
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

// observeReplicaSets reads a Deployment's ReplicaSets from the API server, until all of them are seen to have reached 0 Pods for
// this generation. After that, only a change of the Deployment changes them.
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

// observeStrangers finds the Pods that the workload's selector matches, and the workloads to which they belong.
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

// runs is the workload for which the controller of a Pod runs it, in the form of WorkloadRef.String. It is empty if that controller
// does not exist, or is a ReplicaSet without an owner, which a Deployment can adopt.
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

// jobsOf are the jobs that take their template from a workload of this kind.
func (r *Reconciler) jobsOf(kind v1alpha1.WorkloadKind) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []ctrl.Request {
		workload := v1alpha1.WorkloadRef{Kind: kind, Name: o.GetName()}
		return r.jobsOfWorkload(ctx, o.GetNamespace(), workload.String())
	}
}

// jobsBeside are the jobs with the same workload as a job. They may wait until that job is deleted or has another workload.
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

// onlyNames reduces a workload to its identity: the cache only needs to show that it has changed.
func onlyNames(object any) (any, error) {
	is, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	lean := &metav1.PartialObjectMetadata{TypeMeta: is.TypeMeta}
	lean.Namespace, lean.Name, lean.UID, lean.ResourceVersion = is.Namespace, is.Name, is.UID, is.ResourceVersion
	return lean, nil
}
