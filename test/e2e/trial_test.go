//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
)

const (
	// patience is how long anything may take before a test fails. It decides no verdict but that of a hang.
	patience = 4 * time.Minute
	// slack is what a busy machine may add to a bound of the design, which it must tell from what is longer than both. The
	// benchmark measures without it.
	slack = 20 * time.Second
)

// A trial is one test with a namespace and a timeline of its own.
type trial struct {
	*testing.T
	ctx       context.Context
	namespace string
	timeline  *observe.Timeline
	// zone is where all its pods run, and all that it may break; without a name: the whole cluster.
	zone zone
}

// beginBeside is begin for a test that breaks nothing but its own pods and the nodes that these are on. It runs beside
// others of its kind, after those that have the cluster for themselves.
func beginBeside(t *testing.T) *trial {
	t.Helper()
	if bed == nil || cap(bed.zones) == 0 {
		return begin(t)
	}
	t.Parallel()
	var own zone
	select {
	case own = <-bed.zones:
	case <-bed.interrupted.Done():
		t.Skip("interrupted")
	}
	t.Cleanup(func() { bed.zones <- own })
	return beginIn(t, own)
}

// begin makes sure that the operator is installed, and skips the test if there is no cluster to run on.
func begin(t *testing.T) *trial {
	t.Helper()
	return beginIn(t, zone{})
}

func beginIn(t *testing.T, own zone) *trial {
	t.Helper()
	if bed == nil {
		t.Skip("needs a cluster: run 'make e2e', or go test ./test/e2e -e2e with KUBECONFIG set")
	}
	if err := bed.interrupted.Err(); err != nil {
		t.Skip("interrupted")
	}
	ctx, cancel := context.WithTimeout(bed.interrupted, 40*time.Minute) // each await has its own patience
	x := &trial{T: t, ctx: ctx, namespace: bed.namespaceFor(t.Name()), timeline: observe.NewTimeline(), zone: own}
	t.Cleanup(func() {
		if t.Failed() {
			x.explain()
			bed.distrust()
		}
		cancel()
		x.cleanUp()
	})
	x.must(bed.ensureInstalled(ctx))
	x.must(bed.CreateNamespace(ctx, x.namespace, own.name))
	x.timeline.Follow(ctx, bed.Client, x.namespace)
	return x
}

// beside is the same test in one more namespace.
func (x *trial) beside(name string) *trial {
	x.Helper()
	other := &trial{T: x.T, ctx: x.ctx, namespace: x.namespace + "-" + name, timeline: x.timeline, zone: x.zone}
	x.must(bed.CreateNamespace(x.ctx, other.namespace, x.zone.name))
	x.timeline.Follow(x.ctx, bed.Client, other.namespace)
	x.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := bed.DeleteNamespace(ctx, other.namespace); err != nil {
			x.Error(err)
		}
	})
	return other
}

// namespaceFor differs in every run of a test: the sink forgets nothing.
func (b *testbed) namespaceFor(test string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs[test]++
	name := strings.Trim(regexp.MustCompile("[^a-z0-9]+").ReplaceAllString(strings.ToLower(test), "-"), "-")
	return fmt.Sprintf("e2e-%s-%d", strings.Trim(name[:min(len(name), 50)], "-"), b.runs[test])
}

// cleanUp heals what the trial may have broken and removes the namespace. It runs when the test's context has ended.
func (x *trial) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if bed.Lab != nil {
		if err := x.healIn(ctx); err != nil {
			x.Error(err)
		}
		x.restoreNodes(ctx)
	}
	if x.zone.name == "" {
		if err := x.replaceOperators(ctx); err != nil {
			x.Errorf("replace the operators that have restarted: %v", err)
		}
	}
	if err := bed.DeleteNamespace(ctx, x.namespace); err != nil {
		x.Error(err)
	}
}

// healIn undoes every fault that the trial may have made.
func (x *trial) healIn(ctx context.Context) error {
	return bed.Lab.Fault(ctx, append([]string{"heal"}, x.zone.nodes...)...)
}

