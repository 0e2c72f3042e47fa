//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
)

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

// An end is one way in which a tenure ends.
type end struct {
	why    string
	change []func(*v1alpha1.SingletonJob)
	// breaks does it to the active pod, on its node. A fault lasts until the next process has written.
	breaks func(j *job, pod, node string)
	// within bounds the time from the fault to the next process's first write; what a busy machine takes comes on top.
	within time.Duration
	// reasons that the history may give.
	reasons []string
	// after is what else must hold when all is healed and settled.
	after func(j *job, old observe.Life)
	// overlap is expected of long pauses alone, where only the fence protects.
	overlap bool
	// stays: the fault continues for so long after the takeover, and the old process may wake up when it is healed.
	stays time.Duration
}

// lease is what most tests give their jobs. A tenure can end on a busy machine with nothing broken. Where a tenure must last, where
// failovers are counted, or where it may end for one reason only, the lease is steady. Where its end is awaited, the lease is ClientGo.
var (
	lease  = cluster.Fast
	steady = cluster.LeaseSetting{Duration: 40 * time.Second, Deadline: 25 * time.Second, Retry: 2 * time.Second}
)

// shows is the time after which a holder under steady that could renew no more since its beginning is dead.
var shows = steady.Deadline + 2*time.Second

// promptly is a lease that makes an immediate takeover easy to distinguish from a later one. A standby that learns about a release only by
// its own reads reads every 110 s.
var promptly = cluster.LeaseSetting{Duration: 240 * time.Second, Deadline: 170 * time.Second, Retry: 110 * time.Second}.Apply

// longGrace is such a grace of a pod that is told to stop.
func longGrace(o *v1alpha1.SingletonJob) {
	o.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(300))
}

