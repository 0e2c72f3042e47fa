package controller

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// Sizes that `make bench-idle` increases.
var (
	idleJobs = flag.Int("idle-jobs", 50, "how many `jobs` TestIdleSchedulesCostNothing makes")
	idleTime = flag.Duration("idle-time", 10*time.Second, "for how `long` none of them may cost a request")
)

// requests counts requests except watches, by verb and resource, and the reconciles of each job.
type requests struct {
	http.RoundTripper
	mu    sync.Mutex
	sent  map[string]int
	looks atomic.Int64
}

func (r *requests) RoundTrip(request *http.Request) (*http.Response, error) {
	if !request.URL.Query().Has("watch") {
		r.mu.Lock()
		r.sent[requested(request)]++
		r.mu.Unlock()
	}
	return r.RoundTripper.RoundTrip(request)
}

// requested is a request's verb and resource.
func requested(r *http.Request) string {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if i := slices.Index(path, "namespaces"); i >= 0 && len(path) > i+2 {
		path = path[i+2:]
	} else {
		path = path[min(len(path), 2):] // api v1, or discovery
	}
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	switch {
	case verb != "":
	case len(path) == 1:
		verb = "list"
	default:
		verb = "get"
	}
	const named = 2
	if len(path) > named {
		path = []string{path[0], path[2]}
	} else {
		path = path[:min(len(path), 1)]
	}
	return verb + " " + strings.Join(path, "/")
}

// looking counts the reconciles of a job: each lists its Pods once.
type looking struct {
	client.Client
	looks *atomic.Int64
}

func (c looking) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, pods := list.(*corev1.PodList); pods {
		c.looks.Add(1)
	}
	return c.Client.List(ctx, list, opts...)
}

// take returns the counts since the last call.
func (r *requests) take() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := maps.Clone(r.sent)
	clear(r.sent)
	return sent
}

// manage runs an operator as cmd/manager does, without a limit to its requests, and counts them.
func (w *world) manage() (cached client.Reader, sent *requests) {
	w.t.Helper()
	cached, sent, _ = w.manageAll([]string{w.key.Namespace}, func(*Reconciler) {})
	return cached, sent
}

// manageAll runs an operator for several namespaces, until it is stopped.
func (w *world) manageAll(namespaces []string, change func(*Reconciler)) (cached client.Reader, sent *requests, stop func()) {
	w.t.Helper()
	sent = &requests{sent: map[string]int{}}
	served := &ServerClock{}
	c := rest.CopyConfig(w.plane.Config())
	c.QPS = -1
	c.Wrap(served.Wrap)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		sent.RoundTripper = next
		return sent
	})
	m, err := ctrl.NewManager(c, ctrl.Options{
		Scheme: scheme(w.t), Cache: CacheOptions(namespaces), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	w.must(err)
	r := New(looking{m.GetClient(), &sent.looks}, m.GetAPIReader(), clock.RealClock{}, inject.Settings{AgentImage: "agent"})
	r.WithoutNodes, r.ServerTime = true, served.Now
	change(r)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context())) // must end before the API server does
	w.must(r.SetupWithManager(ctx, m, 8))
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	w.api = unmemoized(w.t, w)
	return m.GetClient(), sent, stop
}

// TestIdleSchedulesCostNothing: with many jobs whose ticks are far away, no job costs a request, except one reconcile with a read
// per hour.
func TestIdleSchedulesCostNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cached, sent := w.manage()
	began := time.Now()
	w.makeIdle(*idleJobs)
	patience := began.Add(10*time.Minute + time.Duration(*idleJobs)*200*time.Millisecond)
	for left := *idleJobs; left > 0; left = *idleJobs - w.atRest(cached) {
		if time.Now().After(patience) {
			t.Fatalf("%d jobs of %d are not at rest", left, *idleJobs)
		}
		time.Sleep(time.Second)
	}
	t.Logf("%d jobs at rest after %v, and %v", *idleJobs, time.Since(began).Round(time.Second), sent.take())
	// Work that started earlier can end late on a busy machine. A cost per job would appear in every such period.
	const times = 30
	for range times {
		time.Sleep(*idleTime)
		got := sent.take()
		t.Logf("requests in %v: %v", *idleTime, got)
		if len(got) == 0 {
			return
		}
	}
	t.Errorf("%d jobs at rest never cost nothing in %v", *idleJobs, *idleTime)
}

// makeIdle creates jobs with a tick in half a year.
func (w *world) makeIdle(jobs int) {
	w.t.Helper()
	month := time.Now().AddDate(0, 6, 0).Month()
	var made errgroup.Group
	made.SetLimit(16)
	for i := range jobs {
		made.Go(func() error {
			return w.api.Create(w.t.Context(), &v1alpha1.SingletonJob{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: fmt.Sprintf("job-%d", i)},
				Spec: v1alpha1.SingletonJobSpec{
					RunPolicy: v1alpha1.RunPolicyRunToCompletion,
					Schedule:  &v1alpha1.Schedule{Cron: fmt.Sprintf("%d 0 1 %d *", i%60, month)},
					Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
						Containers: []corev1.Container{{Name: "app", Image: "v1", Command: []string{"run"}}},
					}},
				},
			})
		})
	}
	w.must(made.Wait())
}

// atRest counts the jobs whose status says that no run is due.
func (w *world) atRest(cached client.Reader) (n int) {
	w.t.Helper()
	var list v1alpha1.SingletonJobList
	w.must(cached.List(w.t.Context(), &list, client.InNamespace(w.key.Namespace), client.UnsafeDisableDeepCopy))
	for i := range list.Items {
		if condition(list.Items[i].Status, v1alpha1.ConditionActive).Reason == v1alpha1.ReasonNotDue {
			n++
		}
	}
	return n
}
