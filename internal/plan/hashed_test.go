package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/internal/contract"
)

// TestAKnownHashIsUsed: the known hash is used for the state that it belongs to, and for no other.
func TestAKnownHashIsUsed(t *testing.T) {
	known := func(g *given) Hashed { return Hashed{of: hashedStateOf(g.Job, g.Workload), hash: "zzzzzzz"} }
	for name, c := range map[string]struct {
		change func(*given)
		used   bool
	}{
		"nothing has changed": {func(*given) {}, true},
		"its status has":      {func(g *given) { g.Job.Status.FencingToken++ }, true},
		"its spec has":        {func(g *given) { g.Job.Generation++ }, false},
		"it is another job":   {func(g *given) { g.Job.UID = "another" }, false},
		"a restart is asked for, which is of no generation": {func(g *given) {
			g.Job.Annotations = map[string]string{contract.RestartedAtAnnotation: "2026-11-23T01:30:00Z"}
		}, false},
		"its workload has":        {func(g *given) { g.Workload.Generation++ }, false},
		"its workload is another": {func(g *given) { g.Workload.UID = "another" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			g.ofWorkload()
			g.Hashed = known(g)
			c.change(g)
			p := Decide(g.Observed)
			if used := p.Hashed.hash == "zzzzzzz"; used != c.used {
				t.Errorf("what was known is used: %v, want %v", used, c.used)
			}
			if p.Hashed.of != hashedStateOf(g.Job, g.Workload) {
				t.Errorf("what is known now is of %+v", p.Hashed.of)
			}
		})
	}
}

// TestKnownHashChangesNothing: a plan is the same with the hash of the previous plan.
func TestKnownHashChangesNothing(t *testing.T) {
	for seed := range uint64(100) {
		g := observation(seed)
		p := Decide(g.Observed)
		g.Hashed = p.Hashed
		if diff := cmp.Diff(did(p), did(Decide(g.Observed))); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
	g := steady()
	g.Job.Spec.Template.Spec.Containers = nil
	if p := Decide(g.Observed); p.Hashed != (Hashed{}) || p.State != InvalidSpec {
		t.Errorf("%v: a spec that is not accepted has the hash %+v", p.State, p.Hashed)
	}
}
