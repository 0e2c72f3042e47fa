//go:build linux

package stack

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/tier"
)

// await waits for a state of the cluster.
func (w *world) await(what string, is func() (done bool, seen any, err error)) {
	w.t.Helper()
	w.must(observe.Await(w.context(), what, is))
}

// gone waits until there is no such object.
func (w *world) gone(o client.Object) {
	w.t.Helper()
	w.await(fmt.Sprintf("%T %s to be gone", o, o.GetName()), func() (bool, any, error) {
		err := w.p.Client.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err), o, client.IgnoreNotFound(err)
	})
}

// All that spoke for the tenure goes with the namespace, and the holder cannot learn about it: what the operator remembers must
// do, until the lease is over.
func TestTheNamespaceIsDeletedAndRecreated(t *testing.T) {
	tier.Deep(t, "waits for a namespace to go and for leases to end")
	for name, cut := range map[string]bool{"connected": false, "while the holder is cut off": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			lease := short
			if cut { // to a namespace that may take its time to go, and is back while the old process runs
				lease = steady
			}
			old := w.run(w.job(lease))
			if cut {
				old.node.Cut()
			}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}
			w.must(w.p.Client.Delete(t.Context(), ns.DeepCopy()))
			if cut { // its kubelet cannot say that it is dead
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: old.pod}}
				w.must(client.IgnoreNotFound(w.p.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0))))
			}
			w.gone(ns.DeepCopy())
			w.must(w.p.Client.Create(t.Context(), ns))
			w.await("the job to be made anew", func() (bool, any, error) { // some of the API server may still see the old namespace end
				err := w.p.Client.Create(t.Context(), w.job(lease))
				return err == nil, nil, err
			})
			w.isFollowedAnew(old)
		})
	}
}

// isFollowedAnew asks that the process of a job that was recreated follows on the old one's, and that all is well when that
// one's node can be reached.
func (w *world) isFollowedAnew(old *tenure) {
	w.t.Helper()
	next := w.next(old)
	w.deadBefore(old, next)
	w.must(old.node.Heal())
	w.protected()
	w.verifyAfter(old)
}

// A cordon asks nobody to leave. An eviction of the active one is a handover, and another takes its place elsewhere.
func TestTheHoldersNodeIsDrained(t *testing.T) {
	tier.Deep(t, "takes a minute, and make smoke drains a node")
	w := newWorld(t)
	w.addNode("c")
	holder := w.run(w.job(long))
	before := w.candidates()
	w.edit(holder.node.Name(), func(n *corev1.Node) { n.Spec.Unschedulable = true })
	w.actsFor(holder, 3*time.Second)
	if now := w.candidates(); !slices.Equal(now, before) {
		t.Errorf("after a cordon the candidates are %v, before it %v", now, before)
	}
	w.await("the holder to be evicted", func() (bool, any, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: holder.pod}}
		err := w.p.Client.SubResource("eviction").Create(t.Context(), pod, &policyv1.Eviction{})
		return err == nil, nil, err
	})
	next := w.next(holder)
	w.deadBefore(holder, next)
	if next.node == holder.node {
		t.Errorf("%s took over on the node that is drained", next.pod)
	}
	w.protected()
	if got := w.reasonOf(w.verify(), next.token); got != v1alpha1.ChangePodTerminating {
		t.Errorf("the reason told is %s", got)
	}
}

// A node that is not ready and unreachable proves nothing: its process writes until the lease is over. Its pod is evicted, and
// stays for as long as nobody can say that it is dead; another takes its place.
func TestTheHoldersNodeIsLost(t *testing.T) {
	tier.Deep(t, "waits for a long lease to end")
	w := newWorld(t)
	w.addNode("c")
	old := w.run(w.job(steady))
	old.node.Cut()
	w.edit(old.node.Name(), func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "lost", Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.Now())})
	})
	next := w.next(old)
	w.deadBefore(old, next)
	w.protected()
	if left := w.candidates(); len(left) != 3 || !slices.Contains(left, old.pod) {
		t.Errorf("the candidates are %v, want three with %s, of which nobody knows that it is dead", left, old.pod)
	}
	w.must(old.node.Heal())
	w.gone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: old.pod}})
	w.protected()
	if changes := w.verify(); len(changes) != 2 || w.reasonOf(changes, next.token) != v1alpha1.ChangeLeaseExpired {
		t.Errorf("want one failover when the lease had expired: %+v", changes)
	}
}

// candidates are the names of the job's pods.
func (w *world) candidates() []string {
	w.t.Helper()
	pods := &corev1.PodList{}
	w.must(w.p.Client.List(w.t.Context(), pods, client.InNamespace(w.ns)))
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return names
}

// edit changes a node.
func (w *world) edit(name string, change func(*corev1.Node)) {
	w.t.Helper()
	w.await("node "+name+" to be changed", func() (bool, any, error) {
		node := &corev1.Node{}
		if err := w.p.Client.Get(w.t.Context(), client.ObjectKey{Name: name}, node); err != nil {
			return false, nil, err
		}
		change(node)
		err := w.p.Client.Update(w.t.Context(), node)
		return err == nil, nil, err
	})
}
