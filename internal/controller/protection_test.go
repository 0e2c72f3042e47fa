package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// toldOfProtection are the Events about a missing standby and about its return.
func (w *world) toldOfProtection() (told []string) {
	w.t.Helper()
	events := w.events()
	slices.SortFunc(events, func(a, b corev1.Event) int { return a.FirstTimestamp.Compare(b.FirstTimestamp.Time) })
	for _, e := range events {
		if strings.Contains(strings.ToLower(e.Reason), "protected") {
			told = append(told, e.Type+" "+e.Reason)
		}
	}
	return told
}

// TestLostStandbyIsReported: a job lacks a standby during a takeover and a rollout, without an Event. If no standby comes, there is
// one Event, whatever the number of operators, and one when it comes.
func TestLostStandbyIsReported(t *testing.T) {
	w := served(t, func(s *v1alpha1.SingletonJobSpec) { s.Strategy.ProgressDeadlineSeconds = new(int32(10)) })
	w.deletePod(w.holder().name)
	w.until("the takeover", w.serving)
	w.image("v2")
	w.until("the rollout", func() bool { return w.serving() && w.holderRuns("v2")() })
	if told := w.toldOfProtection(); len(told) > 0 {
		t.Fatalf("without a reason it is told %q", told)
	}

	w.tick = 800 * time.Millisecond // the timestamps of Pods come from a clock that may be ahead by now
	nodes := w.nodes
	w.alone = true
	lose := func() {
		holder := w.holder()
		w.nodes = []string{holder.node}
		for _, pod := range w.pods() { // a Pod of the rollout may still be terminating
			if pod.Name != holder.name && pod.DeletionTimestamp == nil {
				w.deletePod(pod.Name)
			}
		}
		w.until("no standby in time", func() bool {
			return condition(w.status(), v1alpha1.ConditionProgressing).Reason == v1alpha1.ReasonCandidateStuck
		})
	}
	lose()
	w.operators[0].restart()
	for range 5 {
		w.round()
	}
	if diff := cmp.Diff([]string{"Warning Unprotected"}, w.toldOfProtection()); diff != "" {
		t.Errorf("when no standby comes it is told (-want +got):\n%s", diff)
	}
	w.nodes = nodes
	w.until("a standby", w.serving)
	if diff := cmp.Diff([]string{"Warning Unprotected", "Normal Protected"}, w.toldOfProtection()); diff != "" {
		t.Errorf("when one has come it is told (-want +got):\n%s", diff)
	}
	lose()
	if told := w.toldOfProtection(); len(told) != 3 {
		t.Errorf("of another loss it is told %q", told)
	}
}
