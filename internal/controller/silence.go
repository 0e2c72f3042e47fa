package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// silences wake jobs whose Leases have not changed for as long as their plans say. Each renewal puts that off, so that a job whose holder
// renews is looked at by nobody.
type silences struct {
	mu sync.Mutex
	// limits are what the newest plans say, 0 for nothing to wait for.
	limits map[types.NamespacedName]awaited
	// due has each job once, at the soonest time at which it may be due; nil before a manager runs.
	due workqueue.TypedDelayingInterface[types.NamespacedName]
}

// awaited is for how long a Lease is to be silent until that is news, and whether its next renewal is.
type awaited struct {
	silence time.Duration
	renewal bool
}

func newSilences() *silences { return &silences{limits: map[types.NamespacedName]awaited{}} }

// await notes what a plan waits for of a Lease that has been unchanged for a while.
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

// wakeBySilence has the queue take the jobs whose Leases have been silent for long enough, until the context ends.
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

// silent is how long a job's Lease must be silent still, and whether that is waited for.
func (r *Reconciler) silent(key types.NamespacedName) (left time.Duration, waited bool) {
	limit := r.silences.of(key).silence
	return max(0, limit-r.memory.unchanged(key, r.Clock.Now())), limit > 0
}
