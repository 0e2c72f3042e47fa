package plan

import (
	"cmp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// FailuresAnnotation on a candidate is how many failed in a row before it: candidates of one template whose pods ended
// for good, as those do that a kubelet rejects or evicts. It is what an operator that was restarted needs to know.
const FailuresAnnotation = "singletonjob.io/failures"

// How long a failed candidate is waited for before another is made. The first is replaced at once: it was drained or its
// node was short of something. From then on it takes twice as long each time, as a kubelet restarts containers.
const (
	firstDelay = 10 * time.Second
	maxDelay   = 5 * time.Minute
	// goodRun is how long a candidate must have lasted for its failure to be the first again, and how long the newest
	// failed pod is kept after all is well: below the quarter of an hour after which people are alerted to failed pods.
	goodRun = 10 * time.Minute
)

// failure is how a pod ended that has failed.
type failure struct {
	// row is the number of failures in a row, with this one.
	row int
	// ended is when it ended, and ago how long ago that was.
	ended time.Time
	ago   time.Duration
}

// failed reads how a finished pod ended. Its times are of several clocks, none of which need be right: a time that is yet to
// come is not when it ended, and only a container's own two times are compared with each other.
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

// maxRow is a number of failures in a row from which on more make no difference.
const maxRow = 100

// delay is how long after a failure another candidate is made.
func (e *failure) delay() time.Duration {
	if e.row <= 1 {
		return 0
	}
	return min(maxDelay, firstDelay<<min(e.row-2, 10))
}

// delayed is how long a failed candidate is not replaced yet.
func (e *failure) delayed() time.Duration { return max(0, e.delay()-e.ago) }

// shownFor is how long a failed pod is of interest still though all is well.
func (e *failure) shownFor() time.Duration { return goodRun - e.ago }

// compare says which of two failures is the newer one.
func (e *failure) compare(other *failure) int {
	return cmp.Or(e.ended.Compare(other.ended), cmp.Compare(e.row, other.row))
}
