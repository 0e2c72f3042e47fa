package controller

import (
	"errors"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// TestFailoversComeFirst: failovers come before other events of jobs, and new jobs come last.
func TestFailoversComeFirst(t *testing.T) {
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid", Labels: map[string]string{
			contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: name,
		}}
	}
	r := New(fake.NewClientBuilder().WithScheme(scheme(t)).Build(), nil, clock.RealClock{}, inject.Settings{})
	q := priorityqueue.New[reconcile.Request](t.Name())
	defer q.ShutDown()

	// The initial job and the new one can come from either handler, because the handlers disagree about a job that is created in
	// the meantime.
	for name, atStart := range map[string]bool{"old": true, "new": false} {
		e := event.CreateEvent{Object: &v1alpha1.SingletonJob{ObjectMeta: named(name)}, IsInInitialList: atStart}
		if jobChanged.Create(e) {
			t.Errorf("the %s job comes before its turn", name)
		}
		newJobs.Create(t.Context(), e, q)
	}
	changed := &v1alpha1.SingletonJob{ObjectMeta: named("changed")}
	next := changed.DeepCopy()
	next.ResourceVersion = "2"
	(&handler.EnqueueRequestForObject{}).Update(t.Context(), event.UpdateEvent{ObjectOld: changed, ObjectNew: next}, q)
	before := &coordinationv1.Lease{ObjectMeta: named("failed-over")}
	after := before.DeepCopy()
	after.Spec.HolderIdentity = new("p/uid/n")
	r.leaseHandler().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)

	if n := q.Len(); n != 4 {
		t.Fatalf("%d are looked at, want 4", n)
	}
	for _, want := range []string{"failed-over", "changed", "new", "old"} {
		got, _ := q.Get()
		if q.Done(got); got.Name != want {
			t.Errorf("%s has its turn, want %s", got.Name, want)
		}
	}
	if n := q.Len(); n != 0 {
		t.Errorf("%d more are looked at", n)
	}
}

// TestPrioritiesEnd: a job that has failed over keeps its precedence only until the failover is reported.
func TestPrioritiesEnd(t *testing.T) {
	if got, _ := result(previousRetry, refusalRetry); got.Priority == nil || *got.Priority != 0 {
		t.Errorf("what comes later has the priority %v", got.Priority)
	}
	if got, _ := result(previousRetry, refusalRetry, errStale); got.Priority != nil {
		t.Errorf("what was decided on an old state has the priority %v, want the one before", *got.Priority)
	}
	if got, err := result(0, refusalRetry, errors.New("no answer")); got.Priority != nil || err == nil {
		t.Errorf("what has failed has the priority %v, %v", got.Priority, err)
	}
}
