package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/singletonjob/operator/api/v1alpha1"
)

func limited(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

func leased(g *given, duration, deadline, retry time.Duration) {
	l := &g.Job.Spec.Lease
	l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration = duration, deadline, retry
}

func TestTimely(t *testing.T) {
	const ms = time.Millisecond
	short := func(g *given) { leased(g, 3*time.Second, 1500*ms, 500*ms) }
	in := func(cpu string) func(*given) {
		return func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Resources = limited(cpu) }
	}
	inPods := func(cpu string) func(*given) { // as admission sets them
		return func(g *given) {
			for _, pod := range g.Pods {
				pod.Spec.Containers[0].Resources = limited(cpu)
			}
		}
	}
	const field = "spec.template.spec.containers[0].resources.limits.cpu is "
	for name, c := range map[string]struct {
		with []func(*given)
		says string // empty: in time
	}{
		"no limit":            {with: []func(*given){short}},
		"zero is none":        {with: []func(*given){short, in("0")}},
		"100m":                {with: []func(*given){short, in("100m")}, says: field + "100m: a process that uses it up may be killed 1.5s late, and spec.lease leaves 1s"},
		"remedies":            {with: []func(*given){short, in("100m")}, says: "remove the limit (a request keeps the share), raise it to 150m or more, or set spec.lease.leaseDuration to 4s or more"},
		"just enough":         {with: []func(*given){short, in("150m")}},
		"just not enough":     {with: []func(*given){short, in("149m")}, says: field + "149m"},
		"by default settings": {with: []func(*given){in("100m")}},
		"10m, 15 s":           {with: []func(*given){in("10m")}, says: "killed 15s late, and spec.lease leaves 6s for that, so two processes may run at once for a moment; remove the limit (a request keeps the share), raise it to 30m or more, or set spec.lease.leaseDuration to 35s or more"},
		"1n is 10m":           {with: []func(*given){in("1n")}, says: field + "1n: a process that uses it up may be killed 15s late"},
		"huge":                {with: []func(*given){short, in("9E")}},
		"the whole pod's": {
			with: []func(*given){short, in("4"), func(g *given) { r := limited("100m"); g.Job.Spec.Template.Spec.Resources = &r }},
			says: "spec.template.spec.resources.limits.cpu is 100m",
		},
		"a sidecar's end proves nothing": {with: []func(*given){short, func(g *given) {
			g.Job.Spec.Container = "app"
			g.Job.Spec.Template.Spec.Containers = append(g.Job.Spec.Template.Spec.Containers, corev1.Container{Name: "side", Image: "v1", Resources: limited("10m")})
		}}},
		"a LimitRange's": {with: []func(*given){inPods("10m")}, says: "resources.limits.cpu of the pods' container app, from a LimitRange, a webhook or a resize, is 10m: "},
		"behind a webhook's program": {
			with: []func(*given){inPods("10m"), func(g *given) { g.wrapped(0); g.wrapped(1) }},
			says: "resources.limits.cpu of the pods' container app, from a LimitRange, a webhook or a resize, is 10m: ",
		},
		"a terminating pod's": {with: []func(*given){inPods("10m"), func(g *given) { g.terminating(0); g.terminating(1) }}},
		"suspended":           {with: []func(*given){short, in("100m"), func(g *given) { g.Job.Spec.Suspend = true }}, says: field},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			for _, with := range c.with {
				with(g)
			}
			p := Decide(g.Observed)
			status := &g.Job.Status
			if p.Status != nil {
				status = p.Status
			}
			timely := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTimely)
			want := v1alpha1.ReasonInTime
			if c.says != "" {
				want = v1alpha1.ReasonCPULimitTooSmall
			}
			if timely.Reason != want || !strings.Contains(timely.Message, c.says) {
				t.Errorf("says %s: %s\nwant %s: %s", timely.Reason, timely.Message, want, c.says)
			}
			events := 0
			for _, e := range p.Events {
				if e.Reason == v1alpha1.ReasonCPULimitTooSmall {
					events++
				}
			}
			if said := c.says != ""; said != (events == 1) || events > 1 {
				t.Errorf("%d Events tell of it: %+v", events, p.Events)
			}
		})
	}
}

// TestTimelyOfABrokenSpec: invalid settings are not evaluated.
func TestTimelyOfABrokenSpec(t *testing.T) {
	g := steady()
	g.Job.Spec.Container = "nobody"
	timely := meta.FindStatusCondition(Decide(g.Observed).Status.Conditions, v1alpha1.ConditionTimely)
	if timely.Reason != v1alpha1.ReasonInvalidSpec {
		t.Errorf("says %s: %s", timely.Reason, timely.Message)
	}
}
