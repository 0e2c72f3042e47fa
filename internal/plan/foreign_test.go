package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

func TestForeignHolder(t *testing.T) {
	for what, c := range map[string]struct {
		holder  string
		foreign bool
	}{
		"an elector of client-go": {"web-0_6a1f6ee4-0b7e-4a3c-9d4d-6d6a1c7f9a11", true},
		"of any length":           {strings.Repeat("\x00é", 1<<19), true},
		"too many parts":          {"a/b/c/d", true},
		"an empty part":           {"a//c", true},
		"a space":                 {" ", true},
		"nobody knows who":        {lease.UnknownHolder, false},
		"nobody":                  {"", false},
		"an agent":                {"p/u/n", false},
	} {
		t.Run(what, func(t *testing.T) {
			g := steady()
			g.Lease.Record.Holder = c.holder
			p := Decide(g.Observed)
			reasons, _ := conditionsOf(p, g)
			if got := strings.HasPrefix(reasons, v1alpha1.ReasonForeignHolder+" NoHolder"); got != c.foreign {
				t.Fatalf("reports %q", reasons)
			}
			if c.foreign {
				announced(t, g, p)
			}
		})
	}
}

// announced checks that a plan names a foreign holder, once.
func announced(t *testing.T, g *given, p Plan) {
	t.Helper()
	if p.Lease != nil || len(p.Delete) > 0 {
		t.Errorf("it acts on it: %+v", p)
	}
	if len(p.Events) != 1 || p.Events[0].Reason != v1alpha1.ReasonForeignHolder || p.Events[0].Type != corev1.EventTypeWarning {
		t.Fatalf("events %+v", p.Events)
	}
	first := p.Events[0]
	if len(first.Message) > 1000 || len(validation.IsDNS1123Subdomain(first.Name)) > 0 {
		t.Errorf("an Event of %d bytes, named %s", len(first.Message), first.Name)
	}
	g.settle()
	if p := Decide(g.Observed); p.Status != nil || len(p.Events) > 0 {
		t.Errorf("and again: %+v", p.Events)
	}
	g.Lease.Record.Holder = "another"
	if p := Decide(g.Observed); len(p.Events) != 1 || p.Events[0].Name == first.Name || !strings.Contains(p.Events[0].Message, `"another"`) {
		t.Errorf("another is announced by %+v", p.Events)
	}
}
