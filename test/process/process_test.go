//go:build linux

package process

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/rig"
)

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestTheProcessEnds(t *testing.T) {
	cases := map[string]syscall.Signal{
		"killed":             syscall.SIGKILL,
		"exits 0":            syscall.SIGUSR1,
		"exits 1":            syscall.SIGUSR2,
		"segmentation fault": syscall.SIGSEGV,
	}
	for name, signal := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old := w.run(w.job(prompt))
			w.must(syscall.Kill(old.process.Pid, signal))
			next := w.next(old)
			w.deadBefore(old, next)
			if next.pod == old.pod {
				t.Errorf("%s took over from itself, and a standby was warm", next.pod)
			}
			w.protected()
			if got := w.reasonOf(w.verify(), next.token); got != v1alpha1.ChangeProcessExited {
				t.Errorf("the reason told is %s", got)
			}
		})
	}
}

// The kubelet's report, or the next agent in the same pod, ends the tenure: nobody waits for the ten minutes of the lease.
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

// The agent does nothing any more, so the kernel kills the process at the deadline that the agent had set.
func TestTheAgentIsStoppedPastTheLeaseAndResumed(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(short))
	_, err := old.node.Signal(w.ns, old.pod, localnode.MainProcess, syscall.SIGSTOP)
	w.must(err)
	next := w.next(old)
	w.deadBefore(old, next)
	if next.pod == old.pod {
		t.Errorf("%s took over from itself, and it is stopped", next.pod)
	}
	_, err = old.node.Signal(w.ns, old.pod, localnode.MainProcess, syscall.SIGCONT)
	w.must(err)
	w.protected()
	if got := w.reasonOf(w.verify(), next.token); got != v1alpha1.ChangeLeaseExpired {
		t.Errorf("the reason told is %s", got)
	}
}

func TestTheHolderIsCutOff(t *testing.T) {
	everything := func(*tenure) []faultproxy.Match { return nil }
	agent := func(of *tenure) []faultproxy.Match { return []faultproxy.Match{faultproxy.FromPod(of.pod)} }
	inject := func(fault faultproxy.Fault, of func(*tenure) []faultproxy.Match) func(*tenure) {
		return func(holder *tenure) {
			// The watch that is open already would tell the holder that its renewals arrive.
			holder.node.Proxy().Inject(faultproxy.StallWatch(), of(holder)...)
			holder.node.Proxy().Inject(fault, of(holder)...)
		}
	}
	cases := map[string]func(*tenure){
		"half open":          func(holder *tenure) { holder.node.Cut() },
		"refused":            func(holder *tenure) { holder.node.Proxy().Refuse() },
		"black hole":         inject(faultproxy.BlackHole(), everything),
		"replies swallowed":  inject(faultproxy.LoseReply(), agent),
		"connections broken": inject(faultproxy.ResetReply(), agent),
		"internal errors":    inject(faultproxy.Fail(500), agent),
		"overloaded":         inject(faultproxy.TooManyRequests(time.Hour), agent),
	}
	for name, cut := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old := w.run(w.job(short))
			cut(old)
			next := w.next(old)
			w.deadBefore(old, next)
			if next.node == old.node {
				t.Errorf("%s took over on the node that is cut off", next.pod)
			}
			w.must(old.node.Heal())
			w.protected()
			w.verify()
		})
	}
}

// everySecond matches the first request, the third and so on.
func everySecond() faultproxy.Match {
	var n atomic.Int64
	return func(*http.Request) bool { return n.Add(1)%2 == 1 }
}

// leaseWrites are the acquires, renewals and releases of whoever is behind a proxy; leaseReads their reads and watches.
var (
	leaseWrites = []faultproxy.Match{faultproxy.Method("PUT"), faultproxy.PathHas("/leases/" + jobName)}
	leaseReads  = []faultproxy.Match{faultproxy.Method("GET"), faultproxy.PathHas("/leases")}
)

