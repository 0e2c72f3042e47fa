package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/tier"
)

// upgraded is an observation by an operator that adds something else to pods than the one that created the existing ones.
func (g *given) upgraded() *given {
	g.Settings.InjectionVersion = 2
	g.Hashed = Hashed{}
	return g
}

// renewed is a job in which the operator has replaced all pods, and whose holder has acted for some time. It still has its turn.
func renewed(acted time.Duration) *given {
	g := steady().upgraded()
	g.Job.Status.FleetRollout = v1alpha1.FleetRolloutUnderWay
	g.Pods = nil
	g.pod(0, "a")
	g.pod(1, "b")
	g.held(0, 200, ago(acted))
	g.Lease.Record.History = []lease.PastTenure{{Token: 200, Pod: g.Pods[0].Name, Node: "a", Acquired: ago(acted).UnixMilli()}}
	return g
}

func TestTurn(t *testing.T) {
	const waiting, underWay = v1alpha1.FleetRolloutWaiting, v1alpha1.FleetRolloutUnderWay
	for name, c := range map[string]struct {
		given            func(g *given)
		status           v1alpha1.FleetRollout
		asks             bool
		says             string
		created, deleted int
	}{
		"it is not its turn":                 {func(*given) {}, waiting, true, v1alpha1.ReasonRolloutWaits, 0, 0},
		"its turn is stored first":           {func(g *given) { g.Turn = true }, underWay, false, v1alpha1.ReasonRolloutWaits, 0, 0},
		"its turn is stored":                 {func(g *given) { g.Job.Status.FleetRollout = underWay }, underWay, false, v1alpha1.ReasonRollingOut, 1, 0},
		"it keeps its place":                 {func(g *given) { g.Job.Status.FleetRollout = underWay; g.Turn = false }, underWay, false, v1alpha1.ReasonRollingOut, 1, 0},
		"a standby is lost":                  {func(g *given) { g.terminating(1) }, waiting, true, v1alpha1.ReasonReplacingCandidates, 1, 0},
		"more are asked for":                 {func(g *given) { g.Job.Spec.Candidates = 3; g.Job.Generation++ }, waiting, true, v1alpha1.ReasonScaling, 1, 0},
		"fewer are asked for":                {func(g *given) { g.Job.Spec.Candidates = 1; g.Job.Generation++ }, waiting, true, v1alpha1.ReasonScaling, 0, 1},
		"one of the new version is there":    {func(g *given) { g.Pods = g.Pods[:1]; g.pod(0, "b") }, waiting, true, v1alpha1.ReasonRolloutWaits, 0, 0},
		"a standby that does not get ready":  {func(g *given) { g.unready(1); g.since(1, twoMinutes) }, waiting, true, v1alpha1.ReasonCandidateStuck, 0, 0},
		"a restart is asked for":             {restartAsked, "", false, v1alpha1.ReasonRollingOut, 1, 0},
		"a restart, while it is under way":   {func(g *given) { restartAsked(g); g.Job.Status.FleetRollout = underWay }, "", false, v1alpha1.ReasonRollingOut, 1, 0},
		"the template changes":               {func(g *given) { g.image("v2") }, "", false, v1alpha1.ReasonRollingOut, 1, 0},
		"one pod is of another template":     {func(g *given) { g.Pods[1].Name = "job-zzzzzzz-1" }, "", false, v1alpha1.ReasonRollingOut, 1, 0},
		"it is paused":                       {func(g *given) { g.Job.Spec.Strategy.Paused = true; g.Turn = true }, "", false, v1alpha1.ReasonRolloutPaused, 0, 0},
		"it is paused in its midst":          {func(g *given) { g.Job.Spec.Strategy.Paused = true; g.Job.Status.FleetRollout = underWay }, "", false, v1alpha1.ReasonRolloutPaused, 0, 0},
		"it is suspended":                    {func(g *given) { g.Job.Spec.Suspend = true; g.Job.Status.FleetRollout = underWay }, "", false, v1alpha1.ReasonSuspending, 0, 1},
		"the spec is not accepted":           {func(g *given) { g.Job.Spec.Template.Spec.Containers = nil; g.Turn = true }, "", false, v1alpha1.ReasonInvalidSpec, 0, 0},
		"the operator is as it was":          {func(g *given) { g.Settings.InjectionVersion = 0; g.Turn = true }, "", false, v1alpha1.ReasonUpToDate, 0, 0},
		"a person's rollout, as it was":      {func(g *given) { g.Settings.InjectionVersion = 0; g.image("v2") }, "", false, v1alpha1.ReasonRollingOut, 1, 0},
		"all is new, and not proven":         {func(g *given) { *g = *renewed(10 * time.Second) }, underWay, false, v1alpha1.ReasonUpToDate, 0, 0},
		"all is new and proven":              {func(g *given) { *g = *renewed(time.Minute) }, "", false, v1alpha1.ReasonUpToDate, 0, 0},
		"all is new, and one is not ready":   {func(g *given) { *g = *renewed(time.Minute); g.unready(1) }, underWay, false, v1alpha1.ReasonReplacingCandidates, 0, 0},
		"all is new, and the holder is lost": {func(g *given) { *g = *renewed(time.Minute); g.released(lease.ReasonProcessExited) }, underWay, false, v1alpha1.ReasonUpToDate, 0, 0},
		"all is new, and it is paused then":  {func(g *given) { *g = *renewed(0); g.Job.Spec.Strategy.Paused = true }, "", false, v1alpha1.ReasonUpToDate, 0, 0},
		"all is new, and the template changes": {func(g *given) {
			*g = *renewed(0)
			g.image("v2")
		}, "", false, v1alpha1.ReasonRollingOut, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady().upgraded()
			c.given(g)
			p := Decide(g.Observed)
			reasons, _ := conditionsOf(p, g)
			if p.FleetRollout != c.status || statusOr(p, g).FleetRollout != c.status || p.AsksTurn != c.asks || !strings.Contains(reasons, c.says) {
				t.Errorf("it is %q, asks %v, says %s; want %q, %v, %s", p.FleetRollout, p.AsksTurn, reasons, c.status, c.asks, c.says)
			}
			if len(p.Create) != c.created || len(p.Delete) != c.deleted {
				t.Errorf("%v are created and %v deleted, want %d and %d", created(p.Create), p.Delete, c.created, c.deleted)
			}
			for _, pod := range p.Create {
				if !strings.HasPrefix(pod.Name, inject.PodPrefix("job", g.Settings.Hash(g.Job))) {
					t.Errorf("%s is created, but has an earlier version", pod.Name)
				}
			}
		})
	}
}

