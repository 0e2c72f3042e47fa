package plan

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// victims are the candidates that a step removes. Which ones depends on nothing but what was observed, so that one who
// observes a little late picks the same again and not one more. Who is asked to take over stays until that is done.
func victims(m *members, s Step, asked string) []PodRef {
	ranked := slices.Clone(m.candidates)
	slices.SortStableFunc(ranked, func(a, b candidate) int {
		// First who never ran, then who shares the holder's node and would be lost with it, then the youngest.
		return cmp.Or(compareBool(a.able, b.able), -compareBool(a.beside, b.beside), -cmp.Compare(a.ordinal, b.ordinal))
	})
	var refs []PodRef
	for _, c := range ranked {
		switch left := Removals(&s, c.updated, c.ready); {
		case !c.live():
		case c.holds:
			if s.RemoveHolder {
				refs = append(refs, c.ref())
			}
		case m.isMover(c):
			if s.GiveUpMove {
				refs = append(refs, c.ref())
			}
		case *left > 0:
			*left--
			if c.pod.Name != asked {
				refs = append(refs, c.ref())
			}
		}
	}
	return refs
}

// adopt are the pods that the job is to own. Who deletes a job and keeps its pods takes their owner away first, which an operator with an old
// cache sees before it knows of the deletion. So nothing is done to a pod that nobody owns but that.
func adopt(m *members) []PodRef {
	var refs []PodRef
	for _, c := range m.candidates {
		if c.orphan {
			refs = append(refs, c.ref())
		}
	}
	return refs
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// successor is the standby that the holder is to hand over to, empty for none: of those that are ready the first, one on
// another node before one on the holder's.
func successor(t *tenure, m *members, s Step) string {
	if !s.HandOver || t.wasNotTaken() {
		return ""
	}
	fit := func(c candidate) bool { return c.isStandby() && c.updated }
	asked := func(c candidate) bool { return fit(c) && c.pod.Name == t.Record.Handover.To }
	elsewhere := func(c candidate) bool { return fit(c) && !c.beside }
	for _, holds := range []func(candidate) bool{asked, elsewhere, fit} {
		if c := m.first(holds); c != nil {
			return c.pod.Name
		}
	}
	return ""
}

// newPods makes n candidates under the lowest names that are free. A name follows from the job, its template and a
// number, so that one who sees an old state asks for a name that is taken, and not for one more pod.
func newPods(j *job, m *members, o *Observed, n int) []*corev1.Pod {
	taken := map[string]bool{}
	for _, pod := range o.Pods {
		taken[pod.Name] = true
	}
	var pods []*corev1.Pod
	for ordinal := 0; len(pods) < n; ordinal++ {
		if taken[inject.PodName(j.Name, j.hash, ordinal)] {
			continue
		}
		pod, err := inject.Pod(j.SingletonJob, ordinal, o.Settings)
		if err != nil {
			panic(err) // the spec was found valid
		}
		pod.Labels[contract.RoleLabel] = contract.RoleStandby
		if j.ref != nil {
			pod.Annotations[WorkloadAnnotation] = j.ref.String()
		}
		if row := m.row(); row > 0 {
			pod.Annotations[FailuresAnnotation] = strconv.Itoa(row)
		}
		pods = append(pods, pod)
	}
	return pods
}

// creatable is how many of n candidates may be made now: one that has failed counts as one until its delay is over, so that
// what happens to others meanwhile is mended at once.
func (m *members) creatable(n int) int {
	for _, c := range m.failing {
		if c.failure.delayed() > 0 {
			n--
		}
	}
	return max(0, n)
}

// remains are pods that will never run again. Of those of the present template the newest stays while candidates are
// missing and a while longer, so that a person can see what became of it, and those whose delay is not over. The one that the
// Lease names stays: it shows what became of the holder.
func (m *members) remains() []PodRef {
	newest := m.newestFailed()
	var refs []PodRef
	for _, c := range m.candidates {
		switch {
		case !c.terminal, c.terminating, c.holds:
		case c.updated && c.failure != nil && c.failure.delayed() > 0:
		case newest != nil && c.pod == newest.pod && (m.lacking() || c.failure.shownFor() > 0):
		default:
			refs = append(refs, c.ref())
		}
	}
	return refs
}

// row is how many have failed in a row before a candidate that is made now.
func (m *members) row() int {
	row := 0
	for _, c := range m.failing {
		row = max(row, c.failure.row)
	}
	return row
}

// strayLimit is how long the holder of a suspended job is spared for the sake of standbys that do not go.
const strayLimit = 10 * time.Second

// suspend removes the standbys, then the holder: the other way round, a standby would take over for a moment. A standby
// that is cut off and does not go must not keep the job from being suspended for ever.
func suspend(m *members, now time.Time) []PodRef {
	var refs []PodRef
	for _, c := range m.candidates {
		if !c.terminating && !c.holds {
			refs = append(refs, c.ref())
		}
	}
	if len(refs) > 0 || m.strayLeft(now) > 0 {
		return refs
	}
	for _, c := range m.candidates {
		if !c.terminating {
			refs = append(refs, c.ref())
		}
	}
	return refs
}

// strayLeft is how long to wait still for standbys that are going; 0 if none is or the wait is over.
func (m *members) strayLeft(now time.Time) time.Duration {
	var left time.Duration
	for _, c := range m.candidates {
		if !c.terminating || c.holds {
			continue
		}
		var grace time.Duration
		if seconds := c.pod.DeletionGracePeriodSeconds; seconds != nil {
			grace = time.Duration(*seconds) * time.Second
		}
		asked := c.pod.DeletionTimestamp.Add(-grace)
		left = max(left, strayLimit-now.Sub(asked))
	}
	return left
}

// relabel gives every candidate its role, active to who acts and nobody else, and its name, which those of older operators lack.
func relabel(t *tenure, m *members) []Relabel {
	var demoted, promoted []Relabel
	acts := acting(t, m)
	for _, c := range m.candidates {
		role := contract.RoleStandby
		if acts != nil && acts.pod == c.pod {
			role = contract.RoleActive
		}
		switch {
		case c.orphan:
		case c.pod.Labels[contract.RoleLabel] == role && c.pod.Labels[contract.PodLabel] == c.pod.Name:
		case role == contract.RoleActive:
			promoted = append(promoted, Relabel{c.ref(), role})
		default:
			demoted = append(demoted, Relabel{c.ref(), role})
		}
	}
	return append(demoted, promoted...)
}

// rest are the pods that are not needed while no run is. Who holds the Lease is never among them, and what ran last stays for its log:
// its agent ends by itself.
func rest(m *members, r *runs) []PodRef {
	var refs []PodRef
	for _, c := range m.candidates {
		if !c.terminating && !c.holds && !r.ranLast(c.pod) {
			refs = append(refs, c.ref())
		}
	}
	return refs
}