// What the network does to single requests costs nobody a tenure.
func TestAHealthyTenureSurvives(t *testing.T) {
	someWrites := func() []faultproxy.Match { return append(slices.Clone(leaseWrites), everySecond()) }
	cases := map[string]func(*faultproxy.Proxy){
		"replies of renewals lost":         func(p *faultproxy.Proxy) { p.Inject(faultproxy.LoseReply(), someWrites()...) },
		"connections reset after renewals": func(p *faultproxy.Proxy) { p.Inject(faultproxy.ResetReply(), someWrites()...) },
		"renewals delivered twice":         func(p *faultproxy.Proxy) { p.Inject(faultproxy.Duplicate(0), leaseWrites...) },
		"renewals delivered late again": func(p *faultproxy.Proxy) {
			p.Inject(faultproxy.Duplicate(700*time.Millisecond), leaseWrites...)
		},
		"slow network":          func(p *faultproxy.Proxy) { p.Inject(faultproxy.Delay(100*time.Millisecond, 100*time.Millisecond)) },
		"overloaded on and off": func(p *faultproxy.Proxy) { p.Inject(faultproxy.TooManyRequests(time.Hour), someWrites()...) },
		"replies lost, and some reads answered from the past": func(p *faultproxy.Proxy) {
			p.Inject(faultproxy.ResetReply(), someWrites()...)
			p.Inject(faultproxy.Stale(), append(slices.Clone(leaseReads), everySecond())...)
		},
		"watches stalled": func(p *faultproxy.Proxy) { p.Inject(faultproxy.StallWatch()) },
	}
	for name, disturb := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			holder := w.run(w.job(short))
			disturb(holder.node.Proxy())
			w.actsFor(holder, 2*short.duration)
			w.must(holder.node.Heal())
			if changes := w.verify(); len(changes) != 1 {
				t.Errorf("the tenure did not survive: %+v", changes)
			}
		})
	}
}

// actsFor waits until a tenure's process has written for so long, and fails if another one begins.
func (w *world) actsFor(of *tenure, d time.Duration) {
	w.t.Helper()
	until := fencetest.Boottime() + d
	w.must(rig.Await(w.context(), fmt.Sprintf("writes with token %d for %v", of.token, d), func() (bool, any, error) {
		report := w.report()
		if report.Highest != of.token {
			w.t.Fatalf("token %d followed on %d", report.Highest, of.token)
		}
		return report.Tenure(of.token).LastAccepted > until, report.Tenure(of.token), nil
	}))
}

// An acquire whose reply is lost is no tenure, until it is read or renewed; it must not be lost for ever either.
func TestTheReplyToTheAcquireIsLost(t *testing.T) {
	cases := map[string]faultproxy.Fault{"silence": faultproxy.LoseReply(), "connection reset": faultproxy.ResetReply()}
	for name, fault := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old := w.run(w.job(short))
			standby := w.standby(old)
			standby.Proxy().Inject(fault, faultproxy.Times(1, leaseWrites...))
			w.must(syscall.Kill(old.process.Pid, syscall.SIGKILL))
			next := w.next(old)
			w.deadBefore(old, next)
			w.protected()
			w.verify()
		})
	}
}

// A watch that says nothing looks like a quiet one. The standby takes over all the same.
func TestTheStandbysWatchStalls(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(short))
	w.standby(old).Proxy().Inject(faultproxy.StallWatch(), leaseReads...)
	old.node.Cut()
	next := w.next(old)
	w.deadBefore(old, next)
	w.must(w.standby(old).Heal())
	w.must(old.node.Heal())
	w.protected()
	w.verify()
}

func TestTheLeaseIsDeleted(t *testing.T) {
	w := newWorld(t)
	old := w.run(w.job(short))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: jobName}}
	w.must(w.p.Client.Delete(t.Context(), lease))
	next := w.next(old)
	w.deadBefore(old, next)
	w.protected()
	if got := w.reasonOf(w.verify(), next.token); got != v1alpha1.ChangeLeaseDeleted {
		t.Errorf("the reason told is %s", got)
	}
}

// The holder cannot hear of it: it must be dead before another one acquires the Lease that was made anew.
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
			next := w.next(old)
			w.deadBefore(old, next)
			w.must(old.node.Heal())
			w.protected()
			w.verifyAfter(old)
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

