//go:build linux

package stack

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/tier"
)

// The disasters of docs/runs.md, on real processes: no run is done twice, and each tick is run, missed or skipped.

// ticking is a job with a tick each minute, and what its processes note in a file: that they begin, and, once there is another file, that
// they end.
type ticking struct {
	w    *world
	job  *v1alpha1.SingletonJob
	file string
}

func (w *world) ticking(name string, change func(*v1alpha1.SingletonJob)) *ticking {
	w.t.Helper()
	n := &ticking{w: w, file: filepath.Join(w.t.TempDir(), "noted")}
	setting := cluster.LeaseSetting{Duration: 30 * time.Second, Deadline: 20 * time.Second, Retry: 500 * time.Millisecond}
	n.job = w.job(setting, func(job *v1alpha1.SingletonJob) {
		job.Name = name
		job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
		job.Spec.BackoffLimit, job.Spec.HistoryLimit = new(int32(100)), new(int32(50))
		job.Spec.Schedule = &v1alpha1.Schedule{Cron: "* * * * *", CatchUp: "All", Overlap: "Queue", Standby: v1alpha1.StandbyWarm}
		c := &job.Spec.Template.Spec.Containers[0]
		c.Command = []string{"sh", "-c", `echo "begins $SINGLETONJOB_RUN_ID $SINGLETONJOB_ATTEMPT" >> "$FILE"
			while ! test -e "$FILE.go"; do sleep .2; done
			echo "ends $SINGLETONJOB_RUN_ID $SINGLETONJOB_ATTEMPT" >> "$FILE"`}
		c.Env = append(c.Env, corev1.EnvVar{Name: "FILE", Value: n.file})
		change(job)
	})
	w.must(w.p.Client.Create(w.t.Context(), n.job))
	return n
}

// letEnd has each process end.
func (n *ticking) letEnd() { n.w.must(os.WriteFile(n.file+".go", nil, 0o600)) }

// ran are the ticks of which a process has ended. It fails where a run begins or ends once more after that.
func (n *ticking) ran() (ticks []time.Time) {
	n.w.t.Helper()
	over := map[string]bool{}
	for _, line := range noted(n.w.t, n.file) {
		words := strings.Fields(line)
		if len(words) != 3 {
			continue
		}
		if over[words[1]] {
			n.w.t.Fatalf(observe.Safety+"a run is done twice: %q", noted(n.w.t, n.file))
		}
		if words[0] != "ends" {
			continue
		}
		over[words[1]] = true
		if tick, err := time.Parse(time.RFC3339, words[1][strings.Index(words[1], "/")+1:]); err == nil {
			ticks = append(ticks, tick)
		}
	}
	return ticks
}

// awaitNoted waits for a line.
func (n *ticking) awaitNoted(line string) {
	n.w.t.Helper()
	n.w.await(n.job.Name+" to note "+line, func() (bool, any, error) {
		all := noted(n.w.t, n.file)
		return slices.Contains(all, line), all, nil
	})
}

// awaitTick waits until a tick after an instant was run.
func (n *ticking) awaitTick(after time.Time) {
	n.w.t.Helper()
	n.w.await(fmt.Sprintf("%s to run a tick after %v", n.job.Name, after), func() (bool, any, error) {
		ticks := n.ran()
		return len(ticks) > 0 && ticks[len(ticks)-1].After(after), ticks, nil
	})
}

// leavesNoneOut asks that each tick after an instant was run, up to the last one that was.
func (n *ticking) leavesNoneOut(after time.Time) {
	n.w.t.Helper()
	next := after.Truncate(time.Minute).Add(time.Minute)
	for _, tick := range n.ran() {
		if !tick.After(after) {
			continue
		}
		if !tick.Equal(next) {
			n.w.t.Errorf("%v comes where %v is due: %q", tick, next, noted(n.w.t, n.file))
		}
		next = tick.Add(time.Minute)
	}
}

func (n *ticking) status() v1alpha1.SingletonJobStatus {
	n.w.t.Helper()
	job, err := n.w.p.Job(n.w.t.Context(), n.w.ns, n.job.Name)
	n.w.must(err)
	return job.Status
}

func (n *ticking) awaitStatus(what string, holds func(v1alpha1.SingletonJobStatus) bool) {
	n.w.t.Helper()
	_, err := n.w.p.AwaitJob(n.w.context(), n.w.ns, n.job.Name, what, func(job *v1alpha1.SingletonJob) bool { return holds(job.Status) })
	n.w.must(err)
}

// awaitQuiet waits until no run is under way, nor about to be.
func (n *ticking) awaitQuiet() {
	n.w.t.Helper()
	n.awaitStatus("between two runs", func(s v1alpha1.SingletonJobStatus) bool {
		second := time.Now().Second()
		return second >= 5 && second < 40 && meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionActive).Reason == v1alpha1.ReasonNotDue
	})
}

