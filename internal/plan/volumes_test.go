package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/singletonjob/operator/api/v1alpha1"
)

func modes(modes ...corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	return modes
}

func TestVolumeOfOneNode(t *testing.T) {
	const (
		once, pod    = corev1.ReadWriteOnce, corev1.ReadWriteOncePod
		many, readMy = corev1.ReadWriteMany, corev1.ReadOnlyMany
	)
	for name, c := range map[string]struct {
		volumes []Volume
		with    func(*given)
		reason  string
		says    []string
	}{
		"no claim": {with: func(g *given) { g.unready(1) }, reason: v1alpha1.ReasonNoStandby},
		"ReadWriteOnce": {
			volumes: []Volume{{"data", modes(once), modes(once)}}, with: func(g *given) { g.unready(1) },
			reason: v1alpha1.ReasonVolumeNotShared, says: []string{"claim data is readwriteonce: one node", "set spec.candidates to 1", "readwritemany"},
		},
		"on the same node": {
			volumes: []Volume{{"data", modes(once), nil}}, with: func(g *given) { g.Pods[1].Spec.NodeName = "a" },
			reason: v1alpha1.ReasonVolumeNotShared,
		},
		"ReadWriteOncePod": {
			volumes: []Volume{{"data", modes(pod), modes(pod)}}, with: func(g *given) { g.unready(1) },
			reason: v1alpha1.ReasonVolumeNotShared, says: []string{"one pod at a time"},
		},
		"the second one": {
			volumes: []Volume{{"a", modes(many), nil}, {"b", modes(once), nil}}, with: func(g *given) { g.unready(1) },
			reason: v1alpha1.ReasonVolumeNotShared, says: []string{"claim b is"},
		},
		"a volume that can do more than was asked": {
			volumes: []Volume{{"data", modes(once), modes(once, many)}}, with: func(g *given) { g.unready(1) }, reason: v1alpha1.ReasonNoStandby,
		},
		"one that many may read": {
			volumes: []Volume{{"data", modes(readMy), nil}}, with: func(g *given) { g.unready(1) }, reason: v1alpha1.ReasonNoStandby,
		},
		"one that says nothing": {volumes: []Volume{{Claim: "data"}}, with: func(g *given) { g.unready(1) }, reason: v1alpha1.ReasonNoStandby},
		// Access modes are not enforced for volumes that are not attached, such as NFS.
		"works all the same": {volumes: []Volume{{"data", modes(once), modes(once)}}, reason: v1alpha1.ReasonStandbyReady},
		"nothing is active":  {volumes: []Volume{{"data", modes(once), nil}}, with: func(g *given) { g.free() }, reason: v1alpha1.ReasonNoHolder},
		"one candidate": {
			volumes: []Volume{{"data", modes(once), nil}}, with: func(g *given) { g.Job.Spec.Candidates = 1; g.Pods = g.Pods[:1] },
			reason: v1alpha1.ReasonSingleCandidate, says: []string{"more would not help", "claim data is readwriteonce", "another one is created"},
		},
		"one candidate that could be more": {
			volumes: []Volume{{"data", modes(many), nil}}, with: func(g *given) { g.Job.Spec.Candidates = 1; g.Pods = g.Pods[:1] },
			reason: v1alpha1.ReasonSingleCandidate, says: []string{"set 2 or more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			g.Volumes = c.volumes
			if c.with != nil {
				c.with(g)
			}
			protected := g.condition(v1alpha1.ConditionProtected)
			if protected.reason != c.reason {
				t.Errorf("Protected has the reason %s, want %s: %s", protected.reason, c.reason, protected.message)
			}
			for _, text := range c.says {
				if !strings.Contains(strings.ToLower(protected.message), text) {
					t.Errorf("Protected says %q, want something about %q", protected.message, text)
				}
			}
		})
	}
}

