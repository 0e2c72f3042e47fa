package controller

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// TestASlowNamespace: a webhook that never answers for one namespace occupies its share of the workers. A failover elsewhere is labelled
// and reported in the meantime.
func TestASlowNamespace(t *testing.T) {
	t.Parallel()
	const jobs, workers, patience = 40, 8, 5 * time.Minute // manageAll starts as many workers
	slow, w := newWorld(t), newWorld(t)
	w.manageAll([]string{w.key.Namespace, slow.key.Namespace}, func(*Reconciler) {})
	w.operators, slow.operators = nil, nil
	w.job(nil)
	if !w.live(patience, w.serving) {
		t.Fatal(w.describe())
	}

	hung := make(chan struct{})
	defer close(hung)
	var asked, most atomic.Int64
	sample := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "v1"}}}}
	slow.hook(admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}, sample, func(c net.Conn) {
		now := asked.Add(1)
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, c) // until the API server gives up
		}()
		select {
		case <-hung:
		case <-ended:
		}
		asked.Add(-1)
		_ = c.Close()
	})
	if !w.live(patience, func() bool { return asked.Load() == 0 }) {
		t.Fatal("the sample is asked for without an end")
	}
	most.Store(0)
	for i := range jobs {
		slow.key.Name = fmt.Sprint("job-", i)
		slow.job(nil)
	}
	if !w.live(patience, func() bool { return asked.Load() >= workers/laneShare }) {
		t.Fatalf("no Pod is asked for\n%s", slow.describe())
	}
	before := w.holder()
	w.kill(before)
	if !w.live(patience, func() bool {
		a := w.holder()
		return a != nil && a != before && w.status().ActivePod == a.name && w.labelled() == a.name
	}) {
		t.Fatalf("no failover is reported\n%s", w.describe())
	}
	if got := most.Load(); got > workers/laneShare {
		t.Errorf("%d of %d workers wait for the webhook, want at most %d", got, workers, workers/laneShare)
	}
}

// labelled is the Pod that is labelled active, if there is one.
func (w *world) labelled() string {
	for _, pod := range w.pods() {
		if pod.Labels[contract.RoleLabel] == contract.RoleActive {
			return pod.Name
		}
	}
	return ""
}

// TestLanes: the jobs of a namespace have a share of the workers. A worker waits for a seat, but not if the namespace is slow.
func TestLanes(t *testing.T) {
	l := newLanes()
	l.share(2*laneShare, false)
	enter := func(namespace string) func(time.Duration) {
		t.Helper()
		leave := l.enter(t.Context(), namespace)
		if leave == nil {
			t.Fatal("no seat in " + namespace)
		}
		return leave
	}
	full := func(ctx context.Context) {
		t.Helper()
		if l.enter(ctx, "ns") != nil {
			t.Fatal("there is a third seat")
		}
	}
	first, second := enter("ns"), enter("ns")
	enter("elsewhere")(0)
	full(t.Context()) // after a while
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	full(ended)

	waits := make(chan func(time.Duration))
	go func() { waits <- l.enter(t.Context(), "ns") }()
	first(0)
	third := <-waits
	if third == nil {
		t.Fatal("a seat is free, and it is not taken")
	}
	second(slowPass + 1)
	second = enter("ns") // a free seat is taken in a slow namespace, too
	began := time.Now()
	for range 100 {
		full(t.Context())
	}
	if took := time.Since(began); took > 50*lanePatience {
		t.Errorf("it waits for a slow namespace: %v for 100 jobs", took)
	}
	second(0)
	third(0)
	enter("ns")(0)
	if len(l.of) > 0 {
		t.Errorf("%d lanes are kept", len(l.of))
	}
}

// TestLanesOfOneNamespace: where there is no other namespace, one gets all workers.
func TestLanesOfOneNamespace(t *testing.T) {
	l := newLanes()
	l.share(2, true)
	l.enter(t.Context(), "ns")
	if l.enter(t.Context(), "ns") == nil {
		t.Error("the second of two workers gets no seat")
	}
}
