//go:build linux

package e2e

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// TestSmoke is what a user does first, and what befalls every workload, on three nodes: install, apply the README's sample, lose
// the active node, drain the next one, uninstall. It asks whether all of it works, and never how fast.
func TestSmoke(t *testing.T) {
	x := begin(t)
	x.needLab()
	x.must(bed.uninstall(x.ctx))
	x.must(bed.install(x.ctx))

	x.kubectl("apply", "--filename=../../config/samples/singletonjob.yaml")
	sample := &job{trial: x, name: "heartbeat", key: client.ObjectKey{Namespace: x.namespace, Name: "heartbeat"}}
	sample.awaitSettled()
	x.checkColumns(sample.name)
	writer := x.start(steady)

	// The sample's node loses its power.
	before, lost := sample.get(), writer.get()
	x.fault("crash", before.Status.ActiveNode)
	next := sample.awaitActiveAfter(before.Status.FencingToken)
	if next.Status.ActiveNode == before.Status.ActiveNode {
		x.Errorf("the next active pod is on the lost node %s", next.Status.ActiveNode)
	}
	if change := changeFrom(next, before.Status.FencingToken); change == nil || change.Type != v1alpha1.Failover {
		x.Errorf("the history does not tell the failover from token %d: %+v", before.Status.FencingToken, next.Status.History)
	}
	if lost.Status.ActiveNode == before.Status.ActiveNode {
		writer.awaitWriteAfter(lost.Status.FencingToken)
	}
	writer.check(false)
	x.heal()
	x.restoreNodes(x.ctx)
	sample.awaitSettled()

	// The writer's node is drained.
	moving := writer.awaitSettled()
	x.kubectl("drain", moving.Status.ActiveNode, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=4m")
	moved := writer.awaitActiveAfter(moving.Status.FencingToken)
	writer.awaitWriteAfter(moving.Status.FencingToken)
	if moved.Status.ActiveNode == moving.Status.ActiveNode {
		x.Errorf("the active pod is still on the drained node %s", moved.Status.ActiveNode)
	}
	writer.check(false)
	x.restoreNodes(x.ctx)
	writer.awaitSettled()
	writer.check(false)

	x.kubectl("delete", "singletonjob", "--all", "--timeout=4m")
	x.must(bed.uninstall(x.ctx))
}
