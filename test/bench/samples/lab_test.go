//go:build linux

// Package samples runs every sample of config/samples on the lab, beside the same program in what people run it in today. It breaks both at the
// same time, and counts at their sinks. 'make bench-samples' does all that; without -lab only what judges is tested.
package samples

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/debian"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/samples"
)

var (
	enabled = flag.Bool("lab", false, "run the samples on the lab that KUBECONFIG names")
	image   = flag.String("image", "singletonjob/operator:e2e", "the operator's image, as name:tag")
	archive = flag.String("image-archive", "", "archive with that image, loaded into the lab first")
	figures = flag.String("json", "samples.json", "file for all figures; the table is beside it, as .md")
	only    = flag.String("only", "", "a regular expression of samples; all if empty")
	faults  = flag.String("faults", "kill,drain,drain,cut,freeze", "what is done, in this order")
)

const (
	root = "../../.."
	// nodes: the first has the operator and stays. The next two are for SingletonJobs, the last two for what people run today.
	nodes = 5
	// evicted is how long a Pod tolerates that its node is lost, instead of Kubernetes' 300 s.
	evicted = 15
	// settles bounds each wait.
	settles = 8 * time.Minute
)

// bench is the lab, and what runs on it.
type bench struct {
	*testing.T
	ctx       context.Context
	cluster   *cluster.Cluster
	databases *samples.Databases
	registry  string
	subjects  []*subject
	lab       chan struct{} // has an element for each command of the lab that runs
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) await(what string, is func() (bool, any, error)) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, settles)
	defer cancel()
	b.must(observe.Await(ctx, what, is))
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().UTC().Format("15:04:05 ")+format+"\n", args...)
}

func (b *bench) kubectl(args ...string) {
	b.Helper()
	_, err := b.cluster.Kubectl(b.ctx, args...)
	b.must(err)
}

// TestSamples runs all of them at once, so that each fault befalls all.
func TestSamples(t *testing.T) {
	if !*enabled {
		t.Skip("make bench-samples")
	}
	ctx := t.Context()
	o := onlab.Options{Kubeconfig: os.Getenv("KUBECONFIG"), Image: *image, Archive: *archive, JSON: *figures}
	c, err := o.Connect(ctx, "bench-samples")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := &bench{T: t, ctx: ctx, cluster: c, lab: make(chan struct{}, 2)}
	if len(c.Lab.Nodes) < nodes {
		t.Fatalf("the lab has %d nodes, and %d are needed", len(c.Lab.Nodes), nodes)
	}
	b.must(c.Lab.Fault(ctx, "heal"))
	b.must(o.Load(ctx, c))
	samples.Host, samples.Dir = c.Lab.Host, filepath.Join(root, "config/samples")
	b.databases = samples.NewDatabases(t)
	b.loadImages()
	b.registry = b.serveImages()
	b.must(c.Install(ctx, root+"/charts/singletonjob", *image, `nodeSelector.kubernetes\.io/hostname=`+c.Lab.Nodes[0],
		"fence.create=true", "entrypoint.insecureRegistries={"+b.registry+"}"))
	b.start()
	for fault := range strings.SplitSeq(*faults, ",") {
		b.strike(fault)
	}
	b.report(&o)
}

// loadImages gives the lab the images that the samples name. All that are for Python are one.
func (b *bench) loadImages() {
	root, err := samples.Root()
	b.must(err)
	files := b.TempDir()
	b.must(debian.Stage(root, files, "/usr/bin/python3", "/usr/lib/python3", "/usr/lib/python3.11", "/usr/share/zoneinfo"))
	b.must(os.MkdirAll(filepath.Join(files, "etc"), 0o755))
	b.must(os.WriteFile(filepath.Join(files, "etc/passwd"), []byte("app:x:65532:65532::/tmp:/bin/false\n"), 0o644))
	controller := filepath.Join(b.TempDir(), "controller")
	b.must(cluster.Build(b.ctx, "./config/samples/controller", controller))
	specs := []string{"routes:latest=" + controller + ":/bin/controller"}
	for _, tag := range []string{"slim", "celery", "psycopg2", "apscheduler"} {
		specs = append(specs, "python:3.13-"+tag+"="+files+":/,->/usr/bin/python3.11:/bin/python3") // their PATH is /bin
	}
	b.must(b.cluster.Lab.Image(b.ctx, specs...))
}

// start has all samples that are chosen, in both kinds, work.
func (b *bench) start() {
	chosen := regexp.MustCompile(*only)
	for _, namespace := range []string{ours, today} {
		b.must(b.cluster.CreateNamespace(b.ctx, namespace, ""))
	}
	for _, s := range all {
		if !chosen.MatchString(s.name) {
			continue
		}
		for _, namespace := range []string{ours, today} {
			subject := &subject{bench: b, sample: s, namespace: namespace, kind: s.today}
			if namespace == ours {
				subject.kind = singleton
			}
			b.subjects = append(b.subjects, subject)
			s.sink(subject)
			if !s.runs {
				subject.create()
			}
		}
	}
	if b.settle(time.Now()); b.Failed() {
		b.FailNow()
	}
	b.say("all %d work", len(b.subjects))
}

