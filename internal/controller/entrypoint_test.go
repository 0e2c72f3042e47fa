package controller

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	containers "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/entrypoint"
	"github.com/singletonjob/operator/internal/inject"
)

// imageHub is a registry. While it is down it responds with an error; asked counts requests.
type imageHub struct {
	t    *testing.T
	host string
	mu   sync.Mutex
	down bool
	// password is the password that it demands, if set.
	password string
	asked    int
}

func newImageHub(t *testing.T) *imageHub {
	t.Helper()
	h := &imageHub{t: t}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.asked++
		_, password, _ := r.BasicAuth()
		down, denied := h.down, h.password != password
		h.mu.Unlock()
		switch {
		case down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case denied:
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	h.host = server.Listener.Addr().String()
	return h
}

func (h *imageHub) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

func (h *imageHub) requests() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// push stores an image with this ENTRYPOINT.
func (h *imageHub) push(tag string, command ...string) {
	h.t.Helper()
	image, err := mutate.Config(empty.Image, containers.Config{Entrypoint: command, Cmd: []string{"--default"}})
	if err != nil {
		h.t.Fatal(err)
	}
	ref, err := name.ParseReference(h.host+"/app:"+tag, name.Insecure)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		h.t.Fatal(err)
	}
}

// lookUp lets the operator ask registries.
func (o *operator) lookUp(h *imageHub, secrets bool) {
	h.t.Helper()
	asks, err := entrypoint.NewRegistry(entrypoint.Options{Insecure: []string{h.host}})
	if err != nil {
		h.t.Fatal(err)
	}
	pull := Pull{Live: o.r.Live, Secrets: secrets}
	o.r.Entrypoints = entrypoint.New(pull.Finder(asks), o.w.clock)
	ended := make(chan types.NamespacedName, 1000)
	o.r.Entrypoints.Start(h.t.Context(), func(job types.NamespacedName) { ended <- job })
	o.lookedUp = ended
}

// answered runs rounds until the current look-up has ended, and its outcome is in the status.
func (w *world) answered() {
	w.t.Helper()
	w.round()
	select {
	case job := <-w.operators[0].lookedUp:
		if job != w.key {
			w.t.Fatalf("%v is woken", job)
		}
	case <-time.After(5 * time.Minute):
		w.t.Fatalf("no look-up has ended\n%s", w.describe())
	}
	w.round()
}

func withoutCommand(image string, args ...string) func(*v1alpha1.SingletonJobSpec) {
	return func(spec *v1alpha1.SingletonJobSpec) {
		app := &spec.Template.Spec.Containers[0]
		app.Image, app.Command, app.Args = image, nil, args
	}
}

func (w *world) wantUnknown(reason, says string) {
	w.t.Helper()
	c := condition(w.status(), v1alpha1.ConditionProgressing)
	if c.Reason != reason || !strings.Contains(c.Message, says) {
		w.t.Fatalf("Progressing is %s: %s\nwant %s, and to say %q", c.Reason, c.Message, reason, says)
	}
}

// wantRun is what all Pods of the current template must run.
func (w *world) wantRun(command ...string) {
	w.t.Helper()
	checked := 0
	for _, pod := range w.pods() {
		if !strings.HasPrefix(pod.Name, inject.PodPrefix(w.key.Name, inject.Hash(w.read()))) {
			continue
		}
		checked++
		if diff := cmp.Diff(command, slices.Concat(pod.Spec.Containers[0].Command[3:], pod.Spec.Containers[0].Args)); diff != "" {
			w.t.Errorf("%s runs (-want +got):\n%s", pod.Name, diff)
		}
	}
	if checked == 0 {
		w.t.Errorf("there is no pod of the template\n%s", w.describe())
	}
}