// ends is the catalogue of faults that end a tenure.
var ends = map[string]end{
	"process killed": {
		change: []func(*v1alpha1.SingletonJob){promptly}, breaks: signalProcess("KILL"), within: time.Second, reasons: []string{v1alpha1.ChangeProcessExited},
		why: "the agent sees it at once and releases",
	},
	"process exits 0":   {change: []func(*v1alpha1.SingletonJob){promptly}, breaks: signalProcess("USR1"), within: time.Second, reasons: []string{v1alpha1.ChangeProcessExited}},
	"process exits 1":   {change: []func(*v1alpha1.SingletonJob){promptly}, breaks: signalProcess("USR2"), within: time.Second, reasons: []string{v1alpha1.ChangeProcessExited}},
	"process segfaults": {change: []func(*v1alpha1.SingletonJob){promptly}, breaks: signalProcess("SEGV"), within: time.Second, reasons: []string{v1alpha1.ChangeProcessExited}},
	"out of memory": {
		change: []func(*v1alpha1.SingletonJob){cluster.ClientGo.Apply, limitMemory}, breaks: signalProcess("HUP"), within: cluster.ClientGo.Duration,
		reasons: []string{v1alpha1.ChangeProcessExited, v1alpha1.ChangeHolderTerminated, v1alpha1.ChangeLeaseExpired, v1alpha1.ChangeRenewFailed},
		why:     "the kernel ends the process, or on cgroup v2 the whole container, and the agent has no memory either until then",
	},
	"agent killed": {
		change: []func(*v1alpha1.SingletonJob){promptly}, // which does not expire before the operator sees it
		breaks: func(j *job, pod, _ string) { j.fault("signal", j.container(pod), "KILL") }, within: 2 * time.Second,
		reasons: []string{v1alpha1.ChangeHolderTerminated}, why: "the kubelet reports it, and the operator releases early",
	},
	"agent stopped past the lease": {
		change: []func(*v1alpha1.SingletonJob){cluster.ClientGo.Apply},
		breaks: func(j *job, pod, _ string) { j.fault("signal", j.container(pod), "STOP") }, within: cluster.ClientGo.Duration,
		reasons: []string{v1alpha1.ChangeLeaseExpired}, stays: 3 * time.Second, why: "the leash kills the process at the deadline, without the agent",
	},
	"container frozen past the lease": {
		change: []func(*v1alpha1.SingletonJob){cluster.ClientGo.Apply},
		breaks: func(j *job, pod, _ string) { j.fault("freeze", j.container(pod)) }, within: cluster.ClientGo.Duration,
		reasons: []string{v1alpha1.ChangeLeaseExpired}, stays: 3 * time.Second, overlap: true, after: staleProcessDied,
		why: "nothing in the container can act; the sink refuses what it sends when it wakes up",
	},
	"node paused past the lease": {
		change: []func(*v1alpha1.SingletonJob){cluster.ClientGo.Apply},
		breaks: func(j *job, _, node string) { j.fault("pause", node) }, within: cluster.ClientGo.Duration,
		reasons: []string{v1alpha1.ChangeLeaseExpired}, stays: 3 * time.Second, overlap: true, after: staleProcessDied,
		why: "as a virtual machine that is moved",
	},
	"API server lost, packets vanish": {
		breaks: cutAPI("drop"), within: lease.Duration, reasons: lost, stays: 3 * time.Second,
		why: "the sink stays reachable: only the agent keeps the old process from going on",
	},
	"API server lost, connections refused": {breaks: cutAPI("refuse"), within: lease.Duration, reasons: lost, stays: 3 * time.Second},
	"API server lost, requests vanish":     {breaks: cutAPI("requests"), within: lease.Duration, reasons: lost, stays: 3 * time.Second},
	"API server lost, replies vanish": {
		breaks: cutAPI("replies"), within: 2 * lease.Duration, reasons: lost, stays: 3 * time.Second,
		why: "requests arrive, so the last renewal may be stored without the holder knowing: it must not count on it",
	},
	"node cut off": {
		breaks: func(j *job, _, node string) { j.fault("node", node) }, within: lease.Duration, reasons: lost, stays: 3 * time.Second,
	},
	"node loses power": {
		breaks: func(j *job, _, node string) { j.fault("crash", node) }, within: lease.Duration, reasons: lost,
	},
	"pod deleted": {
		change: []func(*v1alpha1.SingletonJob){promptly, longGrace},
		breaks: func(j *job, pod, _ string) { j.kubectl("delete", "pod", pod, "--wait=false") }, within: 2 * time.Second,
		reasons: []string{v1alpha1.ChangePodTerminating},
	},
	"pod deleted, process works on after SIGTERM": {
		change: []func(*v1alpha1.SingletonJob){promptly, longGrace, lingerFor(4 * time.Second)},
		breaks: func(j *job, pod, _ string) { j.kubectl("delete", "pod", pod, "--wait=false") }, within: 6 * time.Second,
		reasons: []string{v1alpha1.ChangePodTerminating}, why: "a pod that stops slowly keeps its tenure until it is gone",
	},
	"node drained": {
		change: []func(*v1alpha1.SingletonJob){promptly, longGrace},
		breaks: func(j *job, _, node string) {
			j.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s", "--pod-selector=singletonjob.io/name=job")
		},
		within: 10 * time.Second, reasons: []string{v1alpha1.ChangePodTerminating},
	},
	"API server lost, process kept running": {
		change: []func(*v1alpha1.SingletonJob){keepRunning}, breaks: cutAPI("drop"), within: lease.Duration,
		reasons: lost, stays: 3 * time.Second, overlap: true, after: staleWritesRefused,
		why: "two processes by design: the sink alone protects, and must be seen to",
	},
	"pod force-deleted while its node is cut off from the API server": {
		breaks: func(j *job, pod, node string) {
			j.fault("api", node, "drop")
			j.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
		},
		within: lease.Duration, reasons: lost, stays: 3 * time.Second,
		why: "the pod object is gone and proves nothing: its process still writes",
	},
	"node deleted while it is cut off from the API server": {
		breaks: func(j *job, _, node string) {
			j.fault("api", node, "drop")
			j.kubectl("delete", "node", node, "--wait=false")
		},
		within: lease.Duration, reasons: lost, stays: 3 * time.Second,
	},
}

var lost = []string{v1alpha1.ChangeLeaseExpired, v1alpha1.ChangeNodeLost, v1alpha1.ChangeRenewFailed}

func signalProcess(name string) func(*job, string, string) {
	return func(j *job, pod, _ string) {
		j.Helper()
		j.await("signal "+name+" for the process of "+pod, func() (bool, any, error) {
			err := j.signal(pod, name)
			return err == nil, nil, err
		})
	}
}

func cutAPI(how string) func(*job, string, string) {
	return func(j *job, _, node string) { j.fault("api", node, how) }
}

