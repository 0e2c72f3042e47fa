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

// hostPorts is how many ports the agents of pods on the host's network are spread over, so that pods of different jobs
// can share a node. The scheduler keeps two that use the same port apart.
const hostPorts = 1000

// firstUserPort is the first that a process may open without privileges.
const firstUserPort = 1024

// freePort is the first port from the desired one on that no container of the pod names, nor a probe, nor the job's Service.
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

// servedPorts are those that a Service sends to by number. The process listens on them, declared or not.
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

// KeptFromAnnotation on a candidate names the nodes that KeepFrom keeps it from.
const KeptFromAnnotation = "singletonjob.io/kept-from"

// scaleUpDelayAnnotation says for how long a cluster autoscaler is to leave it to the scheduler to place a pod.
const (
	scaleUpDelayAnnotation = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	scaleUpDelay           = "600s"
)

// KeepFrom keeps a pod that is yet to be made from nodes, and from being a reason for more nodes. By affinity to nodes: anti-affinity
// to pods has two ends, and no other pod of the job could be put beside this one later, though there may be no other node left.
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
			if term := &(*required).NodeSelectorTerms[i]; len(term.MatchExpressions)+len(term.MatchFields) > 0 { // an empty one matches no node
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

// NodeAffinity is a pod's affinity to nodes without what KeepFrom has added.
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
