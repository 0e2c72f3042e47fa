package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// members are the pods around a tenure.
type members struct {
	// candidates are the job's pods, by ordinal, and those with an agent that no controller owns any more, which are to be the job's. Foreign
	// pods, those of a previous job of the name and whatever else carries its labels, are none.
	candidates []candidate
	// failing are the candidates of the present template that have failed, the newest last. A template that changed starts
	// afresh.
	failing []candidate
	// strangers are pods whose agents would take runs of this job for those of a previous one of its name.
	strangers []*corev1.Pod
	// previous are a previous job's objects that are in the way of the first candidates.
	previous []string
	// volumes are the claims that they share.
	volumes []Volume
	// fleet is the candidates in numbers.
	fleet Fleet
	// strategy is the job's.
	strategy strategy
	// noRoom is how long one pod more is waited for still that finds no room; 0 if none is, or no longer.
	noRoom time.Duration
	// mover is the pod that is to take the place of a standby on the holder's node and is not ready yet, nil if there is none.
	mover *candidate
	// move is what is to be done about standbys on the holder's node.
	move move
	// turn is the job's part in a rollout of all jobs.
	turn turn
}

// candidate is a pod of the job.
type candidate struct {
	pod     *corev1.Pod
	ordinal int
	// orphan: no controller owns it, as after a deletion that left the pods. It contends like any other, and is adopted before anything else is
	// done to pods.
	orphan bool
	// updated: it was made from the present template and settings.
	updated bool
	ready   bool
	// unwell: it holds the Lease and its process runs, but that is not ready by its own probes. That is for people to know, and
	// for who sends it requests; there is nothing to replace.
	unwell bool
	// unready is for how long it has not been ready, or for how long it has, if it is.
	unready time.Duration
	// terminating: it is being deleted. terminal: it will never run again.
	terminating, terminal bool
	// able: its agent has run, so that it may act again whatever it is at present. One that was never placed, or has no image, may not.
	able bool
	// holds: the Lease names it as the holder. beside: it is on the holder's node.
	holds, beside bool
	// apart: it was made for another node than the holder's of that time.
	apart bool
	// failure is how it ended, if it is terminal.
	failure *failure
	// issue is why it does not get ready, as far as known.
	issue issue
}

// live reports whether it counts as a candidate: a pod that is on its way out is replaced at once, because on a node that
// is cut off that way has no end.
func (c candidate) live() bool { return !c.terminating && !c.terminal }

// unmanaged reports whether who acts is none of the job's pods: a copy of one, or one that has lost the label or the owner by which they are
// known. Nothing that is done to the job's pods reaches it.
func (m *members) unmanaged(t *tenure) bool {
	return t.shown && !m.any(func(c candidate) bool { return c.holds })
}

// available reports whether it holds the Lease or can take it.
func (c candidate) available() bool { return c.live() && c.ready }

// inPlace reports whether nothing is to be done for it to be of use.
func (c candidate) inPlace() bool { return c.available() || c.live() && c.unwell }

// isStandby reports whether it can take over.
func (c candidate) isStandby() bool { return c.available() && !c.holds }

// isElsewhere reports whether it can take over and would not be lost with the holder's node.
func (c candidate) isElsewhere() bool { return c.isStandby() && !c.beside }

// runsToAnEnd reports whether its process is not to be stopped for a rollout.
func (c candidate) runsToAnEnd() bool { return c.holds && runsFor(c.pod) != "" }

// contended reports whether a pod may act though no run is due, as those may that an earlier job has left whose process was to run for ever.
func (m *members) contended() bool {
	return m.any(func(c candidate) bool { return c.live() && agents(c.pod) != nil && runsFor(c.pod) == "" })
}

func (c candidate) ref() PodRef { return PodRef{Name: c.pod.Name, UID: c.pod.UID} }

