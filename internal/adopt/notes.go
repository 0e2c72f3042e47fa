package adopt

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/internal/contract"
)

// notes say what is in the way of a singleton that its chart has brought, as far as it may be read.
func (r *run) notes(ctx context.Context, f facts) {
	note := func(format string, args ...any) { _, _ = fmt.Fprintf(r.ErrOut, "note: "+format+"\n", args...) }
	note("set replicas to 0 where %s is kept, in its chart's values: else the next sync brings it back beside the SingletonJob", r.ref)
	of := labels.Set(f.workload.Template.Labels)
	var services corev1.ServiceList
	if r.Client.List(ctx, &services, client.InNamespace(r.Namespace)) == nil {
		for i := range services.Items {
			selector := services.Items[i].Spec.Selector
			if len(selector) > 0 && selector[contract.RoleLabel] == "" && labels.SelectorFromSet(selector).Matches(of) {
				note("Service %s sends to standbys, too: its clients want one that selects %s=%s,%s=%s",
					services.Items[i].Name, contract.NameLabel, r.JobName, contract.RoleLabel, contract.RoleActive)
			}
		}
	}
	var budgets policyv1.PodDisruptionBudgetList
	if r.Client.List(ctx, &budgets, client.InNamespace(r.Namespace)) != nil {
		return
	}
	for i := range budgets.Items {
		budget := &budgets.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err == nil && selector.Matches(of) && budget.Labels[contract.ManagedByLabel] != contract.ManagedBy {
			note("PodDisruptionBudget %s covers the candidates, beside their own, and what two cover is never evicted: remove it", budget.Name)
		}
	}
}
