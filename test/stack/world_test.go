//go:build linux

package stack

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/plan"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
)

const (
	root = "../.."
	// patience with anything awaited: a busy machine is slow, not broken.
	patience = 4 * time.Minute
	// testLabel keeps the pods of a test on the nodes of that test.
	testLabel = "test"
	jobName   = "job"
)

// shared is one product for all tests that do not break the control plane or the operator.
var shared struct {
	sync.Mutex
	plane   *controlplane.ControlPlane
	product *Product
	images  string
	err     error
}

func TestMain(m *testing.M) {
	localnode.Init()
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = flag.Set("test.parallel", "8") // they wait more than they work
	}
	code := m.Run()
	if shared.product != nil {
		shared.product.Stop()
	}
	if shared.plane != nil {
		shared.plane.Stop()
	}
	_ = os.RemoveAll(shared.images)
	os.Exit(code)
}

func build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "singletonjob-images-"); err != nil {
		return "", err
	}
	return dir, Build(context.Background(), root, dir)
}

// images builds the programs, once.
func images(t *testing.T) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.images == "" && shared.err == nil {
		shared.images, shared.err = build()
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.images
}

func startProduct(t *testing.T, plane *controlplane.ControlPlane, images string, change ...func(*Options)) *Product {
	t.Helper()
	ctx := context.Background() // it may outlive this test
	if err := Install(ctx, plane, root); err != nil {
		t.Fatal(err)
	}
	registry := startRegistry(t)
	o := Options{
		Plane: plane, Registry: registry,
		Images: map[string]localnode.Image{
			registry + "/poller": {Root: filepath.Join(images, "workload")},
			pythonImage:          {Root: filepath.Join(images, pythonImage)},
			routesImage:          {Root: filepath.Join(images, routesImage)},
		},
		// No test is about lost nodes, and a pod that is made while one is would have to go elsewhere.
		NodeGrace: time.Hour,
	}
	for _, f := range change {
		f(&o)
	}
	p, err := Start(ctx, o, images)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// world is a namespace with nodes of its own.
type world struct {
	t     *testing.T
	p     *Product
	ns    string
	nodes []*localnode.Node
	// read is how many of the sink's attempts were looked at, and attempts those of them that are this world's.
	read     int
	attempts []fencetest.Attempt
}

// newWorld is on the product that all tests share.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	built := images(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.plane == nil && shared.err == nil {
		// Not t.Context(): the control plane outlives this test.
		shared.plane, shared.err = controlplane.Start(context.Background(), controlplane.Options{Progress: os.Stderr})
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if shared.product == nil {
		shared.product = startProduct(t, shared.plane, built)
	}
	return worldOn(t, shared.product)
}

// newProduct has a control plane and an operator that the test may break.
func newProduct(t *testing.T, change ...func(*Options)) *Product {
	t.Helper()
	built := images(t)
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	p := startProduct(t, plane, built, change...)
	t.Cleanup(p.Stop)
	return p
}

func worldOn(t *testing.T, p *Product) *world {
	t.Helper()
	w := &world{t: t, p: p, ns: p.Plane.Namespace(t)}
	for _, name := range []string{"a", "b"} {
		w.addNode(name)
	}
	t.Cleanup(func() {
		if t.Failed() {
			w.explain()
		}
	})
	return w
}

