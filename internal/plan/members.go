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
	// candidates are the job's pods, by ordinal, and pods with an agent and no controller, which the job will adopt. Pods of an earlier job
	// with the same name, and other pods with the same labels, are not candidates.
	candidates []candidate
	// failing are the failed candidates of the current template, the newest last. A changed template starts again without any.
	failing []candidate
	// strangers are pods whose agents would take runs of this job for those of a previous job with this name.
	strangers []*corev1.Pod
	// previous are the objects of a previous job that block the first candidates.
	previous []string
	// volumes are the claims that the pods share.
	volumes []Volume
	// fleet is the number of candidates in each state.
	fleet Fleet
	// strategy is the rollout strategy of the job.
	strategy strategy
	// noRoom is the remaining time to wait for a surge pod that cannot be scheduled. It is 0 if there is no such pod, or the wait is over.
	noRoom time.Duration
	// mover is the pod that will replace a standby on the holder's node and is not ready yet; nil if there is none.
	mover *candidate
	// move is what to do about standbys on the holder's node.
	move move
	// turn is this job's place in a fleet-wide rollout.
	turn turn
}

// candidate is a pod of the job.
type candidate struct {
	pod     *corev1.Pod
	ordinal int
	// orphan: the pod has no controller, for example after a deletion that left the pods. It takes part in the election like any other
	// candidate, and is adopted before anything else is done to pods.
	orphan bool
	// updated: the pod was created from the current template and settings.
	updated bool
	ready   bool
	// unwell: the pod holds the Lease and its process runs, but is not ready by its own probes. That matters to users and to clients of the
	// process; nothing needs to be replaced.
	unwell bool
	// unready is how long the pod has not been ready, or, if it is ready, how long it has been.
	unready time.Duration
	// terminating: the pod is being deleted. terminal: it will never run again.
	terminating, terminal bool
	// able: the agent of the pod has run, so it can act again whatever its current state. A pod that was never placed, or has no image,
	// can't.
	able bool
	// holds: the Lease names the pod as the holder. beside: the pod is on the holder's node.
	holds, beside bool
	// apart: the pod was created for a node other than the holder's node at that time.
	apart bool
	// failure is how the pod ended, if it is terminal.
	failure *failure
	// issue is why the pod does not become ready, if known.
	issue issue
}

// live reports whether the pod counts as a candidate. A terminating pod does not, and is replaced at once, because on a node that is cut
// off its termination may never end.
func (c candidate) live() bool { return !c.terminating && !c.terminal }

// unmanaged reports whether the acting pod is not one of the job's pods. It can be a copy of one, or have lost the label or owner by which
// the operator knows them. Changes to the job's pods do not reach it.
func (m *members) unmanaged(t *tenure) bool {
	return t.shown && !m.any(func(c candidate) bool { return c.holds })
}

// available reports whether the pod holds the Lease or can take it.
func (c candidate) available() bool { return c.live() && c.ready }

// inPlace reports whether the pod is usable and needs no further action.
func (c candidate) inPlace() bool { return c.available() || c.live() && c.unwell }

// isStandby reports whether the pod can take over.
func (c candidate) isStandby() bool { return c.available() && !c.holds }

// isElsewhere reports whether the pod can take over and would not be lost with the holder's node.
func (c candidate) isElsewhere() bool { return c.isStandby() && !c.beside }

// runsToAnEnd reports whether the pod's process must not be stopped for a rollout.
func (c candidate) runsToAnEnd() bool { return c.holds && runsFor(c.pod) != "" }

// contended reports whether a pod may act although no run is due: a pod of an earlier job whose process was to run indefinitely.
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
		// How long a process runs says nothing about its version. No process is stopped for a rollout, unless it was to run indefinitely.
		m.fleet.Soaked, m.fleet.Failed = !m.fleet.HolderOld, false
		m.fleet.Busy = m.fleet.HolderOld && m.any(candidate.runsToAnEnd)
	}
	m.seekRoom(j, o.OverQuota)
	return m
}

// sorted assigns each observed pod to its group.
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

