package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/lease"
)

// Trial is what this process has seen of a tenure, by its own monotonic clock.
type Trial struct {
	Token int64
	// Partly: the tenure may have begun long before this process saw it.
	Partly bool
	// Seen is how long ago this process first saw the tenure.
	Seen time.Duration
	// Ready: the tenure lasts, and its pod is ready. For is how long that has lasted without a break. It is negative while the kubelet may
	// still report what the pod was as a standby.
	Ready bool
	For   time.Duration
	// Longest is the longest time for which the pod was ready before that.
	Longest time.Duration
}

// ran returns the longest time for which the pod was ready without a break.
func (t Trial) ran() time.Duration {
	if t.Ready {
		return max(t.Longest, t.For)
	}
	return t.Longest
}

// Trials is what this process remembers of the last tenures of a Lease. It remembers none at first.
type Trials struct {
	lease string
	all   []sighting // oldest first
}

// sighting is what was seen of one tenure.
type sighting struct {
	token  int64
	partly bool
	first  time.Time
	// ready: the pod is ready. since is when that begins to count, changed is when it began by the pod's condition.
	ready          bool
	since, changed time.Time
	longest        time.Duration
}

// See adds what is observed now, and returns what is known. A repeated or an older observation changes nothing.
func (t *Trials) See(l *Lease, pods []*corev1.Pod, now time.Time) []Trial {
	if l.Presence != Ours {
		return nil
	}
	r := &l.Record
	partly := t.lease != r.UID
	if partly {
		*t = Trials{lease: r.UID}
	}
	id, held := lease.ParseIdentity(r.Holder)
	last := t.last()
	switch {
	case last != nil && r.Token < last.token: // an old state from a lagging cache
	case held && (last == nil || r.Token > last.token):
		last.end(r.History, now)
		t.all = append(slices.Clone(t.all[max(0, len(t.all)-lease.HistoryLimit+1):]), sighting{token: r.Token, partly: partly, first: now})
		t.last().look(podOf(pods, id), time.UnixMicro(r.AcquireTime), now)
	case held:
		last.look(podOf(pods, id), time.UnixMicro(r.AcquireTime), now)
	default:
		last.end(r.History, now)
	}
	var known []Trial
	for i := range t.all {
		known = append(known, t.all[i].at(now))
	}
	return known
}

func (t *Trials) last() *sighting {
	if len(t.all) == 0 {
		return nil
	}
	return &t.all[len(t.all)-1]
}

func (s *sighting) at(now time.Time) Trial {
	t := Trial{Token: s.token, Partly: s.partly, Seen: now.Sub(s.first), Ready: s.ready, Longest: s.longest}
	if s.ready {
		t.For = now.Sub(s.since)
	}
	return t
}

// withdrawn is the time in which a kubelet withdraws the readiness of a pod whose agent reports that it is not ready. The kubelet asks every
// 2 s, and acts after three answers, each of which can take 2 s. Until then a new holder's pod can still be ready as a standby.
const withdrawn = 10 * time.Second

// look records the state of the holder's pod, nil if it was not observed. acquired is when the tenure began by the clock of the pod's node.
// The kubelet, which dates the condition, has that clock too.
func (s *sighting) look(pod *corev1.Pod, acquired, now time.Time) {
	changed, ready := readySince(pod)
	if s.ready && (!ready || !changed.Equal(s.changed)) { // another date: it was not ready in between
		s.unready(now.Sub(s.since))
	}
	if !ready || s.ready {
		return
	}
	s.ready, s.changed, s.since = true, changed, now
	if settled := s.first.Add(withdrawn); preparesToBeReady(pod) && changed.Before(acquired) && now.Before(settled) {
		s.since = settled
	}
}

// end records the end of the tenure, if a tenure was seen. This process may learn of it late, so the ready time is not longer than what the
// tenure's own dates leave of it.
func (s *sighting) end(past []lease.PastTenure, now time.Time) {
	if s == nil || !s.ready {
		return
	}
	ran := now.Sub(s.since)
	for _, p := range past {
		if p.Token == s.token && p.Ended > 0 {
			ran = min(ran, time.Duration(p.Ended-p.Acquired)*time.Millisecond-s.since.Sub(s.first))
		}
	}
	s.unready(ran)
}

func (s *sighting) unready(ran time.Duration) {
	s.ready, s.longest = false, max(s.longest, ran)
}

// readySince reports whether a pod is ready, and when its condition says that it became ready.
func readySince(pod *corev1.Pod) (since time.Time, ready bool) {
	if pod == nil {
		return since, false
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return since, false
}

// preparesToBeReady reports whether the agent of a new holder's pod may report that the pod is not ready, until its process is. Without
// that, the process runs and counts as ready as soon as the tenure begins.
func preparesToBeReady(pod *corev1.Pod) bool {
	c, ok := configuration(pod)
	return !ok || c.PreActivate != nil || c.Hooks.PostStart != nil || c.Probes.Startup != nil || c.Probes.Readiness != nil
}