// settle waits until each has done something since, and is as it should be.
func (b *bench) settle(since time.Time) {
	b.Helper()
	var missing []string
	ctx, cancel := context.WithTimeout(b.ctx, settles)
	defer cancel()
	for next := time.Now(); ; time.Sleep(time.Second) {
		missing = nil
		for _, s := range b.subjects {
			if why := s.unsettled(since); why != "" {
				missing = append(missing, s.String()+": "+why)
			}
		}
		if len(missing) == 0 {
			return
		}
		if time.Now().After(next) {
			b.say("  waiting for %v", missing)
			next = time.Now().Add(30 * time.Second)
		}
		if ctx.Err() != nil {
			b.Errorf("not settled: %v", missing)
			return
		}
	}
}

// nodesOf are the two nodes of a kind.
func (b *bench) nodesOf(namespace string) []string {
	if namespace == ours {
		return b.cluster.Lab.Nodes[1:3]
	}
	return b.cluster.Lab.Nodes[3:5]
}

// A hit is a fault that has befallen a subject.
type hit struct {
	fault      string
	struck, by time.Time
}

// strike does a fault to all that it can reach at once.
func (b *bench) strike(fault string) {
	f, known := catalogue[fault]
	if !known {
		b.Fatalf("-faults has %q", fault)
	}
	b.await("the nodes", func() (bool, any, error) { return onlab.NodesReady(b.ctx, b.cluster.Client) })
	on := b.busiest()
	b.say("%s, of what runs on %v", f.title, on)
	if slices.ContainsFunc(b.subjects, func(s *subject) bool { return s.runs }) {
		b.begin(fault, f, on)
	}
	var struck []*subject
	for _, s := range b.subjects {
		err := s.find()
		if err == nil && (f.each != nil || slices.Contains(on, s.node)) {
			struck = append(struck, s)
		} else {
			b.say("  %v on %s is not hit: %v", s, s.node, err)
		}
	}
	at := time.Now()
	b.each(struck, func(s *subject) error {
		if f.each == nil {
			return nil
		}
		return f.each(b, s)
	})
	if f.nodes != nil {
		if err := f.nodes(b, on); err != nil {
			b.Error(err)
		}
	}
	b.must(onlab.Sleep(b.ctx, time.Until(at.Add(f.hold))))
	if f.undo != nil {
		if err := f.undo(b, on); err != nil {
			b.Error(err)
		}
	}
	b.settle(time.Now())
	for _, s := range struck {
		s.hits = append(s.hits, hit{fault, at, time.Now()})
	}
}

// begin has the runs be under way on the nodes that the fault is for: the others take no Pods until then.
func (b *bench) begin(fault string, f fault, on []string) {
	now := time.Now()
	b.must(onlab.Sleep(b.ctx, time.Until(now.Truncate(time.Minute).Add(35*time.Second))))
	tick := time.Now().Truncate(time.Minute).Add(time.Minute)
	var others []string
	for _, node := range b.cluster.Lab.Nodes[1:] {
		if !slices.Contains(on, node) {
			others = append(others, node)
		}
	}
	b.kubectl(append([]string{"cordon"}, others...)...)
	for _, s := range b.subjects {
		if s.name == "nightly" {
			s.tick(tick)
		}
	}
	b.must(onlab.Sleep(b.ctx, time.Until(tick.Add(-8*time.Second))))
	for _, s := range b.subjects {
		if s.name == "migration" {
			s.migrate(fault, f.steps)
		}
	}
	b.must(onlab.Sleep(b.ctx, time.Until(tick.Add(5*time.Second))))
	b.kubectl(append([]string{"uncordon"}, others...)...)
	b.must(onlab.Sleep(b.ctx, time.Until(tick.Add(12*time.Second))))
}

// busiest is the node of each kind that has most.
func (b *bench) busiest() (on []string) {
	for _, namespace := range []string{ours, today} {
		of := b.nodesOf(namespace)
		count := map[string]int{}
		for _, s := range b.subjects {
			if s.namespace == namespace && !s.runs && s.find() == nil {
				count[s.node]++
			}
		}
		if count[of[1]] > count[of[0]] {
			of = of[1:]
		}
		on = append(on, of[0])
	}
	return on
}

// each does something to several at once.
func (b *bench) each(subjects []*subject, do func(*subject) error) {
	var all sync.WaitGroup
	for _, s := range subjects {
		all.Go(func() {
			if err := do(s); err != nil {
				b.say("  %v: %v", s, err)
			}
		})
	}
	all.Wait()
}

