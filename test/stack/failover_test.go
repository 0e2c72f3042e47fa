//go:build linux

package stack

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/tier"
)

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestTheProcessEnds(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(prompt))
	next := old
	for kills := 0; next.pod == old.pod && kills < 3; kills++ { // a standby that a busy machine holds up may come after the restart once
		w.protected()
		old = next
		w.must(syscall.Kill(old.process.Pid, syscall.SIGKILL))
		next = w.next(old)
		w.deadBefore(old, next)
	}
	if next.pod == old.pod {
		t.Errorf("%s took over from itself, and a standby was warm", next.pod)
	}
	w.protected()
	if got := w.reasonOf(w.verify(), next.token); got != v1alpha1.ChangeProcessExited {
		t.Errorf("the reason told is %s", got)
	}
}

// Variables of the template are for the process. The agent finds its cluster, its credentials and its socket without them.
func TestTemplateVariablesDoNotReachTheAgent(t *testing.T) {
	w := newWorld(t)
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "theirs"}, Data: map[string]string{
		"GODEBUG": "gctrace=1", "GOMEMLIMIT": "64MiB", "HTTPS_PROXY": "http://127.0.0.1:1", "SSL_CERT_FILE": "/nowhere",
		contract.APIHostEnv: "127.0.0.1", contract.APIPortEnv: "1", contract.SocketEnv: "/nowhere/agent.sock", contract.ConfigEnv: "{}",
	}}
	w.must(w.p.Client.Create(t.Context(), theirs))
	w.run(w.job(long, func(job *v1alpha1.SingletonJob) {
		c := &job.Spec.Template.Spec.Containers[0]
		c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: theirs.Name}}}}
		c.Env = append(c.Env, corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST"}, corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT"})
	}))
	w.verify()
}

// The kubelet's report, or the next agent in the same pod, ends the tenure: nobody waits for the hour of the lease.
func TestTheAgentIsKilled(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(long))
	_, err := old.node.Kill(w.ns, old.pod, localnode.MainProcess)
	w.must(err)
	next := w.next(old)
	w.deadBefore(old, next)
	w.protected()
	w.verify()
}

// actsFor waits until a tenure's process has written for so long, and fails if another one begins.
func (w *world) actsFor(of *tenure, d time.Duration) {
	w.t.Helper()
	until := fencetest.Boottime() + d
	w.must(observe.Await(w.context(), fmt.Sprintf("writes with token %d for %v", of.token, d), func() (bool, any, error) {
		report := w.report()
		if report.Highest != of.token {
			w.t.Fatalf("token %d followed on %d", report.Highest, of.token)
		}
		return report.Tenure(of.token).LastAccepted > until, report.Tenure(of.token), nil
	}))
}

func TestTheLeaseIsDeleted(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(steady))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: jobName}}
	w.must(w.p.Client.Delete(t.Context(), lease))
	next := w.next(old)
	w.deadBefore(old, next)
	w.protected()
	if got := w.reasonOf(w.verify(), next.token); got != v1alpha1.ChangeLeaseDeleted {
		t.Errorf("the reason told is %s", got)
	}
}

// The holder cannot learn about it: it must be dead before another one acquires the Lease that was recreated.
func TestTheLeaseIsDeletedWhileTheHolderIsCutOff(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(short))
	old.node.Cut()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: jobName}}
	w.must(w.p.Client.Delete(t.Context(), lease))
	next := w.next(old)
	w.deadBefore(old, next)
	w.must(old.node.Heal())
	w.protected()
	w.verify()
}

func TestTheJobIsDeletedAndRecreated(t *testing.T) {
	cases := map[string]struct{ cut bool }{"connected": {}, "while the holder is cut off": {cut: true}}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			job := w.job(short)
			old := w.run(job.DeepCopy())
			if c.cut {
				old.node.Cut()
			}
			w.must(w.p.Client.Delete(t.Context(), job.DeepCopy()))
			w.must(w.p.Client.Create(t.Context(), job))
			w.isFollowedAnew(old)
		})
	}
}

// A pod object that is gone proves nothing about a process that nobody can reach.
func TestTheHoldersPodIsForceDeletedWhileItsNodeIsCutOff(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(short))
	old.node.Cut()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: old.pod}}
	w.must(w.p.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	next := w.next(old)
	w.deadBefore(old, next)
	w.must(old.node.Heal())
	w.protected()
	w.verify()
}

