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

// victims returns the candidates that a step removes. The choice depends only on what was observed, so that an operator with slightly stale
// data picks the same ones again and none in addition. The pod that was asked to take over stays until it has.
func victims(m *members, s Step, asked string) []PodRef {
	ranked := slices.Clone(m.candidates)
	slices.SortStableFunc(ranked, func(a, b candidate) int {
		// First pods that never ran, then pods on the holder's node that would be lost with it, then the youngest.
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

// adopt returns the pods that the job must own. Deleting a job with its pods kept first removes the owner from the pods, and an operator
// with a stale cache sees that before it learns of the deletion. So adopting is the only thing that is done to a pod without an owner.
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

// successor returns the standby that the holder must hand over to, or an empty name. It is the first ready standby; one on another node
// comes before one on the holder's node.
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

// newPods returns n candidates with the lowest free names. A name follows from the job, its template and a number, so that an operator with
// stale data requests a name that is taken, and not one more pod.
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

// creatable returns how many of n candidates can be created now. A failed candidate counts as one until its delay has passed, so that other
// lost candidates are replaced at once.
func (m *members) creatable(n int) int {
	for _, c := range m.failing {
		if c.failure.delayed() > 0 {
			n--
		}
	}
	return max(0, n)
}

// remains returns the pods to remove that will never run again. Some of them stay. The newest one of the current template stays while
// candidates are missing and for a while after that, so that a user can see what happened to it. Those whose delay has not passed stay too.
// The one that the Lease names stays, because it shows what happened to the holder.
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

// row returns how many candidates failed in a row before one that is created now.
func (m *members) row() int {
	row := 0
	for _, c := range m.failing {
		row = max(row, c.failure.row)
	}
	return row
}

// strayLimit is how long the holder of a suspended job is kept while standbys are still terminating.
const strayLimit = 10 * time.Second

// suspend removes the standbys, then the holder: in the other order, a standby would take over for a moment. A standby that is cut off and
// does not terminate must not block the suspension indefinitely.
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

// strayLeft returns how long to wait for terminating standbys; 0 if there are none or the wait is over.
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

// relabel gives every candidate its role and its name label. Only the acting pod gets the role active. Pods of older operators lack the
// name label.
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

// rest returns the pods that are not needed while there is no run. The holder of the Lease is never one of them. The pod of the last run
// stays because of its log; its agent ends by itself.
func rest(m *members, r *runs) []PodRef {
	var refs []PodRef
	for _, c := range m.candidates {
		if !c.terminating && !c.holds && !r.ranLast(c.pod) {
			refs = append(refs, c.ref())
		}
	}
	return refs
}
