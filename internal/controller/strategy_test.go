package controller

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// unhurried is a running job with long leases, so that rounds may be long.
func unhurried(t *testing.T, change func(*v1alpha1.SingletonJobSpec)) *world {
	t.Helper()
	w := served(t, func(s *v1alpha1.SingletonJobSpec) {
		s.Lease.LeaseDuration.Duration, s.Lease.RenewDeadline.Duration, s.Lease.RetryPeriod.Duration = time.Hour, 50*time.Minute, time.Minute
		if change != nil {
			change(s)
		}
	})
	w.tick = 5 * time.Second
	return w
}

// quota allows this number of Pods, which exist already, and updates its count before each write, as a controller manager would.
func (w *world) quota(most int64) {
	w.t.Helper()
	hard := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(most, resource.DecimalSI)}
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "exact"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
	}
	w.must(w.api.Create(w.t.Context(), q))
	w.count(q.Name, hard)
	another := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "another"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // the API server learns of it a little later
		err := w.api.Create(w.t.Context(), another.DeepCopy(), client.DryRunAll)
		if err != nil && strings.Contains(err.Error(), overQuota) {
			break
		}
		if time.Since(began) > 5*time.Minute {
			w.t.Fatalf("no quota refuses a pod more: %v", err)
		}
	}
	w.operators[0].around = func(verb string, obj client.Object, do func() error) error {
		if _, is := obj.(*corev1.Pod); is && verb == "create" {
			w.count(q.Name, hard)
		}
		return do()
	}
}

func (w *world) count(name string, hard corev1.ResourceList) {
	w.t.Helper()
	for {
		var q corev1.ResourceQuota
		w.must(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: w.key.Namespace, Name: name}, &q))
		q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{
			corev1.ResourcePods: *resource.NewQuantity(int64(len(w.pods())), resource.DecimalSI),
		}}
		if w.api.Status().Update(w.t.Context(), &q) == nil {
			return
		}
	}
}

func (w *world) renewed(image string) func() bool {
	return func() bool { return w.serving() && w.holderRuns(image)() }
}

// TestRolloutUnderAnExactQuota: the API server refuses one Pod more. The status reports that, and after a while the operator
// deletes a ready standby before each new Pod.
func TestRolloutUnderAnExactQuota(t *testing.T) {
	w := unhurried(t, nil)
	w.quota(2)
	w.image("v2")
	w.until("it is refused", func() bool {
		c := condition(w.status(), v1alpha1.ConditionProgressing)
		return c.Reason == v1alpha1.ReasonFailedCreate && strings.Contains(c.Message, overQuota)
	})
	w.warm()
	w.until("all are new", w.renewed("v2"))
	w.records("Elected Elected", "Handover RolloutHandover")
}

// TestRolloutInPlace: nothing is refused, because the operator creates no additional Pod.
func TestRolloutInPlace(t *testing.T) {
	w := unhurried(t, func(s *v1alpha1.SingletonJobSpec) { s.Strategy.MaxSurge = new(int32(0)) })
	w.image("v2")
	w.until("all are new", func() bool {
		if live := w.status().Candidates.Total; live > 2 {
			t.Fatalf("%d candidates\n%s", live, w.describe())
		}
		return w.renewed("v2")()
	})
	w.records("Elected Elected", "Handover RolloutHandover")
}

// TestRolloutOnAsManyNodesAsCandidates: required anti-affinity, or host ports.
func TestRolloutOnAsManyNodesAsCandidates(t *testing.T) {
	w := unhurried(t, nil)
	w.alone, w.nodes = true, w.nodes[:2]
	w.image("v2")
	w.until("all are new", w.renewed("v2"))
	w.records("Elected Elected", "Handover RolloutHandover")
}

// TestRolloutOfAProcessThatExits: a process that normally ends within minReadySeconds does not count as a failed version.
func TestRolloutOfAProcessThatExits(t *testing.T) {
	w := unhurried(t, nil)
	w.short["v1"], w.short["v2"] = 10*time.Second, 15*time.Second
	w.image("v2")
	w.until("all are new", func() bool { return slices.Equal(w.images(), []string{"v2", "v2"}) })
	if took := w.clock.Now().Sub(w.start); took > 3*time.Minute { // by the test's clock
		t.Errorf("it took %v", took)
	}
}

// TestRolloutThatCrashesAfterALongPreparation: the tenures last for longer than minReadySeconds, but no process is ready for that long.
// An old Pod stays, and the status reports that the version has failed.
func TestRolloutThatCrashesAfterALongPreparation(t *testing.T) {
	w := unhurried(t, nil)
	w.prepares["v2"], w.short["v2"], w.fails = 32*time.Second, 40*time.Second, math.MaxInt
	w.edit(func(job *v1alpha1.SingletonJob) {
		job.Spec.Template.Spec.Containers[0].Image = "v2"
		job.Spec.PreActivate = &v1alpha1.PreActivate{Exec: v1alpha1.PreActivateExec{Command: []string{"sleep", "32"}}, TimeoutSeconds: 33}
	})
	w.until("the new version is tried", func() bool { return w.status().Handovers == 1 })
	w.until("the old version is back", func() bool { return w.status().Failovers > 0 && w.holderRuns("v1")() })
	tried := len(w.tenures)
	for range 30 {
		w.round()
	}
	if !w.holderRuns("v1")() || len(w.tenures) != tried {
		t.Errorf("it is tried again: %v", w.changes())
	}
	if c := condition(w.status(), v1alpha1.ConditionProgressing); c.Reason != v1alpha1.ReasonRolloutStalled {
		t.Errorf("progressing: %+v", c)
	}
}

// TestRolloutPaused: nothing changes, not even in the middle of a rollout, until the rollout is resumed with the last of several
// templates.
func TestRolloutPaused(t *testing.T) {
	w := unhurried(t, nil)
	pause := func(paused bool) {
		w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Strategy.Paused = paused })
	}
	pause(true)
	for _, image := range []string{"v2", "v3"} {
		w.image(image)
		for range 5 {
			w.round()
		}
	}
	c := condition(w.status(), v1alpha1.ConditionProgressing)
	if images := w.images(); c.Reason != v1alpha1.ReasonRolloutPaused || !slices.Equal(images, []string{"v1", "v1"}) {
		t.Fatalf("%v run, and it says %+v", images, c)
	}
	pause(false)
	w.until("one is new", func() bool { return slices.Contains(w.images(), "v3") })
	w.image("v4")
	w.until("all are of the last", w.renewed("v4"))
	w.records("Elected Elected", "Handover RolloutHandover")
}

func (w *world) images() []string {
	w.t.Helper()
	var all []string
	for _, pod := range w.pods() {
		all = append(all, pod.Spec.Containers[0].Image)
	}
	return all
}

// TestRollback: restoring the old template in the middle of a rollout costs at most one handover.
func TestRollback(t *testing.T) {
	w := unhurried(t, nil)
	w.image("v2")
	w.until("the new one acts", w.holderRuns("v2"))
	w.image("v1")
	w.until("the old one acts", w.renewed("v1"))
	w.records("Elected Elected", "Handover RolloutHandover", "Handover RolloutHandover")
	w.image("v2")
	w.until("a standby is new", func() bool { return slices.Contains(w.images(), "v2") })
	w.image("v1")
	w.until("all are old", w.renewed("v1"))
	w.records("Elected Elected", "Handover RolloutHandover", "Handover RolloutHandover")
}