func (n *ticking) lease() *coordinationv1.Lease {
	l := &coordinationv1.Lease{}
	if err := n.w.p.Client.Get(n.w.t.Context(), client.ObjectKeyFromObject(n.job), l); err != nil {
		return nil
	}
	return l
}

// mustLease waits for it: one look may fail.
func (n *ticking) mustLease() (l *coordinationv1.Lease) {
	n.w.t.Helper()
	n.w.await("the Lease", func() (bool, any, error) {
		l = n.lease()
		return l != nil, nil, nil
	})
	return l
}

// loseLease deletes the Lease, and returns when there is another one, made at.
func (n *ticking) loseLease() (at time.Time) {
	n.w.t.Helper()
	old := n.mustLease()
	n.w.must(n.w.p.Client.Delete(n.w.t.Context(), old.DeepCopy(), client.Preconditions{UID: &old.UID}))
	n.w.await("another Lease", func() (bool, any, error) {
		l := n.lease()
		if l == nil || l.UID == old.UID {
			return false, l, nil
		}
		at = l.CreationTimestamp.Time
		return true, nil, nil
	})
	return at
}

// TestTheLeaseIsDeletedUnderASchedule during a run, which has another attempt, and between two, after which what was run stays run.
func TestTheLeaseIsDeletedUnderASchedule(t *testing.T) {
	tier.Deep(t, "waits for ticks, which are minutes apart")
	w := newWorld(t)
	n := w.ticking("job", func(job *v1alpha1.SingletonJob) {
		job.Annotations = map[string]string{contract.RunNowAnnotation: "by-hand"}
	})
	run := string(n.job.UID) + "/by-hand"
	n.awaitNoted("begins " + run + " 1")
	n.awaitStatus("told", func(s v1alpha1.SingletonJobStatus) bool { return len(s.Runs) > 0 && s.Runs[0].ID == run })
	n.loseLease()
	n.awaitNoted("begins " + run + " 2") // its first process is dead
	n.letEnd()
	n.awaitStatus("complete", func(s v1alpha1.SingletonJobStatus) bool {
		return slices.ContainsFunc(s.Runs, func(r v1alpha1.RunStatus) bool { return r.ID == run && r.State == string(lease.RunComplete) })
	})
	n.awaitQuiet()
	made := n.loseLease()
	n.awaitTick(made)
	n.leavesNoneOut(made)
	if s := n.status(); s.Missed+s.Skipped != 0 {
		t.Errorf("status %+v", s)
	}
}

// TestWrongClocks: a candidate starts no tick while its clock and the API server's differ, by minutes or by a day. The log reports that.
// When the clocks agree again, all ticks that came due meanwhile are run. For a node, a wrong clock of the API server is the same fault.
func TestWrongClocks(t *testing.T) {
	tier.Deep(t, "waits for ticks, which are minutes apart")
	w := newWorld(t)
	right := map[string]func(){}
	for i, by := range []time.Duration{-5 * time.Minute, 24 * time.Hour} {
		wrong := faultproxy.Alter(func(reply *http.Response, body []byte) []byte {
			if date, err := http.ParseTime(reply.Header.Get("Date")); err == nil {
				reply.Header.Set("Date", date.Add(by).Format(http.TimeFormat))
			}
			return body
		})
		right[w.nodes[i].Name()] = w.nodes[i].Proxy().Inject(wrong, faultproxy.Method(http.MethodGet), faultproxy.PathHas("/leases/job"))
	}
	n := w.ticking("job", func(*v1alpha1.SingletonJob) {})
	n.letEnd()
	n.awaitStatus("overdue", func(s v1alpha1.SingletonJobStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionScheduled)
		return c != nil && c.Reason == v1alpha1.ReasonOverdue
	})
	if ticks := n.ran(); len(ticks) > 0 {
		t.Fatalf("by clocks that do not agree are run: %v", ticks)
	}
	var pods corev1.PodList
	w.must(w.p.Client.List(t.Context(), &pods, client.InNamespace(w.ns)))
	pod := &pods.Items[slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != "" && p.DeletionTimestamp == nil })]
	node := w.p.Cluster.Node(pod.Spec.NodeName)
	w.await("the agent to say why", func() (bool, any, error) {
		text, err := os.ReadFile(node.Log(w.ns, pod.Name, pod.Spec.Containers[0].Name))
		return strings.Contains(string(text), "tick not started reason=ClocksDisagree"), string(text), err
	})
	right[node.Name()]()
	made := n.mustLease().CreationTimestamp.Time
	n.awaitTick(made)
	n.awaitStatus("scheduled", func(s v1alpha1.SingletonJobStatus) bool {
		return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionScheduled)
	})
	n.leavesNoneOut(made)
}

