package controller

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/plan"
)

// TestRenewalsPostponeSilence: a job is triggered when its Lease has been unchanged for the requested time since its last renewal.
func TestRenewalsPostponeSilence(t *testing.T) {
	w := &world{t: t, clock: clocktesting.NewFakePassiveClock(time.Now())}
	w.key.Namespace, w.key.Name = "ns", "job"
	r := New(nil, nil, w.clock, inject.Settings{})
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.must(r.wakeBySilence(ctx, q))

	const limit = 10 * time.Millisecond
	held := newLease(w.key, &plan.LeaseWrite{Record: lease.Record{Holder: "p", Duration: time.Hour}})
	held.UID, held.ResourceVersion, held.CreationTimestamp = "uid", "1", metav1.Now()
	r.note(held)
	r.silences.await(w.key, awaited{silence: limit}, 0)
	for range 3 {
		w.clock.SetTime(w.clock.Now().Add(limit - 1))
		if left, waited := r.silent(w.key); left != 1 || !waited {
			t.Fatalf("after nearly as long as is waited for, %v are left (%v)", left, waited)
		}
		r.memory.renewed(w.key, w.clock.Now())
		if left, _ := r.silent(w.key); left != limit {
			t.Fatalf("after a renewal %v are left, want %v", left, limit)
		}
	}
	if n := q.Len(); n != 0 {
		t.Fatalf("the job is woken %d times, and its holder renews", n)
	}
	w.clock.SetTime(w.clock.Now().Add(limit))
	if woken, _ := q.Get(); woken.NamespacedName != w.key {
		t.Errorf("woken is %v", woken)
	}
	r.silences.await(w.key, awaited{}, 0)
	if _, waited := r.silent(w.key); waited {
		t.Error("it is waited for though the newest plan does not ask for it")
	}
}

// renewed gives a Lease a new version now.
func (m *memory) renewed(key client.ObjectKey, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.leases[key]
	s.since, s.heard = now, now
	m.leases[key] = s
}

// live acts as kubelets, agents and clock for an operator that runs by itself, until a condition holds.
func (w *world) live(patience time.Duration, holds func() bool) bool {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		w.clock.SetTime(time.Now())
		w.kubelets()
		w.runAgents()
		if holds() {
			return true
		}
	}
	return false
}

// TestRunningJobCostsNothing: a job whose holder renews is not reconciled, and costs no requests.
func TestRunningJobCostsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, sent := w.manage()
	const renewDeadline = 3 * time.Second
	w.job(func(s *v1alpha1.SingletonJobSpec) {
		s.Lease = v1alpha1.LeaseSpec{
			LeaseDuration: metav1.Duration{Duration: time.Minute}, RenewDeadline: metav1.Duration{Duration: renewDeadline},
			RetryPeriod: metav1.Duration{Duration: time.Second},
		}
	})
	if !w.live(10*time.Minute, w.serving) {
		t.Fatal(w.describe())
	}
	// Work that started earlier can end late on a busy machine. Work in each renewDeadline would appear in every such period.
	const times = 30
	for range times {
		sent.take()
		before, began := sent.looks.Load(), w.lease().Spec.RenewTime
		w.live(3*renewDeadline, func() bool { return false })
		got, looks := sent.take(), sent.looks.Load()-before
		t.Logf("in %v: %d looks, requests %v", 3*renewDeadline, looks, got)
		if len(got) == 0 && looks == 0 && !w.lease().Spec.RenewTime.Equal(began) {
			return
		}
	}
	t.Error("a job that runs is never left alone")
}
