//go:build linux

package standin

import (
	"context"
	"errors"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// countDisruptions keeps the status of PodDisruptionBudgets, without which the API server refuses every eviction.
func (s *StandIn) countDisruptions(ctx context.Context) error {
	pods := s.allPods()
	var errs []error
	for _, budget := range s.allBudgets() {
		status, err := disruptions(budget, pods)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if reflect.DeepEqual(status, budget.Status) {
			continue
		}
		changed := budget.DeepCopy()
		changed.Status = status
		_, err = s.client.PolicyV1().PodDisruptionBudgets(budget.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		errs = append(errs, ignoreStale(err))
	}
	return errors.Join(errs...)
}

func disruptions(budget *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (policyv1.PodDisruptionBudgetStatus, error) {
	status := *budget.Status.DeepCopy()
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return status, err
	}
	var expected, healthy int
	for _, pod := range pods {
		if pod.Namespace != budget.Namespace || !selector.Matches(labels.Set(pod.Labels)) || isOver(pod) {
			continue
		}
		expected++
		if pod.DeletionTimestamp == nil && podReady(pod) {
			healthy++
		}
	}
	desired := 0
	switch {
	case budget.Spec.MinAvailable != nil:
		desired, err = intstr.GetScaledValueFromIntOrPercent(budget.Spec.MinAvailable, expected, true)
	case budget.Spec.MaxUnavailable != nil:
		var unavailable int
		unavailable, err = intstr.GetScaledValueFromIntOrPercent(budget.Spec.MaxUnavailable, expected, true)
		desired = max(0, expected-unavailable)
	}
	if err != nil {
		return status, err
	}
	status.ObservedGeneration = budget.Generation
	status.ExpectedPods, status.CurrentHealthy, status.DesiredHealthy = int32(expected), int32(healthy), int32(desired)
	status.DisruptionsAllowed = int32(max(0, healthy-desired))
	return status, nil
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
