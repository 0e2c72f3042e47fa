package controller

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
	"github.com/singletonjob/operator/test/tier"
)

// fleet is a set of jobs with one operator, which runs by itself.
type fleet struct {
	t      *testing.T
	worlds []*world
	// limit is the maximum number of jobs that roll out at a time, and most is the observed maximum.
	limit, most int
	stop        func()
}

func newFleet(t *testing.T, jobs, limit int) *fleet {
	t.Helper()
	f := &fleet{t: t, limit: limit}
	for range jobs {
		w := newWorld(t)
		w.api = unmemoized(t, w)
		f.worlds = append(f.worlds, w)
	}
	f.operate(1)
	for _, w := range f.worlds {
		w.job(func(s *v1alpha1.SingletonJobSpec) {
			// These leases last on a busy machine, on which the target of a handover may take a while too. A restarted operator
			// waits for a renewal before it writes to a Lease.
			s.Lease.LeaseDuration.Duration, s.Lease.RenewDeadline.Duration, s.Lease.RetryPeriod.Duration = time.Hour, 50*time.Minute, 8*time.Second
			s.Strategy.MinReadySeconds = new(int32(1))
		})
	}
	f.until("all serve", func() bool { return !slices.ContainsFunc(f.worlds, func(w *world) bool { return !w.serving() }) })
	return f
}

// operate replaces the operator with one that puts this version into Pods.
func (f *fleet) operate(version int) {
	f.t.Helper()
	if f.stop != nil {
		f.stop()
	}
	var namespaces []string
	for _, w := range f.worlds {
		namespaces = append(namespaces, w.key.Namespace)
	}
	_, _, f.stop = f.worlds[0].manageAll(namespaces, func(r *Reconciler) {
		r.FleetRollouts, r.Settings.InjectionVersion = f.limit, version
	})
}

// until lets kubelets and agents work until a condition holds, and checks after each step that no more jobs roll out than allowed.
func (f *fleet) until(what string, holds func() bool) {
	f.t.Helper()
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, w := range f.worlds {
			w.clock.SetTime(time.Now())
			w.kubelets()
			w.runAgents()
			f.waits(w)
		}
		if f.most = max(f.most, f.underWay()); f.most > f.limit {
			f.t.Fatalf("%d are rolled out at a time, of at most %d", f.most, f.limit)
		}
		if holds() {
			return
		}
	}
	for _, w := range f.worlds {
		f.t.Log(w.describe())
	}
	f.t.Fatalf("%s: not in time", what)
}

// underWay is the number of jobs that have a place at the same time.
func (f *fleet) underWay() (n int) {
	f.t.Helper()
	var list v1alpha1.SingletonJobList
	f.worlds[0].must(f.worlds[0].api.List(f.t.Context(), &list))
	for i := range list.Items {
		ours := slices.ContainsFunc(f.worlds, func(w *world) bool { return w.key == client.ObjectKeyFromObject(&list.Items[i]) })
		if ours && isUnderWay(&list.Items[i]) {
			n++
		}
	}
	return n
}

// waits fails if a waiting job has a new Pod. It reads the Pods first.
func (f *fleet) waits(w *world) {
	f.t.Helper()
	pods := w.pods()
	job := w.read()
	if job.Status.FleetRollout != v1alpha1.FleetRolloutWaiting || job.Status.ObservedGeneration != job.Generation {
		return // the template has changed since, so no operator has decided yet whether it waits
	}
	for _, pod := range pods {
		if !strings.HasPrefix(pod.Name, inject.PodPrefix(w.key.Name, (inject.Settings{InjectionVersion: 1}).Hash(job))) && pod.Spec.Containers[0].Image == "v1" {
			f.t.Fatalf("%s was made though its job waits\n%s", pod.Name, w.describe())
		}
	}
}

