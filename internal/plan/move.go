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

// MoveAnnotation on a standby records when the operator last tried to move one away from the holder's node, and which nodes could have
// taken it.
const MoveAnnotation = "singletonjob.io/move-tried"

const (
	// moveAfter is how long standbys must have shared the holder's node before one is moved, because a rollout or a failover may do that
	// anyway.
	moveAfter = 30 * time.Second
	// placeWithin is how long the operator waits for a pod for another node to be scheduled.
	placeWithin = time.Minute
	// moveAgain is the time before the same nodes are tried again.
	moveAgain = 10 * time.Minute
	// maxNodes is the maximum number of nodes that are recorded by name. With more, the names make no difference.
	maxNodes  = 16
	manyNodes = "*"
)

// move is what to do about standbys that share the holder's node.
type move struct {
	// due: one more standby must be created elsewhere as soon as nothing else is in progress. note is what to record for that attempt.
	due  bool
	note string
	// awaited: the operator still waits for the pod that was created.
	awaited bool
	// left is the time until time alone makes a difference; 0 for never.
	left time.Duration
	// text is the text for the user that follows the fact that the standbys share a node.
	text string
}

// together reports whether there are ready standbys and all of them are on the holder's node.
func (m *members) together() bool { return m.any(candidate.isStandby) && !m.any(candidate.isElsewhere) }

// moved reports whether there is one candidate too many because a standby was moved.
func (m *members) moved() bool {
	return m.fleet.total() == m.fleet.Desired+1 && m.any(func(c candidate) bool { return c.apart && c.isElsewhere() }) &&
		m.any(func(c candidate) bool { return c.beside && c.isStandby() })
}

// beside returns the standby to remove when another one is ready elsewhere: the one that victims would pick.
func (m *members) beside() *candidate {
	for i, c := range slices.Backward(m.candidates) {
		if c.isStandby() && c.beside {
			return &m.candidates[i]
		}
	}
	return nil
}

// seekMove determines what to do about standbys on the holder's node.
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

// awaiting returns what to do about the mover.
func awaiting(j *job, t *tenure, m *members, o *Observed) move {
	limit := placeWithin
	if m.mover.pod.Spec.NodeName != "" {
		limit = max(limit, j.strategy.deadline)
	}
	left := max(0, limit-asItIs(m.mover.pod, o.Now))
	// Without a holder no standby is beside it. In that case the move continues.
	wanted := !t.holder.named || !m.any(candidate.isElsewhere)
	return move{
		awaited: left > 0 && wanted && m.mover.updated && o.OverQuota == 0,
		left:    left,
		text:    m.mover.pod.Name + " was created for another node; when it is ready, a standby on this node is removed",
	}
}

// immovable returns why no standby of a job is ever moved, empty if one can be.
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

// freeNodes returns the nodes without a pod of the job that can take one, as far as the Node objects show, sorted. Only a scheduler knows
// whether there is room.
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

// takes reports whether a node accepts a pod like this one. The pod is in the state in which admission left it.
func takes(node *corev1.Node, pod *corev1.Pod) bool {
	return NodeReady(node) && !node.Spec.Unschedulable && node.DeletionTimestamp == nil &&
		tolerates(pod, node.Spec.Taints) && matches(pod, node)
}

// MayRun reports whether a node could run a pod of this template, whatever state the node is in now. It ignores the taints by which
// Kubernetes reports that state.
func MayRun(node *corev1.Node, pod *corev1.Pod) bool {
	lasting := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") })
	return tolerates(pod, lasting) && matches(pod, node)
}

func tolerates(pod *corev1.Pod, taints []corev1.Taint) bool {
	for i := range taints {
		taint := &taints[i]
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return unlogged(t.ToleratesTaint, taint)
		})
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated {
			return false
		}
	}
	return true
}

func matches(pod *corev1.Pod, node *corev1.Node) bool {
	required := nodeaffinity.NewRequiredNodeAffinity(pod.Spec.NodeSelector, &corev1.Affinity{NodeAffinity: inject.NodeAffinity(pod)})
	is, err := required.Match(node)
	return is && err == nil
}

// NodeReady reports whether a node's status says that it is ready.
func NodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// unlogged calls tolerates without a logger, which would otherwise log values that are not numbers.
func unlogged[Logger any](tolerates func(Logger, *corev1.Taint, bool) bool, taint *corev1.Taint) bool {
	var nowhere Logger
	return tolerates(nowhere, taint, false)
}

// asItIs returns how long a pod that is not ready has existed or has had a node.
func asItIs(pod *corev1.Pod, now time.Time) time.Duration {
	return unchangedFor(pod, now, corev1.PodScheduled, corev1.PodReady)
}

// try is the record of an attempt: how long ago it was, and for which nodes.
type try struct {
	ago   time.Duration
	nodes []string
}

// lastTry returns the newest attempt that is recorded on a standby and still counts; it has no nodes if there is none. The holder's own
// record does not count, because that attempt was for another holder. A time in the future comes from another clock and is ignored.
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

// with returns the record of an attempt with more nodes. The nodes of the last attempt stay, so that a node that comes and goes is tried
// once.
func (t try) with(nodes []string, now time.Time) string {
	all := slices.Concat(t.nodes, nodes)
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > maxNodes {
		all = []string{manyNodes}
	}
	return now.UTC().Format(time.RFC3339) + " " + strings.Join(all, ",")
}

// newMove returns the pod that a step creates for another node, nil if there is none.
func newMove(j *job, t *tenure, m *members, o *Observed, s Step) *Move {
	beside := m.beside()
	if !s.Move || beside == nil {
		return nil
	}
	pod := newPods(j, m, o, 1)[0]
	delete(pod.Annotations, FailuresAnnotation) // if it fails, no other pod is delayed
	inject.KeepFrom(pod, t.holder.node)
	return &Move{Beside: beside.ref(), Note: m.move.note, Pod: pod}
}

// togetherText says that every ready standby is on the holder's node, and what will be done about it.
func (m *members) togetherText() string {
	const fact = "every ready standby is on the node of the active pod and would be lost with it"
	return fmt.Sprintf("%s: %s", fact, cmp.Or(m.move.text, "one is moved when another node can take it"))
}
