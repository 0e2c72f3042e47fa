//go:build linux

package stack

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/tier"
)

// TestAStandbyIsMoved: the scheduler has one node for both pods. When another takes pods again, the standby comes there, and the
// process of the active pod does not notice.
func TestAStandbyIsMoved(t *testing.T) {
	tier.Deep(t, "waits for a pod to be moved")
	w := newWorld(t)
	a, b := w.nodes[0].Name(), w.nodes[1].Name()
	w.edit(b, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	w.must(w.p.Client.Create(t.Context(), w.job(long)))
	holder := w.next(nil)
	if _, err := w.p.AwaitJob(w.context(), w.ns, jobName, "both on one node", func(job *v1alpha1.SingletonJob) bool {
		c := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionProtected)
		return c != nil && c.Reason == v1alpha1.ReasonStandbyOnSameNode
	}); err != nil {
		t.Fatal(err)
	}
	w.edit(b, func(n *corev1.Node) { n.Spec.Unschedulable = false })
	w.protected()
	w.await("one candidate on each node", func() (bool, any, error) {
		pods := &corev1.PodList{}
		err := w.p.Client.List(t.Context(), pods, client.InNamespace(w.ns))
		var on []string
		for _, pod := range pods.Items {
			on = append(on, pod.Spec.NodeName)
		}
		slices.Sort(on)
		return slices.Equal(on, []string{a, b}), on, err
	})
	w.actsFor(holder, 0)
	if changes := w.verify(); len(changes) != 1 || holder.node.Name() != a {
		t.Errorf("a standby was moved, and the process was to go on: %+v", changes)
	}
}