// restoreNodes makes every node that the trial may have broken take pods again, and waits until all are ready.
func (x *trial) restoreNodes(ctx context.Context) {
	own := x.zone.nodes
	if own == nil {
		own = bed.Lab.Nodes
	}
	nodes, err := x.listNodes(ctx)
	for _, name := range own {
		if _, known := nodes[name]; err == nil && !known {
			// A kubelet registers its node when it starts, and kube-proxy ends when its node is deleted.
			err = errors.Join(bed.Lab.Fault(ctx, "restart", name, "kubelet"), x.healIn(ctx))
		}
	}
	if err == nil {
		err = observe.Await(ctx, "all nodes to be ready", func() (bool, any, error) {
			nodes, err = x.listNodes(ctx)
			var waiting []string
			for _, name := range own {
				if n, known := nodes[name]; !known || !nodeReady(n) {
					waiting = append(waiting, name)
				}
			}
			return len(waiting) == 0, waiting, err
		})
		err = errors.Join(err, x.healIn(ctx)) // should kube-proxy have ended only now
	}
	for _, name := range own {
		n := nodes[name]
		if err == nil && n.Spec.Unschedulable {
			_, err = bed.Kubectl(ctx, "uncordon", n.Name)
		}
		if err == nil && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) {
			_, err = bed.Kubectl(ctx, "taint", "node", n.Name, corev1.TaintNodeOutOfService+"-")
		}
	}
	if err != nil {
		x.Errorf("restore the nodes: %v", err)
	}
}

// replaceOperators deletes the replicas that have restarted repeatedly, as a leader does that can't renew. The kubelet delays each
// restart for longer, up to five minutes, and the next test must not wait for that.
func (x *trial) replaceOperators(ctx context.Context) error {
	pods, err := listOperators(ctx)
	for i, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			if s.RestartCount > 1 {
				err = errors.Join(err, client.IgnoreNotFound(bed.Client.Delete(ctx, &pods[i])))
			}
		}
	}
	return err
}

func (x *trial) listNodes(ctx context.Context) (map[string]corev1.Node, error) {
	var nodes corev1.NodeList
	err := bed.Client.List(ctx, &nodes)
	byName := map[string]corev1.Node{}
	for _, n := range nodes.Items {
		byName[n.Name] = n
	}
	return byName, err
}

func nodeReady(n corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// explain tells what happened, for a reader who can't run the test again.
func (x *trial) explain() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var jobs v1alpha1.SingletonJobList
	if err := bed.Client.List(ctx, &jobs, client.InNamespace(x.namespace)); err != nil {
		x.Logf("the jobs can't be read: %v", err)
	}
	for _, job := range jobs.Items {
		x.timeline.NoteLives(x.livesOf(ctx, job.Name))
	}
	x.Logf("timeline, in seconds:\n%s", x.timeline)
	for _, job := range jobs.Items {
		for _, h := range job.Status.History {
			x.Logf("history of %s: %s %s from %s (%d) to %s (%d)", job.Name, h.Type, h.Reason, h.From, h.FromToken, h.To, h.Token)
		}
	}
	operators, err := bed.Kubectl(ctx, "get", "pods", "--namespace", systemNamespace, "--output=wide")
	x.Logf("operator: %v\n%s", err, operators)
	logs, err := bed.Kubectl(ctx, "logs", "--namespace", systemNamespace, "deployment/"+release, "--all-pods", "--tail=30")
	x.Logf("operator: %v\n%s", err, logs)
	var pods corev1.PodList
	if err := bed.Client.List(ctx, &pods, client.InNamespace(x.namespace)); err != nil {
		x.Logf("the pods can't be read: %v", err)
	}
	for _, p := range pods.Items {
		logs, err := bed.Kubectl(ctx, "logs", "--namespace", x.namespace, p.Name, "--all-containers", "--tail=30", "--request-timeout=5s")
		x.Logf("pod %s: %v\n%s", p.Name, err, logs)
	}
}

func (x *trial) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

// needLab skips the test where nothing can be broken.
func (x *trial) needLab() {
	x.Helper()
	if bed.Lab == nil {
		x.Skip("breaks something: needs the lab of test/lab to be the cluster that KUBECONFIG names")
	}
}

// needControlPlanes skips the test on a lab with fewer control planes.
func (x *trial) needControlPlanes(n int) {
	x.Helper()
	x.needLab()
	if bed.Lab.ControlPlanes < n {
		x.Skipf("needs %d control planes and this lab has %d: 'make e2e' starts such a lab, too", n, bed.Lab.ControlPlanes)
	}
}

// fault breaks something, and notes when.
func (x *trial) fault(args ...string) {
	x.Helper()
	x.timeline.Note("FAULT  %s", strings.Join(args, " "))
	x.must(bed.Lab.Fault(x.ctx, args...))
	x.timeline.Note("FAULT  %s: done", args[0])
}

// heal undoes what the trial has broken.
func (x *trial) heal() {
	x.Helper()
	x.fault(append([]string{"heal"}, x.zone.nodes...)...)
}

// follow reads the log of a pod's container app until the container ends. The log is complete then, and the pod may be gone.
func (x *trial) follow(pod string) (log func() string) {
	type end struct {
		text string
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		text, err := bed.Kubectl(x.ctx, "--namespace", x.namespace, "logs", pod, "--container=app", "--follow")
		ended <- end{text, err}
	}()
	return func() string {
		x.Helper()
		select {
		case e := <-ended:
			if e.err != nil {
				x.Logf("the log of %s may be incomplete: %v", pod, e.err)
			}
			return e.text
		case <-time.After(patience):
			x.Fatalf("the container of %s has not ended", pod)
			return ""
		}
	}
}