// A deleted pod hands over, and not before its process has ended, however long that takes.
func TestTheHoldersPodIsDeleted(t *testing.T) {
	for name, stubborn := range map[string]string{"polite": "", "ignores SIGTERM": "1"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old := w.run(w.job(long, func(job *v1alpha1.SingletonJob) {
				writer := &job.Spec.Template.Spec.Containers[0]
				writer.Env = append(writer.Env, corev1.EnvVar{Name: "STUBBORN", Value: stubborn})
			}))
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: old.pod}}
			w.must(w.p.Client.Delete(t.Context(), pod))
			next := w.next(old)
			w.deadBefore(old, next)
			w.protected()
			if got := w.reasonOf(w.verify(), next.token); got != v1alpha1.ChangePodTerminating {
				t.Errorf("the reason told is %s", got)
			}
		})
	}
}

// Nobody who runs the process needs the operator. What it missed it finds in the Lease, and tells once.
func TestTheOperatorIsDownDuringFailovers(t *testing.T) {
	w := newWorldOfItsOwn(t)
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
		t.Errorf("after an election and three failovers the history has %d entries: %+v", len(changes), changes)
	}
}

// An operator that is killed again and again tells each change once all the same.
func TestTheOperatorIsKilledAgainAndAgain(t *testing.T) {
	w := newWorldOfItsOwn(t)
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

// Without an API server, Stop stops and KeepRunning goes on, with the token that it had.
func TestTheAPIServerIsAway(t *testing.T) {
	stops := newWorldOfItsOwn(t)
	keeps := worldOn(t, stops.p)
	stopping := stops.run(stops.job(short))
	keeping := keeps.run(keeps.job(short, func(job *v1alpha1.SingletonJob) {
		job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
	}))
	stops.p.Plane.StopAPIServer()
	stops.died(stopping)
	keeps.actsFor(keeping, 2*short.duration)
	stops.must(stops.p.Plane.StartAPIServer(t.Context()))
	next := stops.next(stopping)
	stops.deadBefore(stopping, next)
	keeps.actsFor(keeping, 2*short.duration)
	stops.protected()
	stops.verify()
	if changes := keeps.verify(); len(changes) != 1 {
		t.Errorf("KeepRunning did not keep its tenure: %+v", changes)
	}
}

// 403 is a failed renewal and no loss: a clean stop, and a recovery when the rights are back.
func TestTheAgentsRightsAreTakenAndGivenBack(t *testing.T) {
	w := newWorldOfItsOwn(t)
	old := w.run(w.job(short))
	w.p.KillOperator() // which would give them back at once
	bindings := &rbacv1.RoleBindingList{}
	w.must(w.p.Client.List(t.Context(), bindings, client.InNamespace(w.ns)))
	if len(bindings.Items) != 1 {
		t.Fatalf("want the one role binding of the job, found %+v", bindings.Items)
	}
	w.must(w.p.Client.Delete(t.Context(), &bindings.Items[0]))
	w.died(old)
	w.must(w.p.StartOperator())
	next := w.next(old)
	w.deadBefore(old, next)
	w.protected()
	w.verify()
}

// What overloads the API server hits all: who stops on a failed renewal stops, once, and one comes back; who keeps running
// goes on with the token that it had.
func TestTheAPIServerIsOverloadedForAll(t *testing.T) {
	for name, fault := range map[string]faultproxy.Fault{
		"429":  faultproxy.TooManyRequests(30 * time.Second),
		"slow": faultproxy.Delay(30*time.Second, 0),
	} {
		t.Run(name, func(t *testing.T) {
			stops := newWorld(t)
			keeps := worldOn(t, stops.p)
			stopping := stops.run(stops.job(short))
			keeping := keeps.run(keeps.job(short, func(job *v1alpha1.SingletonJob) {
				job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
			}))
			nodes := slices.Concat(stops.nodes, keeps.nodes)
			for _, node := range nodes {
				node.Proxy().Inject(fault, faultproxy.PathHas("/leases"))
			}
			stops.died(stopping)
			keeps.actsFor(keeping, 2*short.duration)
			for _, node := range nodes {
				stops.must(node.Heal())
			}
			next := stops.next(stopping)
			stops.deadBefore(stopping, next)
			keeps.actsFor(keeping, short.duration)
			stops.protected()
			stops.verify()
			if changes := keeps.verify(); len(changes) != 1 {
				t.Errorf("KeepRunning did not keep its tenure: %+v", changes)
			}
		})
	}
}
