package workload

import (
	"context"
	"fmt"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// Budgets returns the names of the PodDisruptionBudgets, except those of SingletonJobs, that match the labels of a workload's template, and
// so the candidates.
func Budgets(ctx context.Context, from client.Reader, namespace string, of labels.Set) ([]string, error) {
	var all policyv1.PodDisruptionBudgetList
	if err := from.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the PodDisruptionBudgets of namespace %s: %w", namespace, err)
	}
	var names []string
	for i := range all.Items {
		budget := &all.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err == nil && selector.Matches(of) && budget.Labels[contract.ManagedByLabel] != contract.ManagedBy {
			names = append(names, budget.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Autoscalers returns the names of the HorizontalPodAutoscalers that scale a workload.
func Autoscalers(ctx context.Context, from client.Reader, namespace string, ref v1alpha1.WorkloadRef) ([]string, error) {
	var all autoscalingv1.HorizontalPodAutoscalerList
	if err := from.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the HorizontalPodAutoscalers of namespace %s: %w", namespace, err)
	}
	var names []string
	for i := range all.Items {
		if to := all.Items[i].Spec.ScaleTargetRef; to.Kind == string(ref.Kind) && to.Name == ref.Name {
			names = append(names, all.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
