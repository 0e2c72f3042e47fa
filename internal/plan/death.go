package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/lease"
)

// death is proof that the holder's process is dead.
type death struct {
	reason lease.Reason
	// ended is the time of death for the history, in microseconds of the wall clock of the machine that the process died on.
	ended int64
	// after is how long the Lease must have been unchanged before the proof is accepted.
	after time.Duration
}

// deathOf looks for proof of death. Releasing a Lease while its holder lives lets a second process start, so a mere indication of death
// does not count. A missing pod is no proof (it may have been deleted by force while its node was cut off). An unreachable node is no proof
// either. A Node object that no longer exists is no proof: deleting it stops no kubelet, and the node controllers of clouds delete it only
// long after the lease has expired. In those cases only time decides.
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
		// An administrator declared that the machine is off. A holder that still renews disproves that.
		return &death{reason: lease.ReasonNodeLost, ended: r.RenewTime, after: 2 * h.limits.retryPeriod}
	}
	return nil
}

// containerDied reports whether the kubelet reports the end of the container whose agent holds the Lease. If so, the kernel
// has killed every process of its PID namespace. The possible interleavings:
//
//   - The container ended before this agent's tenure: the report is about an earlier run of the container, and the current run
//     holds the Lease. Then finishedAt is not after acquireTime; both come from the node's clock. The kubelet truncates finishedAt
//     to seconds, which can only make this function miss a proof.
//   - The container was restarted and runs: this function concludes nothing. The new agent may be the holder. If it is not, it
//     finds out by itself whether the last one is dead.
//   - The container was restarted, and the new agent acquires after the Lease was read here: the release is conditional on the
//     revision that was read, and fails.
//   - The container was restarted, the new agent has acquired, and the kubelet's report of the restart is late. The condition
//     finishedAt > acquireTime excludes this case as long as the node's clock does not go back. If it was set back in between, two
//     more conditions apply. The run that ended must have begun before the acquire, and must have ended at most a lease duration
//     after the last renewal. So only a clock step of about the lease duration, at that moment, and while the kubelet lags, can
//     lead to a wrong proof. A step of hours can't.
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

// madeUp reports whether the reported end was not observed by anything. The kubelet, and runtimes that lost a container, must report some
// end, but the processes may live. docs/decisions/035-what-a-restart-proves.md lists what each component writes. Some of these reports have
// a time, which is the time of the report.
func madeUp(t *corev1.ContainerStateTerminated) bool {
	switch {
	case t.StartedAt.IsZero(), t.FinishedAt.IsZero():
		return true
	case t.Reason == "Unknown", t.Reason == "ContainerStatusUnknown":
		return true
	default: // containerd and CRI-O. An agent that itself exits with this code has released its Lease.
		return t.ExitCode == unknownExit || t.ExitCode < 0
	}
}

// unknownExit is the exit code that runtimes report for a container whose end they did not observe.
const unknownExit = 255

// lastEnd returns how the container's last run ended, nil if it may be running now.
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