func restartAsked(g *given) {
	g.Job.Annotations = map[string]string{contract.RestartedAtAnnotation: "now"}
}

func (g *given) image(name string) {
	g.Job.Generation++
	g.Job.Spec.Template.Spec.Containers = slices.Clone(g.Job.Spec.Template.Spec.Containers)
	g.Job.Spec.Template.Spec.Containers[0].Image = name
}

// TestWaitingJobIsReady: for a user nothing has changed, and the message says what to do.
func TestWaitingJobIsReady(t *testing.T) {
	g := steady().upgraded()
	g.settle()
	for _, c := range g.Job.Status.Conditions {
		switch c.Type {
		case v1alpha1.ConditionReady, v1alpha1.ConditionActive, v1alpha1.ConditionProtected:
			if c.Status != "True" {
				t.Errorf("%s is %s, %s", c.Type, c.Status, c.Reason)
			}
		case v1alpha1.ConditionProgressing:
			if c.Status != "False" || !strings.Contains(c.Message, "--fleet-rollouts") || !strings.Contains(c.Message, "a restart is not delayed") {
				t.Errorf("%+v", c)
			}
		}
	}
}

// TestRunTakesNoTurn: a process that must run to its end is not replaced before, so its job would only keep other jobs from their
// turn.
func TestRunTakesNoTurn(t *testing.T) {
	g := toCompletion().upgraded()
	g.settle()
	g.Turn = true
	for _, was := range []v1alpha1.FleetRollout{v1alpha1.FleetRolloutWaiting, v1alpha1.FleetRolloutUnderWay} { // for example a turn that began between two runs
		g.Job.Status.FleetRollout = was
		if p := Decide(g.Observed); p.State != Serving || p.FleetRollout != v1alpha1.FleetRolloutWaiting || p.AsksTurn {
			t.Errorf("%v, %q: it is %q, asks %v", p.State, was, p.FleetRollout, p.AsksTurn)
		}
	}
}