// addNode starts another node of this test.
func (w *world) addNode(name string) {
	w.t.Helper()
	name = w.ns + "-" + name
	node, err := w.p.Cluster.AddNode(w.t.Context(), name, map[string]string{testLabel: w.ns})
	if err != nil {
		w.t.Fatal(err)
	}
	w.nodes = append(w.nodes, node)
	w.t.Cleanup(func() {
		node.Stop()
		_ = w.p.Client.Delete(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	})
}

// explain shows what a failed test leaves to be read.
func (w *world) explain() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, args := range [][]string{{"get", "sj,pods", "-o", "wide"}, {"get", "lease", "-o", "yaml"}, {"events"}} {
		out, err := w.p.Plane.Kubectl(ctx, append([]string{"-n", w.ns}, args...)...)
		w.t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	for _, node := range w.nodes {
		files, _ := os.ReadDir(strings.TrimSuffix(node.Log(w.ns, "", ""), w.ns+"__.log"))
		for _, file := range files {
			text, _ := os.ReadFile(strings.TrimSuffix(node.Log(w.ns, "", ""), w.ns+"__.log") + file.Name())
			w.t.Logf("%s\n%s", file.Name(), text)
		}
	}
}

// resource is what this test's writers write to.
func (w *world) resource() fence.Resource { return fence.Resource(w.ns) }

// report sums up what this test's writers did. The sink keeps the writes of all tests, so what was read is not read again.
func (w *world) report() fencetest.ResourceReport {
	more := w.p.Sink.Attempts(w.read)
	w.read += len(more)
	w.attempts = append(w.attempts, slices.DeleteFunc(more, func(a fencetest.Attempt) bool { return a.Resource != w.resource() })...)
	return fencetest.Summarize(w.attempts).Resource(w.resource())
}

var (
	// short leases, for what ends by expiry. A busy machine can miss many renewals before the deadline.
	short = cluster.LeaseSetting{Duration: 10 * time.Second, Deadline: 7 * time.Second, Retry: 500 * time.Millisecond}
	// steady leases, where the end of one by time is waited for, and must not come by itself.
	steady = cluster.LeaseSetting{Duration: 30 * time.Second, Deadline: 20 * time.Second, Retry: 500 * time.Millisecond}
	// long leases, for what must not wait for one: it would take longer than the test has patience.
	long = cluster.LeaseSetting{Duration: time.Hour, Deadline: 50 * time.Minute, Retry: 500 * time.Millisecond}
	// patient leases, where handovers are counted: whom a busy machine keeps from taking over at once is not overtaken by who released.
	patient = cluster.LeaseSetting{Duration: time.Hour, Deadline: 50 * time.Minute, Retry: 10 * time.Second}
	// prompt leases, for what must not wait for an agent to look again either.
	prompt = cluster.LeaseSetting{Duration: time.Hour, Deadline: 50 * time.Minute, Retry: 2 * patience}
)

func (w *world) job(lease cluster.LeaseSetting, change ...func(*v1alpha1.SingletonJob)) *v1alpha1.SingletonJob {
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: jobName}}
	lease.Apply(job)
	job.Spec.Template.Spec = corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(5)),
		NodeSelector:                  map[string]string{testLabel: w.ns},
		Containers: []corev1.Container{{
			Name: "writer", Image: WorkloadImage, Command: []string{"workload"},
			Env: []corev1.EnvVar{
				{Name: "SINK", Value: w.p.SinkLink.URL()}, {Name: "RESOURCE", Value: string(w.resource())}, {Name: "EVERY", Value: "50ms"},
			},
		}},
	}
	for _, f := range change {
		f(job)
	}
	return job
}

// run creates the job and waits until it has a holder and a warm standby.
func (w *world) run(job *v1alpha1.SingletonJob) *tenure {
	w.t.Helper()
	if err := w.p.Client.Create(w.t.Context(), job); err != nil {
		w.t.Fatal(err)
	}
	now := w.next(nil)
	w.protected()
	return now
}

func (w *world) context() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) protected() {
	w.t.Helper()
	if _, err := w.p.AwaitJob(w.context(), w.ns, jobName, "protected", Protected); err != nil {
		w.t.Fatal(err)
	}
}

// tenure is a holding of the Lease, with its process under watch.
type tenure struct {
	token   fence.Token
	pod     string
	process *Process
	node    *localnode.Node
}