// staleProcessDied asks that the process that woke up dies, as soon as its leash has a CPU; it may have been killed before it
// sent anything.
func staleProcessDied(j *job, old observe.Life) {
	var l observe.Life
	j.await("the old process to write no more", func() (bool, any, error) {
		l = j.lifeOf(old.Writer)
		time.Sleep(3 * time.Second) // 150 writes
		now := j.lifeOf(old.Writer)
		return now.Last == l.Last, now, nil
	})
	j.Logf("after its pause the old process sent %d stale writes; the sink stored %d", l.Stale, l.StaleAccepted)
}

// staleWritesRefused asks that there were stale writes, or nothing has been shown.
func staleWritesRefused(j *job, old observe.Life) {
	l := j.lifeOf(old.Writer)
	j.Logf("the old process sent %d stale writes; the sink stored %d", l.Stale, l.StaleAccepted)
	if l.Stale == 0 {
		j.Error("no stale write reached the sink, so its fence was not tested")
	}
}

// TestTakeover ends tenures in every way and asks for the next one, without two at once.
func TestTakeover(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		t.Run(name, func(t *testing.T) {
			x := beginBeside(t)
			x.needLab()
			x.takeover(ends[name])
		})
	}
}

// TestUserNamespace stops the agent of a process that runs as root of a user namespace (hostUsers: false) and becomes another user there.
// The kernel then clears the process's parent-death signal, and no process outside of the namespace may kill it.
func TestUserNamespace(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	x.kubectl("label", "namespace", x.namespace, "pod-security.kubernetes.io/enforce=baseline", "--overwrite") // root, and its capabilities
	x.takeover(end{
		change: []func(*v1alpha1.SingletonJob){cluster.ClientGo.Apply, becomeAnotherUser},
		breaks: func(j *job, pod, _ string) {
			j.isAnotherUser(pod)
			j.fault("signal", j.container(pod), "STOP")
		},
		within: cluster.ClientGo.Duration, reasons: []string{v1alpha1.ChangeLeaseExpired}, stays: 3 * time.Second,
	})
}

// TestAnImageThatStopsByAnotherSignal deletes the pod of an image that its runtime stops by SIGUSR1, which ends the process. The process
// gets it after preStop, and not at once.
func TestAnImageThatStopsByAnotherSignal(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	const image = "local/workload-usr1:1"
	program := filepath.Join(t.TempDir(), "workload")
	x.must(cluster.Build(x.ctx, "./test/workload", program))
	x.must(bed.Lab.Image(x.ctx, image+"="+program+":/workload@/workload!SIGUSR1"))
	const drains = 3 * time.Second
	var asked time.Duration
	x.takeover(end{
		change: []func(*v1alpha1.SingletonJob){promptly, longGrace, func(o *v1alpha1.SingletonJob) {
			c := &o.Spec.Template.Spec.Containers[0]
			c.Image = image
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(drains / time.Second)}}}
		}},
		breaks: func(j *job, pod, _ string) {
			asked = fencetest.Boottime()
			j.kubectl("delete", "pod", pod, "--wait=false")
		},
		within: drains + 2*time.Second, reasons: []string{v1alpha1.ChangePodTerminating},
		after: func(j *job, old observe.Life) {
			if worked := j.lifeOf(old.Writer).LastStored - asked; worked < drains/2 {
				j.Errorf("the process worked for %v after its pod was deleted, want %v", worked, drains)
			}
		},
	})
}

