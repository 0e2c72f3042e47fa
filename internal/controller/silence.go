package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// silences triggers jobs whose Leases have not changed for the time that their plans set. Each renewal postpones this, so that a
// job whose holder renews is not reconciled.
type silences struct {
	mu sync.Mutex
	// limits are the waits from the newest plans; no entry if there is nothing to wait for.
	limits map[types.NamespacedName]awaited
	// due holds each job once, with the earliest time at which it may be due; nil before a manager runs.
	due workqueue.TypedDelayingInterface[types.NamespacedName]
}

// awaited is how long a Lease must be silent to trigger a reconcile, and whether its next renewal does.
type awaited struct {
	silence time.Duration
	renewal bool
}

func newSilences() *silences { return &silences{limits: map[types.NamespacedName]awaited{}} }

// await records what a plan waits for on a Lease that has been unchanged for a while.
func (s *silences) await(key types.NamespacedName, a awaited, unchanged time.Duration) {
	s.mu.Lock()
	if a == (awaited{}) {
		delete(s.limits, key)
	} else {
		s.limits[key] = a
	}
	due := s.due
	s.mu.Unlock()
	if a.silence > 0 && due != nil {
		due.AddAfter(key, max(0, a.silence-unchanged))
	}
}

func (s *silences) of(key types.NamespacedName) awaited {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits[key]
}

// wakeBySilence puts jobs into the queue when their Leases have been silent for long enough, until the context ends.
func (r *Reconciler) wakeBySilence(ctx context.Context, q queue) error {
	due := workqueue.NewTypedDelayingQueue[types.NamespacedName]()
	r.silences.mu.Lock()
	r.silences.due = due
	r.silences.mu.Unlock()
	go func() {
		<-ctx.Done()
		due.ShutDown()
	}()
	go func() {
		for {
			key, ended := due.Get()
			if ended {
				return
			}
			switch left, waited := r.silent(key); {
			case !waited:
			case left > 0:
				due.AddAfter(key, left)
			default:
				add(q, failoverPriority, reconcile.Request{NamespacedName: key})
			}
			due.Done(key)
		}
	}()
	return nil
}

// silent is the time that a job's Lease must still be silent, and whether anything waits for that.
func (r *Reconciler) silent(key types.NamespacedName) (left time.Duration, waited bool) {
	limit := r.silences.of(key).silence
	return max(0, limit-r.memory.unchanged(key, r.Clock.Now())), limit > 0
}