// next waits for the writes of a tenure after old, no matter whose they are, and finds its process.
func (w *world) next(old *tenure) *tenure {
	w.t.Helper()
	var after fence.Token
	if old != nil {
		after = old.token
	}
	var found *tenure
	err := observe.Await(w.context(), fmt.Sprintf("a process with a token above %d", after), func() (bool, any, error) {
		report := w.report()
		if report.Highest <= after {
			return false, report, nil
		}
		writers := report.Tenure(report.Highest).Writers
		pod, _, _ := strings.Cut(writers[len(writers)-1], "@")
		process, err := w.p.WriterProcess(w.ns, pod)
		if err != nil {
			return false, report, err // the tenure may be over already
		}
		found = &tenure{token: report.Highest, pod: pod, process: process, node: process.Node}
		return true, nil, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// selected are the pods that a Service selects.
func (w *world) selected(service string) ([]corev1.Pod, error) {
	var of corev1.Service
	if err := w.p.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.ns, Name: service}, &of); err != nil {
		return nil, err
	}
	var pods corev1.PodList
	err := w.p.Client.List(w.t.Context(), &pods, client.InNamespace(w.ns), client.MatchingLabels(of.Spec.Selector))
	return pods.Items, err
}

// died waits for the end of a tenure's process.
func (w *world) died(of *tenure) time.Duration {
	w.t.Helper()
	at, _, err := of.process.AwaitDeath(w.context())
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

// deadBefore asserts that the process of one tenure was dead before that of the next one was made, by the kernel's word.
func (w *world) deadBefore(old, next *tenure) {
	w.t.Helper()
	_, alive, err := old.process.AwaitDeath(w.context())
	if err != nil {
		w.t.Fatal(err)
	}
	if alive > next.process.Started {
		w.t.Errorf("SAFETY: the process of token %d lived at %v, that of token %d was started at %v", old.token, alive, next.token, next.process.Started)
	}
}

// verify asserts what holds after every test: one process at a time, growing tokens, nothing stale stored, and a status
// and Events that tell every tenure once. It returns the changes of holder, the oldest first.
func (w *world) verify() []v1alpha1.TenureChange {
	w.t.Helper()
	return w.verifyAfter(nil)
}

// verifyAfter is verify for a job that was recreated. It reports no tenure up to the old one, nor what a pod of the earlier job did until
// it had the Lease.
func (w *world) verifyAfter(old *tenure) []v1alpha1.TenureChange {
	w.t.Helper()
	report := w.report()
	if report.StaleAccepted > 0 {
		w.t.Errorf("SAFETY: the sink stored %d stale writes", report.StaleAccepted)
	}
	for _, v := range observe.Violations(w.p.Lives(w.resource()), false) {
		w.t.Error(v)
	}
	last := report.Highest
	job, err := w.p.AwaitJob(w.context(), w.ns, jobName, fmt.Sprintf("told up to token %d", last), func(job *v1alpha1.SingletonJob) bool {
		return job.Status.FencingToken >= int64(last) && len(job.Status.History) > 0 && job.Status.History[0].Token >= int64(last)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	changes := slices.Clone(job.Status.History)
	slices.Reverse(changes)
	w.chain(changes)
	told := map[int64]bool{}
	for _, c := range changes {
		told[c.Token] = true
	}
	before := int64(0)
	if old != nil {
		before = max(int64(old.token), w.claimed(job))
	}
	for _, seen := range report.Tenures {
		if int64(seen.Token) > before && !told[int64(seen.Token)] {
			w.t.Errorf("the history does not tell token %d: %+v", seen.Token, changes)
		}
	}
	w.announced(job, changes)
	return changes
}

// claimed is the token of the last tenure before the job's first.
func (w *world) claimed(job *v1alpha1.SingletonJob) int64 {
	w.t.Helper()
	l := &coordinationv1.Lease{}
	w.must(w.p.Client.Get(w.t.Context(), client.ObjectKeyFromObject(job), l))
	c := plan.ParseClaim(l.Annotations[plan.ClaimAnnotation])
	if c.JobUID != string(job.UID) {
		w.t.Errorf("the Lease is claimed for %q, and the job's UID is %s", c.JobUID, job.UID)
	}
	return c.Before
}

// chain asserts that each change of holder follows on the one before it.
func (w *world) chain(changes []v1alpha1.TenureChange) {
	w.t.Helper()
	for i := 1; i < len(changes); i++ {
		if before, c := changes[i-1], changes[i]; c.Token <= before.Token || c.FromToken != before.Token || c.From != before.To {
			w.t.Errorf("the history is no chain: %+v follows %+v", c, before)
		}
	}
}

// announced waits until each change has its Event, and asserts that none has two.
func (w *world) announced(job *v1alpha1.SingletonJob, changes []v1alpha1.TenureChange) {
	w.t.Helper()
	want := map[string]int{}
	for _, c := range changes {
		want[string(c.Type)]++
	}
	var got map[string]int
	err := observe.Await(w.context(), fmt.Sprintf("the Events %v", want), func() (bool, any, error) {
		events := &corev1.EventList{}
		err := w.p.Client.List(w.t.Context(), events, client.InNamespace(w.ns), client.MatchingFieldsSelector{
			Selector: fields.OneTermEqualSelector("involvedObject.uid", string(job.UID)),
		})
		got = map[string]int{}
		complete := true
		for i := range events.Items {
			got[events.Items[i].Reason] += max(1, int(events.Items[i].Count))
		}
		for reason, n := range want {
			complete = complete && got[reason] >= n
		}
		return complete, got, err
	})
	if err != nil {
		w.t.Error(err)
	}
	for reason, n := range want {
		if got[reason] > n {
			w.t.Errorf("%d Events %s for %d changes", got[reason], reason, n)
		}
	}
}

// reasonOf is why a tenure followed the one before it.
func (w *world) reasonOf(changes []v1alpha1.TenureChange, token fence.Token) string {
	w.t.Helper()
	for _, c := range changes {
		if c.Token == int64(token) {
			return c.Reason
		}
	}
	w.t.Fatalf("no change to token %d in %+v", token, changes)
	return ""
}
