//go:build linux

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/cluster"
)

func inNamespace(name string) client.ListOption { return client.InNamespace(name) }

// operatorPods lists the operator's replicas that are not on their way out.
func (x *trial) operatorPods() []corev1.Pod {
	x.Helper()
	pods, err := listOperators(x.ctx)
	x.must(err)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func listOperators(ctx context.Context) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := bed.Client.List(ctx, &pods, inNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/instance": release})
	return pods.Items, err
}

// leader is the replica that acts.
func (x *trial) leader() corev1.Pod {
	x.Helper()
	var found corev1.Pod
	x.await("an operator that leads", func() (bool, any, error) {
		var leases coordinationv1.LeaseList
		if err := bed.Client.List(x.ctx, &leases, inNamespace(systemNamespace)); err != nil {
			return false, nil, err
		}
		for _, l := range leases.Items {
			for _, p := range x.operatorPods() {
				if l.Spec.HolderIdentity != nil && strings.HasPrefix(*l.Spec.HolderIdentity, p.Name+"_") {
					found = p
					return true, nil, nil
				}
			}
		}
		return false, leases.Items, nil
	})
	return found
}

func containerOf(p corev1.Pod) string {
	if len(p.Status.ContainerStatuses) == 0 {
		return ""
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// TestOperatorKilledDuringFailover kills every replica at the moment at which the job fails over.
func TestOperatorKilledDuringFailover(t *testing.T) {
	x := begin(t)
	x.needLab()
	j := x.start(steady)
	token, killed := j.get().Status.FencingToken, 0
	for range 3 {
		before := j.awaitActiveAfter(token - 1)
		token = before.Status.FencingToken
		signalProcess("KILL")(j, before.Status.ActivePod, "")
		killed += x.killOperators()
		next := j.awaitWriteAfter(token)
		token = int64(next.Tokens[0])
	}
	j.awaitActiveAfter(token - 1)
	after := j.awaitSettled()
	if after.Status.Failovers != 3 {
		x.Errorf("%d failovers are counted, want 3: %+v", after.Status.Failovers, after.Status.History)
	}
	if killed < 2 {
		x.Errorf("%d operators were killed: not tested", killed)
	}
	j.check(false)
}

// killOperators kills every replica that runs, and tells how many did: the kubelet lets one that was killed before wait.
func (x *trial) killOperators() (killed int) {
	x.Helper()
	for _, p := range x.operatorPods() {
		if err := bed.Lab.Fault(x.ctx, "signal", containerOf(p), "KILL"); err == nil {
			killed++
			x.timeline.Note("FAULT  killed operator %s", p.Name)
		}
	}
	return killed
}

// TestOperatorDownDuringFailovers shows that jobs fail over without any operator, and that none of it is forgotten.
func TestOperatorDownDuringFailovers(t *testing.T) {
	x := begin(t)
	x.needLab()
	j := x.start(steady)
	before := j.get()
	x.kubectl("scale", "deployment", release, "--replicas=0", "--namespace="+systemNamespace)
	x.await("no operator", func() (bool, any, error) { return len(x.operatorPods()) == 0, nil, nil })

	token, active := before.Status.FencingToken, before.Status.ActivePod
	for range 3 {
		signalProcess("KILL")(j, active, "")
		next := j.awaitWriteAfter(token)
		token = int64(next.Tokens[0])
		active, _, _ = strings.Cut(next.Writer, "@")
	}
	x.kubectl("scale", "deployment", release, "--replicas=2", "--namespace="+systemNamespace)
	j.awaitActiveAfter(token - 1)
	after := j.awaitSettled()
	if after.Status.Failovers != before.Status.Failovers+3 {
		x.Errorf("%d failovers are counted, want 3 more than %d: %+v", after.Status.Failovers, before.Status.Failovers, after.Status.History)
	}
	j.check(false)
}

// TestOperatorsCutOffFromEachOther cuts the replicas off from each other, then the leader from the API server, and lets it return: two
// may act for a while, and nothing may happen twice.
func TestOperatorsCutOffFromEachOther(t *testing.T) {
	x := begin(t)
	x.needLab()
	leader, other := x.operatorsApart()
	j := x.start(steady)
	x.fault("peers", leader.Spec.NodeName, other.Spec.NodeName)
	j.crash()
	// As a pause that outlasts the leader's own lease: when it continues, it believes for a moment that it leads.
	x.must(bed.Client.Get(x.ctx, client.ObjectKeyFromObject(&leader), &leader)) // its container may be another by now
	x.fault("freeze", containerOf(leader))
	x.await("the other operator leads", func() (bool, any, error) {
		now := x.leader()
		return now.UID != leader.UID, now.Name, nil
	})
	j.crash()
	if err := bed.Lab.Fault(x.ctx, "thaw", containerOf(leader)); err != nil { // its kubelet may have ended it by now
		x.note("thaw: %v", err)
	}
	j.crash()
	after := j.awaitSettled()
	if after.Status.Failovers != 3 {
		x.Errorf("%d failovers are counted, want 3: %+v", after.Status.Failovers, after.Status.History)
	}
	if n := len(j.candidates()); n != 2 {
		x.Errorf("there are %d candidates, want 2", n)
	}
	j.check(false)
}

// operatorsApart are the leader and a replica on another node, which is recreated there if both share one.
func (x *trial) operatorsApart() (leader, other corev1.Pod) {
	x.Helper()
	for range 3 { // a busy machine may have another one lead by then
		leader = x.leader()
		x.kubectl("cordon", leader.Spec.NodeName)
		x.await("a replica on another node", func() (bool, any, error) {
			for _, p := range x.operatorPods() {
				switch {
				case p.UID == leader.UID:
				case p.Spec.NodeName == leader.Spec.NodeName:
					return false, p.Name, client.IgnoreNotFound(bed.Client.Delete(x.ctx, &p))
				case cluster.PodReady(p):
					other = p
					return true, p.Name, nil
				}
			}
			return false, nil, nil
		})
		x.kubectl("uncordon", leader.Spec.NodeName)
		now := x.leader()
		if now.UID == leader.UID {
			return leader, other
		}
		x.Logf("%s leads by now, and not %s", now.Name, leader.Name)
	}
	x.Fatal("no operator leads for long enough")
	return leader, other
}

// crash kills the active process and waits until the next one writes and the status says so.
func (j *job) crash() *v1alpha1.SingletonJob {
	j.Helper()
	var before *v1alpha1.SingletonJob
	j.await("the active process to be killed", func() (bool, any, error) {
		if before = j.get(); !settled(before) {
			return false, before.Status, nil
		}
		err := j.signal(before.Status.ActivePod, "KILL")
		return err == nil, before.Status, err
	})
	j.awaitWriteAfter(before.Status.FencingToken)
	return j.awaitActiveAfter(before.Status.FencingToken)
}

// TestDaemonsRestarted restarts what is under a pod: no tenure may end.
func TestDaemonsRestarted(t *testing.T) {
	t.Parallel()
	for _, daemon := range []string{"kubelet", "containerd"} {
		t.Run(daemon, func(t *testing.T) {
			x := beginBeside(t)
			x.needLab()
			j := x.start(steady)
			before := j.get()
			x.fault("restart", before.Status.ActiveNode, daemon)
			time.Sleep(shows)
			j.awaitSettled()
			j.undisturbed(before)
		})
	}
}

// TestTheRuntimeLosesAPod: containerd comes back without its state, and the kubelet starts the pod's containers again while the old ones
// live on. There is one candidate, so nobody else can take over.
func TestTheRuntimeLosesAPod(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	j := x.create(cluster.ClientGo, func(o *v1alpha1.SingletonJob) { o.Spec.Candidates = 1 })
	before := j.awaitActiveAfter(0)
	j.awaitWriteAfter(0)
	pod := before.Status.ActivePod
	uid, old := j.pod(pod).UID, j.container(pod)
	x.fault("lose", old)
	lived, alive := false, time.Duration(0)
	for now := fencetest.Boottime(); x.outlives(old); now = fencetest.Boottime() {
		lived, alive = true, now
		time.Sleep(10 * time.Millisecond)
		x.must(x.ctx.Err())
	}
	if !lived {
		x.Fatal("the process did not outlive its runtime: nothing is tested")
	}
	next := j.awaitWriteAfter(before.Status.FencingToken)
	if next.FirstStored < alive {
		x.Errorf("SAFETY: the next process wrote %v before the old one was dead", alive-next.FirstStored)
	}
	x.Logf("the old process was dead %v before the next one wrote", next.FirstStored-alive)
	j.awaitActiveAfter(before.Status.FencingToken)
	if now := j.pod(pod); now.UID != uid || j.container(pod) == old {
		x.Errorf("the pod %s is not the one that was lost, or its container is the old one: nothing is tested", pod)
	}
	j.check(false)
}

// outlives reports whether a process of the workload lives in the container, whatever its runtime says.
func (x *trial) outlives(id string) bool {
	x.Helper()
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	x.must(err)
	return slices.ContainsFunc(groups, func(name string) bool {
		group, _ := os.ReadFile(name) // of one that has gone: nothing
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		return strings.Contains(string(group), id) && strings.HasPrefix(string(line), "/workload")
	})
}

// staysOnSilentNodes is for nodes that may be silent for longer than Kubernetes leaves the pods of a job there.
func staysOnSilentNodes(o *v1alpha1.SingletonJob) {
	o.Spec.Template.Spec.Tolerations = []corev1.Toleration{{
		Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(600)),
	}}
}

// TestKubeletStopped stops the kubelet for longer than a lease: nobody needs it while the process runs.
func TestKubeletStopped(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	j := x.start(steady, staysOnSilentNodes)
	before := j.get()
	x.fault("stop", before.Status.ActiveNode, "kubelet")
	time.Sleep(steady.Duration + slack/10)
	j.undisturbed(before)
	x.heal()
	j.awaitSettled()
	j.undisturbed(before)
}
