//go:build linux

package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencekube"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/tier"
)

// routesImage is that of config/samples/controller, and the name of its job, account and table.
const routesImage = "routes"

var buildRoutes = sync.OnceValue(func() error {
	into := filepath.Join(shared.images, routesImage, "controller")
	out, err := gotool.Command(context.Background(), root, "build", "-ldflags=-s -w", "-o", into, "./config/samples/controller").CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the controller: %w\n%s", err, out)
	}
	return nil
})

// table is what the sample's controllers write, and each version of it that was stored.
type table struct {
	*sample
	mu       sync.Mutex // guards the versions
	versions []*corev1.ConfigMap
}

// routes runs the sample under the chart's policy. Its controllers have the rights of the sample's account.
func (w *world) routes(change ...func(*v1alpha1.SingletonJob)) *table {
	w.t.Helper()
	images(w.t)
	w.must(buildRoutes())
	w.fenceOn()
	config := rest.CopyConfig(w.p.Plane.Config())
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + w.ns + ":" + routesImage,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + w.ns, "system:authenticated"},
	}
	kubeconfig := filepath.Join(w.t.TempDir(), "kubeconfig")
	w.must(controlplane.WriteKubeconfig(kubeconfig, config))
	s := &table{}
	s.sample = w.sample("controller", nil, append(change, func(job *v1alpha1.SingletonJob) {
		c := &job.Spec.Template.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: "KUBECONFIG", Value: kubeconfig})
	})...)
	s.name = routesImage
	s.follow()
	s.works = func() { s.shows("works", strconv.FormatInt(time.Now().UnixNano(), 10)) }
	return s
}

// fenceOn installs what the chart has for fenced objects, and returns when the API server enforces it.
func (w *world) fenceOn() {
	w.t.Helper()
	w.must(ApplyFence(w.t.Context(), w.p.Plane, root))
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "probe", Labels: map[string]string{fencekube.Label: "probe"}}}
	w.await("the policy for fenced objects", func() (bool, any, error) {
		err := w.p.Client.Create(w.t.Context(), probe.DeepCopy(), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "fencing token is missing"), nil, err
	})
}

// follow notes every version of the table until the test ends.
func (s *table) follow() {
	s.t.Helper()
	c, err := kubernetes.NewForConfig(s.p.Plane.Config())
	s.must(err)
	events, err := c.CoreV1().ConfigMaps(s.ns).Watch(s.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + s.name})
	s.must(err)
	s.t.Cleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			if m, ok := event.Object.(*corev1.ConfigMap); ok && event.Type != watch.Deleted {
				s.mu.Lock()
				s.versions = append(s.versions, m)
				s.mu.Unlock()
			}
		}
	}()
}

// latest is the last version of the table.
func (s *table) latest() *corev1.ConfigMap {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.versions) == 0 {
		return &corev1.ConfigMap{}
	}
	return s.versions[len(s.versions)-1]
}

// set makes a route, or changes it.
func (s *table) set(name, target string) {
	s.t.Helper()
	route := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name, Labels: map[string]string{"example.com/route": ""}}, Data: map[string]string{"target": target},
	}
	err := s.p.Client.Create(s.t.Context(), route)
	if client.IgnoreAlreadyExists(err) == nil && err != nil {
		err = s.p.Client.Update(s.t.Context(), route)
	}
	s.must(err)
}

// shows sets a route, and waits until the table has it.
func (s *table) shows(name, target string) {
	s.t.Helper()
	s.set(name, target)
	s.await("the route in the table", func() (bool, any, error) {
		now := s.latest()
		return now.Data[name] == target, now.Data, nil
	})
}

func tokenOf(m *corev1.ConfigMap) (token fence.Token) {
	token, _ = fence.ParseToken(m.Annotations[fencekube.TokenAnnotation])
	return token
}

// tenures returns the tokens of the stored versions, in their order, each once. A version without a token, or with one that is lower than
// the one before it, is a fault.
func (s *table) tenures() (all []fence.Token) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, version := range s.versions {
		token := tokenOf(version)
		if len(all) > 0 && token < all[len(all)-1] || token == 0 {
			s.t.Errorf(observe.Safety+"revision %s of the table has token %d, after %v", version.ResourceVersion, token, all)
		}
		all = append(all, token)
	}
	return slices.Compact(all)
}

// controllers are the sample's processes.
func controllers(_ int, all []localnode.Process) []localnode.Process {
	return slices.DeleteFunc(slices.Clone(all), func(p localnode.Process) bool {
		return len(p.Args) == 0 || filepath.Base(p.Args[0]) != "controller"
	})
}

// TestAFrozenControllerIsFenced: a controller is frozen with its agent, its successor writes the table, and then the old one wakes up with its
// cache of that time. The API server refuses what it writes, and the controller ends.
func TestAFrozenControllerIsFenced(t *testing.T) {
	w := newWorld(t)
	s := w.routes(func(job *v1alpha1.SingletonJob) {
		short.Apply(job)
		job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning // the old one lives until it hears of its end
	})
	first := s.settles(0, true)
	s.shows("a", "first")
	if got := tokenOf(s.latest()); int64(got) != first.Status.FencingToken {
		t.Fatalf("the table has token %d, want %d", got, first.Status.FencingToken)
	}
	node := s.p.Cluster.Node(first.Status.ActiveNode)
	s.must(node.Freeze(s.ns, first.Status.ActivePod))
	second := s.settles(fence.Token(first.Status.FencingToken), false)
	s.shows("a", "second")

	_, err := node.Signal(s.ns, first.Status.ActivePod, controllers, syscall.SIGCONT)
	s.must(err)
	want := fmt.Sprintf("fencing token is stale: configmaps/%s/%s has seen token %d, the write carries %d", s.ns, s.name, second.Status.FencingToken, first.Status.FencingToken)
	s.await("the refusal", func() (bool, any, error) {
		text, err := os.ReadFile(node.Log(s.ns, first.Status.ActivePod, "controller"))
		return strings.Contains(string(text), want), string(text), err
	})
	s.must(node.Thaw(s.ns, first.Status.ActivePod))
	s.shows("a", "third")
	if got, want := s.tenures(), []fence.Token{fence.Token(first.Status.FencingToken), fence.Token(second.Status.FencingToken)}; !slices.Equal(got, want) {
		t.Errorf("the table was written with tokens %v, want %v", got, want)
	}
}

// TestControllersTakeTurns: each controller finds what the last one left, and none writes after its successor has.
func TestControllersTakeTurns(t *testing.T) {
	tier.Deep(t, "breaks the controllers in turns, for minutes")
	s := newWorld(t).routes()
	s.breaks(killed, drain, frozen)
	if got := s.tenures(); len(got) != 4 {
		t.Errorf("the table was written with tokens %v, want those of 4 tenures", got)
	}
}