// TestOutagesDuringTicks: while no operator runs, a candidate that stands by runs what comes due, and without one that is missed and told.
// While there is no API server nothing begins; afterwards what came due is run.
func TestOutagesDuringTicks(t *testing.T) {
	tier.Deep(t, "waits for ticks, which are minutes apart")
	t.Parallel()
	p := newProduct(t)
	w := worldOn(t, p)
	warm := w.ticking("warm", func(*v1alpha1.SingletonJob) {})
	lazy := w.ticking("lazy", func(job *v1alpha1.SingletonJob) {
		job.Spec.Schedule.Standby, job.Spec.Schedule.LeadTime = v1alpha1.StandbyOnDemand, &metav1.Duration{Duration: 5 * time.Second}
		job.Spec.Schedule.StartingDeadline = metav1.Duration{Duration: 10 * time.Second}
	})
	warm.letEnd()
	lazy.letEnd()
	warm.awaitStatus("standing by", func(s v1alpha1.SingletonJobStatus) bool { return s.Candidates.Ready == 2 })
	lazy.awaitStatus("at rest", func(s v1alpha1.SingletonJobStatus) bool { return s.NextTick != nil && s.Candidates.Total == 0 })
	lazy.awaitQuiet()

	p.KillOperator()
	tick := time.Now().Truncate(time.Minute).Add(time.Minute)
	warm.awaitTick(tick.Add(-time.Second))
	time.Sleep(time.Until(tick.Add(15 * time.Second))) // the other's deadline
	w.must(p.StartOperator())
	lazy.awaitStatus("told what was missed", func(s v1alpha1.SingletonJobStatus) bool { return s.Missed > 0 })
	for _, ran := range lazy.ran() {
		if ran.Equal(tick) {
			t.Errorf("without an operator pods were made for %v", tick)
		}
	}

	warm.awaitQuiet()
	p.Plane.StopAPIServer()
	down := time.Now().Truncate(time.Minute).Add(time.Minute)
	time.Sleep(time.Until(down.Add(3 * time.Second)))
	w.must(p.Plane.StartAPIServer(w.context()))
	warm.awaitTick(down.Add(-time.Second))
	warm.leavesNoneOut(warm.mustLease().CreationTimestamp.Time)
	if s := warm.status(); s.Missed+s.Skipped != 0 {
		t.Errorf("status %+v", s)
	}
	lazy.accounted()
}

// accounted waits until all ticks since the Lease was made are reported as run, missed or skipped, except the last one, which is not
// known yet.
func (n *ticking) accounted() {
	n.w.t.Helper()
	n.w.await("each tick to be accounted for", func() (bool, any, error) {
		l := n.lease()
		if l == nil {
			return false, nil, nil
		}
		made, until := l.CreationTimestamp.Time, time.Now().Add(-30*time.Second)
		ticks := int64(until.Truncate(time.Minute).Sub(made.Truncate(time.Minute)) / time.Minute)
		s := n.status()
		ran := int64(len(n.ran()))
		return time.Now().Second() > 40 && ticks == ran+s.Missed+s.Skipped, fmt.Sprint(ticks, " ticks, ", ran, " run, ", s.Missed, " missed, ", s.Skipped, " skipped"), nil
	})
}

// TestEtcdIsRestoredUnderASchedule as docs/runs.md says it is to be done: the backup does not know of the last run, which is not done again.
func TestEtcdIsRestoredUnderASchedule(t *testing.T) {
	tier.Deep(t, "waits for ticks, which are minutes apart")
	t.Parallel()
	p := newProduct(t)
	w := worldOn(t, p)
	n := w.ticking("job", func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.TokenBase = 1 })
	n.letEnd()
	n.awaitTick(n.job.CreationTimestamp.Time)
	data, backup := filepath.Join(p.Plane.Dir(), "etcd"), filepath.Join(t.TempDir(), "backup")
	offline := func(do func() error) {
		n.awaitQuiet()
		p.Plane.StopAPIServer()
		p.Plane.StopEtcd()
		w.must(do())
		w.must(p.Plane.StartEtcd())
		w.must(p.Plane.StartAPIServer(w.context()))
	}
	offline(func() error { return os.CopyFS(backup, os.DirFS(data)) })
	n.awaitTick(time.Now())
	n.awaitQuiet()
	for _, node := range w.nodes {
		node.Cut() // let nobody reach the restored API server
	}
	p.KillOperator()
	offline(func() error {
		w.must(os.RemoveAll(data))
		return os.CopyFS(data, os.DirFS(backup))
	})
	settled := time.Now()
	out, err := p.Plane.Kubectl(w.context(), "annotate", "lease", "-A", "-l", "app.kubernetes.io/managed-by=singletonjob", "--overwrite",
		contract.TickAnnotation+"="+settled.UTC().Format(time.RFC3339))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, node := range w.nodes {
		w.must(node.Heal())
	}
	w.must(p.StartOperator())
	n.awaitTick(settled)
	n.leavesNoneOut(settled)
}