func membersOf(j *job, t *tenure, r *runs, o *Observed) *members {
	m := sorted(j, t, o)
	for i := range m.candidates {
		if c := &m.candidates[i]; r != nil && hasLeft(c.pod) {
			c.terminal, c.failure = true, nil
		}
	}
	m.seekTurn(j, r, o.Turn)
	for _, c := range m.candidates {
		if c.failure != nil && c.updated && !c.terminating {
			m.failing = append(m.failing, c)
		}
	}
	slices.SortStableFunc(m.failing, func(a, b candidate) int { return a.failure.compare(b.failure) })
	m.mover = moverOf(m.candidates, int(j.Spec.Candidates))
	m.fleet = m.fleetOf(j, t)
	if r != nil {
		// How long a process runs says nothing of its version, and none is stopped for a rollout, unless it was to run for ever.
		m.fleet.Soaked, m.fleet.Failed = !m.fleet.HolderOld, false
		m.fleet.Busy = m.fleet.HolderOld && m.any(candidate.runsToAnEnd)
	}
	m.seekRoom(j, o.OverQuota)
	return m
}

// sorted has each pod where it belongs.
func sorted(j *job, t *tenure, o *Observed) *members {
	m := &members{previous: o.Previous, volumes: o.Volumes, strategy: j.strategy}
	for _, pod := range o.Pods {
		switch owner := metav1.GetControllerOf(pod); {
		case isStranger(pod, j):
			if mayStartRuns(pod, o.clock()) {
				m.strangers = append(m.strangers, pod)
			}
		case owner == nil && agents(pod) != nil, owner != nil && owner.UID == j.UID:
			c := candidateOf(pod, j.updated(), t.holder, o)
			c.orphan = owner == nil
			m.candidates = append(m.candidates, c)
		}
	}
	slices.SortFunc(m.candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.ordinal, b.ordinal), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	return m
}

// hasLeft reports whether a pod's agent has ended since nothing was left to do. It does not come again, though other containers may keep
// the pod running.
func hasLeft(pod *corev1.Pod) bool {
	ended := agentStatus(pod).State.Terminated
	return pod.Status.Phase == corev1.PodSucceeded ||
		pod.Status.Phase != corev1.PodFailed && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways && ended != nil && ended.ExitCode == 0
}

// candidateOf reads a pod. updated is how the names of the present template's begin.
func candidateOf(pod *corev1.Pod, updated string, h holder, o *Observed) candidate {
	ordinal, err := strconv.Atoi(pod.Name[strings.LastIndex(pod.Name, "-")+1:])
	if err != nil {
		ordinal = len(o.Pods) // after all others
	}
	c := candidate{
		pod:         pod,
		ordinal:     ordinal,
		updated:     strings.HasPrefix(pod.Name, updated),
		ready:       isReady(pod),
		unready:     unreadyFor(pod, o.Now),
		terminating: pod.DeletionTimestamp != nil,
		terminal:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		able:        hasRun(pod),
		holds:       h.named && h.Pod == pod.Name && h.PodUID == string(pod.UID),
		beside:      h.node != "" && h.node == pod.Spec.NodeName,
		apart:       pod.Annotations[inject.KeptFromAnnotation] != "",
		issue:       issueOf(pod),
	}
	c.ready = c.ready || !c.holds && standsReady(pod) && !o.NotReady[pod.Spec.NodeName]
	c.unwell = c.holds && !c.ready && isUnwell(pod)
	if c.terminal {
		c.failure = failed(pod, o.Now)
	}
	return c
}

// hasRun reports whether the agent of a pod has been started, or any container where it can't be told which one is its.
func hasRun(pod *corev1.Pod) bool {
	agent := agents(pod)
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		ran := s.RestartCount > 0 || s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
		return ran && (agent == nil || s.Name == agent.Name)
	})
}

// isUnwell reports whether the process of a holder's pod runs and is not ready by its own probes.
func isUnwell(pod *corev1.Pod) bool {
	_, probed, _ := configured(pod)
	s := agentStatus(pod)
	return probed && s.State.Running != nil && !s.Ready
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// standsReady reports whether a pod that does not act can take the Lease, though it is not ready as a whole: its gated container is ready, and
// the kubelet says that it is the rest that is not. A readiness gate, or a sidecar, may get ready only where the program answers. The
// node controller, which takes a lost node's pods for not ready, gives no such reason; one that was not ready before it leaves as it was, so
// the node has a say, too. An operator that may not read nodes learns of it when the pod is evicted.
func standsReady(pod *corev1.Pod) bool {
	s := agentStatus(pod)
	return s.State.Running != nil && s.Ready && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		// Of k8s.io/kubernetes, pkg/kubelet/status/generate.go.
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && (c.Reason == "ContainersNotReady" || c.Reason == "ReadinessGatesNotReady")
	}) && !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running == nil // one that does not even start waits for nobody
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