// new are the jobs whose candidates are all new and proven.
func (f *fleet) new(version int) (all []*world) {
	f.t.Helper()
	for _, w := range f.worlds {
		job := w.read()
		prefix := inject.PodPrefix(w.key.Name, (inject.Settings{InjectionVersion: version}).Hash(job))
		old := slices.ContainsFunc(w.names(), func(name string) bool { return !strings.HasPrefix(name, prefix) })
		if !old && w.serving() && job.Status.FleetRollout == "" {
			all = append(all, w)
		}
	}
	return all
}

// TestAFleetIsRolledOutInTurns: an operator that puts something else into Pods replaces the Pods of two jobs at a time, each with
// one handover. It ends in the middle, and the next one continues. A user's change of a template does not wait, and only events
// trigger a job.
func TestAFleetIsRolledOutInTurns(t *testing.T) {
	t.Parallel()
	const limit = 2
	jobs := 8
	if tier.IsDeep() {
		jobs = 12
	}
	f := newFleet(t, jobs, limit)
	f.operate(2)
	waited := map[*world]bool{} // except the first jobs, and those that a slow operator reconciles after these are done
	f.until("most wait", func() bool {
		for _, w := range f.worlds {
			if s := w.status(); s.FleetRollout == v1alpha1.FleetRolloutWaiting &&
				condition(s, v1alpha1.ConditionProgressing).Reason == v1alpha1.ReasonRolloutWaits && condition(s, v1alpha1.ConditionReady).Status == metav1.ConditionTrue {
				waited[w] = true
			}
		}
		return len(waited) > jobs/2
	})
	still := slices.DeleteFunc(slices.Clone(f.worlds), func(w *world) bool { return w.status().FleetRollout != v1alpha1.FleetRolloutWaiting })
	last := slices.MaxFunc(still, func(a, b *world) int { return before(a.key, b.key) })
	last.image("v2")
	f.until("a person's change is rolled out", func() bool { return last.renewed("v2")() })
	if done := len(f.new(2)); done > jobs-limit { // the job itself may be the last one
		t.Errorf("a person's change was rolled out when %d jobs were", done)
	}
	f.operate(2)
	f.until("all are new", func() bool { return len(f.new(2)) == jobs })
	if f.most != limit {
		t.Errorf("%d were rolled out at a time at most, of %d", f.most, limit)
	}
	for _, w := range f.worlds {
		w.records("Elected Elected", "Handover RolloutHandover")
	}
}

// TestUpgradeSurvivesCrashes: wherever an operator ends, before or after a write, the next one continues. No Pod is deleted or created
// before the status shows that the job has a place.
func TestUpgradeSurvivesCrashes(t *testing.T) {
	for name, after := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			w := served(t, func(s *v1alpha1.SingletonJobSpec) { s.Strategy.MinReadySeconds = new(int32(1)) })
			o := w.operators[0]
			o.injection, o.always, o.after = 2, true, after
			o.restart()
			early := ""
			o.around = func(verb string, obj client.Object, do func() error) error {
				_, pod := obj.(*corev1.Pod)
				if s := w.status(); pod && (verb == "create" || verb == "delete") && s.FleetRollout != v1alpha1.FleetRolloutUnderWay {
					early = verb + " " + obj.GetName()
				}
				return do()
			}
			f := &fleet{t: t, worlds: []*world{w}}
			w.until("all is new", func() bool { return len(f.new(2)) == 1 })
			if early != "" || len(o.crashes) == 0 {
				t.Errorf("too early: %q, ended at %v", early, o.crashes)
			}
			w.records("Elected Elected", "Handover RolloutHandover")
		})
	}
}

// shown are the jobs that have a place according to a cache.
type shown struct {
	client.Client
	jobs []types.NamespacedName
}

func (s *shown) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	for _, key := range s.jobs {
		job := v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		job.Status.FleetRollout = v1alpha1.FleetRolloutUnderWay
		list.(*v1alpha1.SingletonJobList).Items = append(list.(*v1alpha1.SingletonJobList).Items, job)
	}
	return nil
}