// TestARolloutOnAVolumeOfOneNode: if another pod keeps a new one from its volume, Progressing names the claim and says what to do. It does so
// at once if the scheduler reports it, and otherwise at the deadline. Other reasons why it does not start are reported as such.
func TestARolloutOnAVolumeOfOneNode(t *testing.T) {
	const (
		remedy = "Set spec.candidates to 1, so that the next pod is created when this one leaves, or use a ReadWriteMany claim"
		once   = corev1.ReadWriteOnce
	)
	creating := func(g *given) { g.waiting(2, "ContainerCreating") }
	for name, c := range map[string]struct {
		mode   corev1.PersistentVolumeAccessMode
		with   func(*given)
		after  time.Duration
		reason string
		says   string // empty: nothing of the claim
	}{
		"ReadWriteOnce, past the deadline": {once, creating, twoMinutes, v1alpha1.ReasonProgressDeadlineExceeded, remedy},
		"before the deadline":              {once, creating, twoMinutes - time.Second, v1alpha1.ReasonRollingOut, ""},
		"ReadWriteOncePod": {corev1.ReadWriteOncePod, func(g *given) {
			creating(g)
			g.Pods[2].Spec.NodeName = ""
			g.Pods[2].Status.ContainerStatuses = nil
			g.Pods[2].Status.Conditions = append(g.Pods[2].Status.Conditions, corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "pod has in-use ReadWriteOncePod claim",
			})
		}, time.Second, v1alpha1.ReasonRolloutStalled, remedy},
		"ReadWriteMany": {corev1.ReadWriteMany, creating, twoMinutes, v1alpha1.ReasonProgressDeadlineExceeded, ""},
		"on the holder's node": {once, func(g *given) {
			creating(g)
			g.Pods[2].Spec.NodeName = "a"
			g.Pods[1].Spec.NodeName = "a"
		}, twoMinutes, v1alpha1.ReasonProgressDeadlineExceeded, ""},
		"without its image": {once, func(g *given) { g.waiting(2, "ErrImagePull") }, time.Minute, v1alpha1.ReasonRolloutStalled, ""},
		"a template without the claim": {once, func(g *given) {
			creating(g)
			g.Pods[2].Spec.Volumes = nil
		}, twoMinutes, v1alpha1.ReasonProgressDeadlineExceeded, ""},
		"one candidate with a surge": {once, func(g *given) {
			creating(g)
			g.Job.Spec.Candidates, g.Job.Spec.Strategy.MaxSurge = 1, new(int32(1))
			g.Pods = slices.Delete(g.Pods, 1, 2)
		}, twoMinutes, v1alpha1.ReasonProgressDeadlineExceeded, "Set spec.strategy.maxSurge to 0, or use a ReadWriteMany claim"},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			g.Volumes = []Volume{{"data", modes(c.mode), nil}}
			newTemplate(g)
			g.pod(0, "c")
			for _, pod := range g.Pods {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
				}})
			}
			fresh := g.Pods[2]
			fresh.CreationTimestamp.Time = ago(c.after)
			c.with(g)
			g.since(slices.Index(g.Pods, fresh), c.after)
			got := g.condition(v1alpha1.ConditionProgressing)
			if got.reason != c.reason {
				t.Errorf("Progressing says %s, want %s: %s", got.reason, c.reason, got.message)
			}
			if told := strings.Contains(got.message, "PersistentVolumeClaim data"); told != (c.says != "") || !strings.Contains(got.message, c.says) {
				t.Errorf("Progressing says %q, want %q", got.message, c.says)
			}
			if c.says != "" && !strings.Contains(got.message, fresh.Name) {
				t.Errorf("Progressing does not name %s: %q", fresh.Name, got.message)
			}
		})
	}
}

// TestAStandbyOnAVolumeOfOneNode: with no rollout under way, Progressing says the same of the standby.
func TestAStandbyOnAVolumeOfOneNode(t *testing.T) {
	g := steady()
	g.Volumes = []Volume{{"data", modes(corev1.ReadWriteOnce), nil}}
	for _, pod := range g.Pods {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}})
	}
	g.waiting(1, "ContainerCreating")
	g.since(1, twoMinutes)
	got := g.condition(v1alpha1.ConditionProgressing)
	if got.reason != v1alpha1.ReasonCandidateStuck || !strings.Contains(got.message, "Set spec.candidates to 1") {
		t.Errorf("Progressing says %+v", got)
	}
}

// condition returns a condition after the plan is applied.
func (g *given) condition(name string) verdict {
	status := &g.Job.Status
	if p := Decide(g.Observed); p.Status != nil {
		status = p.Status
	}
	c := meta.FindStatusCondition(status.Conditions, name)
	return verdict{c.Reason, c.Message}
}

// lost is a job with one candidate whose node is lost, and whose next candidate waits on another node.
func lost() *given {
	g := steady()
	g.Job.Spec.Candidates = 1
	g.terminating(0)
	g.waiting(1, "ContainerCreating")
	g.released("NodeLost")
	return g
}

func TestPodsThatWaitForAVolume(t *testing.T) {
	const remedy = "If node a is shut down permanently, declare it: kubectl taint node a node.kubernetes.io/out-of-service=:NoExecute"
	once := []Volume{{"data", modes(corev1.ReadWriteOnce), nil}}
	for name, c := range map[string]struct {
		volumes []Volume
		with    func(*given)
		says    bool
	}{
		"ReadWriteOnce":    {volumes: once, says: true},
		"ReadWriteOncePod": {volumes: []Volume{{"data", modes(corev1.ReadWriteOncePod), nil}}, with: func(g *given) { g.Pods[1].Spec.NodeName = "" }, says: true},
		"ReadWriteMany":    {volumes: []Volume{{"data", modes(corev1.ReadWriteMany), nil}}},
		"no volume":        {},
		"the same node":    {volumes: once, with: func(g *given) { g.Pods[1].Spec.NodeName = "a" }},
		"it has started": {volumes: once, with: func(g *given) {
			g.Pods[1].Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		}},
		"nobody has it":   {volumes: once, with: func(g *given) { g.Pods = g.Pods[1:] }},
		"its pod is over": {volumes: once, with: func(g *given) { g.Pods[0].Status.Phase = corev1.PodFailed }},
	} {
		t.Run(name, func(t *testing.T) {
			g := lost()
			g.Volumes = c.volumes
			if c.with != nil {
				c.with(g)
			}
			active := g.condition(v1alpha1.ConditionActive)
			if active.reason != v1alpha1.ReasonCandidatesNotReady || strings.Contains(active.message, remedy) != c.says {
				t.Errorf("Active says %s: %s, want the remedy: %v", active.reason, active.message, c.says)
			}
		})
	}
}

func TestClaims(t *testing.T) {
	named := func(names ...string) *corev1.Pod {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}, {Name: "empty"},
		}}}
		for _, name := range names {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}})
		}
		return pod
	}
	if got, want := Claims([]*corev1.Pod{named("b", "a"), named(), named("c", "a")}), []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("the claims are %v, want %v", got, want)
	}
}
