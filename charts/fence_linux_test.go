package charts

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencekube"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/rivals"
	"github.com/singletonjob/operator/test/tier"
)

// fences tests objects that only the current tenure of a job may change.
func (w *guardWorld) fences(t *testing.T) {
	f := w.fenceOn()
	for name, test := range map[string]func(*fenceWorld){
		"conformance": (*fenceWorld).conforms, "rules": (*fenceWorld).rules, "races": (*fenceWorld).races, "crowd": (*fenceWorld).crowd, "deletion": (*fenceWorld).deletes,
		"late deletion": (*fenceWorld).deletesLate, "conditions of a deletion": (*fenceWorld).deletesUnlessChanged,
		"frozen": (*fenceWorld).frozen, "status": (*fenceWorld).statuses, "apply": (*fenceWorld).applies, "kubectl": (*fenceWorld).kubectl,
	} {
		t.Run(name, func(t *testing.T) {
			c := *f.cluster
			c.t = t
			test(&fenceWorld{cluster: &c, owned: f.owned, namespace: f.namespace})
		})
	}
}

// fenceWorld is an API server with the policy for fenced objects.
type fenceWorld struct {
	*cluster
	owned     *controlplane.ControlPlane // the API server's, as in guardWorld
	namespace string
}

func (w *guardWorld) fenceOn() *fenceWorld {
	w.t.Helper()
	f := &fenceWorld{cluster: w.cluster, owned: w.owned, namespace: w.plane.Namespace(w.t)}
	w.apply(w.mustHelm("template", "release", chart, "--namespace="+system, "--show-only=templates/fence.yaml"))
	w.await("the policy for fenced objects", func() error {
		_, err := f.plain().Create(w.t.Context(), f.object("probe", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "fencing token is missing") {
			return notYetError{err}
		}
		return nil
	})
	return f
}

// object is a fenced ConfigMap with additional annotations.
func (w *fenceWorld) object(name string, annotations map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.namespace, Name: name, Labels: map[string]string{fencekube.Label: "billing"}, Annotations: annotations,
	}}
}

type configMaps interface {
	Create(context.Context, *corev1.ConfigMap, metav1.CreateOptions) (*corev1.ConfigMap, error)
	Get(context.Context, string, metav1.GetOptions) (*corev1.ConfigMap, error)
	Update(context.Context, *corev1.ConfigMap, metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.ConfigMap, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error
}

func (w *fenceWorld) client(config *rest.Config) configMaps {
	w.t.Helper()
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return client.CoreV1().ConfigMaps(w.namespace)
}

// plain is a client that does not know fences.
func (w *fenceWorld) plain() configMaps { return w.client(w.plane.Config()) }

func (w *fenceWorld) config(token fence.Token) *rest.Config {
	w.t.Helper()
	config, err := fencekube.Fence{Job: "billing", Token: token}.Config(w.plane.Config())
	if err != nil {
		w.t.Fatal(err)
	}
	return config
}

func (w *fenceWorld) as(token fence.Token) configMaps { return w.client(w.config(token)) }

func (w *fenceWorld) jobs(token fence.Token) client.Client {
	w.t.Helper()
	log.SetLogger(logr.Discard())
	known := runtime.NewScheme()
	w.must(v1alpha1.AddToScheme(known))
	c, err := client.New(w.config(token), client.Options{Scheme: known})
	w.must(err)
	return c
}

func (w *fenceWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *fenceWorld) stale(what string, err error, presented, highest fence.Token) {
	w.t.Helper()
	if err == nil {
		w.t.Errorf(observe.Safety+"%s: a stale write was accepted: token %d after %d", what, presented, highest)
		return
	}
	refusal, ok := errors.AsType[*fence.StaleError](err)
	if !ok || refusal.Presented != presented || refusal.Highest != highest || !strings.Contains(string(refusal.Resource), w.namespace) {
		w.t.Errorf("%s: %v; want it refused: token %d after %d", what, err, presented, highest)
	}
}

// inConfigMaps is a sink with a ConfigMap for each resource and a line for each payload.
type inConfigMaps struct {
	*fenceWorld
	mu      sync.Mutex // guards clients
	clients map[fence.Token]configMaps
}

func (w *fenceWorld) sink() *inConfigMaps {
	return &inConfigMaps{fenceWorld: w, clients: map[fence.Token]configMaps{}}
}

func (s *inConfigMaps) with(token fence.Token) configMaps {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[token] == nil {
		s.clients[token] = s.as(token)
	}
	return s.clients[token]
}

func (s *inConfigMaps) name(r fence.Resource) string {
	return fmt.Sprintf("r-%x", sha256.Sum256([]byte(r)))[:40]
}

func (s *inConfigMaps) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	if _, err := fence.ParseResource(string(r)); err != nil {
		return err
	}
	err = untilUncontended(func() error { return appendTo(ctx, s.with(token), s.object(s.name(r), nil), payload) })
	if refusal, ok := errors.AsType[*fence.StaleError](err); ok {
		return &fence.StaleError{Resource: r, Presented: refusal.Presented, Highest: refusal.Highest}
	}
	return err
}

