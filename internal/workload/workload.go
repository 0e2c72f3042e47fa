// Package workload reads the workload that a SingletonJob's workloadRef names.
package workload

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plan"
)

// Object returns an empty object of the given kind, or nil for a kind that workloadRef does not allow.
func Object(kind v1alpha1.WorkloadKind) client.Object {
	switch kind {
	case v1alpha1.WorkloadDeployment:
		return &appsv1.Deployment{}
	case v1alpha1.WorkloadStatefulSet:
		return &appsv1.StatefulSet{}
	}
	return nil
}

// Read returns the workload and the selector of its Pods. It fills in neither the Pods nor other SingletonJobs that name the same workload.
// If there is no such workload, Exists is false and there is no error.
func Read(ctx context.Context, from client.Reader, namespace string, ref v1alpha1.WorkloadRef) (*plan.Workload, *metav1.LabelSelector, error) {
	object, err := Get(ctx, from, namespace, ref)
	w, selector := Of(object)
	return w, selector, err
}

// Get returns the workload as the API server has it, or nil without an error if it does not exist.
func Get(ctx context.Context, from client.Reader, namespace string, ref v1alpha1.WorkloadRef) (client.Object, error) {
	object := Object(ref.Kind)
	if object == nil {
		return nil, nil //nolint:nilnil // the API server accepts no such kind
	}
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // see above
	case err != nil:
		return nil, fmt.Errorf("read %s in namespace %s: %w", ref, namespace, err)
	}
	return object, nil
}

// Of returns what Read does, from a workload that was read. object may be nil.
func Of(object client.Object) (*plan.Workload, *metav1.LabelSelector) {
	if object == nil {
		return &plan.Workload{}, nil
	}
	w := &plan.Workload{Exists: object.GetDeletionTimestamp() == nil, UID: object.GetUID(), Generation: object.GetGeneration()}
	take := func(replicas *int32, reported int32, observed int64) {
		w.Replicas, w.Settled = ptr.Deref(replicas, 1), reported == 0 && observed >= w.Generation
	}
	switch o := object.(type) {
	case *appsv1.Deployment:
		take(o.Spec.Replicas, o.Status.Replicas, o.Status.ObservedGeneration)
		w.Template = o.Spec.Template
		return w, o.Spec.Selector
	case *appsv1.StatefulSet:
		take(o.Spec.Replicas, o.Status.Replicas, o.Status.ObservedGeneration)
		w.Template = o.Spec.Template
		for i := range o.Spec.VolumeClaimTemplates {
			w.Claims = append(w.Claims, o.Spec.VolumeClaimTemplates[i].Name)
		}
		return w, o.Spec.Selector
	}
	return w, nil
}

// Lagging returns the names of the ReplicaSets that could still create a Pod for a Deployment that is scaled to 0. They are its own, and
// those without an owner, because the Deployment adopts them. A ReplicaSet that was created with 0 replicas, as for a new template, never
// created any.
func Lagging(ctx context.Context, from client.Reader, namespace string, deployment types.UID, selector labels.Selector) ([]string, error) {
	var sets appsv1.ReplicaSetList
	if err := from.List(ctx, &sets, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("list the ReplicaSets of a Deployment in namespace %s: %w", namespace, err)
	}
	var lag []string
	for i := range sets.Items {
		set := &sets.Items[i]
		if owner := metav1.GetControllerOf(set); owner != nil && owner.UID != deployment {
			continue
		}
		none := ptr.Deref(set.Spec.Replicas, 1) == 0
		done := set.Status.ObservedGeneration >= set.Generation && set.Status.Replicas == 0
		if !none || !done && set.Generation > 1 {
			lag = append(lag, set.Name)
		}
	}
	slices.Sort(lag)
	return lag, nil
}
