package controller

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plan"
)

// DefaultFleetRollouts is the default of FleetRollouts.
const DefaultFleetRollouts = 10

// turns manages the places in a fleet-wide rollout. A job has a place if its status in the cache says so, which all
// operators see. It also has one if this operator has given it a place that the cache does not show yet.
type turns struct {
	mu    sync.Mutex
	given map[types.NamespacedName]bool
	// waiting are the jobs that asked and got no place. A job is recorded here before the places are counted, so that a place that
	// becomes free at that moment triggers it. Whenever a place is free, the first waiting job has been triggered.
	waiting map[types.NamespacedName]bool
	// wake puts a job into the queue; nil before a manager runs.
	wake func(types.NamespacedName)
}

func newTurns() *turns {
	return &turns{given: map[types.NamespacedName]bool{}, waiting: map[types.NamespacedName]bool{}}
}

// turn reports whether a job, which waits for a place, may roll out now. One place is kept for each waiting job that comes before
// it.
func (r *Reconciler) turn(ctx context.Context, key types.NamespacedName) (bool, error) {
	if r.FleetRollouts == 0 {
		return true, nil
	}
	t := r.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[key] = true
	taken, err := r.underWay(ctx)
	if err != nil {
		return false, err
	}
	for given := range t.given {
		if taken[given] {
			delete(t.given, given)
		}
	}
	free := r.FleetRollouts - len(taken) - len(t.given)
	if taken[key] || t.given[key] { // by a write that the cache does not show yet
		free = 1
	} else {
		for other := range t.waiting {
			if before(other, key) < 0 {
				free--
			}
		}
	}
	if free <= 0 {
		return false, nil
	}
	delete(t.waiting, key)
	t.given[key] = true
	t.next() // in case two places became free at the same time
	return true, nil
}

// underWay are the jobs that have a place according to the cache.
func (r *Reconciler) underWay(ctx context.Context) (map[types.NamespacedName]bool, error) {
	var list v1alpha1.SingletonJobList
	if err := r.Client.List(ctx, &list, client.MatchingFields{fleetIndex: string(v1alpha1.FleetRolloutUnderWay)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the jobs that are rolled out: %w", err)
	}
	found := map[types.NamespacedName]bool{}
	for i := range list.Items {
		if isUnderWay(&list.Items[i]) {
			found[client.ObjectKeyFromObject(&list.Items[i])] = true
		}
	}
	return found, nil
}

// settle records the result of a reconcile. A job that no longer asks gives back a place that no status shows, and the next job is
// triggered.
func (t *turns) settle(key types.NamespacedName, p *plan.Plan) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.AsksTurn || p.FleetRollout == v1alpha1.FleetRolloutUnderWay || !t.given[key] && !t.waiting[key] {
		return
	}
	delete(t.given, key)
	delete(t.waiting, key)
	t.next()
}

// failed lets other jobs go before a job that cannot be observed. That job asks again later.
func (t *turns) failed(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting[key] {
		delete(t.waiting, key)
		t.next()
	}
}

// next triggers the first waiting job. If there is no place for it, nothing happens.
func (t *turns) next() {
	var first *types.NamespacedName
	for key := range t.waiting {
		if first == nil || before(key, *first) < 0 {
			first = &key
		}
	}
	if first != nil && t.wake != nil {
		t.wake(*first)
	}
}

func before(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// wakeByTurns connects turns to the queue, for jobs to which a place may have become free.
func (r *Reconciler) wakeByTurns(_ context.Context, q queue) error {
	r.turns.mu.Lock()
	defer r.turns.mu.Unlock()
	r.turns.wake = func(key types.NamespacedName) { add(q, 0, reconcile.Request{NamespacedName: key}) }
	r.turns.next() // a job may have waited before there was a queue
	return nil
}

// turnHandler triggers a job whose place is stored, so that it starts, and the first waiting job when a place becomes free.
func (r *Reconciler) turnHandler() handler.EventHandler {
	ends := func() {
		r.turns.mu.Lock()
		defer r.turns.mu.Unlock()
		r.turns.next()
	}
	return handler.Funcs{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			switch was, is := isUnderWay(e.ObjectOld), isUnderWay(e.ObjectNew); {
			case is && !was:
				add(q, 0, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.ObjectNew)})
			case was && !is:
				ends()
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) {
			if isUnderWay(e.Object) {
				ends()
			}
		},
	}
}

func isUnderWay(o client.Object) bool {
	job, is := o.(*v1alpha1.SingletonJob)
	return is && job.Status.FleetRollout == v1alpha1.FleetRolloutUnderWay
}

func fleetRolloutOf(o client.Object) []string {
	if job, is := o.(*v1alpha1.SingletonJob); is && job.Status.FleetRollout != "" {
		return []string{string(job.Status.FleetRollout)}
	}
	return nil
}