// TestShorterGracePeriod ends pods with less time than their template has, while their preStop hooks take all of it. The kubelet kills the
// container at the end. By then the process has had its signal, and the Lease is released: the history would otherwise tell a failover.
func TestShorterGracePeriod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends   func(j *job, pod, node string)
		within time.Duration
	}{
		"deleted": {within: 5 * time.Second, ends: func(j *job, pod, _ string) {
			j.kubectl("delete", "pod", pod, "--grace-period=5", "--wait=false")
		}},
		"drained": {within: 10 * time.Second, ends: func(j *job, pod, node string) {
			// Only this Pod: on the node there can be one of another case that has ended, which takes its 60 s.
			j.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s", "--grace-period=5", "--pod-selector=singletonjob.io/pod="+pod)
		}},
		"deleted once more": {within: 20 * time.Second, ends: func(j *job, pod, _ string) {
			j.kubectl("delete", "pod", pod, "--wait=false")
			time.Sleep(10 * time.Second) // the hook runs, and the process works on
			j.awaitFurtherWrites()
			j.kubectl("delete", "pod", pod, "--grace-period=5", "--wait=false")
		}},
		"by force": {within: 5 * time.Second, ends: func(j *job, pod, _ string) {
			j.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			x := beginBeside(t)
			x.needLab()
			var log func() string
			x.takeover(end{
				change: []func(*v1alpha1.SingletonJob){promptly, func(o *v1alpha1.SingletonJob) {
					spec := &o.Spec.Template.Spec
					spec.TerminationGracePeriodSeconds = new(int64(60))
					spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 55}}}
				}},
				breaks: func(j *job, pod, node string) {
					log = x.follow(pod)
					c.ends(j, pod, node)
				},
				within: c.within, reasons: []string{v1alpha1.ChangePodTerminating},
				after: func(_ *job, _ observe.Life) {
					if name == "by force" { // the API server no longer knows whose log it is
						return
					}
					said := log()
					if short := cutShort(said); short != 0 || !strings.Contains(said, "grace period shortened") {
						x.Errorf("%d stops are cut short, want 0; the log:\n%s", short, said)
					}
				},
			})
		})
	}
}

const anotherUser = 1000

func becomeAnotherUser(o *v1alpha1.SingletonJob) {
	spec := &o.Spec.Template.Spec
	spec.HostUsers, spec.SecurityContext = new(false), nil
	spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(0))}
	spec.Containers[0].Command = []string{"/workload", "as", strconv.Itoa(anotherUser)}
}

// isAnotherUser asks that the process of the pod became the user that it was to become, in a user namespace of its own.
func (j *job) isAnotherUser(pod string) {
	j.Helper()
	is := regexp.MustCompile(fmt.Sprintf(`user %d of\s+0\s+[1-9]`, anotherUser))
	j.await("the process to be as this test needs it", func() (bool, any, error) {
		said, err := bed.Kubectl(j.ctx, "--namespace="+j.namespace, "logs", pod, "--container=app")
		return is.MatchString(said), said, err
	})
}

func (x *trial) takeover(e end) {
	x.Helper()
	j := x.start(lease, e.change...)
	before := j.get()
	pod, node := before.Status.ActivePod, before.Status.ActiveNode
	old := j.lives()[len(j.lives())-1]

	began := fencetest.Boottime()
	e.breaks(j, pod, node)
	next := j.awaitWriteAfter(before.Status.FencingToken)
	took := next.FirstStored - began // by the sink's record: what broke it may return late
	x.Logf("the next process wrote %v after the fault; without a stored write for %v", took.Round(time.Millisecond),
		(next.FirstStored - j.lifeOf(old.Writer).LastStored).Round(time.Millisecond))
	// This is less than what is added when a takeover does not come at once. Below promptly are the time of a look, and the grace of a
	// pod that is told to stop.
	if took > e.within+time.Minute {
		x.Errorf("the next process wrote after %v, want %v", took, e.within)
	}
	j.awaitActiveAfter(before.Status.FencingToken)
	time.Sleep(e.stays) // the fault continues: both sides must stay as they are
	j.check(e.overlap)

	x.heal()
	x.restoreNodes(x.ctx)
	after := j.awaitSettled()
	j.check(e.overlap)
	if e.after != nil {
		e.after(j, old)
	}
	change := changeFrom(after, before.Status.FencingToken)
	if change == nil {
		x.Fatalf("the history does not tell what followed token %d: %+v", before.Status.FencingToken, after.Status.History)
	}
	if !slices.Contains(e.reasons, change.Reason) {
		x.Errorf("the history says %s, want one of %v", change.Reason, e.reasons)
	}
	if change.FromNode != node || change.From != pod {
		x.Errorf("the history says the tenure of %s on %s ended, want %s on %s", change.From, change.FromNode, pod, node)
	}
}

func (j *job) lifeOf(writer string) observe.Life {
	for _, l := range j.lives() {
		if l.Writer == writer {
			return l
		}
	}
	return observe.Life{}
}

// changeFrom is the history's entry about the end of the tenure with the token.
func changeFrom(o *v1alpha1.SingletonJob, token int64) *v1alpha1.TenureChange {
	for i := range o.Status.History {
		if o.Status.History[i].FromToken == token {
			return &o.Status.History[i]
		}
	}
	return nil
}
