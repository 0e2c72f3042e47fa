//go:build linux

package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/tier"
)

// The guard is turned on during a tenure. Agents and operator can still write the Lease, each with its own rights: renewals, a handover, a
// release by proof, a rollout, the deletion of a Lease. Leases last for so long that nothing ends by time.
func TestUnderTheGuard(t *testing.T) {
	tier.Deep(t, "takes minutes")
	t.Parallel()
	w := worldOn(t, newProduct(t))
	w.addNode("c")
	job := w.job(patient)
	job.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(60)) // for the release too, on a busy machine
	first := w.run(job)
	w.turnGuardOn()
	w.renews()
	w.actsFor(first, 0)

	w.must(w.p.Client.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: first.pod}}))
	second := w.next(first)
	w.deadBefore(first, second)
	w.protected()

	// Its kubelet cannot tell that it is dead. An administrator can.
	second.node.Cut()
	_, err := second.node.Kill(w.ns, second.pod, localnode.MainProcess)
	w.must(err)
	outOfService := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "off", Effect: corev1.TaintEffectNoExecute}
	w.edit(second.node.Name(), func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, outOfService) })
	third := w.next(second)
	w.deadBefore(second, third)
	w.protected()

	w.await("the job to be changed", func() (bool, any, error) {
		now, err := w.p.Job(t.Context(), w.ns, jobName)
		if err != nil {
			return false, nil, err
		}
		env := &now.Spec.Template.Spec.Containers[0].Env
		*env = append(*env, corev1.EnvVar{Name: "VERSION", Value: "2"})
		err = w.p.Client.Update(t.Context(), now)
		return err == nil, nil, err
	})
	fourth := w.next(third)
	w.deadBefore(third, fourth)
	w.renews()

	changes := w.verify()
	for of, want := range map[*tenure]string{
		second: v1alpha1.ChangePodTerminating, third: v1alpha1.ChangeNodeLost, fourth: v1alpha1.ChangeRolloutHandover,
	} {
		if got := w.reasonOf(changes, of.token); got != want {
			t.Errorf("the reason told for token %d is %s, want %s", of.token, got, want)
		}
	}
	w.must(second.node.Heal()) // no Lease goes before the last pod
	w.must(w.p.Client.Delete(t.Context(), job))
	w.gone(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: jobName}})
}

// turnGuardOn installs what the chart has for it, and returns when agents and operator are under it.
func (w *world) turnGuardOn() {
	w.t.Helper()
	w.must(ApplyGuard(w.t.Context(), w.p.Plane, root))
	foreign := filepath.Join(w.t.TempDir(), "lease.yaml")
	w.must(os.WriteFile(foreign, fmt.Appendf(nil, "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: foreign, namespace: %s}}", w.ns), 0o600))
	for _, refused := range [][]string{
		{"delete", "lease", jobName, "--namespace=" + w.ns},
		{"create", "--filename=" + foreign, "--as=system:serviceaccount:" + OperatorNamespace + ":" + operatorAccount},
	} {
		w.await("the guard to refuse", func() (bool, any, error) {
			out, err := w.p.Plane.Kubectl(w.t.Context(), append(refused, "--dry-run=server")...)
			return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy"), out, err
		})
	}
}

// renews waits for two renewals.
func (w *world) renews() {
	w.t.Helper()
	for range 2 {
		var before *metav1.MicroTime
		w.await("a renewal", func() (bool, any, error) {
			l := &coordinationv1.Lease{}
			err := w.p.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.ns, Name: jobName}, l)
			if before == nil {
				before = l.Spec.RenewTime
			}
			return err == nil && !l.Spec.RenewTime.Equal(before), l.Spec, err
		})
	}
}
