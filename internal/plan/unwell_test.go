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

// unwell has the process of a pod not be ready by its own probe, for a while.
func (g *given) unwell(pod int, d time.Duration) {
	g.unready(pod)
	g.since(pod, d)
	for i := range g.Pods[pod].Spec.Containers[0].Env {
		e := &g.Pods[pod].Spec.Containers[0].Env[i]
		if e.Name != contract.ConfigEnv {
			continue
		}
		config, err := contract.DecodeConfig(e.Value)
		if err != nil {
			panic(err)
		}
		second := contract.Duration(time.Second)
		config.Probes.Readiness = &contract.Probe{
			Check: contract.Check{Exec: []string{"ready"}}, Period: second, Timeout: second, SuccessThreshold: 1, FailureThreshold: 1,
		}
		e.Value = config.Encode()
	}
}

// That a holder's process is not ready is told, and nothing is done about it.
func TestUnwellHolder(t *testing.T) {
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
	// A standby that is not ready is another matter, and so is a holder that has no probes.
	g = steady()
	g.unready(0)
	if got := meta.FindStatusCondition(Decide(g.Observed).Status.Conditions, v1alpha1.ConditionActive); got.Reason != v1alpha1.ReasonRunning {
		t.Errorf("without probes: %s", got.Reason)
	}
	g = steady()
	g.unwell(1, time.Hour)
	if got := meta.FindStatusCondition(Decide(g.Observed).Status.Conditions, v1alpha1.ConditionProtected); got.Reason != v1alpha1.ReasonNoStandby {
		t.Errorf("with a standby that is not ready: %s", got.Reason)
	}
}

// newTemplate has the pods be of an earlier template than the job's, and adds ready ones of this.
func (g *given) newTemplate(ordinals ...int) {
	g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
	for _, n := range ordinals {
		g.pod(n, "c")
	}
}

// An old version that is not ready is replaced as any other: what is new may be its cure.
func TestUnwellHolderIsRolledOut(t *testing.T) {
	g := steady()
	g.newTemplate(0, 1)
	g.Pods = slices.Delete(g.Pods, 1, 2) // the old standby
	g.unwell(0, time.Hour)
	p := Decide(g.Observed)
	if p.Lease == nil || p.Lease.Record.Handover.To != g.name(0) || p.Lease.Record.Handover.Reason != lease.ReasonRollout {
		t.Errorf("no handover: %+v", p.Lease)
	}
}

// A new version that runs and is not ready is not soaked: what it would fall back to stays, and that is said.
func TestUnwellNewVersion(t *testing.T) {
	rolling := func() *given {
		g := steady()
		g.newTemplate(0, 1)
		g.Pods = slices.Delete(g.Pods, 0, 1) // the old holder: left are the old standby, and two of the new version
		g.held(1, 200, ago(time.Hour))
		return g
	}
	goes := func(g *given) bool {
		return slices.ContainsFunc(Decide(g.Observed).Delete, func(p PodRef) bool { return p.UID == g.Pods[0].UID })
	}
	if g := rolling(); !goes(g) {
		t.Error("the old standby does not go though the new version is soaked")
	}
	g := rolling()
	g.unwell(1, time.Minute)
	if goes(g) {
		t.Error("the old standby goes though the new version is not ready")
	}
	verdictOf := func() (string, string) {
		c := meta.FindStatusCondition(Decide(g.Observed).Status.Conditions, v1alpha1.ConditionProgressing)
		return c.Reason, c.Message
	}
	if reason, message := verdictOf(); reason != v1alpha1.ReasonRollingOut {
		t.Errorf("%s: %s", reason, message)
	}
	g.since(1, twoMinutes)
	if reason, message := verdictOf(); reason != v1alpha1.ReasonProgressDeadlineExceeded || !strings.Contains(message, g.Pods[1].Name+" is active with the current template") {
		t.Errorf("%s: %s", reason, message)
	}
	// A standby of the new version is still replaced.
	g.Pods[2].Status.Phase = corev1.PodFailed
	if p := Decide(g.Observed); len(p.Create) != 1 {
		t.Errorf("%d pods are made in place of one that failed", len(p.Create))
	}
}