// UnknownAgent stands for the image of agents of which no operator has noted any, as earlier ones did not.
const UnknownAgent = "unknown"

// agents are the candidates by the images of their agents.
func (m *members) agents() map[string]int {
	all := map[string]int{}
	for _, c := range m.candidates {
		if c.live() {
			all[agentOf(c.pod)]++
		}
	}
	return all
}

// agentOf is the image that a pod notes, if it may be one: anybody may write an annotation, and what is no UTF-8 or without end makes no label
// of a metric.
func agentOf(pod *corev1.Pod) string {
	const longest = 512
	image := pod.Annotations[contract.AgentImageAnnotation]
	if image == "" || len(image) > longest || !utf8.ValidString(image) {
		return UnknownAgent
	}
	return image
}

// lacking reports whether candidates are missing or not ready.
func (m *members) lacking() bool { return m.count(candidate.inPlace) < m.fleet.Desired }

// able is 1 for an old standby that is not ready, and could act all the same.
func able(c candidate) int {
	if c.updated || c.ready || !c.able {
		return 0
	}
	return 1
}

func (m *members) fleetOf(j *job, t *tenure) Fleet {
	fleet := Fleet{Desired: int(j.Spec.Candidates), InPlace: j.strategy.inPlace, Paused: j.Spec.Strategy.Paused, Mover: m.mover != nil}
	for _, c := range m.candidates {
		switch {
		case !c.live(), m.isMover(c):
		case c.holds && c.updated:
			fleet.HolderNew, fleet.Soaked = true, t.unsoaked(j.updated(), j.preparation()) == 0 && c.ready
		case c.holds:
			fleet.HolderOld, fleet.Silent = true, t.silent()
		default:
			*Standbys(&fleet, c.updated, c.ready)++
			fleet.OldAble += able(c)
			fleet.Unplaced = fleet.Unplaced || c.updated && c.pod.Spec.NodeName == ""
		}
	}
	fleet.Failed = fleet.outdated() && !fleet.Soaked && t.failedEarly(j.updated(), j.preparation(), j.grace())
	// A foreign one holds for as long as it likes, and nobody is tried meanwhile.
	fleet.Soaked = fleet.Soaked || t.holder.foreign
	return fleet
}

// moverOf is the pod that is to take the place of a standby on the holder's node and is not ready yet, nil if there is none. One that
// has a node may be a candidate as any other, and not be ready just now: it is so if it is needed for their number.
func moverOf(candidates []candidate, desired int) *candidate {
	live := 0
	for _, c := range candidates {
		if c.live() {
			live++
		}
	}
	for i, c := range slices.Backward(candidates) {
		if c.live() && c.apart && !c.ready && !c.holds && (c.pod.Spec.NodeName == "" || c.updated && live > desired) {
			return &candidates[i]
		}
	}
	return nil
}

func (m *members) isMover(c candidate) bool { return m.mover != nil && m.mover.pod == c.pod }

// seekRoom says whether one pod more than asked for finds no room and has been waited for long enough: no quota or no node takes
// it, and one of the old standbys has what it needs.
func (m *members) seekRoom(j *job, overQuota time.Duration) {
	given := m.first(func(c candidate) bool { return c.isStandby() && !c.updated })
	if given == nil { // one that is kept to fall back to is in the way, too
		given = m.first(func(c candidate) bool { return c.live() && !c.holds && !c.updated })
	}
	if given == nil {
		return
	}
	var waited time.Duration
	if overQuota > 0 && asksForNoMore(&given.pod.Spec, &j.Spec.Template.Spec) {
		waited = overQuota
	}
	for _, c := range m.candidates {
		if c.live() && c.updated && c.issue.unplaced && fitsInPlaceOf(given.pod, c.pod) {
			waited = max(waited, c.unready)
		}
	}
	m.fleet.NoRoom = waited >= m.strategy.patience
	if waited > 0 {
		m.noRoom = max(0, m.strategy.patience-waited)
	}
}
