//go:build linux

package stack

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/samples"
	"github.com/singletonjob/operator/test/tier"
)

// The samples of config/samples, as a user applies them, while what runs them is broken. Each is counted where its work arrives.
// test/samples counts what the same programs do without SingletonJob.

// pythonImage is the one of the samples in Python. The directory that stands for it is filled by the first sample that runs.
const pythonImage = "python"

var python sync.Once

// sample is one that runs.
type sample struct {
	*world
	name string
	// works is awaited after each fault: that a process does what it is for.
	works func()
	// after is called after each fault, when the next process works. May be nil.
	after func(fault string)
}

// sample applies a sample, with an environment that leads to where things are counted, and waits until it is active and protected.
func (w *world) sample(name string, env map[string]string, change ...func(*v1alpha1.SingletonJob)) *sample {
	w.t.Helper()
	w.addNode("c")
	s := &sample{world: w, name: name}
	manifests, err := w.p.Plane.Kubectl(w.context(), "kustomize", filepath.Join(root, "config/samples", name))
	w.must(err)
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		o := &unstructured.Unstructured{}
		w.must(yaml.Unmarshal([]byte(text), &o.Object))
		o.SetNamespace(w.ns)
		if o.GetKind() != "SingletonJob" {
			w.must(w.p.Client.Create(w.t.Context(), o))
			continue
		}
		job := &v1alpha1.SingletonJob{}
		w.must(yaml.UnmarshalStrict([]byte(text), job))
		job.Namespace = w.ns
		w.here(&job.Spec.Template.Spec, env)
		for _, f := range change {
			f(job)
		}
		w.must(w.p.Client.Create(w.t.Context(), job))
	}
	return s
}

func (w *world) secret(name string, data map[string]string) {
	w.t.Helper()
	w.must(w.p.Client.Create(w.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, StringData: data}))
}

// here changes a pod for this test: its nodes, and the environment of its containers.
func (w *world) here(pod *corev1.PodSpec, env map[string]string) {
	pod.NodeSelector = map[string]string{testLabel: w.ns}
	for i := range pod.Containers {
		for j, e := range pod.Containers[i].Env {
			if value, other := env[e.Name]; other {
				pod.Containers[i].Env[j].Value = value
			}
		}
	}
}

// settles waits for a tenure after a token, whose process works, and for what protects it.
func (s *sample) settles(after fence.Token, protected bool) *v1alpha1.SingletonJob {
	s.t.Helper()
	job, err := s.p.AwaitJob(s.context(), s.ns, s.name, fmt.Sprintf("active with a token above %d", after), func(job *v1alpha1.SingletonJob) bool {
		return ActiveAfter(after)(job) && (!protected || Protected(job))
	})
	s.must(err)
	s.works()
	return job
}

// breaks does to the sample what can be done to it, one after the other, and waits each time until the next process works.
func (s *sample) breaks(faults ...string) {
	s.t.Helper()
	job := s.settles(0, true)
	for _, fault := range faults {
		node, pod := s.p.Cluster.Node(job.Status.ActiveNode), job.Status.ActivePod
		begun := time.Now()
		heal := s.inflict(fault, node, pod)
		before := fence.Token(job.Status.FencingToken)
		s.settles(before, false)
		s.t.Logf("%s: the next process works %v after that", fault, time.Since(begun).Round(time.Millisecond))
		s.must(heal())
		job = s.settles(before, true)
		if s.after != nil {
			s.after(fault)
		}
	}
}

const (
	killed = "the process is killed"
	frozen = "the process and its agent are frozen"
	cut    = "the node is cut off from the API server"
	drain  = "the node is drained"
)

// allFaults in the order in which they are done.
var allFaults = []string{killed, drain, frozen, cut}

func (s *sample) inflict(fault string, node *localnode.Node, pod string) (heal func() error) {
	s.t.Helper()
	heal = func() error { return nil }
	switch fault {
	case killed:
		_, err := node.Kill(s.ns, pod, localnode.Leaves)
		s.must(err)
	case frozen:
		s.must(node.Freeze(s.ns, pod))
		heal = func() error { return node.Thaw(s.ns, pod) }
	case cut:
		node.Cut()
		heal = node.Heal
	case drain:
		s.kubectl("drain", node.Name(), "--delete-emptydir-data", "--timeout=4m")
		heal = func() error {
			_, err := s.p.Plane.Kubectl(s.context(), "uncordon", node.Name())
			return err
		}
	default:
		s.t.Fatalf("what is %q?", fault)
	}
	return heal
}

func (s *sample) kubectl(args ...string) {
	s.t.Helper()
	out, err := s.p.Plane.Kubectl(s.context(), args...)
	s.t.Logf("$ kubectl %s\n%s", strings.Join(args, " "), out)
	s.must(err)
}

// during does something again and again until the function that it returns is called.
func (s *sample) during(every time.Duration, do func()) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-time.After(every):
				do()
			case <-end:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(end); <-ended })
}

func TestSamples(t *testing.T) {
	tier.Deep(t, "breaks five programs in turns, for minutes")
	for name, test := range map[string]func(*world){"beat": sampleBeat, "bot": sampleBot, "exporter": sampleExporter, "outbox": sampleOutbox, "signer": sampleSigner} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			python.Do(func() { samples.Python(t, filepath.Join(images(t), pythonImage)) })
			test(w)
		})
	}
}