// A deleted pod hands over, and not before its process has ended, however long that takes. Its grace period is long: what its
// agent has left of it after the kill must do for the release, on a busy machine too.
func TestTheHoldersPodIsDeleted(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(long, func(job *v1alpha1.SingletonJob) {
		job.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(60))
		writer := &job.Spec.Template.Spec.Containers[0]
		writer.Env = append(writer.Env, corev1.EnvVar{Name: "LINGER", Value: "3s"})
	}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: old.pod}}
	w.must(w.p.Client.Delete(t.Context(), pod))
	next := w.next(old)
	w.deadBefore(old, next)
	w.protected()
	if got := w.reasonOf(w.verify(), next.token); got != v1alpha1.ChangePodTerminating {
		t.Errorf("the reason told is %s", got)
	}
}

// Faults of the operator, the API server or the definition affect all jobs. So they run one after another on a separate control plane.
func TestSharedDependencyIsDown(t *testing.T) {
	tier.Deep(t, "takes minutes")
	t.Parallel()
	p := newProduct(t)
	for _, c := range []struct {
		name string
		test func(*world)
	}{
		{"the operator is down", operatorDown},
		{"the operator is killed again and again", operatorKilled},
		{"the definition is reinstalled", definitionReinstalled},
		{"the API server is away", apiServerAway},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(worldOn(t, p)) })
	}
}

// A running process does not need the operator. After its return, the operator finds the missed changes in the Lease, and reports them
// once.
func operatorDown(w *world) {
	now := w.run(w.job(short))
	w.p.KillOperator()
	for range 3 {
		w.must(syscall.Kill(now.process.Pid, syscall.SIGKILL))
		next := w.next(now)
		w.deadBefore(now, next)
		now = next
	}
	w.must(w.p.StartOperator())
	w.protected()
	if changes := w.verify(); len(changes) < 4 {
		w.t.Errorf("after an election and three failovers the history has %d entries: %+v", len(changes), changes)
	}
}

// An operator that is killed repeatedly still reports each change once.
func operatorKilled(w *world) {
	now := w.run(w.job(short))
	for range 4 {
		w.must(syscall.Kill(now.process.Pid, syscall.SIGUSR2))
		w.p.KillOperator()
		w.must(w.p.StartOperator())
		next := w.next(now)
		w.deadBefore(now, next)
		now = next
	}
	w.protected()
	w.verify()
}

// Without an API server, Stop stops and KeepRunning continues, with the token that it had.
func apiServerAway(stops *world) {
	keeps := worldOn(stops.t, stops.p)
	stopping := stops.run(stops.job(short))
	kept := cluster.ClientGo
	keeping := keeps.run(keeps.job(kept, func(job *v1alpha1.SingletonJob) {
		job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
	}))
	stops.p.Plane.StopAPIServer()
	stops.died(stopping)
	keeps.actsFor(keeping, kept.Duration) // past its lease: it began before the other's process died
	// This test is not about which agent is first after the outage. The holder is, and its standby sees the renewal.
	for _, node := range keeps.nodes {
		if node != keeping.node {
			node.Cut()
		}
	}
	stops.must(stops.p.Plane.StartAPIServer(stops.t.Context()))
	keeps.renews()
	for _, node := range keeps.nodes {
		keeps.must(node.Heal())
	}
	next := stops.next(stopping)
	stops.deadBefore(stopping, next)
	keeps.actsFor(keeping, short.Duration)
	stops.protected()
	stops.verify()
	if changes := keeps.verify(); len(changes) != 1 {
		stops.t.Errorf("KeepRunning did not keep its tenure: %+v", changes)
	}
}

// Anyone who deletes the definition deletes every job. The operator continues when it is there again, and so do the tokens.
func definitionReinstalled(w *world) {
	old := w.run(w.job(short))
	old.node.Cut()
	_, err := w.p.Plane.Kubectl(w.context(), "delete", "crd", "singletonjobs."+v1alpha1.GroupVersion.Group, "--wait=true")
	w.must(err)
	w.must(w.p.Plane.Apply(w.context(), root+"/config/crd"))
	w.await("the job to be made anew", func() (bool, any, error) {
		err := w.p.Client.Create(w.context(), w.job(short))
		return err == nil, nil, err
	})
	w.isFollowedAnew(old)
}
