//go:build linux

package localnode

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// containerRecord is what a node knows of one container of a pod.
type containerRecord struct {
	state    corev1.ContainerState
	last     corev1.ContainerState
	restarts int32
	started  bool // and its startup probe, if any, has succeeded
	ready    bool // and its readiness probe, if any, succeeds
	id       string
}

// records are by container name.
type records map[string]containerRecord

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// podStatus is what a node reports of a pod. Times of conditions are kept from the status before, where nothing changed.
func podStatus(pod *corev1.Pod, known records, ip string, now time.Time) corev1.PodStatus {
	status := corev1.PodStatus{
		Phase:                 phase(pod, known),
		HostIP:                hostIP,
		HostIPs:               []corev1.HostIP{{IP: hostIP}},
		PodIP:                 ip,
		PodIPs:                []corev1.PodIP{{IP: ip}},
		StartTime:             pod.Status.StartTime,
		InitContainerStatuses: statuses(pod.Spec.InitContainers, known),
		ContainerStatuses:     statuses(pod.Spec.Containers, known),
	}
	if status.StartTime == nil {
		status.StartTime = new(metav1.NewTime(now))
	}
	initialized := !slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return !succeeded(known[c.Name]) })
	notReady := slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return !known[c.Name].ready })
	gated := slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return !isTrue(pod, g.ConditionType) })
	condition := func(kind corev1.PodConditionType, holds bool, otherwise string) {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}
		if !holds {
			c.Status, c.Reason = corev1.ConditionFalse, otherwise
		}
		for _, old := range pod.Status.Conditions {
			if old.Type == kind && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		status.Conditions = append(status.Conditions, c)
	}
	condition(corev1.PodInitialized, initialized, "ContainersNotInitialized")
	condition(corev1.ContainersReady, !notReady, "ContainersNotReady")
	reason := "ContainersNotReady"
	if !notReady {
		reason = "ReadinessGatesNotReady"
	}
	condition(corev1.PodReady, !notReady && !gated, reason)
	return status
}

func statuses(containers []corev1.Container, known records) []corev1.ContainerStatus {
	var all []corev1.ContainerStatus
	for i := range containers {
		c, r := &containers[i], known[containers[i].Name]
		if r.state == (corev1.ContainerState{}) {
			r.state = waiting("PodInitializing", "")
		}
		all = append(all, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: r.id,
			State: r.state, LastTerminationState: r.last, RestartCount: r.restarts,
			Started: new(r.started), Ready: r.ready,
		})
	}
	return all
}

func succeeded(r containerRecord) bool {
	return r.state.Terminated != nil && r.state.Terminated.ExitCode == 0
}

func isTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// phase follows the documented meaning: Failed and Succeeded are final, and only where nothing will be restarted.
func phase(pod *corev1.Pod, known records) corev1.PodPhase {
	for _, c := range pod.Spec.InitContainers {
		switch r := known[c.Name]; {
		case succeeded(r):
		case r.state.Terminated != nil && pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
			return corev1.PodFailed
		default:
			return corev1.PodPending
		}
	}
	return phaseOfContainers(pod, known)
}

func phaseOfContainers(pod *corev1.Pod, known records) corev1.PodPhase {
	var started, ended, failed int
	for _, c := range pod.Spec.Containers {
		r := known[c.Name]
		if r.state.Running != nil || r.state.Terminated != nil || r.last.Terminated != nil {
			started++
		}
		if t := r.state.Terminated; t != nil && !restarts(pod, t.ExitCode) {
			ended++
			failed += min(1, int(t.ExitCode))
		}
	}
	switch {
	case ended == len(pod.Spec.Containers) && failed > 0:
		return corev1.PodFailed
	case ended == len(pod.Spec.Containers):
		return corev1.PodSucceeded
	case started == 0:
		return corev1.PodPending
	default:
		return corev1.PodRunning
	}
}

// restarts says whether a container of this pod that ended with code is started again. One that is being deleted is over.
func restarts(pod *corev1.Pod, code int32) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	default:
		return true
	}
}
