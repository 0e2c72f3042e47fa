package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

func (g *given) switchover(format string, args ...any) {
	g.Job.Annotations = map[string]string{contract.SwitchoverAnnotation: fmt.Sprintf(format, args...)}
}

func TestSwitchover(t *testing.T) {
	three := func(g *given) {
		g.Job.Spec.Candidates = 3
		g.pod(2, "c")
	}
	for name, c := range map[string]struct {
		given *given
		with  func(*given)
		to    func(*given) string // nil: no request
		says  string              // why the request is blocked; empty if it is not
	}{
		"to a standby": {
			with: func(g *given) { three(g); g.switchover("%s@100", g.name(2)) }, to: func(g *given) string { return g.name(2) },
		},
		"to any":                   {with: func(g *given) { g.switchover("*@100") }, to: func(g *given) string { return g.name(1) }},
		"to any on another node":   {with: func(g *given) { three(g); g.Pods[1].Spec.NodeName = "a"; g.switchover("*@100") }, to: func(g *given) string { return g.name(2) }},
		"to any, beside the other": {with: func(g *given) { g.Pods[1].Spec.NodeName = "a"; g.switchover("*@100") }, to: func(g *given) string { return g.name(1) }},
		"of an earlier tenure":     {with: func(g *given) { g.switchover("*@99") }},
		"to who is active":         {with: func(g *given) { g.switchover("%s@100", g.name(0)) }},
		"while nobody holds":       {with: func(g *given) { g.released(lease.ReasonProcessExited); g.switchover("*@100") }},
		"of a tenure to come":      {with: func(g *given) { g.switchover("*@101") }, says: "*@101 requests a handover, but there was no tenure with that token yet"},
		"to nobody":                {with: func(g *given) { g.switchover("x@100") }, says: "there is no such candidate"},
		"to one that goes":         {with: func(g *given) { g.terminating(1); g.switchover("%s@100", g.name(1)) }, says: "there is no such candidate"},
		"to one that is not ready": {with: func(g *given) { g.unready(1); g.switchover("%s@100", g.name(1)) }, says: "is not ready: it waits for that"},
		"to any, with none ready":  {with: func(g *given) { g.unready(1); g.switchover("*@100") }, says: "no standby is ready"},
		"without a token":          {with: func(g *given) { g.switchover("*") }, says: "write POD@TOKEN"},
		"with two tokens":          {with: func(g *given) { g.switchover("*@100@100") }, says: "write POD@TOKEN"},
		"with no pod":              {with: func(g *given) { g.switchover("@100") }, says: "write POD@TOKEN"},
		"of a token below nothing": {with: func(g *given) { g.switchover("*@-1") }, says: "write POD@TOKEN"},
		"with a novel":             {with: func(g *given) { g.switchover("%s", strings.Repeat("x\n", 1<<16)) }, says: "write POD@TOKEN"},
		"in a rollout, to any": {
			given: rollingOut(), with: func(g *given) { g.switchover("*@100") }, to: func(g *given) string { return g.name(1) },
		},
		"in a rollout that failed, to any": {
			given: rollingOut(), with: func(g *given) {
				old := g.Pods[1]
				g.pod(0, "d")
				g.tried()
				old.Name, g.Pods[1] = strings.TrimSuffix(g.Pods[0].Name, "-0")+"-1", old
				g.switchover("*@100")
			}, to: func(g *given) string { return g.Pods[1].Name },
		},
		"that was asked for": {with: func(g *given) {
			g.switchover("*@100")
			g.Lease.Record.Handover = lease.Handover{To: g.name(1), Reason: lease.ReasonSwitchover}
		}},
		"in place of a rollout's": {given: rollingOut(), with: func(g *given) {
			g.Lease.Record.Handover = lease.Handover{To: g.name(0), Reason: lease.ReasonRollout}
			g.switchover("%s@100", g.name(1))
		}, to: func(g *given) string { return g.name(1) }},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			if g == nil {
				g = steady()
			}
			c.with(g)
			p := Decide(g.Observed)
			switch {
			case c.to == nil && p.Lease != nil:
				t.Errorf("the Lease is written: %+v", p.Lease)
			case c.to != nil && (p.Lease == nil || p.Lease.Record.Handover != lease.Handover{To: c.to(g), Reason: lease.ReasonSwitchover}):
				t.Errorf("got %+v, want a handover to %s", p.Lease, c.to(g))
			}
			said := ""
			if p.Status != nil {
				for _, condition := range p.Status.Conditions {
					if condition.Reason == v1alpha1.ReasonSwitchoverBlocked {
						said = condition.Message
					}
				}
			}
			if (said != "") != (c.says != "") || !strings.Contains(said, c.says) || len(said) > 1024 {
				t.Errorf("it says %q, want %q", said, c.says)
			}
		})
	}
}

// tried: the new version had the Lease for a moment before the current tenure.
func (g *given) tried() {
	now := lease.PastTenure{Token: 100, Pod: g.Pods[0].Name, Node: "a", Acquired: ago(time.Minute).UnixMilli()}
	before := lease.PastTenure{
		Token: 99, Pod: g.name(0), Acquired: now.Acquired - 1000, Ended: now.Acquired - 500, Reason: lease.ReasonProcessExited,
	}
	g.Lease.Record.History = []lease.PastTenure{now, before}
}

// TestWaitingSwitchoverIsReported: it is also reported if something else keeps the operator from it.
func TestWaitingSwitchoverIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		ask  string
		with func(*given)
		says string
	}{
		"to a standby": {ask: "*@100", says: "; the handover to " + steady().name(1) + " that the annotation"},
		"to nobody":    {ask: "x@100", says: "there is no such candidate"},
		"of another":   {ask: "*@99"},
		"under way": {ask: "*@100", with: func(g *given) {
			g.Lease.Record.Handover = lease.Handover{To: g.name(1), Reason: lease.ReasonSwitchover}
		}},
		"no image's entry": {ask: "*@100", with: func(g *given) { g.Workload.Replicas, g.Workload.Template.Spec.Containers[0].Command = 0, nil }, says: "; the handover to "},
	} {
		g := steady()
		g.ofWorkload()
		g.Workload.Replicas = 1
		g.switchover("%s", c.ask)
		if c.with != nil {
			c.with(g)
		}
		p := Decide(g.Observed)
		if said := texts(p); p.Lease != nil || strings.Contains(said, "handover") != (c.says != "") || !strings.Contains(said, c.says) {
			t.Errorf("%s: it writes %+v and says\n%s", name, p.Lease, said)
		}
	}
}
