package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// TestEveryWriteHasAReason: every write of a plan has a reason.
func TestEveryWriteHasAReason(t *testing.T) {
	for what, c := range map[string]struct {
		with func(*given)
		want []string
	}{
		"a lost standby":  {func(g *given) { g.Pods = g.Pods[:1] }, []string{"there are 1 of 2 candidates"}},
		"scaled down":     {func(g *given) { g.Job.Spec.Candidates = 1 }, []string{"more candidates than spec.candidates"}},
		"suspended":       {func(g *given) { g.Job.Spec.Suspend = true }, []string{"spec.suspend is set"}},
		"a new template":  {func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Image = "v2" }, []string{"candidates are of an earlier template"}},
		"no Lease":        {(*given).absent, []string{"there is no Lease, and an earlier tenure may not be over"}},
		"a dead holder":   {func(g *given) { g.ended(0, ago(2*time.Hour), ago(time.Second)) }, []string{"is dead: HolderTerminated"}},
		"a token base":    {func(g *given) { g.Job.Spec.Fencing.TokenBase = 7 }, []string{"the token base has changed"}},
		"another job's":   {func(g *given) { g.Lease.Claim = Claim{JobUID: "x"} }, []string{"it is kept for this job"}},
		"nothing owns it": {func(g *given) { g.Pods[1].OwnerReferences = nil }, []string{"it no longer has an owner"}},
		"the job is gone": {func(g *given) { g.Job, g.Pods = nil, nil; g.released(lease.ReasonPodTerminating) }, []string{"the job no longer exists, and no tenure can last"}},
		"a wrong label":   {func(g *given) { g.Pods[0].Labels[contract.RoleLabel] = "x" }, []string{"its role is active"}},
		"a missing child": {func(g *given) { g.Children.Role = nil }, []string{"it is missing or differs from its desired state"}},
		"a failed standby": {func(g *given) {
			g.rejected(1, "Evicted", "low on memory")
			g.Pods[1].Annotations[FailuresAnnotation] = "1"
			g.pod(2, "b")
		}, []string{"failed: Evicted"}},
		"after failures": {
			func(g *given) { g.rejected(1, "OutOfcpu", ""); g.Pods[1].Annotations[FailuresAnnotation] = "1" },
			[]string{"candidates are missing, and 2 failed in a row before it"},
		},
		"silence": {func(g *given) { g.Lease.Unchanged = 10 * time.Second }, []string{"Active is False, HolderUnreachable: "}},
	} {
		t.Run(what, func(t *testing.T) {
			g := steady()
			c.with(g)
			p := Decide(g.Observed)
			var all []string
			for _, key := range objectsOf(p) {
				why := p.Reasons[key]
				if why == "" {
					t.Errorf("nothing says why %s is written", key)
				}
				all = append(all, why)
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(all, func(why string) bool { return strings.Contains(why, want) }) {
					t.Errorf("nothing says %q: %q", want, all)
				}
			}
		})
	}
}

// objectsOf returns the objects that a plan writes.
func objectsOf(p Plan) []string {
	var keys []string
	if p.Lease != nil {
		keys = append(keys, "Lease/job")
	}
	if p.Status != nil {
		keys = append(keys, "SingletonJob/job")
	}
	for _, child := range p.Apply {
		keys = append(keys, child.GetObjectKind().GroupVersionKind().Kind+"/"+child.GetName())
	}
	for _, pod := range slices.Concat(p.Delete, p.Adopt) {
		keys = append(keys, "Pod/"+pod.Name)
	}
	for _, pod := range p.Relabel {
		keys = append(keys, "Pod/"+pod.Name)
	}
	for _, pod := range p.Create {
		keys = append(keys, "Pod/"+pod.Name)
	}
	for _, e := range p.Events {
		keys = append(keys, "Event/"+e.Name)
	}
	return keys
}
