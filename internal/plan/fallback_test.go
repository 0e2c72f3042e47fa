package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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

// tenuresOfRollout are the possible states of the Lease in a rollout, given the first old pod and the first new one. proven says that the
// new one is proven, and whether the old one holds the Lease and renews it.
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
	g.released(lease.ReasonRollout)
	before := g.Lease.Record.History
	g.held(pod, 101, since)
	g.Lease.Record.History = append([]lease.PastTenure{{Token: 101, Pod: g.Pods[pod].Name, Node: g.Pods[pod].Spec.NodeName, Acquired: since.UnixMilli()}}, before...)
}

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
	inRollout(func(what string, g *given, able []int, proven, holds bool) {
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
	})
	for _, what := range lost {
		t.Errorf("nothing is left to fall back to: %s", what)
	}
	if seen < 1000 || gone == 0 {
		t.Errorf("%d rollouts were seen, and in %d of them an old pod went when the new version was proven", seen, gone)
	}
}