// TestATurnEndsInTime: no write happens when the holder has acted for long enough.
func TestATurnEndsInTime(t *testing.T) {
	const acted = 10 * time.Second
	g := renewed(acted)
	g.settle()
	if p := Decide(g.Observed); p.Due != time.Duration(v1alpha1.DefaultMinReadySeconds)*time.Second-acted {
		t.Errorf("due in %v", p.Due)
	}
}

// TestEarlierHashesAreComputedOnce: and only if there are pods with another hash.
func TestEarlierHashesAreComputedOnce(t *testing.T) {
	g := renewed(time.Minute)
	if p := Decide(g.Observed); p.Hashed.compared {
		t.Error("they are computed of a job without outdated pods")
	}
	g = steady().upgraded()
	g.Hashed = Decide(g.Observed).Hashed
	if !g.Hashed.compared {
		t.Fatal("they are not remembered")
	}
	g.Hashed.earlier = ""
	if p := Decide(g.Observed); p.FleetRollout != "" {
		t.Error("they are computed again")
	}
}

// TestUpgradeKeepsThePromises: everything that holds for any observation also holds while jobs wait for their turns and have them. A
// waiting job does not hand over.
func TestUpgradeKeepsThePromises(t *testing.T) {
	for _, seed := range tier.Seeds(t, 400, 1000) {
		r := rand.New(rand.NewPCG(seed, 3))
		g := observation(seed).upgraded()
		if g.Job == nil {
			continue
		}
		g.Turn = r.IntN(2) == 0
		g.Job.Status.FleetRollout = []v1alpha1.FleetRollout{"", v1alpha1.FleetRolloutWaiting, v1alpha1.FleetRolloutUnderWay}[r.IntN(3)]
		p := Decide(g.Observed)
		for promise, holds := range promises {
			if !holds(g, p) {
				t.Errorf("seed %d: %s", seed, promise)
			}
		}
		waits := p.FleetRollout != "" && g.Job.Status.FleetRollout != v1alpha1.FleetRolloutUnderWay
		if waits && p.Lease != nil && p.Lease.Record.Handover.Reason == lease.ReasonRollout && p.Lease.Record.Handover != g.Lease.Record.Handover {
			t.Errorf("seed %d: a job that waits hands over to %s", seed, p.Lease.Record.Handover.To)
		}
		g.staysUntilDue(t, r, fmt.Sprintf("seed %d, upgraded", seed))
		if t.Failed() {
			return
		}
	}
}

// TestAgents: live candidates, counted by the recorded image of their agents. A different image is no reason for a rollout.
func TestAgents(t *testing.T) {
	g := steady()
	g.Settings.AgentImage = "operator:v2"
	g.pod(2, "c")
	g.pod(3, "d")
	g.terminating(3)
	for i, image := range []string{"\xff", strings.Repeat("x", 1<<10)} { // not valid in a metric
		g.Pods[i].Annotations[contract.AgentImageAnnotation] = image
	}
	p := Decide(g.Observed)
	if want := map[string]int{UnknownAgent: 2, "operator:v2": 1}; !maps.Equal(p.Agents, want) {
		t.Errorf("agents are %v, want %v", p.Agents, want)
	}
	if p.FleetRollout != "" || p.Hashed.compared {
		t.Errorf("another agent makes it %q", p.FleetRollout)
	}
}
