package inject

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// hostPorts is how many ports the agents of pods on the host's network are spread over, so that pods of different jobs
// can share a node. The scheduler keeps two that use the same port apart.
const hostPorts = 1000

// firstUserPort is the first that a process may open without privileges.
const firstUserPort = 1024

// freePort is the first port from the desired one on that no container of the pod names, nor a probe.
func freePort(pod *corev1.PodSpec, hash string, desired int32) int32 {
	if desired == 0 {
		desired = contract.DefaultPort
	}
	if pod.HostNetwork {
		desired += int32(spread(hash) % hostPorts)
	}
	taken := map[int32]bool{}
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				taken[port.ContainerPort], taken[port.HostPort] = true, true
			}
			for _, port := range probedPorts(&containers[i]) {
				taken[port] = true
			}
		}
	}
	for taken[desired] {
		if desired++; desired > math.MaxUint16 {
			desired = firstUserPort
		}
	}
	return desired
}

// schedulingDefaults spreads the candidates of a job over nodes and over zones, softly, and has lost ones replaced soon, each unless the
// template has its own idea of that very thing.
func schedulingDefaults(pod *corev1.PodSpec, job string) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, key) }) {
			pod.Tolerations = append(pod.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: new(int64(evictAfter)),
			})
		}
	}
	candidates := &metav1.LabelSelector{MatchLabels: Selector(job)}
	ownNodes, ownZones := spreadsOver(pod, corev1.LabelHostname), spreadsOver(pod, corev1.LabelTopologyZone)
	if !ownNodes {
		// Over nodes by a spread constraint, which does not count pods that are on their way out: to anti-affinity, a pod that
		// replaces a deleted one finds its old node as full as that of the new holder.
		pod.TopologySpreadConstraints = append(pod.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: candidates,
		})
	}
	if ownZones {
		return
	}
	// Over zones by anti-affinity: constraints on a label that a node lacks make the scheduler disregard them all there.
	if pod.Affinity == nil {
		pod.Affinity = &corev1.Affinity{}
	}
	if pod.Affinity.PodAntiAffinity == nil {
		pod.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	preferred := &pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	*preferred = append(*preferred, corev1.WeightedPodAffinityTerm{
		Weight:          100,
		PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone, LabelSelector: candidates.DeepCopy()},
	})
}

// spreadsOver reports whether the template keeps pods apart over this very topology. One over zones says nothing about the
// nodes within a zone.
func spreadsOver(pod *corev1.PodSpec, key string) bool {
	for _, c := range pod.TopologySpreadConstraints {
		if c.TopologyKey == key {
			return true
		}
	}
	if pod.Affinity == nil || pod.Affinity.PodAntiAffinity == nil {
		return false
	}
	apart := pod.Affinity.PodAntiAffinity
	return slices.ContainsFunc(apart.RequiredDuringSchedulingIgnoredDuringExecution, func(t corev1.PodAffinityTerm) bool {
		return t.TopologyKey == key
	}) || slices.ContainsFunc(apart.PreferredDuringSchedulingIgnoredDuringExecution, func(t corev1.WeightedPodAffinityTerm) bool {
		return t.PodAffinityTerm.TopologyKey == key
	})
}

// tolerates reports whether t concerns the taint of that key with effect NoExecute.
func tolerates(t corev1.Toleration, key string) bool {
	return (t.Key == "" || t.Key == key) && (t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute)
}