func (x *trial) note(format string, args ...any) { x.timeline.Note("TEST   "+format, args...) }

func (x *trial) kubectl(args ...string) string {
	x.Helper()
	x.note("kubectl %s", strings.Join(args, " "))
	out, err := bed.Kubectl(x.ctx, append([]string{"--namespace", x.namespace}, args...)...)
	x.must(err)
	return out
}

// await waits for a state of the cluster.
func (x *trial) await(what string, is func() (done bool, seen any, err error)) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.ctx, patience)
	defer cancel()
	x.must(observe.Await(ctx, what, is))
	x.note("seen: %s", what)
}

// A job under test.
type job struct {
	*trial
	name string
	key  client.ObjectKey
}

// start creates the job and waits until its process writes and a standby protects it.
func (x *trial) start(setting cluster.LeaseSetting, change ...func(*v1alpha1.SingletonJob)) *job {
	x.Helper()
	j := x.create(setting, change...)
	j.awaitSettled()
	j.awaitWriteAfter(0)
	return j
}

func (x *trial) create(setting cluster.LeaseSetting, change ...func(*v1alpha1.SingletonJob)) *job {
	x.Helper()
	return x.createNamed("job", setting, change...)
}

func (x *trial) createNamed(name string, setting cluster.LeaseSetting, change ...func(*v1alpha1.SingletonJob)) *job {
	x.Helper()
	object := bed.Job(x.namespace, name, setting)
	for _, c := range change {
		c(object)
	}
	x.await("the job to be created", func() (bool, any, error) { // its definition may have been made just now
		err := bed.Client.Create(x.ctx, object)
		return err == nil || apierrors.IsAlreadyExists(err), nil, err
	})
	return &job{trial: x, name: object.Name, key: client.ObjectKeyFromObject(object)}
}

// asks asks the API server until it answers: one that has just begun, or whose etcd has no leader, tells of that instead.
func (x *trial) asks(ask func() error) {
	x.Helper()
	var err error
	x.await("an answer of the API server", func() (bool, any, error) {
		err = ask()
		return err == nil || apierrors.IsNotFound(err), nil, err
	})
	x.must(err)
}

func (j *job) get() *v1alpha1.SingletonJob {
	j.Helper()
	var object v1alpha1.SingletonJob
	j.asks(func() error { return bed.Client.Get(j.ctx, j.key, &object) })
	return &object
}

// awaitStatus waits until the job's status is as wanted, and returns it.
func (j *job) awaitStatus(what string, is func(*v1alpha1.SingletonJob) bool) *v1alpha1.SingletonJob {
	j.Helper()
	var object v1alpha1.SingletonJob
	j.await(what, func() (bool, any, error) {
		err := bed.Client.Get(j.ctx, j.key, &object)
		return err == nil && is(&object), object.Status, err
	})
	return &object
}

// awaitSettled waits until the process runs, a standby on another node is ready, and nothing is under way. Where both were put on one
// node, the operator moves one as soon as another node takes it.
func (j *job) awaitSettled() *v1alpha1.SingletonJob {
	j.Helper()
	return j.awaitStatus("active and protected", settled)
}

func settled(o *v1alpha1.SingletonJob) bool {
	return o.Status.ObservedGeneration == o.Generation &&
		meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionActive) &&
		meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionProtected) &&
		meta.IsStatusConditionFalse(o.Status.Conditions, v1alpha1.ConditionProgressing)
}

// awaitActiveAfter waits until the status names an active pod with a higher token.
func (j *job) awaitActiveAfter(token int64) *v1alpha1.SingletonJob {
	j.Helper()
	return j.awaitStatus(fmt.Sprintf("active with a token above %d", token), func(o *v1alpha1.SingletonJob) bool {
		return o.Status.FencingToken > token && o.Status.ActivePod != "" && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionActive)
	})
}

// awaitWriteAfter waits for a stored write with a higher token, and returns its process.
func (j *job) awaitWriteAfter(token int64) observe.Life {
	j.Helper()
	var found observe.Life
	j.await(fmt.Sprintf("a write with a token above %d", token), func() (bool, any, error) {
		lives := j.livesOf(j.ctx, j.name)
		for _, l := range lives {
			if l.Accepted > 0 && int64(l.Tokens[0]) > token {
				found = l
				return true, nil, nil
			}
		}
		return false, lives, nil
	})
	return found
}

