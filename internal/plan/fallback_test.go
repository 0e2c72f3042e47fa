package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

const noImage = "without an image"

// conditionsOfOld are the possible states of a pod of the old version, and whether it could still act with the Lease.
var conditionsOfOld = []struct {
	name string
	able bool
	put  func(g *given, pod int)
}{
	{"ready", true, func(*given, int) {}},
	{"not ready by its own probe", true, func(g *given, pod int) { g.unwell(pod, time.Hour) }},
	{"on a lost node", true, func(g *given, pod int) {
		g.unready(pod)
		g.Pods[pod].Status.Conditions[0].Status = corev1.ConditionUnknown
	}},
	{"pending restart", true, func(g *given, pod int) {
		g.waiting(pod, "CrashLoopBackOff")
		g.Pods[pod].Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	}},
	{noImage, false, func(g *given, pod int) { g.waiting(pod, "ImagePullBackOff") }},
	{"terminating", false, func(g *given, pod int) { g.unready(pod); g.terminating(pod) }},
}

// tenuresOfRollout are the possible states of the Lease in a rollout, given the first old pod and the first new one. The field
// proven says that the new one is proven. The field holds says that the old one holds the Lease and renews it.
var tenuresOfRollout = []struct {
	name          string
	proven, holds bool
	put           func(g *given, first int)
}{
	{"the old one holds it", false, true, func(*given, int) {}},
	{"the old one is silent", false, false, func(g *given, _ int) { g.Lease.Unchanged, g.Lease.Renewed = 12*time.Second, false }},
	{"the old one has handed over", false, false, func(g *given, _ int) { g.released(lease.ReasonRollout) }},
	{"the old one's process has ended", false, false, func(g *given, _ int) { g.released(lease.ReasonProcessExited) }},
	{"the old one's node is lost", false, false, func(g *given, _ int) { g.released(lease.ReasonNodeLost) }},
	{"the old one could not renew", false, false, func(g *given, _ int) { g.released(lease.ReasonRenewFailed) }},
	{"nobody has held it", false, false, func(g *given, _ int) { g.free() }},
	{"the new one is tried", false, false, func(g *given, first int) { g.follows(first, ago(time.Second)) }},
	{"the new one is tried and not ready", false, false, func(g *given, first int) { g.follows(first, ago(time.Hour)); g.unwell(first, time.Minute) }},
	{"the new one has run without being ready", false, false, func(g *given, first int) {
		g.follows(first, ago(time.Hour))
		g.sees(func(t *Trial) { t.Ready = false })
	}},
	{"the new one prepared for long, and is ready for a moment", false, false, func(g *given, first int) {
		g.follows(first, ago(35*time.Second))
		g.sees(func(t *Trial) { t.For = 3 * time.Second })
	}},
	{"the new one holds it for long, and this process has just begun", false, false, func(g *given, first int) {
		g.follows(first, ago(time.Hour))
		g.sees(func(t *Trial) { t.Partly, t.Seen, t.For = true, time.Second, time.Second })
	}},
	{"the new one may still be ready as a standby", false, false, func(g *given, first int) {
		g.follows(first, ago(time.Second))
		g.Job.Spec.Strategy.MinReadySeconds = new(int32(0))
		g.sees(func(t *Trial) { t.For = -9 * time.Second })
	}},
	{"the new one prepared for long and crashed", false, false, func(g *given, first int) {
		g.follows(first, ago(36*time.Second))
		g.sees(func(t *Trial) { t.For = 3 * time.Second })
		g.released(lease.ReasonProcessExited)
	}},
	{"the new one crashes each time that it has prepared for long", false, false, func(g *given, first int) {
		g.follows(first, ago(72*time.Second))
		g.sees(func(t *Trial) { t.For = 3 * time.Second })
		g.again(first, ago(35*time.Second), lease.ReasonProcessExited)
		g.sees(func(t *Trial) { t.For = 2 * time.Second })
	}},
	{"the new one's postStart failed late", false, false, func(g *given, first int) {
		g.follows(first, ago(41*time.Second))
		g.sees(func(t *Trial) { t.Ready = false })
		g.released(lease.ReasonPostStartFailed)
	}},
	{"the new one's process has ended", false, false, func(g *given, first int) {
		g.follows(first, ago(2*time.Second))
		g.released(lease.ReasonProcessExited)
	}},
	{"the new one's node is lost", false, false, func(g *given, first int) {
		g.follows(first, ago(2*time.Second))
		g.released(lease.ReasonNodeLost)
	}},
	{"the new one is proven", true, false, func(g *given, first int) { g.follows(first, ago(time.Hour)) }},
}

// follows makes a pod the holder after the first one has handed over to it.
func (g *given) follows(pod int, since time.Time) {
	g.again(pod, since, lease.ReasonRollout)
}

// again ends the current tenure for a reason, and a pod takes the Lease.
func (g *given) again(pod int, since time.Time, why lease.Reason) {
	g.released(why)
	before := g.Lease.Record.History
	token := g.Lease.Record.Token + 1
	g.held(pod, token, since)
	g.Lease.Record.History = append([]lease.PastTenure{{Token: token, Pod: g.Pods[pod].Name, Node: g.Pods[pod].Spec.NodeName, Acquired: since.UnixMilli()}}, before...)
}

// clocksOff are the possible differences between the operator's clock and that of the holder's node.
var clocksOff = []time.Duration{0, 40 * time.Second, -40 * time.Second}

