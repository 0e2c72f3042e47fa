package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Volume is a PersistentVolumeClaim that pods of a job share.
type Volume struct {
	Claim string
	// Asked are the access modes that the claim requests. Has are those of its volume: none if the claim is not bound.
	Asked, Has []corev1.PersistentVolumeAccessMode
}

// Claims returns the names of the claims that pods share, sorted. A claim that Kubernetes creates for each pod (ephemeral) is not shared.
func Claims(pods []*corev1.Pod) []string {
	var names []string
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
				names = append(names, claim.ClaimName)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// confined says what limits the use of a volume, empty if pods on several nodes can use it at once. It follows Kubernetes: the scheduler
// checks the requested access modes, and the component that attaches volumes checks those of the volume.
func (v Volume) confined() string {
	if slices.Contains(v.Asked, corev1.ReadWriteOncePod) {
		return "ReadWriteOncePod: one pod at a time can use it"
	}
	modes := v.Has
	if len(modes) == 0 {
		modes = v.Asked
	}
	shared := func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany
	}
	if len(modes) == 0 || slices.ContainsFunc(modes, shared) {
		return ""
	}
	return "ReadWriteOnce: one node at a time can use it"
}

// confinedText describes the first claim that keeps standbys from other nodes, empty if there is none.
func (m *members) confinedText() string {
	for _, v := range m.volumes {
		if mode := v.confined(); mode != "" {
			return fmt.Sprintf("the PersistentVolumeClaim %s is %s", v.Claim, mode)
		}
	}
	return ""
}

// singleText describes the protection of a job with one candidate.
func (m *members) singleText() string {
	if confined := m.confinedText(); confined != "" {
		return "spec.candidates is 1, so no standby can take over; more would not help, because " + confined +
			". If the pod is lost, another one is created, and starts when it can use the volume and the lease has expired"
	}
	return "spec.candidates is 1, so no standby can take over: set 2 or more"
}

// unsharedText says why there is no standby on another node, and what to do.
func (m *members) unsharedText() string {
	return "no standby on another node is ready, and " + m.confinedText() +
		". Set spec.candidates to 1, so that the next pod is created when this one is lost, or use a ReadWriteMany claim"
}

// keptOutText says what to do about a candidate that does not start because another one uses its volume. It is empty if that is not the case.
func (m *members) keptOutText(j *job, c *candidate) string {
	if started(c.pod) || c.issue.lasting && !c.issue.unplaced {
		return ""
	}
	for _, v := range m.volumes {
		uses := func(pod *corev1.Pod) bool { return slices.Contains(claims(&pod.Spec), v.Claim) }
		has := m.first(func(o candidate) bool {
			return o.live() && started(o.pod) && uses(o.pod) && o.pod.Spec.NodeName != c.pod.Spec.NodeName
		})
		mode := v.confined()
		if mode == "" || has == nil || !uses(c.pod) {
			continue
		}
		remedy := "Set spec.candidates to 1, so that the next pod is created when this one leaves"
		if j.Spec.Candidates == 1 {
			remedy = "Set spec.strategy.maxSurge to 0"
		}
		return fmt.Sprintf("%s, or use a ReadWriteMany claim, because %s uses the PersistentVolumeClaim %s on node %s, and it is %s",
			remedy, has.pod.Name, v.Claim, has.pod.Spec.NodeName, mode)
	}
	return ""
}

// waitsForVolume describes what a candidate waits for if it does not start while another one terminates on a node that may be lost; empty
// if that is not the case.
func (m *members) waitsForVolume() string {
	confined := m.confinedText()
	waits := m.first(func(c candidate) bool { return c.live() && !c.ready && !started(c.pod) })
	has := m.first(func(c candidate) bool { return c.terminating && !c.terminal && c.pod.Spec.NodeName != "" })
	if confined == "" || waits == nil || has == nil || waits.pod.Spec.NodeName == has.pod.Spec.NodeName {
		return ""
	}
	node := has.pod.Spec.NodeName
	return fmt.Sprintf("%s waits for %s, which is being deleted: %s. If node %s is shut down permanently, declare it: kubectl taint node %s %s=:NoExecute",
		waits.pod.Name, has.pod.Name, confined, node, node, corev1.TaintNodeOutOfService)
}
