package adopt

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/workload"
)

// notes warn of objects of the workload's chart that do not suit a SingletonJob, as far as the user may read them.
func (r *run) notes(ctx context.Context, f facts) {
	note := func(format string, args ...any) { _, _ = fmt.Fprintf(r.ErrOut, "note: "+format+"\n", args...) }
	if r.Undo {
		note("%s: otherwise the next sync scales it to 0, and no process runs", f.keeper.set(r.ref, f.workload.Replicas))
		return
	}
	note("%s: otherwise the next sync starts it again beside the SingletonJob", f.keeper.set(r.ref, 0))
	of := labels.Set(f.workload.Template.Labels)
	var services corev1.ServiceList
	if r.Client.List(ctx, &services, client.InNamespace(r.Namespace)) == nil {
		for i := range services.Items {
			selector := services.Items[i].Spec.Selector
			if len(selector) > 0 && selector[contract.RoleLabel] == "" && labels.SelectorFromSet(selector).Matches(of) {
				note("Service %s also sends requests to standbys: its clients need a Service that selects %s=%s,%s=%s",
					services.Items[i].Name, contract.NameLabel, r.JobName, contract.RoleLabel, contract.RoleActive)
			}
		}
	}
	budgets, _ := workload.Budgets(ctx, r.Client, r.Namespace, of)
	for _, name := range budgets {
		note("PodDisruptionBudget %s covers the candidates in addition to their own budget, and Kubernetes never evicts a Pod with two budgets: remove it", name)
	}
	autoscalers, _ := workload.Autoscalers(ctx, r.Client, r.Namespace, r.ref)
	for _, name := range autoscalers {
		note("HorizontalPodAutoscaler %s scales %s as soon as that has a replica: remove it", name, r.ref)
	}
}