// untilUncontended repeats a write while others are faster, or while an API server that just started still compiles its policies.
func untilUncontended(write func() error) error {
	for {
		err := write()
		unready := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "not yet ready to handle request")
		if !unready && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}

// appendTo adds a line to an object, and creates the object if it does not exist.
func appendTo(ctx context.Context, maps configMaps, object *corev1.ConfigMap, payload string) error {
	stored, err := maps.Get(ctx, object.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		stored = object
		stored.Data = map[string]string{"all": payload + "\n"}
		_, err = maps.Create(ctx, stored, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if stored.Data == nil {
		stored.Data = map[string]string{}
	}
	stored.Data["all"] += payload + "\n"
	_, err = maps.Update(ctx, stored, metav1.UpdateOptions{})
	return err
}

func (s *inConfigMaps) Stored(ctx context.Context, r fence.Resource) ([]string, error) {
	stored, err := s.plain().Get(ctx, s.name(r), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Fields(stored.Data["all"]), nil
}

// test is the world for suites that run subtests.
func (w *fenceWorld) test() *testing.T {
	t, ok := w.t.(*testing.T)
	if !ok {
		w.t.Fatal("not a test")
	}
	return t
}

func (w *fenceWorld) conforms() {
	fencetest.Run(w.test(), func(*testing.T) fencetest.Adapter { return w.sink() })
}

var crowds = rivals.Flags()

// unfenced is the same write to an object to which no policy applies.
type unfenced struct {
	*inConfigMaps
	maps configMaps
}

func (u unfenced) Write(ctx context.Context, r fence.Resource, _, payload string) error {
	return untilUncontended(func() error {
		object := u.object(u.name(r), nil)
		object.Labels = nil
		return appendTo(ctx, u.maps, object, payload)
	})
}

// crowd: 64 writers of 8 tenures, on one object and on 1000.
func (w *fenceWorld) crowd() {
	fmt.Println(rivals.Header)
	s := w.sink()
	crowds.Test(w.test(), rivals.Subject{Name: "Kubernetes", Adapter: s, Unfenced: unfenced{s, w.plain()}})
}

// killed is a sink whose API server and etcd are killed.
type killed struct{ *inConfigMaps }

func (k killed) Restart(ctx context.Context) error {
	k.owned.StopEtcd()
	if err := k.owned.SignalAPIServer(syscall.SIGKILL); err != nil {
		return err
	}
	k.owned.StopAPIServer() // it has ended
	return errors.Join(k.owned.StartEtcd(), k.owned.StartAPIServer(ctx))
}

// killed: accepted writes survive, and an API server that just started refuses stale ones.
func (w *fenceWorld) killed() {
	for _, name := range []string{"RestartForgetsNothing", "CrashDuringWrites"} {
		if err := fencetest.Fault(w.t.Context(), killed{w.sink()}, name); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	}
}

// rules: the writes that a client without a fence can make to an object with token 34.
func (w *fenceWorld) rules() {
	const token, deletes = fencekube.TokenAnnotation, fencekube.DeleteAnnotation
	object := func(annotations map[string]string) func(*corev1.ConfigMap) {
		return func(m *corev1.ConfigMap) { m.Annotations = annotations }
	}
	for name, c := range map[string]struct {
		change func(*corev1.ConfigMap)
		want   string // in the refusal; none if empty
	}{
		"a lower token":                  {object(map[string]string{token: "33"}), "fencing token is stale"},
		"a lower one with more digits":   {object(map[string]string{token: "9"}), "fencing token is stale"},
		"the same":                       {object(map[string]string{token: "34"}), ""},
		"a higher one":                   {object(map[string]string{token: "100"}), ""},
		"the greatest":                   {object(map[string]string{token: "9223372036854775807"}), ""},
		"one too great":                  {object(map[string]string{token: "9223372036854775808"}), "malformed"},
		"a leading zero":                 {object(map[string]string{token: "034"}), "malformed"},
		"a sign":                         {object(map[string]string{token: "+34"}), "malformed"},
		"text":                           {object(map[string]string{token: "latest"}), "malformed"},
		"none":                           {object(nil), "missing"},
		"empty":                          {object(map[string]string{token: ""}), "missing"},
		"another job":                    {func(m *corev1.ConfigMap) { m.Labels[fencekube.Label] = "other" }, "stays as it is"},
		"no label":                       {func(m *corev1.ConfigMap) { m.Labels = nil }, "stays as it is"},
		"what a bystander leaves as is":  {func(m *corev1.ConfigMap) { m.Data = map[string]string{"x": "y"} }, ""},
		"a mark for repairs, and no job": {func(m *corev1.ConfigMap) { m.Labels, m.Annotations = nil, map[string]string{guardMark: "off"} }, "stays as it is"},
	} {
		stored, err := w.as(34).Create(w.t.Context(), w.object(fmt.Sprintf("rules-%x", sha256.Sum256([]byte(name)))[:40], nil), metav1.CreateOptions{})
		w.must(err)
		c.change(stored)
		_, err = w.plain().Update(w.t.Context(), stored, metav1.UpdateOptions{})
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
			w.t.Errorf("%s: %v; want: %q", name, err, c.want)
		}
	}
	for value, want := range map[string]string{"": "missing", "0": "malformed", "7": ""} {
		_, err := w.plain().Create(w.t.Context(), w.object("made-"+value+"x", map[string]string{token: value, deletes: ""}), metav1.CreateOptions{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			w.t.Errorf("created with %q: %v; want %q", value, err, want)
		}
	}
	w.repair()
}

// repair: a repair takes two steps and needs the right for it.
func (w *fenceWorld) repair() {
	_, err := w.as(9223372036854775807).Create(w.t.Context(), w.object("poisoned", nil), metav1.CreateOptions{})
	w.must(err)
	name := []string{"annotate", "--overwrite", "--namespace=" + w.namespace, "configmap", "poisoned"}
	lower := append(slices.Clone(name), fencekube.TokenAnnotation+"=34")
	if out, err := w.plane.Kubectl(w.t.Context(), lower...); err == nil {
		w.t.Errorf("without the mark for repairs: %s", out)
	}
	w.mustKubectl(append(slices.Clone(name), guardMark+"=off")...)
	w.mustKubectl(lower...)
	w.mustKubectl(append(slices.Clone(name), guardMark+"-")...)
	_, err = w.as(33).Patch(w.t.Context(), "poisoned", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	w.stale("after the repair", err, 33, 34)
}

// races makes 8 tenures patch one object at a time. Each new tenure starts while earlier ones still write. After its first write,
// none of theirs is stored: in the order of revisions, no token is lower than the one before it.
func (w *fenceWorld) races() {
	const rivals = 7
	enough := 150 // refusals
	if tier.IsDeep() {
		enough = 1500
	}
	_, err := w.as(1).Create(w.t.Context(), w.object("race", nil), metav1.CreateOptions{})
	w.must(err)
	clients := map[fence.Token]configMaps{}
	patch := func(c configMaps, token fence.Token, n int) (revision int64, err error) {
		stored, err := c.Patch(w.t.Context(), "race", types.MergePatchType, fmt.Appendf(nil, `{"data":{"write":"%d-%d"}}`, token, n), metav1.PatchOptions{})
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(stored.ResourceVersion, 10, 64)
	}
	stored, refused := map[int64]fence.Token{}, 0
	var mu sync.Mutex
	for highest := fence.Token(2); refused < enough && w.t.Context().Err() == nil; highest++ {
		var all sync.WaitGroup
		for token := max(1, highest-rivals); token <= highest; token++ {
			if clients[token] == nil {
				clients[token] = w.as(token)
			}
			c := clients[token]
			all.Go(func() {
				for n := range 3 {
					revision, err := patch(c, token, n)
					mu.Lock()
					switch {
					case err == nil:
						stored[revision] = max(stored[revision], token)
					case errors.Is(err, fence.ErrStale):
						refused++
					case !apierrors.IsConflict(err):
						w.t.Errorf("token %d: %v", token, err)
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
	}
	highest := fence.Token(0)
	for _, revision := range slices.Sorted(maps.Keys(stored)) {
		if stored[revision] < highest {
			w.t.Errorf(observe.Safety+"revision %d has token %d, after %d", revision, stored[revision], highest)
		}
		highest = max(highest, stored[revision])
	}
	w.t.Logf("%d writes are stored, %d were refused as stale", len(stored), refused)
}

func (w *fenceWorld) deletes() {
	ctx := w.t.Context()
	_, err := w.as(34).Create(ctx, w.object("gone", nil), metav1.CreateOptions{})
	w.must(err)
	for what, err := range map[string]error{
		"without a fence": w.plain().Delete(ctx, "gone", metav1.DeleteOptions{}),
		"a collection":    w.plain().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=gone"}),
	} {
		if !apierrors.IsForbidden(err) {
			w.t.Errorf("deletion, %s: %v", what, err)
		}
	}
	w.stale("deletion", w.as(33).Delete(ctx, "gone", metav1.DeleteOptions{}), 33, 34)
	if err := w.as(34).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "one by one") {
		w.t.Errorf("a collection: %v", err)
	}
	// Marked for deletion by a tenure that was then frozen, and written by its successor.
	_, err = w.plain().Patch(ctx, "gone", types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+fencekube.DeleteAnnotation+`":"34"}}}`), metav1.PatchOptions{})
	w.must(err)
	_, err = w.as(35).Patch(ctx, "gone", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	w.must(err)
	if err := w.plain().Delete(ctx, "gone", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		w.t.Errorf("deletion that an earlier tenure has begun: %v", err)
	}
	w.must(w.as(35).Delete(ctx, "gone", metav1.DeleteOptions{}))
	if _, err := w.plain().Get(ctx, "gone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("after its deletion: %v", err)
	}
	if err := w.as(35).Delete(ctx, "gone", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("once more: %v", err)
	}
}

// holding is a connection to the API server that delays the first deletion.
type holding struct {
	next             http.RoundTripper
	once             sync.Once
	reached, release chan struct{}
}

func (h *holding) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodDelete {
		h.once.Do(func() {
			close(h.reached)
			<-h.release
		})
	}
	return h.next.RoundTrip(req)
}

// deletesAs makes a tenure delete an object, and does something after its mark and before its deletion.
func (w *fenceWorld) deletesAs(token fence.Token, name string, between func()) error {
	way := &holding{reached: make(chan struct{}), release: make(chan struct{})}
	config := w.plane.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		way.next = next
		return way
	})
	config, err := fencekube.Fence{Job: "billing", Token: token}.Config(config)
	w.must(err)
	deleted := make(chan error, 1)
	c := w.client(config)
	go func() { deleted <- c.Delete(w.t.Context(), name, metav1.DeleteOptions{}) }()
	select {
	case <-way.reached:
	case err := <-deleted:
		w.t.Fatalf("the deletion did not come so far: %v", err)
	}
	between()
	close(way.release)
	return <-deleted
}

// deletesLate: the deletion of a past tenure applies to the object's state at that time, whatever mark the object has when the
// deletion arrives.
func (w *fenceWorld) deletesLate() {
	ctx := w.t.Context()
	annotate := func(name string, annotations string) func() {
		return func() {
			_, err := w.plain().Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"annotations":{`+annotations+`}}}`), metav1.PatchOptions{})
			w.must(err)
		}
	}
	for _, name := range []string{"late", "written"} {
		_, err := w.as(33).Create(ctx, w.object(name, nil), metav1.CreateOptions{})
		w.must(err)
	}
	successors := annotate("late", `"`+fencekube.TokenAnnotation+`":"34","`+fencekube.DeleteAnnotation+`":"34"`)
	w.stale("late deletion", w.deletesAs(33, "late", successors), 33, 34)
	if _, err := w.plain().Get(ctx, "late", metav1.GetOptions{}); err != nil {
		w.t.Errorf("what only its successor may delete: %v", err)
	}
	w.must(w.deletesAs(33, "written", annotate("written", `"example.com/by":"another"`)))
}

// deletesUnlessChanged: the deletion's own preconditions apply to its mark too.
func (w *fenceWorld) deletesUnlessChanged() {
	ctx := w.t.Context()
	made, err := w.as(33).Create(ctx, w.object("asked", nil), metav1.CreateOptions{})
	w.must(err)
	seen, err := w.as(33).Patch(ctx, "asked", types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{})
	w.must(err)
	for what, asked := range map[string]metav1.Preconditions{
		"an older revision": {ResourceVersion: &made.ResourceVersion},
		"another object":    {UID: new(types.UID("other"))},
	} {
		if err := w.as(34).Delete(ctx, "asked", metav1.DeleteOptions{Preconditions: &asked}); !apierrors.IsConflict(err) {
			w.t.Errorf("deletion of %s: %v, want a conflict", what, err)
		}
	}
	stored, err := w.plain().Get(ctx, "asked", metav1.GetOptions{})
	w.must(err)
	if stored.ResourceVersion != seen.ResourceVersion {
		w.t.Errorf("a deletion that did not hold has written: %v", stored.Annotations)
	}
	asked := metav1.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion}
	w.must(w.as(34).Delete(ctx, "asked", metav1.DeleteOptions{Preconditions: &asked, PropagationPolicy: new(metav1.DeletePropagationBackground)}))
}

// frozen: a client has read, and its successor writes before the client does.
func (w *fenceWorld) frozen() {
	ctx := w.t.Context()
	seen, err := w.as(33).Create(ctx, w.object("frozen", nil), metav1.CreateOptions{})
	w.must(err)
	_, err = w.as(34).Patch(ctx, "frozen", types.MergePatchType, []byte(`{"data":{"by":"successor"}}`), metav1.PatchOptions{})
	w.must(err)
	if _, err := w.as(33).Update(ctx, seen, metav1.UpdateOptions{}); err == nil {
		w.t.Error(observe.Safety + "what was read before the successor wrote was stored after it")
	}
	seen, err = w.as(33).Get(ctx, "frozen", metav1.GetOptions{}) // and so sees the successor's token
	w.must(err)
	_, err = w.as(33).Update(ctx, seen, metav1.UpdateOptions{})
	w.stale("update", err, 33, 34)
	for kind, patch := range map[types.PatchType]string{
		types.MergePatchType: `{"data":{"by":"past"}}`, types.StrategicMergePatchType: `{"data":{"by":"past"}}`,
		types.JSONPatchType: `[{"op":"add","path":"/data","value":{"by":"past"}}]`,
	} {
		_, err := w.as(33).Patch(ctx, "frozen", kind, []byte(patch), metav1.PatchOptions{})
		w.stale(string(kind), err, 33, 34)
		_, err = w.as(34).Patch(ctx, "frozen", kind, []byte(patch), metav1.PatchOptions{})
		w.must(err)
	}
}

// statuses: the API server ignores annotations in a write to the status of a custom resource.
func (w *fenceWorld) statuses() {
	ctx := w.t.Context()
	old, present := w.jobs(33), w.jobs(34)
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "fenced"}}
	job.Spec.Template.Spec.Containers = []corev1.Container{{Name: "app", Image: "app", Command: []string{"app"}}}
	w.must(old.Create(ctx, job))
	if job.Labels[fencekube.Label] != "billing" || job.Annotations[fencekube.TokenAnnotation] != "33" {
		w.t.Errorf("created with %v and %v", job.Labels, job.Annotations)
	}
	job.Status.ActivePod = "first"
	w.must(old.Status().Update(ctx, job))
	seen := job.DeepCopy()
	base := seen.DeepCopy()
	seen.Status.ActivePod = "second"
	w.must(present.Status().Patch(ctx, seen, client.MergeFrom(base)))
	job.Status.ActivePod = "past"
	w.stale("update", retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		fresh := &v1alpha1.SingletonJob{}
		w.must(old.Get(ctx, client.ObjectKeyFromObject(job), fresh))
		fresh.Status = job.Status
		return old.Status().Update(ctx, fresh)
	}), 33, 34)
	w.stale("patch", old.Status().Patch(ctx, job, client.MergeFrom(base)), 33, 34)
	w.must(present.Get(ctx, client.ObjectKeyFromObject(job), seen))
	if seen.Status.ActivePod != "second" {
		w.t.Errorf("the status is of %q", seen.Status.ActivePod)
	}
	w.stale("deletion", old.Delete(ctx, job), 33, 34)
	w.must(present.Delete(ctx, job))
}

func (w *fenceWorld) applies() {
	apply := func(token fence.Token) error {
		_, err := w.as(token).Patch(w.t.Context(), "applied", types.ApplyYAMLPatchType,
			[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {by: \""+token.String()+"\"}\n"),
			metav1.PatchOptions{FieldManager: "billing", Force: new(true)})
		return err
	}
	w.must(apply(33))
	w.must(apply(34))
	w.stale("apply", apply(33), 33, 34)
	w.must(apply(34))
}

// kubectl runs the commands for scripts in docs/fencing-kubernetes.md, for the ConfigMap in ledger.yaml: with a past token, and with the
// present one.
func (w *fenceWorld) kubectl() {
	w.must(os.WriteFile(filepath.Join(w.home, "ledger.yaml"), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ledger\n  labels: {"+fencekube.Label+": billing}\n"), 0o600))
	w.must(os.Chmod(w.home, 0o700))
	script := func(token, recipe string) error {
		out, err := w.run("sh", nil, "-c", "cd $HOME; cp $KUBECONFIG config; export KUBECONFIG=$HOME/config FENCING_TOKEN="+token+
			"; kubectl config set-context --current --namespace="+w.namespace+" >config.log; "+recipe)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	typist := &commands.Typist{TB: w.t, Test: "charts TestGuard", Top: "..", Run: func(recipe string) string {
		if strings.Contains(recipe, "--filename=ledger.yaml") {
			w.must(script("34", recipe)) // makes it
		}
		if err := script("33", recipe); err == nil || !strings.Contains(err.Error(), "fencing token is stale") {
			w.t.Errorf("%s\nwith a past token: %v", recipe, err)
		}
		w.must(script("34", recipe))
		return ""
	}}
	typist.Page("docs/fencing-kubernetes.md")
	typist.End()
	if _, err := w.plain().Get(w.t.Context(), "ledger", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("after its deletion: %v", err)
	}
}