// TestTurns checks the places, in the order of names, and which events trigger which job.
func TestTurns(t *testing.T) {
	var (
		cache *shown
		r     *Reconciler
		woken []string
	)
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }
	start := func(limit int, underWay ...string) {
		cache, woken = &shown{}, nil
		for _, name := range underWay {
			cache.jobs = append(cache.jobs, key(name))
		}
		r = &Reconciler{Client: cache, FleetRollouts: limit, turns: newTurns()}
		r.turns.wake = func(k types.NamespacedName) { woken = append(woken, k.Name) }
	}
	asks := func(name string, want bool) {
		t.Helper()
		if got, err := r.turn(t.Context(), key(name)); err != nil || got != want {
			t.Errorf("it is the turn of %s: %v, %v, want %v", name, got, err, want)
		}
	}
	wakes := func(names ...string) {
		t.Helper()
		if !slices.Equal(woken, names) {
			t.Errorf("%v are woken, want %v", woken, names)
		}
		woken = nil
	}

	start(2)
	asks("c", true)
	asks("a", true) // the cache does not show the first place yet
	asks("b", false)
	asks("c", true) // asking again gives the same answer
	cache.jobs = append(cache.jobs, key("a"), key("c"))
	asks("b", false)
	wakes("b") // when the place was given again, without effect

	start(2, "x", "y")
	asks("c", false)
	asks("a", false)
	asks("b", false)
	cache.jobs = nil // both places become free, and one job is triggered
	asks("c", false)
	asks("a", true)
	wakes("b")
	asks("b", true)
	wakes("c")
	asks("c", false)

	start(1, "x")
	asks("a", false)
	asks("b", false)
	cache.jobs = nil
	asks("b", false) // a is on its way
	r.turns.settle(key("a"), &plan.Plan{FleetRollout: v1alpha1.FleetRolloutWaiting})
	wakes("b") // because a no longer asks, although it waits: a run is in progress
	asks("b", true)
	r.turns.settle(key("b"), &plan.Plan{FleetRollout: v1alpha1.FleetRolloutUnderWay})
	asks("c", false)
	r.turns.settle(key("b"), &plan.Plan{})
	wakes("c")
	r.turns.failed(key("c"))
	wakes()
	asks("d", true) // c asks again when it can

	start(0, "x", "y")
	asks("a", true)
}

// TestTurnTriggersJobs: a stored place triggers its job, and a place that becomes free triggers the first waiting job.
func TestTurnTriggersJobs(t *testing.T) {
	r := New(nil, nil, nil, inject.Settings{})
	var first []string
	r.turns.wake = func(k types.NamespacedName) { first = append(first, k.Name) }
	r.turns.waiting[types.NamespacedName{Name: "b"}], r.turns.waiting[types.NamespacedName{Name: "a"}] = true, true
	in := func(s v1alpha1.FleetRollout) *v1alpha1.SingletonJob {
		return &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Status: v1alpha1.SingletonJobStatus{FleetRollout: s}}
	}
	for name, c := range map[string]struct {
		was, is     *v1alpha1.SingletonJob
		first, self int
	}{
		"begins":   {in("Waiting"), in("UnderWay"), 0, 1},
		"ends":     {in("UnderWay"), in(""), 1, 0},
		"goes on":  {in("UnderWay"), in("UnderWay"), 0, 0},
		"is asked": {in(""), in("Waiting"), 0, 0},
		"is gone":  {in("UnderWay"), nil, 1, 0},
		"another":  {in("Waiting"), nil, 0, 0},
	} {
		first = nil
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		h := r.turnHandler()
		if c.is == nil {
			h.Delete(t.Context(), event.DeleteEvent{Object: c.was}, q)
		} else {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: c.was, ObjectNew: c.is}, q)
		}
		if len(first) != c.first || q.Len() != c.self || c.first > 0 && first[0] != "a" {
			t.Errorf("%s: %v and %d in the queue, want %d and %d", name, first, q.Len(), c.first, c.self)
		}
	}
}
