package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// unwell makes the process of a pod not ready by its own probe, for some time.
func (g *given) unwell(pod int, d time.Duration) {
	g.unready(pod)
	g.since(pod, d)
	g.configure(g.Pods[pod], func(c *contract.AgentConfig) {
		second := contract.Duration(time.Second)
		c.Probes.Readiness = &contract.Probe{
			Check: contract.Check{Exec: []string{"ready"}}, Period: second, Timeout: second, SuccessThreshold: 1, FailureThreshold: 1,
		}
	})
}

// configure changes the configuration of a pod's agent.
func (g *given) configure(pod *corev1.Pod, change func(*contract.AgentConfig)) {
	for i := range pod.Spec.Containers[0].Env {
		e := &pod.Spec.Containers[0].Env[i]
		if e.Name != contract.ConfigEnv {
			continue
		}
		config, err := contract.DecodeConfig(e.Value)
		if err != nil {
			panic(err)
		}
		change(&config)
		e.Value = config.Encode()
	}
}

// A holder's process that is not ready is reported, and nothing is done about it.
func TestUnreadyHolder(t *testing.T) {
	g := steady()
	g.unwell(0, time.Hour)
	p := Decide(g.Observed)
	if p.Status == nil || p.Lease != nil || len(p.Apply)+len(p.Also)+len(p.Create)+len(p.Delete)+len(p.Relabel)+len(p.Events) > 0 {
		t.Fatalf("there is nothing to do but to tell, and: %+v", p)
	}
	if c := p.Status.Candidates; c.Ready != 1 || c.Summary != "1/2" {
		t.Errorf("%+v", c)
	}
	if p.Status.ActivePod != g.name(0) || g.Pods[0].Labels[contract.RoleLabel] != contract.RoleActive {
		t.Errorf("active is %q, with role %s", p.Status.ActivePod, g.Pods[0].Labels[contract.RoleLabel])
	}
	for condition, want := range map[string]string{
		v1alpha1.ConditionActive: v1alpha1.ReasonNotReady, v1alpha1.ConditionProtected: v1alpha1.ReasonStandbyReady,
		v1alpha1.ConditionProgressing: v1alpha1.ReasonUpToDate,
	} {
		if got := meta.FindStatusCondition(p.Status.Conditions, condition); got.Reason != want {
			t.Errorf("%s is %s, %s: %s; want %s", condition, got.Status, got.Reason, got.Message, want)
		}
	}
	if active := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionActive); active.Status != "True" {
		t.Error("a process that runs is active, ready or not")
	}
	// A standby that is not ready, or a holder that has no probes, is treated differently.
	g = steady()
	g.unready(0)
	if got := meta.FindStatusCondition(Decide(g.Observed).Status.Conditions, v1alpha1.ConditionActive); got.Reason != v1alpha1.ReasonRunning {
		t.Errorf("without probes: %s", got.Reason)
	}
	g = steady()
	g.unready(0)
	g.configure(g.Pods[0], func(c *contract.AgentConfig) { c.Hooks.PostStart = &contract.Hook{Exec: []string{"x"}} })
	if got := meta.FindStatusCondition(Decide(g.Observed).Status.Conditions, v1alpha1.ConditionActive); got.Reason != v1alpha1.ReasonNotReady {
		t.Errorf("while postStart runs: %s", got.Reason)
	}
	g = steady()
	g.unwell(1, time.Hour)
	if got := meta.FindStatusCondition(Decide(g.Observed).Status.Conditions, v1alpha1.ConditionProtected); got.Reason != v1alpha1.ReasonNoStandby {
		t.Errorf("with a standby that is not ready: %s", got.Reason)
	}
}

// newTemplate gives the pods an earlier template than the job's, and adds ready ones with the current one.
func (g *given) newTemplate(ordinals ...int) {
	g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
	for _, n := range ordinals {
		g.pod(n, "c")
	}
}

// An old version that is not ready is replaced like any other: the new version may fix it.
func TestUnreadyHolderIsRolledOut(t *testing.T) {
	g := steady()
	g.newTemplate(0, 1)
	g.Pods = slices.Delete(g.Pods, 1, 2) // the old standby
	g.unwell(0, time.Hour)
	p := Decide(g.Observed)
	if p.Lease == nil || p.Lease.Record.Handover.To != g.name(0) || p.Lease.Record.Handover.Reason != lease.ReasonRollout {
		t.Errorf("no handover: %+v", p.Lease)
	}
}

