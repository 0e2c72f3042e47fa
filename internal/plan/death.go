package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/lease"
)

// death is proof that the holder's process is dead.
type death struct {
	reason lease.Reason
	// ended is when, in wall-clock microseconds of the machine that it died on, for the history.
	ended int64
	// after is how long the Lease must have been unchanged before the proof is believed.
	after time.Duration
}

// deathOf looks for proof of death. A Lease that is released while its holder lives lets a second process start, so
// what merely suggests death counts for nothing: not a pod that is absent (it may have been deleted by force while its
// node was cut off), not a node that is unreachable, and not a Node object that is gone: deleting it stops no kubelet, and
// the node controllers of clouds delete it only long after the lease has run out by itself. Then time alone decides.
func deathOf(r lease.Record, h holder, pod *corev1.Pod, outOfService map[string]bool) *death {
	if h.Pod == "" {
		return nil
	}
	if pod != nil {
		if ended, ok := containerDied(pod, r, h.limits.duration); ok {
			return &death{reason: lease.ReasonHolderTerminated, ended: ended}
		}
	}
	if outOfService[h.node] {
		// An administrator's word that the machine is off. One who still renews proves it wrong.
		return &death{reason: lease.ReasonNodeLost, ended: r.RenewTime, after: 2 * h.limits.retryPeriod}
	}
	return nil
}

// containerDied reports whether the kubelet says that the very container whose agent holds the Lease has ended; then the
// kernel has ended every process of its PID namespace. How the interleavings come out:
//
//   - The container ended before this agent's tenure: the report is of an earlier run of it, and the present one holds. Then
//     finishedAt is not after acquireTime; both are of the node's one clock. finishedAt is cut to seconds, which errs
//     towards no proof.
//   - It was restarted and runs: nothing is concluded. The new agent may be the holder, and if it is not, it finds out by itself
//     whether the last one is dead.
//   - It was restarted, and the new agent acquires after the Lease was read here: the release is conditional on the revision
//     that was read, and fails.
//   - It was restarted, the new agent has acquired, and the kubelet's report of the restart is late: excluded by
//     finishedAt > acquireTime as long as the node's clock goes forward. Were it set back in between, the run that ended
//     must also have begun before the acquire and have ended no later than a lease duration after the last renewal, so
//     that only a step of about the lease's own length, in that instant, and while the kubelet lags, could deceive. A step
//     by hours does not.
func containerDied(pod *corev1.Pod, r lease.Record, duration time.Duration) (ended int64, proven bool) {
	t := lastEnd(pod, gated(pod))
	if t == nil || madeUp(t) {
		return 0, false
	}
	const second = int64(time.Second / time.Microsecond)
	began, ended := t.StartedAt.UnixMicro(), t.FinishedAt.UnixMicro()
	proven = began <= r.AcquireTime && r.AcquireTime < ended &&
		r.RenewTime < ended+second && ended <= r.RenewTime+duration.Microseconds()
	return max(ended, r.RenewTime), proven
}

// madeUp reports whether nobody has seen the end that is reported. The kubelet, and runtimes that have lost a container, must say something;
// the processes may live. docs/decisions/035-what-a-restart-proves.md has who writes what. Some have a time, which is that of the report.
func madeUp(t *corev1.ContainerStateTerminated) bool {
	switch {
	case t.StartedAt.IsZero(), t.FinishedAt.IsZero():
		return true
	case t.Reason == "Unknown", t.Reason == "ContainerStatusUnknown":
		return true
	default: // containerd and CRI-O. An agent that ends with this status by itself has released its Lease.
		return t.ExitCode == unknownExit || t.ExitCode < 0
	}
}

// unknownExit is the exit status of what runtimes have not seen end.
const unknownExit = 255

// lastEnd is how the container's last run ended, nil if it may be running now.
func lastEnd(pod *corev1.Pod, container string) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		switch {
		case s.Name != container:
		case s.State.Terminated != nil:
			return s.State.Terminated
		case s.State.Waiting != nil && s.State.Running == nil:
			return s.LastTerminationState.Terminated
		}
	}
	return nil
}
