package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// protectionEvents returns the Events of an observation, and then stores its status.
func (g *given) protectionEvents() (events []Event) {
	p := Decide(g.Observed)
	for _, e := range p.Events {
		if e.Reason == eventUnprotected || e.Reason == eventProtected {
			events = append(events, e)
		}
	}
	g.settle()
	return events
}

// readyAgain undoes unready.
func (g *given) readyAgain(pod int) {
	g.Pods[pod].Status.Conditions[0].Status = corev1.ConditionTrue
	g.Pods[pod].Status.ContainerStatuses[0].Ready = true
}

// wait lets time pass in which the holder renews.
func (g *given) wait(d time.Duration) {
	g.Now = g.Now.Add(d)
	g.Lease.Record.RenewTime = g.Now.Add(-time.Second).UnixMicro()
}

// TestProtectionEvents: what happens to a protected job, step by step, and which Events report its protection. says is the text of the
// Event after a step.
func TestProtectionEvents(t *testing.T) {
	type step struct {
		do   func(*given)
		says string // empty: no Event
	}
	stuck := func(g *given) { g.waiting(1, "ErrImagePull", "no such image"); g.since(1, 0); g.wait(twoMinutes) }
	back := step{func(g *given) { g.readyAgain(1) }, "Normal Protected: a warm standby is ready on another node"}
	lost := step{stuck, "Warning Unprotected: NoStandby: no standby is ready to take over; CandidateStuck: "}
	for name, steps := range map[string][]step{
		"a standby that is replaced in time": {{func(g *given) { g.unready(1) }, ""}, {func(g *given) { g.wait(time.Second); g.readyAgain(1) }, ""}},
		"a failover": {
			{func(g *given) { g.Observed = failedOver().Observed; g.unready(0) }, ""},
			{func(g *given) { g.wait(time.Minute); g.readyAgain(0) }, ""},
		},
		"a rollout without a pod more": {
			{func(g *given) {
				g.Job.Spec.Template.Spec.Containers[0].Image, g.Job.Generation = "v2", 2
				g.terminating(1)
			}, ""},
		},
		"a standby that does not come, and does": {{func(g *given) { g.unready(1) }, ""}, lost, back},
		"one that never came, and does":          {{func(g *given) { g.Job.Status = v1alpha1.SingletonJobStatus{}; g.unready(1) }, ""}, lost, back},
		"and keeps being stuck":                  {lost, {func(g *given) { g.wait(time.Hour) }, ""}},
		"another cause while it is lost":         {lost, {func(g *given) { g.waiting(1, "CreateContainerError", "full") }, ""}},
		"pods that fail, one after another": {{func(g *given) {
			g.rejected(1, "Evicted", "low on memory")
			g.Pods[1].Annotations[FailuresAnnotation] = "2"
		}, "Warning Unprotected: NoStandby: no standby is ready to take over; PodsFailing: "}},
		"a standby that is where the active is": {{func(g *given) { g.Pods[1].Spec.NodeName = "a" }, "Warning Unprotected: StandbyOnSameNode: every ready standby is on the node of the active pod"}},
		"a rollout that mends what was lost": {lost, {func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Image, g.Job.Generation = "v2", 2 }, ""}, {func(g *given) {
			g.wait(twoMinutes)
			g.Job.Spec.Template.Spec.Containers[0].Image = "v1"
			g.readyAgain(1)
		}, back.says}},
		"candidates: 1 is asked for": {{func(g *given) { g.Job.Spec.Candidates, g.Job.Generation, g.Pods = 1, 2, g.Pods[:1] }, ""}},
		"suspended":                  {{func(g *given) { g.Job.Spec.Suspend, g.Job.Generation = true, 2 }, ""}},
		"a handover that waits for the standby": {{func(g *given) {
			g.Job.Annotations = map[string]string{contract.SwitchoverAnnotation: "x"}
			g.unready(1)
		}, ""}},
		"nothing is active, so nothing protected": {{func(g *given) { g.free(); g.unready(0); g.unready(1) }, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			for i, step := range steps {
				step.do(g)
				got := ""
				for _, e := range g.protectionEvents() {
					got += e.Type + " " + e.Reason + ": " + e.Message
				}
				if (got == "") != (step.says == "") || !strings.HasPrefix(got, step.says) {
					t.Errorf("step %d says %q, want %q", i, got, step.says)
				}
			}
		})
	}
}

// TestProtectionEventsAfterARestart: an Event that may not have been written is written again under the same name, but not later. A second
// loss has another name than the first.
func TestProtectionEventsAfterARestart(t *testing.T) {
	g := steady()
	lose := func() []Event {
		g.waiting(1, "ErrImagePull")
		g.Pods[1].Status.Conditions[0].LastTransitionTime = metav1.NewTime(g.Now)
		g.settle()
		g.wait(twoMinutes)
		return g.protectionEvents()
	}
	first := lose()
	g.EventsUnknown = true
	if again := g.protectionEvents(); len(first) != 1 || cmp.Diff(first, again) != "" {
		t.Errorf("first %+v, and after a restart %+v", first, again)
	}
	g.wait(recent)
	if late := g.protectionEvents(); len(late) > 0 {
		t.Errorf("when the API server may have dropped it: %+v", late)
	}
	g.EventsUnknown = false
	g.readyAgain(1)
	back := g.protectionEvents()
	if again := lose(); len(back) != 1 || len(again) != 1 || again[0].Name == first[0].Name {
		t.Errorf("first %+v, then %+v, and again %+v", first, back, again)
	}
}
