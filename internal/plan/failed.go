package plan

import (
	"cmp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// FailuresAnnotation on a candidate is the number of candidates that failed in a row before it. It counts candidates of one template whose
// pods ended for good, for example because a kubelet rejected or evicted them. An operator needs it after a restart.
const FailuresAnnotation = "singletonjob.io/failures"

// The delays before a failed candidate is replaced. The first one is replaced at once: it was drained, or its node ran short of a resource.
// After that the delay doubles each time, as it does when a kubelet restarts containers.
const (
	firstDelay = 10 * time.Second
	maxDelay   = 5 * time.Minute
	// goodRun is how long a candidate must have lasted for its failure to count as the first one again. It is also how long the newest
	// failed pod is kept after everything is well: less than the 15 minutes after which failed pods raise alerts.
	goodRun = 10 * time.Minute
)

// failure describes how a failed pod ended.
type failure struct {
	// row is the number of failures in a row, including this one.
	row int
	// ended is when the pod ended, and ago how long ago that was.
	ended time.Time
	ago   time.Duration
}

// failed determines how a finished pod ended. Its times come from several clocks, and any of them can be wrong. So a time in the future is
// ignored, and only the two times of the same container are compared with each other.
func failed(pod *corev1.Pod, now time.Time) *failure {
	e := &failure{row: 1, ended: pod.CreationTimestamp.Time}
	note := func(at time.Time) {
		if at.After(e.ended) && !at.After(now) {
			e.ended = at
		}
	}
	for _, c := range pod.Status.Conditions {
		note(c.LastTransitionTime.Time)
	}
	ran := false
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil {
			note(t.FinishedAt.Time)
			ran = ran || !t.StartedAt.IsZero() && t.FinishedAt.Sub(t.StartedAt.Time) >= goodRun
		}
	}
	if before, err := strconv.Atoi(pod.Annotations[FailuresAnnotation]); err == nil && !ran {
		e.row += max(0, min(before, maxRow))
	}
	e.ago = now.Sub(e.ended)
	return e
}

// maxRow is the number of failures in a row from which more make no difference.
const maxRow = 100

// delay is the time between a failure and the creation of the replacement.
func (e *failure) delay() time.Duration {
	if e.row <= 1 {
		return 0
	}
	return min(maxDelay, firstDelay<<min(e.row-2, 10))
}

// delayed is the remaining time before a failed candidate is replaced.
func (e *failure) delayed() time.Duration { return max(0, e.delay()-e.ago) }

// shownFor is the remaining time to keep a failed pod although everything is well.
func (e *failure) shownFor() time.Duration { return goodRun - e.ago }

// compare orders two failures: the newer one is greater.
func (e *failure) compare(other *failure) int {
	return cmp.Or(e.ended.Compare(other.ended), cmp.Compare(e.row, other.row))
}
