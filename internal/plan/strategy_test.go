package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// crowded is a rollout whose first new pod has been unschedulable for some time.
func crowded(waited time.Duration, change func(*corev1.PodSpec)) *given {
	g := steady()
	spec := &g.Job.Spec.Template.Spec
	spec.Containers[0].Image = "v2"
	if change != nil {
		change(spec)
	}
	pod := g.pod(0, "")
	pod.CreationTimestamp = metav1.NewTime(ago(waited))
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available",
	}}}
	return g
}

func TestStandbyIsDeletedForAPendingPod(t *testing.T) {
	over := func(waited time.Duration, change func(*corev1.PodSpec)) *given {
		g := crowded(0, change)
		g.Pods = g.Pods[:2]
		g.OverQuota = waited
		return g
	}
	asks := func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
	}
	limits := func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("1Gi")}
	}
	for name, c := range map[string]struct {
		given *given
		with  func(*given)
		goes  bool
		says  string
	}{
		"after a minute": {given: crowded(time.Minute, nil), goes: true},
		"not before":     {given: crowded(time.Minute-1, nil), says: "it can't be scheduled"},
		"sooner if a pod must be ready sooner": {
			given: crowded(10*time.Second, nil), with: func(g *given) { g.Job.Spec.Strategy.ProgressDeadlineSeconds = new(int32(20)) }, goes: true,
		},
		"not if it asks for more":          {given: crowded(time.Hour, asks), says: "Make room for one pod more"},
		"not if it may use more":           {given: crowded(time.Hour, limits), says: "Make room for one pod more"},
		"not if it needs another node":     {given: crowded(time.Hour, func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"a": "b"} }), says: "Make room"},
		"not if it asks for another node":  {given: crowded(time.Hour, onZone), says: "Make room"},
		"not if it needs another volume":   {given: crowded(time.Hour, mounts), says: "Make room"},
		"not while another is not ready":   {given: crowded(time.Hour, nil), with: func(g *given) { g.Job.Spec.Candidates = 3; g.pod(1, "c"); g.unready(3) }},
		"not while the rollout is paused":  {given: crowded(time.Hour, nil), with: func(g *given) { g.Job.Spec.Strategy.Paused = true }, says: "paused is set"},
		"for a quota":                      {given: over(time.Minute, nil), goes: true},
		"for a quota, not before":          {given: over(time.Minute-1, nil)},
		"for a quota, not if it asks more": {given: over(time.Hour, asks)},
		"in place, at once":                {given: over(0, nil), with: func(g *given) { g.Job.Spec.Strategy.MaxSurge = new(int32(0)) }, goes: true},
		"with room, never":                 {given: over(0, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			goes := len(p.Delete) == 1 && p.Delete[0].UID == g.Pods[1].UID
			if goes != c.goes || len(p.Delete) > 0 && !goes {
				t.Errorf("%+v go", p.Delete)
			}
			said := ""
			for _, condition := range p.Status.Conditions {
				if condition.Type == v1alpha1.ConditionProgressing {
					said = condition.Message
				}
			}
			if !strings.Contains(said, c.says) {
				t.Errorf("it says %q, want %q", said, c.says)
			}
		})
	}
}

func onZone(spec *corev1.PodSpec) {
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}},
	}}}
}

func mounts(spec *corev1.PodSpec) {
	spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
}

// TestEndOfTheWaitForRoomWakes: there may be no other event before.
func TestEndOfTheWaitForRoomWakes(t *testing.T) {
	g := crowded(time.Minute-time.Second, nil)
	if p := Decide(g.Observed); p.Wake > time.Second {
		t.Errorf("wakes after %v", p.Wake)
	}
}
