//go:build linux

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// TestAStandbyIsMoved has the scheduler put both pods on one node, and lets another take pods then: the standby comes there, and the
// process does not notice.
func TestAStandbyIsMoved(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	nodes := x.zone.nodes
	if nodes == nil {
		nodes = bed.Lab.Nodes
	}
	for _, node := range nodes[1:] {
		x.kubectl("cordon", node) // taken back by the cleanup
	}
	j := x.create(steady)
	before := j.awaitStatus("active, with a standby beside it that no other node takes", func(o *v1alpha1.SingletonJob) bool {
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProtected)
		return c != nil && c.Reason == v1alpha1.ReasonStandbyOnSameNode && strings.Contains(c.Message, "no other node can take one")
	})
	j.awaitWriteAfter(0)
	x.kubectl("uncordon", nodes[1])
	after := j.awaitSettled()
	x.await("two candidates, on two nodes", func() (bool, any, error) {
		on := map[string]int{}
		for _, pod := range j.candidates() {
			on[pod.Spec.NodeName]++
		}
		return on[nodes[0]] == 1 && on[nodes[1]] == 1 && len(on) == 2, on, nil
	})
	if after.Status.Handovers+after.Status.Failovers != 0 || after.Status.FencingToken != before.Status.FencingToken || after.Status.ActiveNode != nodes[0] {
		x.Errorf("a standby was moved, and the process of token %d on %s was to go on: %+v", before.Status.FencingToken, nodes[0], after.Status)
	}
	moved := j.pod(j.standby(after.Status.ActivePod))
	if moved.Spec.Affinity == nil || moved.Spec.NodeName != nodes[1] || moved.Status.Phase != corev1.PodRunning {
		x.Errorf("the standby is %s on %s", moved.Name, moved.Spec.NodeName)
	}
	j.awaitFurtherWrites()
	j.check(false)
}
