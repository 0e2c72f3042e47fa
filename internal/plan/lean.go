package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// LeanMeta returns the metadata of an object without two parts that the operator does not read and that use much memory: the managed
// fields, and kubectl's last applied configuration.
func LeanMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.ManagedFields = nil
	if _, applied := m.Annotations[corev1.LastAppliedConfigAnnotation]; applied {
		m.Annotations = maps.Clone(m.Annotations)
		delete(m.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	return m
}

// LeanPod returns the parts of a pod that decisions read. If you read another part, add it here: a test compares decisions on lean pods
// with those on complete ones.
func LeanPod(pod *corev1.Pod) *corev1.Pod {
	is := &pod.Spec
	lean := &corev1.Pod{ObjectMeta: LeanMeta(pod.ObjectMeta)}
	lean.Spec = corev1.PodSpec{
		NodeName: is.NodeName, ServiceAccountName: is.ServiceAccountName, RestartPolicy: is.RestartPolicy,
		NodeSelector: is.NodeSelector, Tolerations: is.Tolerations, Resources: is.Resources,
		InitContainers: leanContainers(is.InitContainers), Containers: leanContainers(is.Containers),
	}
	if is.Affinity != nil && is.Affinity.NodeAffinity != nil {
		lean.Spec.Affinity = &corev1.Affinity{NodeAffinity: is.Affinity.NodeAffinity}
	}
	for i := range is.Volumes {
		if v := &is.Volumes[i]; v.PersistentVolumeClaim != nil {
			lean.Spec.Volumes = append(lean.Spec.Volumes, *v)
		}
	}
	lean.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message, Conditions: leanConditions(&pod.Status),
		InitContainerStatuses: leanStatuses(pod.Status.InitContainerStatuses), ContainerStatuses: leanStatuses(pod.Status.ContainerStatuses),
	}
	return lean
}

// leanContainers keeps what shows which container is gated, how its agent is configured, and what resources the containers request.
func leanContainers(containers []corev1.Container) []corev1.Container {
	var lean []corev1.Container
	for i := range containers {
		c := &containers[i]
		kept := corev1.Container{Name: c.Name, Resources: c.Resources, Command: slices.Clone(c.Command[:min(len(c.Command), inject.GatedSigns)])}
		for _, e := range c.Env {
			if e.Name == contract.ConfigEnv {
				kept.Env = append(kept.Env, e)
			}
		}
		lean = append(lean, kept)
	}
	return lean
}

// leanConditions keeps whether a Pod is scheduled and ready. Of a Pod that has ended, it keeps all conditions: their times show when it ended.
func leanConditions(status *corev1.PodStatus) []corev1.PodCondition {
	if status.Phase == corev1.PodFailed || status.Phase == corev1.PodSucceeded {
		return status.Conditions
	}
	var lean []corev1.PodCondition
	for _, c := range status.Conditions {
		if c.Type == corev1.PodReady || c.Type == corev1.PodScheduled {
			lean = append(lean, c)
		}
	}
	return lean
}

func leanStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var lean []corev1.ContainerStatus
	for i := range statuses {
		s := &statuses[i]
		lean = append(lean, corev1.ContainerStatus{Name: s.Name, Ready: s.Ready, State: s.State, LastTerminationState: s.LastTerminationState})
	}
	return lean
}
