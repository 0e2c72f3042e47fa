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

// serve keeps the candidates as the spec asks.
func (f *facts) serve(p *Plan) {
	p.Apply, p.Also = f.children()
	for _, pod := range f.orphans {
		p.Adopt = append(p.Adopt, PodRef{Name: pod.Name, UID: pod.UID})
	}
	fleet := f.fleet()
	next := Next(fleet)
	p.Delete = append(f.remains(), f.victims(next)...)
	p.Create = f.newPods(f.places(next.Create))
	if f.holder.ours && !f.quiet() {
		p.Lease = f.handOver(f.successor(next))
	}
}

func (f *facts) fleet() Fleet {
	fleet := Fleet{Want: int(f.job.Spec.Candidates)}
	vetted, _ := f.vetted()
	for _, c := range f.candidates {
		switch {
		case !c.live():
		case c.holds && c.updated:
			fleet.HolderNew, fleet.Vetted = true, vetted
		case c.holds:
			fleet.HolderOld = true
		case c.updated && c.ready:
			fleet.NewReady++
		case c.updated:
			fleet.NewUnready++
		case c.ready:
			fleet.OldReady++
		default:
			fleet.OldUnready++
		}
	}
	fleet.Failed = fleet.outdated() && !fleet.Vetted && f.failedTrial()
	return fleet
}

// outdated tells whether a rollout is under way.
func (f Fleet) outdated() bool { return f.total() > f.updated() }

// victims are the candidates that a step removes. Which ones depends on nothing but what was observed, so that one who
// observes a little late picks the same again and not one more.
func (f *facts) victims(s Step) []PodRef {
	ranked := slices.Clone(f.candidates)
	slices.SortStableFunc(ranked, func(a, b candidate) int {
		// First who shares the holder's node and would be lost with it, then the youngest.
		return cmp.Or(-compareBool(f.besideHolder(a), f.besideHolder(b)), -cmp.Compare(a.ordinal, b.ordinal))
	})
	var refs []PodRef
	for _, c := range ranked {
		var left *int
		switch {
		case !c.live():
			continue
		case c.holds:
			if s.RemoveHolder {
				refs = append(refs, c.ref())
			}
			continue
		case c.updated && c.ready:
			left = &s.NewReady
		case c.updated:
			left = &s.NewUnready
		case c.ready:
			left = &s.OldReady
		default:
			left = &s.OldUnready
		}
		if *left > 0 {
			*left--
			refs = append(refs, c.ref())
		}
	}
	return refs
}

func (f *facts) besideHolder(c candidate) bool {
	return f.holder.node != "" && c.pod.Spec.NodeName == f.holder.node
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
func (f *facts) successor(s Step) string {
	if !s.HandOver || f.wasNotTaken() {
		return ""
	}
	fit := func(c candidate) bool { return c.live() && c.updated && c.ready && !c.holds }
	if to := f.record.Handover.To; f.any(func(c candidate) bool { return fit(c) && c.pod.Name == to }) {
		return to // already asked for
	}
	best := ""
	for _, c := range f.candidates {
		if fit(c) && (best == "" || !f.besideHolder(c)) {
			best = c.pod.Name
			if !f.besideHolder(c) {
				break
			}
		}
	}
	return best
}

// newPods makes n candidates under the lowest names that are free. A name follows from the job, its template and a
// number, so that one who sees an old state asks for a name that is taken, and not for one more pod.
func (f *facts) newPods(n int) []*corev1.Pod {
	taken := map[string]bool{}
	for _, pod := range f.Pods {
		taken[pod.Name] = true
	}
	var pods []*corev1.Pod
	for ordinal := 0; len(pods) < n; ordinal++ {
		if taken[inject.PodName(f.job.Name, f.hash, ordinal)] {
			continue
		}
		pod, err := inject.Pod(f.job, ordinal, f.Settings)
		if err != nil {
			panic(err) // the spec was found valid
		}
		pod.Labels[contract.RoleLabel] = contract.RoleStandby
		if row := f.row(); row > 0 {
			pod.Annotations[FailuresAnnotation] = strconv.Itoa(row)
		}
		pods = append(pods, pod)
	}
	return pods
}

// strayLimit is how long the holder of a suspended job is spared for the sake of standbys that do not go.
const strayLimit = 10 * time.Second

// suspend removes the standbys, then the holder: the other way round, a standby would take over for a moment. A standby
// that is cut off and does not go must not keep the job from being suspended for ever.
func (f *facts) suspend() []PodRef {
	var refs []PodRef
	for _, c := range f.candidates {
		if !c.leaving && !c.holds {
			refs = append(refs, c.ref())
		}
	}
	if len(refs) > 0 || f.strayLeft() > 0 {
		return refs
	}
	for _, c := range f.candidates {
		if !c.leaving {
			refs = append(refs, c.ref())
		}
	}
	return refs
}

// strayLeft is how long to wait still for standbys that are going; 0 if none is or the wait is over.
func (f *facts) strayLeft() time.Duration {
	var left time.Duration
	for _, c := range f.candidates {
		if !c.leaving || c.holds {
			continue
		}
		var grace time.Duration
		if seconds := c.pod.DeletionGracePeriodSeconds; seconds != nil {
			grace = time.Duration(*seconds) * time.Second
		}
		asked := c.pod.DeletionTimestamp.Add(-grace)
		left = max(left, strayLimit-f.Now.Sub(asked))
	}
	return left
}

// relabel gives every candidate its role: active is who acts, and nobody else. One that runs on though it cannot renew
// (KeepRunning) acts until there is another tenure.
func (f *facts) relabel() []Relabel {
	var demoted, promoted []Relabel
	for _, c := range f.candidates {
		role := contract.RoleStandby
		if c.holds && (f.acts() || f.holder.ours && f.holder.settings.keepRunning && !f.dead()) {
			role = contract.RoleActive
		}
		switch {
		case c.pod.Labels[contract.RoleLabel] == role:
		case role == contract.RoleActive:
			promoted = append(promoted, Relabel{c.ref(), role})
		default:
			demoted = append(demoted, Relabel{c.ref(), role})
		}
	}
	return append(demoted, promoted...)
}