// No run is done twice, or before it is due, whatever becomes of beat. The next process does the work that was due at the end.
func sampleBeat(w *world) {
	l := samples.NewLedger(w.t)
	s := w.sample("beat", map[string]string{"BROKER_URL": l.Broker, "REDIS_URL": l.URL})
	var due string // when the fault came
	s.works = func() {
		before := l.Runs().Done
		s.await("what was due, and a further run", func() (bool, any, error) {
			r := l.Runs()
			return r.Done > before && (due == "" || l.Did(due)), r, nil
		})
		due = l.Next()
	}
	s.breaks(allFaults...)
	r := l.Runs()
	s.t.Logf("counted: %+v", r)
	if r.Close != 0 {
		s.t.Errorf(observe.Safety+"%d runs were due less than an interval after the one before", r.Close)
	}
}

// A handover leaves nothing to be answered twice; a crash leaves what was received, which is ten updates at the most. No message is lost,
// and no poller detects another one.
func sampleBot(w *world) {
	const batch = 10
	api := samples.NewTelegram(w.t)
	w.secret("bot", map[string]string{"token": samples.Token})
	s := w.sample("bot", map[string]string{"API_URL": api.URL})
	s.works = func() {
		said := api.Counts().Said
		s.await("answers to what was said", func() (bool, any, error) {
			c := api.Counts()
			return c.Answered > said, c, nil
		})
	}
	var twice int
	s.after = func(fault string) {
		c, limit := api.Counts(), batch
		if fault == drain {
			limit = 0
		}
		if again := c.Twice - twice; again > limit {
			s.t.Errorf("%s: %d updates were answered twice, want %d at the most", fault, again, limit)
		}
		twice = c.Twice
	}
	stop := s.during(20*time.Millisecond, api.Say)
	defer stop()
	s.breaks(allFaults...)
	stop()
	s.await("an answer to everything", func() (bool, any, error) {
		c := api.Counts()
		return c.Answered == c.Said, c, nil
	})
	c := api.Counts()
	s.t.Logf("counted: %+v", c)
	if c.Conflicts != 0 {
		s.t.Errorf(observe.Safety+"%d polls met another", c.Conflicts)
	}
}

// Two exporters never ask at the same time, whatever happens to one of them. The Pod behind the Service reports recent values.
func sampleExporter(w *world) {
	api := samples.NewCosts(w.t)
	s := w.sample("exporter", map[string]string{"API_URL": api.URL, "INTERVAL": "0.2"}, func(job *v1alpha1.SingletonJob) {
		c := &job.Spec.Template.Spec.Containers[0] // pods of this test share a network
		ip := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}
		c.Env = append(c.Env, corev1.EnvVar{Name: "POD_IP", ValueFrom: ip}, corev1.EnvVar{Name: "LISTEN", Value: "$(POD_IP):9090"})
	})
	var heard float64 // when, by what was scraped last
	s.works = func() {
		s.await("something heard since, behind the Service", func() (bool, any, error) {
			behind, err := s.selected(s.name)
			behind = slices.DeleteFunc(behind, func(p corev1.Pod) bool { return !cluster.PodReady(p) })
			if err != nil || len(behind) != 1 {
				return false, behind, err
			}
			at, err := samples.Heard("http://" + behind[0].Status.PodIP + ":9090/metrics")
			if err != nil || at <= heard {
				return false, at, err
			}
			heard = at
			return true, nil, nil
		})
	}
	s.breaks(allFaults...)
	c := api.Calls()
	s.t.Logf("counted: %+v", c)
	// One that wakes up after its lease has an instant: its call, and the next one's after it.
	if c.Returned > 2 {
		s.t.Errorf(observe.Safety+"two have asked at a time: %+v", c)
	}
	if c.Callers < len(allFaults)+1 {
		s.t.Errorf("too few have asked: %+v", c)
	}
}

// Killed again and again, frozen in whatever it does, cut off and drained, the relay leaves no event out, and none is there twice.
func sampleOutbox(w *world) {
	o := samples.NewOutbox(w.t)
	w.secret("outbox", map[string]string{"source": o.Source, "target": o.Target})
	s := w.sample("outbox", nil)
	s.works = func() {
		before := o.Delivered().Events
		s.await("further events", func() (bool, any, error) {
			d := o.Delivered()
			return d.Events > before, d, nil
		})
	}
	stop := o.Write()
	defer stop()
	s.breaks(killed, killed, killed, killed, killed, killed, drain, frozen, cut)
	stop()
	s.await("the end of what is missing", func() (bool, any, error) {
		missing := o.Missing()
		return len(missing) == 0, missing, nil
	})
	d := o.Delivered()
	s.t.Logf("counted: %d events committed, %+v", o.Committed.Load(), d)
	if d.Extra != 0 {
		s.t.Errorf(observe.Safety+"%d events are there twice", d.Extra)
	}
	if int64(d.Events) != o.Committed.Load() {
		s.t.Errorf("of %d events there are %+v", o.Committed.Load(), d)
	}
}

// At no height are there two signatures, whatever becomes of who signs. Some heights therefore have no signature.
func sampleSigner(w *world) {
	chain := samples.NewChain(w.t)
	w.secret("signer", map[string]string{"key": "key"})
	s := w.sample("signer", map[string]string{"CHAIN_URL": chain.URL})
	s.works = func() {
		before := chain.Heights().Signed
		s.await("further signatures", func() (bool, any, error) {
			h := chain.Heights()
			return h.Signed > before, h, nil
		})
	}
	s.breaks(allFaults...)
	h := chain.Heights()
	s.t.Logf("counted: %+v", h)
	if h.Double != 0 {
		s.t.Errorf(observe.Safety+"%d heights have two signatures", h.Double)
	}
}