// TestEntrypoint is the life of a job without a command: its registry is down at first, then its tag moves, and then the registry
// and the operator's memory are lost.
func TestEntrypoint(t *testing.T) {
	t.Parallel()
	w, h := newWorld(t), newImageHub(t)
	w.operators[0].lookUp(h, false)
	h.push("v1", "/first")
	h.set(func() { h.down = true })
	w.job(withoutCommand(h.host + "/app:v1"))
	w.answered()
	w.wantUnknown(v1alpha1.ReasonRegistryUnreachable, "its image \""+h.host+"/app:v1\" is unknown: the registry "+h.host+" answers with status 503; set command")
	if n := len(w.pods()); n > 0 {
		t.Fatalf("%d pods were made", n)
	}
	before := h.requests()
	w.round()
	if h.requests() != before {
		t.Error("it is asked again at once")
	}
	h.set(func() { h.down = false })
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.answered()
	w.until("it serves", w.serving)
	w.wantRun("/first", "--default")
	if e := w.status().Entrypoint; e.Digest == "" || e.Image != h.host+"/app:v1" {
		t.Errorf("the record is %+v", e)
	}

	// The tag moves. This causes no rollout, and a replaced candidate runs what the others run, without registry and memory.
	lost := w.pods()[0]
	h.push("v1", "/moved-on")
	h.set(func() { h.down = true })
	w.operators[0].restart()
	w.operators[0].lookUp(h, false)
	before = h.requests()
	w.must(w.api.Delete(t.Context(), &lost))
	w.until("it serves with another candidate", func() bool {
		return w.serving() && !slices.ContainsFunc(w.pods(), func(pod corev1.Pod) bool { return pod.UID == lost.UID })
	})
	names := podNames(w)
	for _, name := range names {
		if !strings.HasPrefix(name, inject.PodPrefix(w.key.Name, lost.Labels[contract.TemplateHashLabel])) {
			t.Errorf("%s is of another template than %s", name, lost.Name)
		}
	}
	if h.requests() != before {
		t.Errorf("the registry was asked %d times", h.requests()-before)
	}
	w.wantRun("/first", "--default")

	// A rollout triggers a look-up. Until that succeeds, nothing changes.
	w.edit(func(job *v1alpha1.SingletonJob) {
		job.Spec.Template.Annotations = map[string]string{"restarted": "now"}
	})
	w.answered()
	w.wantUnknown(v1alpha1.ReasonRegistryUnreachable, "answers with status 503")
	for range 5 {
		w.round()
	}
	if got := podNames(w); !slices.Equal(got, names) || condition(w.status(), v1alpha1.ConditionActive).Reason != v1alpha1.ReasonRunning {
		t.Errorf("pods were %v and are %v\n%s", names, got, w.describe())
	}
	h.set(func() { h.down = false })
	w.clock.SetTime(w.clock.Now().Add(time.Second)) // its holder must not seem lost
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.Containers[0].Args = []string{"--mine"} })
	w.answered()
	w.until("the new template serves", w.serving)
	w.wantRun("/moved-on", "--mine")
}

func podNames(w *world) []string {
	var names []string
	for _, pod := range w.pods() {
		names = append(names, pod.Name)
	}
	return names
}

// TestEntrypointIsOff: the status gives the remedy.
func TestEntrypointIsOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.job(withoutCommand("app"))
	w.until("it says so", func() bool {
		return condition(w.status(), v1alpha1.ConditionActive).Reason == v1alpha1.ReasonEntrypointUnknown
	})
	w.wantUnknown(v1alpha1.ReasonEntrypointUnknown, "look-ups of images are disabled in the operator (entrypoint.enabled); set command to the ENTRYPOINT of the image")
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.Containers[0].Command = []string{"/mine"} })
	w.until("it serves", w.serving)
	w.wantRun("/mine")
}

// TestEntrypointOfAPrivateImage: the operator uses the Pod's pull secrets, or else those of its service account, if it may read
// them.
func TestEntrypointOfAPrivateImage(t *testing.T) {
	for name, c := range map[string]struct {
		mayRead, ofPod, ofAccount bool
		says                      string
	}{
		"of the pod":                {mayRead: true, ofPod: true},
		"of its account":            {mayRead: true, ofAccount: true},
		"none":                      {mayRead: true, says: "(the Pod has no pull secret)"},
		"of the pod, and forbidden": {ofPod: true, says: "may not read pull secrets: entrypoint.pullSecrets"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, h := newWorld(t), newImageHub(t)
			h.push("v1", "/private")
			h.set(func() { h.password = "password" })
			w.operators[0].lookUp(h, c.mayRead)
			w.pullSecret("good", h.host, "password")
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "account"}}
			if c.ofAccount {
				account.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "gone"}, {Name: "good"}}
			}
			w.must(w.api.Create(t.Context(), account))
			w.job(func(spec *v1alpha1.SingletonJobSpec) {
				withoutCommand(h.host + "/app:v1")(spec)
				spec.Template.Spec.ServiceAccountName = account.Name
				if c.ofPod {
					spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "good"}}
				}
			})
			w.answered()
			if c.says != "" {
				w.wantUnknown(v1alpha1.ReasonRegistryRefused, c.says)
				return
			}
			w.until("it serves", w.serving)
			w.wantRun("/private", "--default")
		})
	}
}