// inflict does a fault of the lab, two at a time: the lab's command takes CPU, which all that is counted here needs.
func (b *bench) inflict(what ...string) error {
	b.lab <- struct{}{}
	defer func() { <-b.lab }()
	return b.cluster.Lab.Fault(b.ctx, what...)
}

// A fault is done to each, or to nodes.
type fault struct {
	title string
	each  func(*bench, *subject) error
	nodes func(b *bench, on []string) error
	undo  func(b *bench, on []string) error
	hold  time.Duration
	// steps are those of the migrations that it meets.
	steps int
}

func onNodes(what ...string) func(*bench, []string) error {
	return func(b *bench, on []string) error {
		for _, node := range on {
			if err := b.cluster.Lab.Fault(b.ctx, strings.Fields(fmt.Sprintf(strings.Join(what, " "), node))...); err != nil {
				return err
			}
		}
		return nil
	}
}

var catalogue = map[string]fault{
	"kill": {title: "the process is killed", steps: 40, each: func(b *bench, s *subject) error {
		return b.inflict("signal", s.container, "KILL", s.process)
	}},
	"freeze": {title: "frozen for 40 s", steps: 70, each: func(b *bench, s *subject) error {
		if err := b.inflict("freeze", s.container); err != nil {
			return err
		}
		return errors.Join(onlab.Sleep(b.ctx, 40*time.Second), b.inflict("thaw", s.container))
	}},
	"drain": {title: "the node is drained", steps: 40, nodes: func(b *bench, on []string) error {
		errs := make(chan error, len(on))
		for i, label := range []string{"singletonjob.io/name", sampleLabel} {
			go func() {
				_, err := b.cluster.Kubectl(b.ctx, "drain", on[i], "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m", "--pod-selector="+label)
				errs <- err
			}()
		}
		err := <-errs
		if other := <-errs; err == nil {
			err = other
		}
		return err
	}, undo: func(b *bench, on []string) error {
		b.kubectl(append([]string{"uncordon"}, on...)...)
		return nil
	}},
	// So long that Kubernetes has replaced what is on the node, while that still runs there.
	"cut": {
		title: "the node is cut off from the API server for 110 s", steps: 130, hold: 110 * time.Second, nodes: onNodes("api %s drop"),
		undo: onNodes("mend %s api"),
	},
}

// find notes where a subject is at work.
func (s *subject) find() error {
	s.node, s.container = "", ""
	pod, err := s.active()
	if err != nil {
		return err
	}
	for _, c := range pod.Status.ContainerStatuses {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && c.State.Running != nil {
			s.node, s.container = pod.Spec.NodeName, id
			return nil
		}
	}
	return fmt.Errorf("the container of %s does not run", pod.Name)
}

// active is the Pod that works.
func (s *subject) active() (pod corev1.Pod, err error) {
	if s.kind != singleton {
		pods, err := s.pods()
		if err != nil || len(pods) == 0 {
			return pod, errors.Join(errors.New("it has no Pod"), err)
		}
		return pods[0], nil
	}
	var job v1alpha1.SingletonJob
	if err := s.cluster.Client.Get(s.ctx, s.key(), &job); err != nil {
		return pod, err
	}
	if job.Status.ActivePod == "" {
		return pod, errors.New("nothing is active")
	}
	err = s.cluster.Client.Get(s.ctx, client.ObjectKey{Namespace: s.namespace, Name: job.Status.ActivePod}, &pod)
	return pod, err
}

// pods are those of today's kind that are not over, the newest first.
func (s *subject) pods() ([]corev1.Pod, error) {
	var list corev1.PodList
	err := s.cluster.Client.List(s.ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{sampleLabel: s.name})
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return pods, err
}

// unsettled says what is missing until a subject has worked since, and the next fault may come.
func (s *subject) unsettled(since time.Time) string {
	switch {
	case s.runs:
		return s.unfinished()
	case s.kind == singleton:
		if why := s.unprotected(); why != "" {
			return why
		}
	default:
		pods, err := s.pods()
		if err != nil || len(pods) != 1 || !cluster.PodReady(pods[0]) {
			return fmt.Sprintf("%d Pods, %v", len(pods), err)
		}
	}
	if last := s.lastEvent(); !last.After(since) {
		return "has done nothing since"
	}
	return ""
}

// unprotected says why a SingletonJob is not active, or has no warm standby though it is to have one.
func (s *subject) unprotected() string {
	var job v1alpha1.SingletonJob
	if err := s.cluster.Client.Get(s.ctx, s.key(), &job); err != nil {
		return err.Error()
	}
	conditions := []string{v1alpha1.ConditionActive, v1alpha1.ConditionProtected}
	if job.Spec.Candidates == 1 {
		conditions = conditions[:1]
	}
	for _, condition := range conditions {
		if c := meta.FindStatusCondition(job.Status.Conditions, condition); c == nil || c.Status != metav1.ConditionTrue {
			return fmt.Sprintf("%s: %+v", condition, c)
		}
	}
	return ""
}
