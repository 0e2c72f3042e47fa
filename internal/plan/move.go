package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// MoveAnnotation on a standby says when it was last tried to move one away from the holder's node, and which nodes could have taken it.
const MoveAnnotation = "singletonjob.io/move-tried"

const (
	// moveAfter is how long standbys have shared the holder's node before one is moved: a rollout or a failover may do it anyway.
	moveAfter = 30 * time.Second
	// placeWithin is how long a pod that is made for another node is waited for that no node takes.
	placeWithin = time.Minute
	// moveAgain is when it is tried again on nodes on which it was tried before.
	moveAgain = 10 * time.Minute
	// maxNodes is how many nodes are noted by their names. Of more it makes no difference which ones they were.
	maxNodes  = 16
	manyNodes = "*"
)

// move is what is to be done about standbys that share the holder's node.
type move struct {
	// due: one more is to be made elsewhere as soon as nothing else is under way. note is what will have been tried then.
	due  bool
	note string
	// awaited: the one that was made is worth to be waited for.
	awaited bool
	// left is how long until time alone makes a difference; 0 for never.
	left time.Duration
	// text is what a person is told, after that the standbys share a node.
	text string
}

// together reports whether there are ready standbys, and all on the holder's node.
func (m *members) together() bool { return m.any(candidate.isStandby) && !m.any(candidate.isElsewhere) }

// moved reports whether there is one too many because a standby was moved.
func (m *members) moved() bool {
	return m.fleet.total() == m.fleet.Desired+1 && m.any(func(c candidate) bool { return c.apart && c.isElsewhere() }) &&
		m.any(func(c candidate) bool { return c.beside && c.isStandby() })
}

// beside is the standby that goes when another is ready elsewhere: the one that victims would pick.
func (m *members) beside() *candidate {
	for i, c := range slices.Backward(m.candidates) {
		if c.isStandby() && c.beside {
			return &m.candidates[i]
		}
	}
	return nil
}

// seekMove says what is to be done about standbys on the holder's node.
func (m *members) seekMove(j *job, t *tenure, asked switchover, o *Observed) {
	m.move = moveOf(j, t, m, asked, o)
	m.fleet.Together, m.fleet.Awaited = m.move.due, m.move.awaited
}

func moveOf(j *job, t *tenure, m *members, asked switchover, o *Observed) move {
	if m.mover != nil {
		return awaiting(j, t, m, o)
	}
	if !t.shown || !m.together() || m.confinedText() != "" {
		return move{}
	}
	if why := immovable(j, o); why != "" {
		return move{text: why}
	}
	free := m.freeNodes(o)
	last := m.lastTry(o.Now)
	switch {
	case len(free) == 0:
		return move{left: moveAgain, text: "no other node can take one: each is cordoned, not ready or tainted, or does not match the node selector or affinity of the pods"}
	case last.covers(free):
		return move{left: moveAgain - last.ago, text: "another node was tried, but the pod for it did not fit, exceeded a quota or did not become ready; the operator tries again later"}
	}
	next := move{note: last.with(free, o.Now), text: "one is moved to another node if this lasts for a while and nothing else is in progress"}
	for _, c := range m.candidates {
		if c.isStandby() {
			next.left = max(next.left, moveAfter-c.unready)
		}
	}
	next.due = next.left == 0 && o.OverQuota == 0 && t.Record.Handover.To == "" && asked.to == ""
	return next
}

// awaiting is what is to be done about the mover.
func awaiting(j *job, t *tenure, m *members, o *Observed) move {
	limit := placeWithin
	if m.mover.pod.Spec.NodeName != "" {
		limit = max(limit, j.strategy.deadline)
	}
	left := max(0, limit-asItIs(m.mover.pod, o.Now))
	// Without a holder nobody is beside it: then it goes on.
	wanted := !t.holder.named || !m.any(candidate.isElsewhere)
	return move{
		awaited: left > 0 && wanted && m.mover.updated && o.OverQuota == 0,
		left:    left,
		text:    m.mover.pod.Name + " was created for another node; when it is ready, a standby on this node is removed",
	}
}

