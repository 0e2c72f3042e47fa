//go:build linux

package process

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/test/rig"
)

// await waits for a state of the cluster.
func (w *world) await(what string, is func() (done bool, seen any, err error)) {
	w.t.Helper()
	w.must(rig.Await(w.context(), what, is))
}

// gone waits until there is no such object.
func (w *world) gone(o client.Object) {
	w.t.Helper()
	w.await(fmt.Sprintf("%T %s to be gone", o, o.GetName()), func() (bool, any, error) {
		err := w.p.Client.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err), o, client.IgnoreNotFound(err)
	})
}

// All that spoke for the tenure goes with the namespace, and the holder cannot hear of it: what the operator remembers must
// do, until the lease is over.
func TestTheNamespaceIsDeletedAndRecreated(t *testing.T) {
	for name, cut := range map[string]bool{"connected": false, "while the holder is cut off": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old := w.run(w.job(short))
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
			w.must(w.p.Client.Create(t.Context(), w.job(short)))
			next := w.next(old)
			w.deadBefore(old, next)
			w.must(old.node.Heal())
			w.protected()
			w.verifyAfter(old)
		})
	}
}
