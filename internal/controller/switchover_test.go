package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

func (w *world) annotate(name, value string) {
	w.t.Helper()
	w.edit(func(job *v1alpha1.SingletonJob) { job.Annotations = map[string]string{name: value} })
}

// TestSwitchover: a request is followed once, although it stays and the operator remembers nothing. The Pod that was active becomes
// a standby.
func TestSwitchover(t *testing.T) {
	w := served(t, nil)
	active := w.holder().name
	w.annotate(contract.SwitchoverAnnotation, fmt.Sprintf("*@%d", w.status().FencingToken))
	w.until("the other one acts", func() bool { return w.serving() && w.holder() != nil && w.holder().name != active })
	for range 20 {
		w.operators[0].restart()
		w.round()
	}
	w.records("Elected Elected", "Handover SwitchoverRequested")
	if !slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool { return p.Name == active && podReady(&p) && p.DeletionTimestamp == nil }) {
		t.Errorf("%s does not stand by\n%s", active, w.describe())
	}
	w.annotate(contract.SwitchoverAnnotation, fmt.Sprintf("%s@%d", active, w.status().FencingToken))
	w.until("it acts again", func() bool { return w.serving() && w.holder() != nil && w.holder().name == active })
	w.records("Elected Elected", "Handover SwitchoverRequested", "Handover SwitchoverRequested")
}

// TestImpossibleSwitchover: a condition and an Event answer it, and it ends with its tenure.
func TestImpossibleSwitchover(t *testing.T) {
	w := served(t, nil)
	w.annotate(contract.SwitchoverAnnotation, fmt.Sprintf("nobody@%d", w.status().FencingToken))
	blocked := func() bool {
		return condition(w.status(), v1alpha1.ConditionProgressing).Reason == v1alpha1.ReasonSwitchoverBlocked
	}
	w.until("it is answered", blocked)
	w.until("there is an Event", func() bool {
		return slices.ContainsFunc(w.events(), func(e corev1.Event) bool { return e.Reason == v1alpha1.ReasonSwitchoverBlocked })
	})
	w.deletePod(w.holder().name)
	w.until("it means nothing any more", w.serving)
	w.records("Elected Elected", "Handover PodTerminating")
}

// TestRestart: the annotation alone is a rollout with one handover.
func TestRestart(t *testing.T) {
	w := served(t, nil)
	w.tick = 800 * time.Millisecond
	before := w.pods()
	w.annotate(contract.RestartedAtAnnotation, "2026-01-02T03:04:05Z")
	w.until("all are new", func() bool { return w.serving() && w.status().Handovers > 0 && len(w.pods()) == 2 })
	for _, pod := range w.pods() {
		if slices.ContainsFunc(before, func(p corev1.Pod) bool { return p.UID == pod.UID }) {
			t.Errorf("%s is still there", pod.Name)
		}
	}
	w.records("Elected Elected", "Handover RolloutHandover")
}