func (x *trial) livesOf(ctx context.Context, name string) []observe.Life {
	resource := fence.ResourceOf(x.namespace, name)
	attempts, err := bed.Attempts(ctx, resource)
	if err != nil {
		x.Error(err)
	}
	return observe.Lives(attempts, resource, bed.OneClock())
}

func (j *job) lives() []observe.Life { return j.livesOf(j.ctx, j.name) }

// check looks for what may never be seen.
func (j *job) check(expectOverlap bool) {
	j.Helper()
	lives := j.lives()
	if len(lives) == 0 {
		j.Error("the sink has seen no write: nothing was tested")
	}
	for _, v := range observe.Violations(lives, expectOverlap) {
		j.Error("violation: ", v)
	}
	// The operator may have been cut off too, and tells then what it missed.
	highest := int64(slices.Max(lives[len(lives)-1].Tokens))
	j.checkHistory(lives, j.awaitStatus(fmt.Sprintf("the status tells token %d", highest), func(o *v1alpha1.SingletonJob) bool {
		return o.Status.FencingToken >= highest
	}))
}

// checkHistory asks that every change of holder is told once, in order, and counted. The lives are from before the object.
func (j *job) checkHistory(lives []observe.Life, object *v1alpha1.SingletonJob) {
	j.Helper()
	var failovers, handovers int64
	seen := map[int64]bool{}
	for i, h := range object.Status.History {
		if seen[h.Token] {
			j.Errorf("the history tells token %d twice", h.Token)
		}
		seen[h.Token] = true
		if i > 0 && h.Token >= object.Status.History[i-1].Token {
			j.Errorf("the history is not in order: token %d after %d", h.Token, object.Status.History[i-1].Token)
		}
		switch h.Type {
		case v1alpha1.Failover:
			failovers++
		case v1alpha1.Handover:
			handovers++
		case v1alpha1.Elected:
		}
	}
	for _, l := range lives {
		if len(object.Status.History) < 10 && !seen[int64(l.Tokens[0])] && !j.saysIncomplete() {
			j.Errorf("the history lacks token %v, with which %s wrote", l.Tokens, l.Writer)
		}
	}
	if len(object.Status.History) < 10 && (failovers != object.Status.Failovers || handovers != object.Status.Handovers) {
		j.Errorf("status counts %d failovers and %d handovers, the history tells %d and %d",
			object.Status.Failovers, object.Status.Handovers, failovers, handovers)
	}
}

// saysIncomplete reports whether the operator has said that it can't tell all: somebody took the Lease's own history away.
func (j *job) saysIncomplete() bool {
	j.Helper()
	var events corev1.EventList
	j.asks(func() error { return bed.Client.List(j.ctx, &events, client.InNamespace(j.namespace)) })
	return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.Name == j.name && e.Reason == "HistoryIncomplete"
	})
}

// candidates lists the job's pods.
func (j *job) candidates() []corev1.Pod {
	j.Helper()
	var pods corev1.PodList
	j.asks(func() error {
		return bed.Client.List(j.ctx, &pods, client.InNamespace(j.namespace), client.MatchingLabels{contract.NameLabel: j.name})
	})
	return pods.Items
}

func (j *job) pod(name string) *corev1.Pod {
	j.Helper()
	var pod corev1.Pod
	j.asks(func() error { return bed.Client.Get(j.ctx, client.ObjectKey{Namespace: j.namespace, Name: name}, &pod) })
	return &pod
}

// container names the gated container of the pod for the lab, by its id: names can't be asked for while the API server is
// away.
func (j *job) container(pod string) string {
	j.Helper()
	for _, s := range j.pod(pod).Status.ContainerStatuses {
		if s.Name == "app" {
			_, id, _ := strings.Cut(s.ContainerID, "://")
			return id
		}
	}
	j.Fatalf("pod %s has no container app", pod)
	return ""
}

// signal sends a signal to the process of the pod. It fails if none runs: the status of a pod whose container has just been
// restarted may still name the container from before.
func (j *job) signal(pod, name string) error {
	j.Helper()
	err := bed.Lab.Fault(j.ctx, "signal", j.container(pod), name, "/workload")
	if err == nil {
		j.timeline.Note("FAULT  signal %s to the process of %s", name, pod)
	}
	return err
}

// limitMemory lets the kernel end a process that takes too much.
func limitMemory(o *v1alpha1.SingletonJob) {
	container := &o.Spec.Template.Spec.Containers[0]
	container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: *quantity("96Mi")}
}

// lingerFor makes the process work on after SIGTERM.
func lingerFor(d time.Duration) func(*v1alpha1.SingletonJob) {
	return func(o *v1alpha1.SingletonJob) {
		c := &o.Spec.Template.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: "LINGER", Value: d.String()})
	}
}
