package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// misconfigured is the trouble of a candidate whose agent refused its configuration. A process that ends with the same
// status looks alike.
const misconfigured = "status 78: the agent or the process refuses its configuration; see the container's log"

// backOff begins the trouble of a candidate whose gated container waits to be restarted.
const backOff = "the process exits again and again"

// lasting are reasons for waiting that time alone does not heal.
var lasting = []string{
	"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError",
}

// trouble is why a pod does not get ready, in stable words; empty if nothing is known to be wrong.
func trouble(pod *corev1.Pod, gated string) string {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if t := containerTrouble(&statuses[i], statuses[i].Name == gated); t != "" {
				return t
			}
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return "no node takes it: " + c.Message
		}
	}
	return ""
}

func containerTrouble(s *corev1.ContainerStatus, gated bool) string {
	if s.Ready || s.State.Running != nil {
		return ""
	}
	last := s.LastTerminationState.Terminated
	if s.State.Terminated != nil {
		last = s.State.Terminated
	}
	if gated && last != nil && last.ExitCode == contract.ExitConfig {
		return misconfigured
	}
	w := s.State.Waiting
	if w == nil || !slices.Contains(lasting, w.Reason) {
		return ""
	}
	if gated && w.Reason == "CrashLoopBackOff" && last != nil {
		return fmt.Sprintf("%s, last with status %d (%s)", backOff, last.ExitCode, w.Reason)
	}
	return fmt.Sprintf("container %s: %s", s.Name, w.Reason)
}