// inRollout visits each job during a rollout: with one or two old pods in any state, with ready and unready new ones, and with any tenure.
func inRollout(visit func(what string, g *given, able []int, proven, holds bool)) {
	for _, tenure := range tenuresOfRollout {
		for first, one := range conditionsOfOld {
			for second := -1; second < len(conditionsOfOld); second++ {
				if tenure.holds && one.name == noImage {
					continue // it acts
				}
				for shape := range 8 {
					g := steady()
					conditions := []int{first, second}
					if second < 0 {
						g.Pods, conditions = g.Pods[:1], conditions[:1]
					}
					g.Job.Spec.Candidates = 2 + int32(shape&1)
					if shape&2 != 0 {
						g.Job.Spec.Strategy.MaxSurge = new(int32(0))
					}
					g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
					old := len(g.Pods)
					for n := range 1 + shape>>2*2 {
						g.pod(n, "c")
					}
					if len(g.Pods) > old+1 {
						g.unready(len(g.Pods) - 1)
					}
					tenure.put(g, old)
					what := tenure.name + "; old: "
					var able []int
					for i, c := range conditions {
						conditionsOfOld[c].put(g, i)
						what += conditionsOfOld[c].name + ", "
						if conditionsOfOld[c].able {
							able = append(able, i)
						}
					}
					what += fmt.Sprintf("%d candidates, surge %v, %d new", g.Job.Spec.Candidates, shape&2 == 0, len(g.Pods)-old)
					visit(what, g, able, tenure.proven, tenure.holds && one.able)
				}
			}
		}
	}
}

// TestAPodWhoseAgentNeverRanCannotAct: this also holds if a webhook put a program before the agent and another container runs.
func TestAPodWhoseAgentNeverRanCannotAct(t *testing.T) {
	g := steady()
	g.wrapped(1)
	g.waiting(1, "ImagePullBackOff")
	g.Pods[1].Status.ContainerStatuses = append(g.Pods[1].Status.ContainerStatuses, corev1.ContainerStatus{
		Name: "proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	})
	g.newTemplate(0, 1)
	g.Pods = g.Pods[1:] // without the old holder
	g.held(1, 200, ago(time.Second))
	if !g.goes(0) {
		t.Error("it is kept to fall back to")
	}
}

// TestAnOldPodThatCouldActIsKept: whether it is ready or not, one stays as a fallback until the new version is proven. A ready one is
// preferred.
func TestAnOldPodThatCouldActIsKept(t *testing.T) {
	seen, lost, gone := 0, map[string]string{}, 0
	check := func(what string, g *given, able []int, proven, holds bool) {
		p := Decide(g.Observed)
		if p.State != Serving || len(able) == 0 {
			return
		}
		seen++
		goes := func(i int) bool { return slices.Contains(p.Delete, PodRef{Name: g.Pods[i].Name, UID: g.Pods[i].UID}) }
		stays := func(i int) bool { return !goes(i) }
		if proven {
			if slices.ContainsFunc(able, goes) {
				gone++
			}
			return
		}
		if !slices.ContainsFunc(able, stays) || holds && goes(0) {
			tenure, _, _ := strings.Cut(what, ";")
			lost[tenure] = what
		}
	}
	visited := 0
	inRollout(func(what string, g *given, able []int, proven, holds bool) {
		off := clocksOff[visited%len(clocksOff)]
		visited++
		g.Now = g.Now.Add(off)
		check(fmt.Sprintf("%s, the operator's clock off by %v", what, off), g, able, proven, holds)
	})
	for _, what := range lost {
		t.Errorf("nothing is left to fall back to: %s", what)
	}
	if seen < 1000 || gone == 0 {
		t.Errorf("%d rollouts were seen, and in %d of them an old pod went when the new version was proven", seen, gone)
	}
}

// TestAVersionThatFailsLateIsNotTriedAgain: a process that was never ready for long enough has failed, however long its tenure was. The old
// version continues, and the status says so.
func TestAVersionThatFailsLateIsNotTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		lasted, ready time.Duration
		why           lease.Reason
		tried         bool // it is tried again
	}{
		"it crashes after a long preparation":          {lasted: 35 * time.Second, ready: 3 * time.Second, why: lease.ReasonProcessExited},
		"it is killed after a long preparation":        {lasted: time.Hour, ready: 29 * time.Second, why: lease.ReasonHolderTerminated},
		"it is not alive, and was never ready":         {lasted: time.Hour, why: lease.ReasonLivenessFailed},
		"its postStart fails late":                     {lasted: 41 * time.Second, why: lease.ReasonPostStartFailed},
		"its postStart fails late, beside a readiness": {lasted: time.Hour, ready: time.Hour, why: lease.ReasonPostStartFailed},
		"it was ready for long enough":                 {lasted: 65 * time.Second, ready: 30 * time.Second, why: lease.ReasonProcessExited, tried: true},
		"its node is lost":                             {lasted: 35 * time.Second, ready: 3 * time.Second, why: lease.ReasonNodeLost, tried: true},
	} {
		for _, off := range clocksOff {
			g := steady()
			g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
			g.pod(0, "c")
			g.pod(1, "d")
			g.Pods = slices.Delete(g.Pods, 1, 2)
			g.follows(1, ago(c.lasted+time.Minute))
			g.sees(func(t *Trial) { t.Ready, t.Longest = false, c.ready })
			g.again(0, ago(time.Minute), c.why)
			g.Lease.Record.History[1].Ended = ago(time.Minute).UnixMilli()
			g.Now = g.Now.Add(off)
			p := Decide(g.Observed)
			if asks := p.Lease != nil && p.Lease.Record.Handover.To != ""; asks != c.tried || len(p.Delete) > 0 {
				t.Errorf("%s, clock off by %v: tried again %v, want %v; deleted %v", name, off, asks, c.tried, p.Delete)
			}
			if reason, message := g.progressing(); (reason == v1alpha1.ReasonRolloutStalled) == c.tried {
				t.Errorf("%s, clock off by %v: %s, %s", name, off, reason, message)
			}
		}
	}
}
