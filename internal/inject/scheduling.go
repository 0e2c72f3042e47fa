package inject

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// hostPorts is the number of ports over which the agents of Pods on the host network are spread, so that Pods of different jobs can
// share a node. The scheduler does not put two Pods with the same port on one node.
const hostPorts = 1000

// firstUserPort is the first port that needs no privileges.
const firstUserPort = 1024

// freePort is the first port, from the desired one on, that no container or probe of the Pod and not the job's Service names.
func freePort(job *v1alpha1.SingletonJob, hash string, desired int32) int32 {
	pod := &job.Spec.Template.Spec
	if desired == 0 {
		desired = contract.DefaultPort
	}
	if pod.HostNetwork {
		desired += int32(spread(hash) % hostPorts)
	}
	taken := map[int32]bool{}
	for _, port := range servedPorts(job.Spec.Service) {
		taken[port] = true
	}
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				taken[port.ContainerPort], taken[port.HostPort] = true, true
			}
			for _, port := range askedPorts(&containers[i]) {
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

// servedPorts are the target ports that a Service names by number. The process listens on them, whether declared or not.
func servedPorts(service *v1alpha1.ServiceSpec) []int32 {
	var ports []int32
	if service == nil {
		return nil
	}
	for _, p := range service.Ports {
		if p.TargetPort == nil || *p.TargetPort == (intstr.IntOrString{}) || *p.TargetPort == intstr.FromString("") {
			ports = append(ports, p.Port)
		} else {
			ports = append(ports, p.TargetPort.IntVal)
		}
	}
	return ports
}

// schedulingDefaults softly spreads the candidates of a job over nodes and zones, and shortens the time until lost ones are
// replaced. It leaves out each default that the template sets itself.
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
		// Nodes: a spread constraint, because it does not count Pods that are terminating. With anti-affinity, the old node of a
		// deleted Pod would look as full to its replacement as the node of the new holder.
		pod.TopologySpreadConstraints = append(pod.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: candidates,
		})
	}
	if ownZones {
		return
	}
	// Zones: anti-affinity, because the scheduler ignores all constraints on a node that lacks the label of one of them.
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

// spreadsOver reports whether the template keeps Pods apart over exactly this topology. Spreading over zones says nothing about the
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

// tolerates reports whether t applies to the taint with this key and the effect NoExecute.
func tolerates(t corev1.Toleration, key string) bool {
	return (t.Key == "" || t.Key == key) && (t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute)
}

// KeptFromAnnotation on a candidate lists the nodes that KeepFrom excludes.
const KeptFromAnnotation = "singletonjob.io/kept-from"

// scaleUpDelayAnnotation tells a cluster autoscaler how long to wait for the scheduler to place a Pod before it adds nodes.
const (
	scaleUpDelayAnnotation = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	scaleUpDelay           = "600s"
)

// KeepFrom keeps a Pod that is not created yet off these nodes, and keeps it from making an autoscaler add nodes. It uses node
// affinity. Pod anti-affinity works in both directions: it would also keep other Pods of the job away from this Pod later, even if
// no other node is left.
func KeepFrom(pod *corev1.Pod, nodes ...string) {
	var apart []corev1.NodeSelectorRequirement
	for _, name := range nodes {
		apart = append(apart, corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{name},
		})
	}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if *required == nil {
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: apart}}}
	} else {
		for i := range (*required).NodeSelectorTerms {
			if term := &(*required).NodeSelectorTerms[i]; len(term.MatchExpressions)+len(term.MatchFields) > 0 { // an empty term matches no node
				term.MatchFields = append(slices.Clip(term.MatchFields), apart...)
			}
		}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[KeptFromAnnotation] = strings.Join(nodes, ",")
	if _, said := pod.Annotations[scaleUpDelayAnnotation]; !said {
		pod.Annotations[scaleUpDelayAnnotation] = scaleUpDelay
	}
}

// NodeAffinity is a Pod's node affinity without the terms that KeepFrom added.
func NodeAffinity(pod *corev1.Pod) *corev1.NodeAffinity {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil
	}
	own := pod.Spec.Affinity.NodeAffinity.DeepCopy()
	kept := strings.Split(pod.Annotations[KeptFromAnnotation], ",")
	added := func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpNotIn && len(r.Values) == 1 && slices.Contains(kept, r.Values[0])
	}
	if required := own.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		required.NodeSelectorTerms = slices.DeleteFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
			return len(term.MatchExpressions) == 0 && len(term.MatchFields) > 0 && !slices.ContainsFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool { return !added(r) })
		})
		for i := range required.NodeSelectorTerms {
			term := &required.NodeSelectorTerms[i]
			term.MatchFields = slices.DeleteFunc(term.MatchFields, added)
		}
		if len(required.NodeSelectorTerms) == 0 {
			own.RequiredDuringSchedulingIgnoredDuringExecution = nil
		}
	}
	if own.RequiredDuringSchedulingIgnoredDuringExecution == nil && len(own.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return nil
	}
	return own
}