// immovable is why no standby of a job is ever moved, empty if one may be.
func immovable(j *job, o *Observed) string {
	const byHand = ": delete one when another node can take it"
	switch {
	case j.strategy.inPlace:
		return "spec.strategy.maxSurge is 0, so none is moved" + byHand
	case j.Spec.RunPolicy == v1alpha1.RunPolicyRunToCompletion:
		return "a standby of a job that runs to completion is not moved"
	case j.Spec.Template.Spec.NodeName != "":
		return "the template sets nodeName, so none can be moved"
	case o.NodesUnknown:
		return "the operator has no permission to read nodes (nodes.read in its chart), so none is moved" + byHand
	}
	return ""
}

// freeNodes are those without a pod of the job that take one, as far as nodes say it, sorted. Whether there is room only a scheduler
// knows.
func (m *members) freeNodes(o *Observed) []string {
	taken := map[string]bool{}
	for _, pod := range o.Pods {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			taken[pod.Spec.NodeName] = true
		}
	}
	standby := m.beside()
	if standby == nil {
		return nil
	}
	var free []string
	for _, node := range o.Nodes {
		if !taken[node.Name] && takes(node, standby.pod) {
			free = append(free, node.Name)
		}
	}
	slices.Sort(free)
	return free
}

// takes reports whether a node is for a pod like this one, which is as admission left it.
func takes(node *corev1.Node, pod *corev1.Pod) bool {
	if !NodeReady(node) || node.Spec.Unschedulable || node.DeletionTimestamp != nil {
		return false
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return unlogged(t.ToleratesTaint, taint)
		})
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated {
			return false
		}
	}
	required := nodeaffinity.NewRequiredNodeAffinity(pod.Spec.NodeSelector, &corev1.Affinity{NodeAffinity: inject.NodeAffinity(pod)})
	matches, err := required.Match(node)
	return matches && err == nil
}

// NodeReady reports whether a node says that it is ready.
func NodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// unlogged asks without the logger, which would hear of values that are no numbers.
func unlogged[Logger any](tolerates func(Logger, *corev1.Taint, bool) bool, taint *corev1.Taint) bool {
	var nowhere Logger
	return tolerates(nowhere, taint, false)
}

// asItIs is for how long a pod that is not ready has been made, or has had a node.
func asItIs(pod *corev1.Pod, now time.Time) time.Duration {
	return unchangedFor(pod, now, corev1.PodScheduled, corev1.PodReady)
}

// try is what is noted of one: how long ago it was, and for which nodes.
type try struct {
	ago   time.Duration
	nodes []string
}

// lastTry is the newest that is noted on a standby and still counts, without nodes if there is none. What was tried before the holder
// became it was tried for another holder's sake. A time that is yet to come is that of another clock, and none.
func (m *members) lastTry(now time.Time) try {
	last := try{ago: moveAgain}
	for _, c := range m.candidates {
		when, nodes, _ := strings.Cut(c.pod.Annotations[MoveAnnotation], " ")
		at, err := time.Parse(time.RFC3339, when)
		if ago := now.Sub(at); err == nil && c.live() && !c.holds && ago >= 0 && ago < last.ago {
			last = try{ago, strings.Split(nodes, ",")}
		}
	}
	return last
}

// covers reports whether all these nodes were tried.
func (t try) covers(nodes []string) bool {
	return slices.Contains(t.nodes, manyNodes) || !slices.ContainsFunc(nodes, func(n string) bool { return !slices.Contains(t.nodes, n) })
}

// with is the note of a try with more nodes. Those of the last one stay, so that a node that comes and goes is tried once.
func (t try) with(nodes []string, now time.Time) string {
	all := slices.Concat(t.nodes, nodes)
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > maxNodes {
		all = []string{manyNodes}
	}
	return now.UTC().Format(time.RFC3339) + " " + strings.Join(all, ",")
}

// newMove is the pod that a step makes for another node, nil for none.
func newMove(j *job, t *tenure, m *members, o *Observed, s Step) *Move {
	beside := m.beside()
	if !s.Move || beside == nil {
		return nil
	}
	pod := newPods(j, m, o, 1)[0]
	delete(pod.Annotations, FailuresAnnotation) // should it fail, no other is made to wait
	inject.KeepFrom(pod, t.holder.node)
	return &Move{Beside: beside.ref(), Note: m.move.note, Pod: pod}
}

// togetherText says that every ready standby is on the holder's node, and what becomes of that.
func (m *members) togetherText() string {
	const fact = "every ready standby is on the node of the active pod and would be lost with it"
	return fmt.Sprintf("%s: %s", fact, cmp.Or(m.move.text, "one is moved when another node can take it"))
}
