package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// trouble is what keeps a pod from getting ready; zero if nothing is known to be wrong.
type trouble struct {
	// what is stable: who, the state that it is in, and the reason that the kubelet gives.
	what string
	// detail is the kubelet's own text. It may differ each time, by a duration or an id, and may be of any length.
	detail string
	// lasting: time alone does not heal it.
	lasting bool
}

const (
	// misconfigured is what of a candidate whose agent refused its configuration. A process that ends with the same status
	// looks alike.
	misconfigured = "status 78: the agent or the process refuses its configuration; see the container's log"
	// backOff begins what of a candidate whose gated container waits to be restarted.
	backOff = "the process exits again and again"
)

// Reasons for waiting that time alone does not heal.
var (
	lasting  = []string{"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
	unpulled = []string{"ErrImagePull", "ImagePullBackOff"} // a kubelet goes to and fro between them
)

const crashLoop = "CrashLoopBackOff"

// troubleOf is why a pod does not get ready.
func troubleOf(pod *corev1.Pod, gated string) trouble {
	for _, s := range containerStatuses(pod) {
		if t := containerTrouble(s, s.Name == gated); t.what != "" {
			return t
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return trouble{what: "no node takes it", detail: c.Message, lasting: true}
		}
	}
	return trouble{}
}

// containerStatuses are in the order in which containers start.
func containerStatuses(pod *corev1.Pod) []*corev1.ContainerStatus {
	var all []*corev1.ContainerStatus
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			all = append(all, &statuses[i])
		}
	}
	return all
}

func containerTrouble(s *corev1.ContainerStatus, gated bool) trouble {
	if s.Ready || gated && s.State.Running != nil {
		return trouble{}
	}
	last := s.LastTerminationState.Terminated
	if s.State.Terminated != nil {
		last = s.State.Terminated
	}
	if last != nil && gated && last.ExitCode == contract.ExitConfig {
		return trouble{what: misconfigured, lasting: true}
	}
	if w := s.State.Waiting; w != nil {
		if t := waitingTrouble(s.Name, w, last, gated); t.what != "" {
			return t
		}
	}
	if last != nil && !gated && last.ExitCode != 0 {
		// The same words while it ends, waits and runs again.
		return trouble{what: fmt.Sprintf("container %s does not stay up, it ended with status %d", s.Name, last.ExitCode), detail: last.Message}
	}
	return trouble{}
}

func waitingTrouble(name string, w *corev1.ContainerStateWaiting, last *corev1.ContainerStateTerminated, gated bool) trouble {
	switch {
	case gated && w.Reason == crashLoop && last != nil:
		return trouble{what: fmt.Sprintf("%s, last with status %d (%s)", backOff, last.ExitCode, crashLoop), lasting: true}
	case slices.Contains(unpulled, w.Reason):
		return trouble{what: fmt.Sprintf("container %s gets no image (%s)", name, strings.Join(unpulled, ", ")), detail: w.Message, lasting: true}
	case slices.Contains(lasting, w.Reason):
		return trouble{what: fmt.Sprintf("container %s waits: %s", name, w.Reason), detail: w.Message, lasting: true}
	}
	return trouble{}
}

// patience is how long a candidate may take to get ready before its being so is called a trouble.
const patience = 2 * time.Minute

// unready is for how long a candidate has not been ready: since it was made, or since it was ready last.
func (f *facts) unready(c candidate) time.Duration {
	since := c.pod.CreationTimestamp.Time
	for _, condition := range c.pod.Status.Conditions {
		if at := condition.LastTransitionTime.Time; condition.Type == corev1.PodReady && at.After(since) && !at.After(f.Now) {
			since = at
		}
	}
	return f.Now.Sub(since)
}

// stuck tells what a candidate waits for that takes too long, if nothing else is known to be wrong with it.
func stuck(pod *corev1.Pod) trouble {
	see := "see kubectl describe pod " + pod.Name
	for _, s := range containerStatuses(pod) {
		switch w := s.State.Waiting; {
		case s.Ready:
		case w != nil && w.Reason == "ContainerCreating", w != nil && w.Reason == "PodInitializing" && s.LastTerminationState.Terminated == nil:
			if !started(pod) {
				return trouble{what: fmt.Sprintf("none of its containers has started (%s)", w.Reason), detail: "perhaps for a volume, a ConfigMap, a Secret or an image; " + see}
			}
			return trouble{what: fmt.Sprintf("container %s waits: %s", s.Name, w.Reason), detail: "perhaps for its image; " + see} // volumes are there
		case w != nil:
			return trouble{what: fmt.Sprintf("container %s waits: %s", s.Name, w.Reason), detail: w.Message}
		case s.State.Running != nil:
			return trouble{what: fmt.Sprintf("container %s runs and does not get ready", s.Name), detail: see}
		case s.State.Terminated != nil:
			return trouble{what: fmt.Sprintf("container %s has ended with status %d", s.Name, s.State.Terminated.ExitCode), detail: see}
		}
	}
	switch {
	case pod.Spec.NodeName == "":
		return trouble{what: "no node was chosen for it", detail: see}
	case len(pod.Status.ContainerStatuses) == 0:
		return trouble{what: fmt.Sprintf("node %s has not said anything of it", pod.Spec.NodeName), detail: see}
	}
	return trouble{what: "its containers are ready and it is not", detail: see}
}

// started tells whether a container of the pod has ever run.
func started(pod *corev1.Pod) bool {
	return slices.ContainsFunc(containerStatuses(pod), func(s *corev1.ContainerStatus) bool {
		return s.State.Waiting == nil || s.LastTerminationState.Terminated != nil
	})
}

// maxDetail bounds what is shown of other people's texts.
const maxDetail = 512

// bounded makes one line of a text, of at most so many bytes.
func bounded(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	const more = " ..."
	cut := most - len(more)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + more
}

// name tells of a pod's trouble. It ends a message. The detail stays the first one for as long as the rest is the same: a
// text that differs each time would be a write each time.
func (s *situation) name(pod *corev1.Pod, t trouble) string {
	head := pod.Name + ": " + bounded(t.what, maxDetail)
	for i := range s.job.Status.Conditions {
		if _, first, said := strings.Cut(s.job.Status.Conditions[i].Message, head+": "); said && t.detail != "" {
			return head + ": " + first
		}
	}
	if detail := bounded(t.detail, maxDetail); detail != "" {
		return head + ": " + detail
	}
	return head
}
