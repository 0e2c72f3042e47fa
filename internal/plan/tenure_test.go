package plan

import (
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
)

// TestReportsAfterARestart: this process has seen everything only for a moment; the wall clock may know more.
func TestReportsAfterARestart(t *testing.T) {
	const active, over = "Running StandbyReady UpToDate", "Electing NoHolder UpToDate"
	ended := func(g *given) { // reported before the restart
		g.Lease.Unchanged = time.Hour
		g.settle()
	}
	for what, c := range map[string]struct {
		before    func(*given)
		renewed   time.Duration // how long ago, by the clock of the holder's node
		seen      bool
		unchanged time.Duration
		want      string
		wake      time.Duration
	}{
		"renewed just now":                              {renewed: time.Second, want: active, wake: 10 * time.Second},
		"renewed before the lease ran out":              {renewed: 14 * time.Second, want: active, wake: 10 * time.Second},
		"renewed an hour ago":                           {renewed: time.Hour, want: active, wake: 4 * time.Second},
		"renewed an hour ago, and two renewals are due": {renewed: time.Hour, unchanged: 4 * time.Second, want: over, wake: 6 * time.Second},
		"renewed an hour ago, as was reported":          {before: ended, renewed: time.Hour, want: over, wake: 4 * time.Second},
		"over, as was reported, but it renews":          {before: ended, renewed: time.Second, want: active, wake: 10 * time.Second},
		"a clock hours behind":                          {renewed: 5 * time.Hour, seen: true, want: active, wake: 10 * time.Second},
		"a clock hours behind, over before":             {before: ended, renewed: 5 * time.Hour, seen: true, want: active, wake: 10 * time.Second},
		"a clock hours behind, and a renewal is late":   {renewed: 5 * time.Hour, seen: true, unchanged: 9 * time.Second, want: active, wake: time.Second},
		"a clock hours ahead":                           {renewed: -5 * time.Hour, want: active, wake: 10 * time.Second},
		"a clock hours ahead, and it does not renew": {
			renewed: -5 * time.Hour, unchanged: 10 * time.Second, want: "HolderUnreachable NoHolder UpToDate", wake: 5 * time.Second,
		},
		"a clock hours ahead, and it is over": {renewed: -5 * time.Hour, unchanged: 15 * time.Second, want: over},
	} {
		t.Run(what, func(t *testing.T) {
			g := steady()
			if c.before != nil {
				c.before(g)
			}
			g.Lease.Record.RenewTime, g.Lease.Unchanged, g.Lease.Renewed = ago(c.renewed).UnixMicro(), c.unchanged, c.seen
			p := Decide(g.Observed)
			reasons, pod := conditionsOf(p, g)
			if reasons != c.want || (pod == g.name(0)) != (c.want == active) || c.want != active && pod != "" {
				t.Errorf("reports %q, active %q; want %q", reasons, pod, c.want)
			}
			if p.Wake != c.wake {
				t.Errorf("wakes after %v, want %v", p.Wake, c.wake)
			}
			if p.Lease != nil || len(p.Delete)+len(p.Create) > 0 || c.before == nil && c.unchanged < 10*time.Second && len(p.Relabel) > 0 {
				t.Errorf("a wall clock decides: %+v", p)
			}
			if g.Pods[0].Labels[contract.RoleLabel] == "" {
				t.Error("it has no role")
			}
		})
	}
}