func (w *world) pullSecret(name, host, password string) {
	w.t.Helper()
	login := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "user:%s", password))
	raw, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{"auth": login}}})
	w.must(err)
	w.must(w.api.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: name},
		Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: raw},
	}))
}

// TestArchitecturesOfTheNodes: only nodes that may run the Pod count, in whatever state they are.
func TestArchitecturesOfTheNodes(t *testing.T) {
	w := newWorld(t)
	node := func(name, arch string, change func(*corev1.Node)) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.key.Namespace + "-" + name, Labels: map[string]string{"of": w.key.Namespace, "pool": name}}}
		change(n)
		w.must(w.api.Create(t.Context(), n))
		t.Cleanup(func() { _ = w.api.Delete(context.Background(), n) })
		n.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: arch}
		w.must(w.api.Status().Update(t.Context(), n))
	}
	node("plain", "amd64", func(*corev1.Node) {})
	node("away", "riscv64", func(n *corev1.Node) {
		n.Spec.Unschedulable, n.Spec.Taints = true, []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
	})
	node("reserved", "arm64", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "for", Value: "others", Effect: corev1.TaintEffectNoSchedule}}
	})
	for name, c := range map[string]struct {
		change func(*corev1.PodSpec)
		want   []string
	}{
		"of all that may run it": {func(*corev1.PodSpec) {}, []string{"amd64", "riscv64"}},
		"of one that it tolerates": {func(p *corev1.PodSpec) {
			p.Tolerations = []corev1.Toleration{{Key: "for", Operator: corev1.TolerationOpExists}}
		}, []string{"amd64", "arm64", "riscv64"}},
		"of a pool": {func(p *corev1.PodSpec) { p.NodeSelector["pool"] = "away" }, []string{"riscv64"}},
		"of a pool, by affinity": {func(p *corev1.PodSpec) {
			p.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"plain"}}}}},
			}}}
		}, []string{"amd64"}},
		"of no node that is there": {func(p *corev1.PodSpec) { p.NodeSelector["pool"] = "later" }, nil},
		"the one that is named":    {func(p *corev1.PodSpec) { p.NodeSelector[corev1.LabelArchStable] = "s390x" }, []string{"s390x"}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"of": w.key.Namespace}}}
		c.change(&pod.Spec)
		r := &Reconciler{Client: w.api}
		if got, err := r.architectures(t.Context(), pod); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
		if r.WithoutNodes = true; name == "of a pool" {
			if got, err := r.architectures(t.Context(), pod); err != nil || got != nil {
				t.Errorf("without nodes: %v, %v", got, err)
			}
		}
	}
}

// TestEntrypointFaults: a user reads what is wrong with a registry or an image, by its reason.
func TestEntrypointFaults(t *testing.T) {
	hub := newImageHub(t)
	hub.push("v1", "/app")
	hub.push("empty")
	for _, c := range []struct {
		image, reason, says string
		down                bool
		password            string
	}{
		{image: hub.host + "/app:v1", down: true, reason: v1alpha1.ReasonRegistryUnreachable, says: "answers with status 503"},
		{image: hub.host + "/app:v1", password: "secret", reason: v1alpha1.ReasonRegistryRefused, says: "refuses the operator's credentials"},
		{image: hub.host + "/app:v2", reason: v1alpha1.ReasonImageNotFound, says: "has no such image"},
		{image: "127.0.0.1:1/app:v1", reason: v1alpha1.ReasonRegistryUntrusted, says: "loopback"},
		{image: "registry.invalid/app:v1", reason: v1alpha1.ReasonRegistryUnreachable, says: "cannot resolve"},
		{image: hub.host + "/App:v1", reason: v1alpha1.ReasonEntrypointUnknown, says: "the image name is invalid"},
	} {
		w := newWorld(t)
		w.operators[0].lookUp(hub, false)
		hub.set(func() { hub.down, hub.password = c.down, c.password })
		w.job(withoutCommand(c.image))
		w.answered()
		for _, name := range []string{v1alpha1.ConditionActive, v1alpha1.ConditionProgressing, v1alpha1.ConditionReady} {
			if got := condition(w.status(), name); got.Reason != c.reason || !strings.Contains(got.Message, c.says) {
				t.Errorf("%s: %s is %s: %s", c.image, name, got.Reason, got.Message)
			}
		}
		t.Logf("%s: %s", c.reason, condition(w.status(), v1alpha1.ConditionProgressing).Message)
	}
	hub.set(func() { hub.down, hub.password = false, "" })
}
