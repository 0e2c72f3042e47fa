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

// DefaultFleetRollouts is of how many jobs at a time pods are replaced that the operator alone made outdated.
const DefaultFleetRollouts = 10

// turns say whose turn it is in a rollout of all jobs. Places are taken by the jobs whose statuses in the cache say so, which all operators
// see, and by those to whom this one has given a place that the cache does not show yet.
type turns struct {
	mu    sync.Mutex
	given map[types.NamespacedName]bool
	// waiting are the jobs that have asked in vain. Whoever asks is noted before the places are looked at, so that one that becomes
	// free just then wakes it. The first of them is on its way whenever a place is free.
	waiting map[types.NamespacedName]bool
	// wake has the queue take a job; nil before a manager runs.
	wake func(types.NamespacedName)
}

func newTurns() *turns {
	return &turns{given: map[types.NamespacedName]bool{}, waiting: map[types.NamespacedName]bool{}}
}

// turn says whether it is a job's turn, which waits for it. A place is kept for each job that waits and comes before it.
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
	if taken[key] || t.given[key] { // by a write that is not seen yet
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
	t.next() // in case that two places became free at once
	return true, nil
}

// underWay are the jobs whose turn it is, as the cache has them.
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

// settle notes what became of a job. One that asks no more gives back a place of which no status tells, and lets the next one come.
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

// failed lets others come before a job that can't be looked at. It asks again when it can.
func (t *turns) failed(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting[key] {
		delete(t.waiting, key)
		t.next()
	}
}

// next wakes the first job that waits. If there is no place for it, nothing comes of that.
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

// wakeByTurns has the queue take jobs to which a place may have become free.
func (r *Reconciler) wakeByTurns(_ context.Context, q queue) error {
	r.turns.mu.Lock()
	defer r.turns.mu.Unlock()
	r.turns.wake = func(key types.NamespacedName) { add(q, 0, reconcile.Request{NamespacedName: key}) }
	r.turns.next() // who was first while nobody was to be woken
	return nil
}

// turnHandler wakes a job whose turn is stored, by which it begins, and the first that waits when one is over.
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