// rolling has handed over to a new version that has run for a long time: pod 0 is the old standby, pod 1 acts, pod 2 is a new standby.
func rolling() *given {
	g := steady()
	g.newTemplate(0, 1)
	g.Pods = slices.Delete(g.Pods, 0, 1) // the old holder
	g.held(1, 200, ago(time.Hour))
	return g
}

// goes reports whether a pod is deleted.
func (g *given) goes(pod int) bool {
	return slices.ContainsFunc(Decide(g.Observed).Delete, func(p PodRef) bool { return p.UID == g.Pods[pod].UID })
}

func (g *given) progressing() (reason, message string) {
	c := meta.FindStatusCondition(Decide(g.Observed).Status.Conditions, v1alpha1.ConditionProgressing)
	return c.Reason, c.Message
}

// A new version is not soaked either while another container in its active pod does not work, or a load balancer does not accept the pod.
// The fallback stays, and that is reported after some time.
func TestTheActivePodOfANewVersionIsNotReady(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		with   func(*given)
		soon   string // the reason that is reported at once
		says   string
	}{
		"a sidecar crashes": {
			reason: "ContainersNotReady", with: func(g *given) { g.sidecar(1, crashLoop) },
			soon: v1alpha1.ReasonRollingOut, says: "-0: container proxy does not stay up, it ended with status 1",
		},
		"a sidecar has no image": {
			reason: "ContainersNotReady", with: func(g *given) { g.sidecar(1, "ImagePullBackOff") },
			soon: v1alpha1.ReasonRolloutStalled, says: "container proxy can't pull its image",
		},
		"a readiness gate": {
			reason: "ReadinessGatesNotReady", with: func(*given) {},
			soon: v1alpha1.ReasonRollingOut, says: "its containers are ready, but the pod is not",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := rolling()
			g.unready(1)
			g.rest(1, c.reason)
			c.with(g)
			var seen Trials
			seen.See(&g.Lease, g.Pods, ago(time.Hour))
			g.Trials = seen.See(&g.Lease, g.Pods, now)
			if g.goes(0) {
				t.Error("the old standby goes")
			}
			if reason, message := g.progressing(); reason != c.soon {
				t.Errorf("%s: %s", reason, message)
			}
			g.since(1, twoMinutes)
			if reason, message := g.progressing(); reason != v1alpha1.ReasonProgressDeadlineExceeded || !strings.Contains(message, c.says) {
				t.Errorf("%s: %s", reason, message)
			}
		})
	}
}

// sidecar adds a container that waits with that reason.
func (g *given) sidecar(pod int, waits string) {
	s := corev1.ContainerStatus{Name: "proxy", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waits}}}
	if waits == crashLoop {
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	}
	g.Pods[pod].Status.ContainerStatuses = append(g.Pods[pod].Status.ContainerStatuses, s)
}

// A new version that runs but is not ready is not soaked: the fallback stays, and that is reported.
func TestUnreadyNewVersion(t *testing.T) {
	if g := rolling(); !g.goes(0) {
		t.Error("the old standby does not go though the new version is soaked")
	}
	g := rolling()
	g.unwell(1, time.Minute)
	if g.goes(0) {
		t.Error("the old standby goes though the new version is not ready")
	}
	if reason, message := g.progressing(); reason != v1alpha1.ReasonRollingOut {
		t.Errorf("%s: %s", reason, message)
	}
	g.since(1, twoMinutes)
	if reason, message := g.progressing(); reason != v1alpha1.ReasonProgressDeadlineExceeded || !strings.Contains(message, g.Pods[1].Name+" is active with the current template") {
		t.Errorf("%s: %s", reason, message)
	}
	// A standby of the new version is still replaced.
	g.Pods[2].Status.Phase = corev1.PodFailed
	if p := Decide(g.Observed); len(p.Create) != 1 {
		t.Errorf("%d pods are created to replace one that failed", len(p.Create))
	}
}
