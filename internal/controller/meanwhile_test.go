package controller

import (
	"maps"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// Changes between the operator's observation and its write: the object of that name is a different one by then, or the reason for
// the write no longer exists. Each test makes the change at the request itself.

func TestAPodOfTheSameNameIsNotDeleted(t *testing.T) {
	w := served(t, nil)
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = 1 })
	w.during("delete", &corev1.Pod{}, func(name string, do func() error) error {
		uid := w.replacePod(name)
		err := do()
		if now := w.pod(name); now == nil || now.UID != uid || now.DeletionTimestamp != nil {
			t.Errorf("the pod that has taken the name of the one to delete is deleted: %v", now)
		}
		return err
	})
}

func TestAPodOfTheSameNameIsNotChanged(t *testing.T) {
	w := newWorld(t)
	w.job(nil)
	w.during("patch", &corev1.Pod{}, func(name string, do func() error) error {
		uid, labels := w.replacePod(name), w.pod(name).Labels
		err := do()
		if now := w.pod(name); now == nil || now.UID != uid || !maps.Equal(now.Labels, labels) {
			t.Errorf("the pod that has taken the name of the one to change is changed: %v", now)
		}
		return err
	})
}

func TestLeaseAcquiredMeanwhileIsNotDeleted(t *testing.T) {
	w := served(t, nil)
	job := w.read()
	w.must(w.api.Delete(t.Context(), job))
	w.round()
	w.collectGarbage(job.UID)
	w.during("delete", &coordinationv1.Lease{}, func(_ string, do func() error) error {
		w.holdBy("somebody")
		err := do()
		if w.lease() == nil {
			t.Error("the Lease is deleted under a holder that has acquired it meanwhile")
		}
		return err
	})
}

// TestPodsNeededMeanwhileAreNotDeleted: the operator checks spec and holder again right before it deletes Pods.
func TestPodsNeededMeanwhileAreNotDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		asked client.Object
		but   func(w *world, standby *corev1.Pod)
	}{
		"the spec wants it again": {&v1alpha1.SingletonJob{}, func(w *world, _ *corev1.Pod) {
			w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = 2 })
		}},
		"it has acquired": {&coordinationv1.Lease{}, func(w *world, standby *corev1.Pod) {
			w.holdBy(w.agents[standby.UID].config.Identity.String())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := served(t, nil)
			var standby *corev1.Pod
			for _, pod := range w.pods() {
				if pod.Name != w.status().ActivePod {
					standby = &pod
				}
			}
			w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = 1 })
			o := w.operators[0]
			happened := false
			o.asks = func(obj client.Object) {
				if sameType(obj, c.asked) && !happened {
					happened = true
					c.but(w, standby)
				}
			}
			o.reconcile()
			if !happened {
				t.Fatalf("the API server was not asked before pods were deleted: %v", o.log)
			}
			if now := w.pod(standby.Name); now == nil || now.DeletionTimestamp != nil {
				t.Errorf("pod %s is deleted for a reason that is gone: %v", standby.Name, o.log)
			}
		})
	}
}

// TestFormerHolderGetsNoTraffic: the operator checks the holder again before a Pod becomes the active one.
func TestFormerHolderGetsNoTraffic(t *testing.T) {
	w := newWorld(t)
	w.job(nil)
	o := w.operators[0]
	happened := false
	o.asks = func(obj client.Object) {
		l := w.lease()
		if _, asked := obj.(*coordinationv1.Lease); !asked || happened || l == nil || ptr.Deref(l.Spec.HolderIdentity, "") == "" {
			return
		}
		happened = true
		w.holdBy("somebody")
		o.asks = nil
	}
	w.until("the API server is asked before a pod becomes active", func() bool {
		if happened {
			return true
		}
		o.reconcile()
		return happened
	})
	for _, pod := range w.pods() {
		if pod.Labels[contract.RoleLabel] == contract.RoleActive {
			t.Errorf("pod %s is the active one, and somebody else holds the Lease: %v", pod.Name, o.log)
		}
	}
}

// during replaces the operator's first write of a kind with an action, and waits for it.
func (w *world) during(verb string, kind client.Object, what func(name string, do func() error) error) {
	w.t.Helper()
	o, happened := w.operators[0], false
	o.around = func(v string, obj client.Object, do func() error) error {
		if happened || v != verb || !sameType(obj, kind) {
			return do()
		}
		happened = true
		return what(obj.GetName(), do)
	}
	w.until("the operator writes", func() bool {
		if !happened {
			o.reconcile()
		}
		return happened
	})
}

func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	pod, err := get(w.t.Context(), w.api, types.NamespacedName{Namespace: w.key.Namespace, Name: name}, &corev1.Pod{})
	w.must(err)
	return pod
}

// replacePod deletes a Pod by force and creates another one with its name, as a StatefulSet or a user would.
func (w *world) replacePod(name string) types.UID {
	w.t.Helper()
	pod := w.pod(name)
	w.must(w.api.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0)))
	another := pod.DeepCopy()
	another.UID, another.ResourceVersion, another.Status = "", "", corev1.PodStatus{}
	w.must(w.api.Create(w.t.Context(), another))
	return another.UID
}

func (w *world) holdBy(holder string) {
	w.t.Helper()
	l := w.lease()
	l.Spec.HolderIdentity = &holder
	w.must(w.api.Update(w.t.Context(), l))
}

// TestFollowedRequestIsNotReportedAsIgnored: the run during which it came has ended by then, so the request is followed.
func TestFollowedRequestIsNotReportedAsIgnored(t *testing.T) {
	w := newWorld(t)
	w.onSchedule(nil)
	w.restUntil(w.next(1).Add(-time.Minute))
	w.until("a run is under way", func() bool { return w.holder() != nil && w.status().ActivePod != "" })
	over := func() bool {
		read, err := decode(w.lease())
		w.must(err)
		return !read.Record.Runs.Now.Open()
	}
	ran := len(w.ran)
	w.askRun("by-hand")
	w.during("update", &coordinationv1.Lease{}, func(_ string, do func() error) error {
		for !over() {
			w.clock.SetTime(w.now().Add(w.tick))
			w.runAgents()
		}
		return do()
	})
	w.until("the run that is asked for is over", func() bool { return len(w.ran) > ran && over() && w.rested() })
	if got := w.attempts(); !strings.HasSuffix(got, "by-hand 1") || w.eventsOf("RunPassedOver") != 0 {
		t.Errorf("what ran: %s; %d Events say that it was passed over", got, w.eventsOf("RunPassedOver"))
	}
}
