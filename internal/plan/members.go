package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// members are the pods around a tenure.
type members struct {
	// candidates are the job's pods, by ordinal.
	candidates []candidate
	// failing are the candidates of the present template that have failed, the newest last. A template that changed starts
	// afresh.
	failing []candidate
	// orphans are pods that no controller owns any more. Foreign pods, those of a previous job of the name and whatever
	// else carries its labels, are neither.
	orphans []*corev1.Pod
	// fleet is the candidates in numbers.
	fleet Fleet
}

// candidate is a pod of the job.
type candidate struct {
	pod     *corev1.Pod
	ordinal int
	// updated: it was made from the present template and settings.
	updated bool
	ready   bool
	// unwell: it holds the Lease and its process runs, but that is not ready by its own probes. That is for people to know, and
	// for who sends it requests; there is nothing to replace.
	unwell bool
	// unready is for how long it has not been ready.
	unready time.Duration
	// terminating: it is being deleted. terminal: it will never run again.
	terminating, terminal bool
	// holds: the Lease names it as the holder. beside: it is on the holder's node.
	holds, beside bool
	// failure is how it ended, if it is terminal.
	failure *failure
	// issue is why it does not get ready, as far as known.
	issue issue
}

// live reports whether it counts as a candidate: a pod that is on its way out is replaced at once, because on a node that
// is cut off that way has no end.
func (c candidate) live() bool { return !c.terminating && !c.terminal }

// available reports whether it holds the Lease or can take it.
func (c candidate) available() bool { return c.live() && c.ready }

// inPlace reports whether nothing is to be done for it to be of use.
func (c candidate) inPlace() bool { return c.available() || c.live() && c.unwell }

// isStandby reports whether it can take over.
func (c candidate) isStandby() bool { return c.available() && !c.holds }

func (c candidate) ref() PodRef { return PodRef{Name: c.pod.Name, UID: c.pod.UID} }

func membersOf(j *job, t *tenure, pods []*corev1.Pod, now time.Time) *members {
	m := &members{}
	for _, pod := range pods {
		switch owner := metav1.GetControllerOf(pod); {
		case owner == nil && gated(pod) != "":
			m.orphans = append(m.orphans, pod)
		case owner != nil && owner.UID == j.UID:
			m.candidates = append(m.candidates, candidateOf(pod, j.updated(), t.holder, len(pods), now))
		}
	}
	slices.SortFunc(m.candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.ordinal, b.ordinal), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	for _, c := range m.candidates {
		if c.failure != nil && c.updated && !c.terminating {
			m.failing = append(m.failing, c)
		}
	}
	slices.SortStableFunc(m.failing, func(a, b candidate) int { return a.failure.compare(b.failure) })
	m.fleet = fleetOf(j, t, m.candidates)
	return m
}

// candidateOf reads a pod. updated is how the names of the present template's begin, last an ordinal after all others.
func candidateOf(pod *corev1.Pod, updated string, h holder, last int, now time.Time) candidate {
	ordinal, err := strconv.Atoi(pod.Name[strings.LastIndex(pod.Name, "-")+1:])
	if err != nil {
		ordinal = last
	}
	c := candidate{
		pod:         pod,
		ordinal:     ordinal,
		updated:     strings.HasPrefix(pod.Name, updated),
		ready:       isReady(pod),
		unready:     unreadyFor(pod, now),
		terminating: pod.DeletionTimestamp != nil,
		terminal:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		holds:       h.named && h.Pod == pod.Name && h.PodUID == string(pod.UID),
		beside:      h.node != "" && h.node == pod.Spec.NodeName,
		issue:       issueOf(pod, gated(pod)),
	}
	c.unwell = c.holds && !c.ready && isUnwell(pod)
	if c.terminal {
		c.failure = failed(pod, now)
	}
	return c
}

// isUnwell reports whether the process of a holder's pod runs and is not ready by its own probes.
func isUnwell(pod *corev1.Pod) bool {
	_, probed, _ := configured(pod)
	name := gated(pod)
	return probed && slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == name && s.State.Running != nil && !s.Ready
	})
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// count is the number of candidates of which something holds.
func (m *members) count(holds func(candidate) bool) int {
	n := 0
	for _, c := range m.candidates {
		if holds(c) {
			n++
		}
	}
	return n
}

func (m *members) any(holds func(candidate) bool) bool {
	return slices.ContainsFunc(m.candidates, holds)
}

// first is the first candidate of which something holds, nil if there is none.
func (m *members) first(holds func(candidate) bool) *candidate {
	if i := slices.IndexFunc(m.candidates, holds); i >= 0 {
		return &m.candidates[i]
	}
	return nil
}

// newestFailed is nil if none has failed.
func (m *members) newestFailed() *candidate {
	if len(m.failing) == 0 {
		return nil
	}
	return &m.failing[len(m.failing)-1]
}

// lacking reports whether candidates are missing or not ready.
func (m *members) lacking() bool { return m.count(candidate.inPlace) < m.fleet.Desired }

func fleetOf(j *job, t *tenure, candidates []candidate) Fleet {
	fleet := Fleet{Desired: int(j.Spec.Candidates)}
	for _, c := range candidates {
		switch {
		case !c.live():
		case c.holds && c.updated:
			fleet.HolderNew, fleet.Soaked = true, t.unsoaked() == 0 && !c.unwell
		case c.holds:
			fleet.HolderOld = true
		default:
			*Standbys(&fleet, c.updated, c.ready)++
		}
	}
	fleet.Failed = fleet.outdated() && !fleet.Soaked && t.failedEarly(j.updated(), j.grace())
	return fleet
}