// hasLeft reports whether a pod's agent has ended because nothing was left to do. It does not start again, although other containers may
// keep the pod running.
func hasLeft(pod *corev1.Pod) bool {
	ended := agentStatus(pod).State.Terminated
	return pod.Status.Phase == corev1.PodSucceeded ||
		pod.Status.Phase != corev1.PodFailed && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways && ended != nil && ended.ExitCode == 0
}

// candidateOf reads a pod. updated is the prefix of the names of pods with the current template.
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

// hasRun reports whether the agent of a pod was ever started, or any container if the agent's container can't be determined.
func hasRun(pod *corev1.Pod) bool {
	agent := agents(pod)
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		ran := s.RestartCount > 0 || s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
		return ran && (agent == nil || s.Name == agent.Name)
	})
}

// isUnwell reports whether the process of a holder's pod runs but is not ready by its own probes.
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

// standsReady reports whether a pod that does not act can take the Lease although the pod as a whole is not ready. Its gated container must
// be ready, and the kubelet must report that only the rest is not. A readiness gate or a sidecar may become ready only where the program
// answers. The node controller, which marks the pods of a lost node as not ready, gives no such reason. It leaves a pod unchanged that was
// not ready before, so the caller must also check the node. An operator without permission to read nodes learns of a lost node when the pod
// is evicted.
func standsReady(pod *corev1.Pod) bool {
	s := agentStatus(pod)
	return s.State.Running != nil && s.Ready && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		// The reasons are from k8s.io/kubernetes, pkg/kubelet/status/generate.go.
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && (c.Reason == "ContainersNotReady" || c.Reason == "ReadinessGatesNotReady")
	}) && !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running == nil // a container that has not started does not wait for the program
	})
}

// count returns the number of candidates for which holds is true.
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

// first returns the first candidate for which holds is true, nil if there is none.
func (m *members) first(holds func(candidate) bool) *candidate {
	if i := slices.IndexFunc(m.candidates, holds); i >= 0 {
		return &m.candidates[i]
	}
	return nil
}

// newestFailed returns nil if no candidate has failed.
func (m *members) newestFailed() *candidate {
	if len(m.failing) == 0 {
		return nil
	}
	return &m.failing[len(m.failing)-1]
}

// UnknownAgent stands for the image of agents for which the pod records none, as with earlier operators.
const UnknownAgent = "unknown"

// agents counts the candidates by the images of their agents.
func (m *members) agents() map[string]int {
	all := map[string]int{}
	for _, c := range m.candidates {
		if c.live() {
			all[agentOf(c.pod)]++
		}
	}
	return all
}

// agentOf returns the image that a pod records, if it is usable. Anyone can write an annotation, and text that is not UTF-8 or is too long
// can't be a label of a metric.
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

// able is 1 for an old standby that is not ready but could still act.
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
			fleet.HolderNew, fleet.Soaked = true, t.soaked(j.updated(), j.preparation())
		case c.holds:
			fleet.HolderOld, fleet.Silent = true, t.silent()
		default:
			*Standbys(&fleet, c.updated, c.ready)++
			fleet.OldAble += able(c)
			fleet.Unplaced = fleet.Unplaced || c.updated && c.pod.Spec.NodeName == ""
		}
	}
	fleet.Failed = fleet.outdated() && !fleet.Soaked && t.failedEarly(j.updated(), j.preparation(), j.grace())
	// A foreign holder keeps the Lease as long as it likes, and no version is tried during that time.
	fleet.Soaked = fleet.Soaked || t.holder.foreign
	return fleet
}

// moverOf returns the pod that will replace a standby on the holder's node and is not ready yet; nil if there is none. A pod that has a
// node may be a regular candidate that is just not ready. It is one if it is needed to reach the desired number.
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

// seekRoom determines whether a surge pod can't be scheduled and the operator has waited long enough for it. Then a quota or all nodes
// reject it, and an old standby has the resources that it needs.
func (m *members) seekRoom(j *job, overQuota time.Duration) {
	given := m.first(func(c candidate) bool { return c.isStandby() && !c.updated })
	if given == nil { // a standby that is kept as a fallback also takes up room
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
