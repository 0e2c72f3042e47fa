package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// FailuresAnnotation on a candidate tells how many failed in a row before it: candidates of one template whose pods ended
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

// failure is what a pod tells that has failed.
type failure struct {
	// row is the number of failures in a row, with this one.
	row int
	// ended is when it ended.
	ended time.Time
}

// failed tells how a finished pod ended. Its times are of several clocks, none of which need be right: a time that is yet to
// come is not when it ended, and only a container's own two times are compared with each other.
func (f *facts) failed(pod *corev1.Pod) *failure {
	e := &failure{row: 1, ended: pod.CreationTimestamp.Time}
	note := func(at time.Time) {
		if at.After(e.ended) && !at.After(f.Now) {
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

// failing are the candidates of the present template that have failed, the newest last. A template that changed starts afresh.
func (f *facts) failing() []candidate {
	var failed []candidate
	for _, c := range f.candidates {
		if c.failure != nil && c.updated && !c.leaving {
			failed = append(failed, c)
		}
	}
	slices.SortStableFunc(failed, func(a, b candidate) int {
		return cmp.Or(a.failure.ended.Compare(b.failure.ended), cmp.Compare(a.failure.row, b.failure.row))
	})
	return failed
}

// newestFailed is nil if none has failed.
func (f *facts) newestFailed() *candidate {
	failed := f.failing()
	if len(failed) == 0 {
		return nil
	}
	return &failed[len(failed)-1]
}

// delayed is how long a failed candidate's place stays empty still.
func (f *facts) delayed(c candidate) time.Duration {
	if c.failure == nil {
		return 0
	}
	return max(0, c.failure.delay()-f.Now.Sub(c.failure.ended))
}

// places is how many of n candidates may be made now: one that has failed keeps its place until its delay is over, so that
// what happens to others meanwhile is mended at once.
func (f *facts) places(n int) int {
	for _, c := range f.failing() {
		if f.delayed(c) > 0 {
			n--
		}
	}
	return max(0, n)
}

// remains are pods that will never run again. Of those of the present template the newest stays while candidates are
// missing and a while longer, so that a person can see what became of it, and those whose delay is not over. The one that the
// Lease names stays: it shows what became of the holder.
func (f *facts) remains() []PodRef {
	newest := f.newestFailed()
	var refs []PodRef
	for _, c := range f.candidates {
		switch {
		case !c.finished, c.leaving, c.holds:
		case c.updated && f.delayed(c) > 0:
		case newest != nil && c.pod == newest.pod && f.shows(c):
		default:
			refs = append(refs, c.ref())
		}
	}
	return refs
}

// shows tells whether a failed pod is still of interest.
func (f *facts) shows(c candidate) bool {
	return f.count(isStandby) < int(f.job.Spec.Candidates) || f.shownFor(c) > 0
}

func (f *facts) shownFor(c candidate) time.Duration {
	return goodRun - f.Now.Sub(c.failure.ended)
}

// row is how many have failed in a row before a candidate that is made now.
func (f *facts) row() int {
	row := 0
	for _, c := range f.failing() {
		row = max(row, c.failure.row)
	}
	return row
}

// failureOf says why a pod has failed.
func failureOf(pod *corev1.Pod) trouble {
	reason, message := pod.Status.Reason, pod.Status.Message
	for _, s := range containerStatuses(pod) {
		if t := s.State.Terminated; reason == "" && t != nil && t.ExitCode != 0 {
			reason = fmt.Sprintf("container %s ended with status %d", s.Name, t.ExitCode)
		}
	}
	return trouble{what: "failed: " + cmp.Or(reason, "without a reason"), detail: message}
}

// wakeForFailed is when a failed candidate is replaced, or no longer of interest.
func (f *facts) wakeForFailed(at func(time.Duration)) {
	for _, c := range f.failing() {
		at(f.delayed(c))
		if f.count(isStandby) >= int(f.job.Spec.Candidates) {
			at(f.shownFor(c))
		}
	}
}
