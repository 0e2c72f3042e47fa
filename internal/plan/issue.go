package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// issue is what keeps a pod from becoming ready; zero if no problem is known.
type issue struct {
	// what is the stable part: the container, its state, and the kubelet's reason.
	what string
	// detail is the kubelet's own text. It can differ each time, by a duration or an id, and can have any length.
	detail string
	// lasting: time alone does not fix it.
	lasting bool
	// unplaced: the pod can't be scheduled.
	unplaced bool
}

const (
	// misconfigured is the text for a candidate whose agent rejected its configuration. A process that exits with the same code looks the
	// same.
	misconfigured = "status 78: the agent or the process rejects its configuration; see the container's log"
	// backOff is the beginning of the text for a candidate whose gated container waits to be restarted.
	backOff = "the process keeps exiting"
)

// Reasons for waiting that time alone does not fix.
var (
	lasting  = []string{"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
	unpulled = []string{"ErrImagePull", "ImagePullBackOff"} // a kubelet alternates between them
)

// meanings are those of exit codes, for the agent as for a shell.
var meanings = map[int32]string{126: ", command not executable", 127: ", command not found"}

const crashLoop = "CrashLoopBackOff"

// issueOf returns why a pod does not become ready.
func issueOf(pod *corev1.Pod) issue {
	agent := agents(pod)
	for _, s := range containerStatuses(pod) {
		if t := containerIssue(s, agent != nil && s.Name == agent.Name); t.what != "" {
			return t
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return issue{what: "it can't be scheduled", detail: c.Message, lasting: true, unplaced: true}
		}
	}
	return issue{}
}

// containerStatuses returns the statuses in the order in which the containers start.
func containerStatuses(pod *corev1.Pod) []*corev1.ContainerStatus {
	var all []*corev1.ContainerStatus
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			all = append(all, &statuses[i])
		}
	}
	return all
}

func containerIssue(s *corev1.ContainerStatus, gated bool) issue {
	if s.Ready || gated && s.State.Running != nil {
		return issue{}
	}
	last := s.LastTerminationState.Terminated
	if s.State.Terminated != nil {
		last = s.State.Terminated
	}
	if last != nil && gated && last.ExitCode == contract.ExitConfig {
		return issue{what: misconfigured, lasting: true}
	}
	if w := s.State.Waiting; w != nil {
		if t := waitingIssue(s.Name, w, last, gated); t.what != "" {
			return t
		}
	}
	if last != nil && !gated && last.ExitCode != 0 {
		// The text is the same while the container terminates, waits and runs again.
		return issue{what: fmt.Sprintf("container %s does not stay up, it ended with status %d", s.Name, last.ExitCode), detail: last.Message}
	}
	return issue{}
}

func waitingIssue(name string, w *corev1.ContainerStateWaiting, last *corev1.ContainerStateTerminated, gated bool) issue {
	switch {
	case gated && w.Reason == crashLoop && last != nil:
		return issue{what: fmt.Sprintf("%s, last with status %d%s (%s)", backOff, last.ExitCode, meanings[last.ExitCode], crashLoop), lasting: true}
	case slices.Contains(unpulled, w.Reason):
		return issue{what: fmt.Sprintf("container %s can't pull its image (%s)", name, strings.Join(unpulled, ", ")), detail: w.Message, lasting: true}
	case slices.Contains(lasting, w.Reason):
		return issue{what: fmt.Sprintf("container %s waits: %s", name, w.Reason), detail: w.Message, lasting: true}
	}
	return issue{}
}

// unreadyFor returns how long a pod has not been ready: since it was created, or since it was last ready.
func unreadyFor(pod *corev1.Pod, now time.Time) time.Duration {
	return unchangedFor(pod, now, corev1.PodReady)
}

// unchangedFor returns how long none of these conditions has changed, counted at most from the creation of the pod. A change in the future
// comes from another clock and is ignored.
func unchangedFor(pod *corev1.Pod, now time.Time, conditions ...corev1.PodConditionType) time.Duration {
	since := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if at := c.LastTransitionTime.Time; slices.Contains(conditions, c.Type) && at.After(since) && !at.After(now) {
			since = at
		}
	}
	return now.Sub(since)
}

// stuck returns what a candidate waits for that takes too long, if no other problem is known.
func stuck(pod *corev1.Pod) issue {
	see := "see kubectl describe pod " + pod.Name
	for _, s := range containerStatuses(pod) {
		switch w := s.State.Waiting; {
		case s.Ready:
		case w != nil && w.Reason == "ContainerCreating", w != nil && w.Reason == "PodInitializing" && s.LastTerminationState.Terminated == nil:
			if !started(pod) {
				return issue{what: fmt.Sprintf("none of its containers has started (%s)", w.Reason), detail: "it may be waiting for a volume, a ConfigMap, a Secret or an image; " + see}
			}
			return issue{what: fmt.Sprintf("container %s waits: %s", s.Name, w.Reason), detail: "it may be waiting for its image; " + see} // its volumes are mounted
		case w != nil:
			return issue{what: fmt.Sprintf("container %s waits: %s", s.Name, w.Reason), detail: w.Message}
		case s.State.Running != nil:
			return issue{what: fmt.Sprintf("container %s runs but does not become ready", s.Name), detail: see}
		case s.State.Terminated != nil:
			return issue{what: fmt.Sprintf("container %s has ended with status %d", s.Name, s.State.Terminated.ExitCode), detail: see}
		}
	}
	switch {
	case pod.Spec.NodeName == "":
		return issue{what: "it has no node yet", detail: see}
	case len(pod.Status.ContainerStatuses) == 0:
		return issue{what: fmt.Sprintf("node %s has not reported its status", pod.Spec.NodeName), detail: see}
	}
	return issue{what: "its containers are ready, but the pod is not", detail: see}
}

// started reports whether a container of the pod has ever run.
func started(pod *corev1.Pod) bool {
	return slices.ContainsFunc(containerStatuses(pod), func(s *corev1.ContainerStatus) bool {
		return s.State.Waiting == nil || s.LastTerminationState.Terminated != nil
	})
}

// failureOf returns why a pod has failed.
func failureOf(pod *corev1.Pod) issue {
	reason, message := pod.Status.Reason, pod.Status.Message
	for _, s := range containerStatuses(pod) {
		if t := s.State.Terminated; reason == "" && t != nil && t.ExitCode != 0 {
			reason = fmt.Sprintf("container %s ended with status %d", s.Name, t.ExitCode)
		}
	}
	return issue{what: "failed: " + cmp.Or(reason, "without a reason"), detail: message}
}
