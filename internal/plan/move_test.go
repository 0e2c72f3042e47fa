package plan

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

// together puts both candidates on node a; node b accepts pods.
func (g *given) together() {
	for _, pod := range g.Pods {
		pod.Spec.NodeName = "a"
	}
	g.node("a", nil)
	g.node("b", nil)
}

// node adds a node that accepts pods.
func (g *given) node(name string, change func(*corev1.Node)) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if change != nil {
		change(node)
	}
	g.Nodes = append(g.Nodes, node)
}

// mover adds a pod that was created for another node that long ago and is still unscheduled.
func (g *given) mover(since time.Duration) *corev1.Pod {
	pod := g.pod(2, "")
	inject.KeepFrom(pod, "a")
	pod.CreationTimestamp = metav1.NewTime(ago(since))
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available",
	}}}
	return pod
}

// noteTry records on the standby that a move was tried.
func (g *given) noteTry(since time.Duration, nodes string) {
	g.Pods[1].Annotations[MoveAnnotation] = ago(since).Format(time.RFC3339) + " " + nodes
}

func (g *given) protected() metav1.Condition {
	for _, c := range statusOr(Decide(g.Observed), g).Conditions {
		if c.Type == v1alpha1.ConditionProtected {
			return c
		}
	}
	return metav1.Condition{}
}

func statusOr(p Plan, g *given) v1alpha1.SingletonJobStatus {
	if p.Status != nil {
		return *p.Status
	}
	return g.Job.Status
}

// TestStandbysToMove: each row says what differs from the first one.
func TestStandbysToMove(t *testing.T) {
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: effect}} }
	}
	only := func(change func(*corev1.Node)) func(*given) {
		return func(g *given) { g.Nodes = nil; g.node("a", nil); g.node("b", change) }
	}
	const (
		noNode = "no other node can take one"
		waits  = "one is moved to another node if"
		inVain = "another node was tried"
	)
	for name, c := range map[string]struct {
		with  func(*given)
		moved bool
		says  string
		wake  time.Duration // 0 for any
	}{
		"another node takes one":           {moved: true, says: waits},
		"it is ready for a short time":     {with: func(g *given) { g.since(1, 10*time.Second) }, says: waits},
		"it is cordoned":                   {with: only(func(n *corev1.Node) { n.Spec.Unschedulable = true }), says: noNode},
		"it is not ready":                  {with: only(func(n *corev1.Node) { n.Status.Conditions = nil }), says: noNode},
		"it has a taint NoSchedule":        {with: only(taint(corev1.TaintEffectNoSchedule)), says: noNode},
		"it has a taint NoExecute":         {with: only(taint(corev1.TaintEffectNoExecute)), says: noNode},
		"it has a taint PreferNoSchedule":  {with: only(taint(corev1.TaintEffectPreferNoSchedule)), moved: true, says: waits},
		"it has a taint that is tolerated": {with: func(g *given) { only(taint(corev1.TaintEffectNoSchedule))(g); g.tolerate() }, moved: true, says: waits},
		"the pods select others": {with: func(g *given) {
			g.Pods[1].Spec.NodeSelector = map[string]string{corev1.LabelHostname: "a"}
		}, says: noNode},
		"the pods require others": {with: func(g *given) { g.require(1, "a") }, says: noNode},
		"the pods require it":     {with: func(g *given) { g.require(1, "b") }, moved: true, says: waits},
		"the standby was kept from it once": {with: func(g *given) {
			inject.KeepFrom(g.Pods[1], "b")
		}, moved: true, says: waits},
		"a pod that leaves is on it": {with: func(g *given) { g.pod(3, "b"); g.terminating(2) }, says: noNode},
		"there are no others":        {with: func(g *given) { g.Nodes = g.Nodes[:1] }, says: noNode, wake: 0},
		"nodes may not be read":      {with: func(g *given) { g.Nodes, g.NodesUnknown = nil, true }, says: "the operator has no permission to read nodes"},
		"the template names a node":  {with: func(g *given) { g.rename(func() { g.Job.Spec.Template.Spec.NodeName = "a" }) }, says: "the template sets nodeName"},
		"no pod more may live":       {with: func(g *given) { g.Job.Spec.Strategy.MaxSurge = new(int32(0)) }, says: "spec.strategy.maxSurge is 0"},
		"it was tried a while ago":   {with: func(g *given) { g.noteTry(9*time.Minute, "b") }, says: inVain},
		"it was tried, by what holds now": {with: func(g *given) {
			g.noteTry(time.Minute, "b")
			g.Pods[0].Annotations = maps.Clone(g.Pods[1].Annotations)
			delete(g.Pods[1].Annotations, MoveAnnotation)
		}, moved: true, says: waits},
		"it was tried long ago":             {with: func(g *given) { g.noteTry(11*time.Minute, "b") }, moved: true, says: waits},
		"it was tried on another node":      {with: func(g *given) { g.noteTry(time.Minute, "c,d") }, moved: true, says: waits},
		"it was tried on many":              {with: func(g *given) { g.noteTry(time.Minute, "*") }, says: inVain},
		"it is to be tried, by a far clock": {with: func(g *given) { g.noteTry(-time.Minute, "b") }, moved: true, says: waits},
		"an invalid value was written":      {with: func(g *given) { g.Pods[1].Annotations[MoveAnnotation] = "b" }, moved: true, says: waits},
		"a quota refuses pods":              {with: func(g *given) { g.OverQuota = time.Second }, says: waits},
		"a handover is asked for": {with: func(g *given) {
			g.Lease.Record.Handover = lease.Handover{To: g.name(1), Reason: lease.ReasonSwitchover}
		}, says: waits},
		"a switchover is asked for": {with: func(g *given) { g.Job.Annotations = map[string]string{contract.SwitchoverAnnotation: "*@100"} }, says: waits},
		"a rollout":                 {with: func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Image = "v2" }, says: waits},
		"a rollout that is paused": {with: func(g *given) {
			g.Job.Spec.Template.Spec.Containers[0].Image, g.Job.Spec.Strategy.Paused = "v2", true
		}, says: waits},
		"paused, and there is no rollout": {with: func(g *given) { g.Job.Spec.Strategy.Paused = true }, moved: true, says: waits},
		"one more is asked for":           {with: func(g *given) { g.Job.Spec.Candidates = 3 }, says: waits},
		"three on one node":               {with: func(g *given) { g.Job.Spec.Candidates = 3; g.pod(2, "a") }, moved: true, says: waits},
		"the holder does not renew":       {with: func(g *given) { g.Lease.Unchanged = 12 * time.Second }, says: "nothing is active"},
		"a volume of one node": {with: func(g *given) {
			g.Volumes = []Volume{{Claim: "c", Asked: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}}
		}, says: "the PersistentVolumeClaim c is ReadWriteOnce"},
		"a third is ready elsewhere":            {with: func(g *given) { g.Job.Spec.Candidates = 3; g.pod(2, "c") }, says: "a warm standby is ready on another node"},
		"its workload runs":                     {with: func(g *given) { g.ofWorkload(); g.Workload.Replicas = 1 }, says: "a running process continues"},
		"suspended":                             {with: func(g *given) { g.Job.Spec.Suspend = true }, says: "spec.suspend is set"},
		"another is being made":                 {with: func(g *given) { g.mover(time.Second) }, says: "-2 was created for another node"},
		"another was made, for a node is wait.": {with: func(g *given) { g.mover(time.Second).Spec.NodeName = "b" }, says: "-2 was created for another node"},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			g.together()
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			if (p.Move != nil) != c.moved {
				t.Errorf("moved: %v, want %v", p.Move != nil, c.moved)
			}
			if says := g.protected().Message; !strings.Contains(says, c.says) {
				t.Errorf("Protected says %q, want %q", says, c.says)
			}
			if p.Move != nil {
				g.checkMove(t, p.Move)
			}
		})
	}
}

// checkMove checks that the pod for another node has the current template and a new name, and that no second one is created.
func (g *given) checkMove(t *testing.T, m *Move) {
	t.Helper()
	last := g.Pods[len(g.Pods)-1]
	if m.Beside != (PodRef{last.Name, last.UID}) || m.Pod.Name != g.name(len(g.Pods)) || m.Pod.Labels[contract.TemplateHashLabel] != inject.Hash(g.Job) {
		t.Errorf("%s is created for %v", m.Pod.Name, m.Beside)
	}
	fields := m.Pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields
	if len(fields) != 1 || fields[0].Operator != corev1.NodeSelectorOpNotIn || !slices.Equal(fields[0].Values, []string{"a"}) {
		t.Errorf("it is kept from %v, want a", fields)
	}
	for _, pod := range g.Pods {
		if pod.UID == m.Beside.UID {
			pod.Annotations[MoveAnnotation] = m.Note
		}
	}
	if again := Decide(g.Observed).Move; again != nil {
		t.Errorf("it was recorded (%q), and another pod is created", m.Note)
	}
}

func (g *given) tolerate() {
	g.Pods[1].Spec.Tolerations = append(g.Pods[1].Spec.Tolerations, corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists})
}

// require lets a pod run only on one node.
func (g *given) require(pod int, node string) {
	g.Pods[pod].Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}}}
}

// rename gives all pods another template.
func (g *given) rename(change func()) {
	change()
	pods := g.Pods
	g.Pods = nil
	for i := range pods {
		g.pod(i, pods[i].Spec.NodeName)
	}
	g.held(0, 100, ago(time.Hour))
	g.Lease.Claim = Claim{JobUID: "job-uid"}
}

// TestEndOfAMove: the operator waits for it for some time, and then removes it or the standby beside the holder, and nothing
// else. Progressing does not mention it.
func TestEndOfAMove(t *testing.T) {
	const none, first, second, third = -1, 0, 1, 2
	ready := func(g *given, node string) {
		g.Pods[2].Spec.NodeName = node
		g.Pods[2].Status = *g.Pods[1].Status.DeepCopy()
	}
	for name, c := range map[string]struct {
		with    func(*given)
		goes    int
		creates int
		wake    time.Duration
		says    string
	}{
		"no node has taken it yet":               {goes: none, wake: 10 * time.Second, says: "UpToDate"},
		"it can't be scheduled":                  {with: func(g *given) { g.created(2, 61*time.Second) }, goes: third, says: "UpToDate"},
		"it starts":                              {with: func(g *given) { g.Pods[2].Spec.NodeName = "b"; g.created(2, 100*time.Second) }, goes: none, says: "UpToDate"},
		"it does not start":                      {with: func(g *given) { g.Pods[2].Spec.NodeName = "b"; g.created(2, 121*time.Second) }, goes: third, says: "UpToDate"},
		"it is ready":                            {with: func(g *given) { ready(g, "b") }, goes: second, says: "UpToDate"},
		"it is ready, and the other is asked":    {with: func(g *given) { ready(g, "b"); g.ask(g.name(1)) }, goes: none, says: "HandingOver"},
		"it is ready, and was moved to no avail": {with: func(g *given) { ready(g, "a") }, goes: third, says: "Scaling"},
		"it is ready and has taken over":         {with: func(g *given) { ready(g, "b"); g.held(2, 101, ago(time.Hour)) }, goes: second},
		"the other is not ready any more":        {with: func(g *given) { g.unready(1) }, goes: none},
		"the other is lost":                      {with: func(g *given) { g.terminating(1) }, goes: none, creates: 1},
		"the holder is lost": {with: func(g *given) {
			g.terminating(0)
			g.released(lease.ReasonHolderTerminated)
		}, goes: none, creates: 1},
		"the other acts now":               {with: func(g *given) { g.held(1, 101, ago(time.Hour)) }, goes: none},
		"all else is lost":                 {with: func(g *given) { g.terminating(0); g.terminating(1) }, goes: none, creates: 2},
		"a rollout":                        {with: func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Image = "v2" }, goes: third, creates: 1, says: "RollingOut"},
		"a rollout that is paused":         {with: func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Image, g.Job.Spec.Strategy.Paused = "v2", true }, goes: third, says: "RolloutPaused"},
		"a quota refuses pods":             {with: func(g *given) { g.OverQuota = time.Second }, goes: third},
		"no pod more may live":             {with: func(g *given) { g.Job.Spec.Strategy.MaxSurge = new(int32(0)) }, goes: third},
		"another standby is elsewhere now": {with: func(g *given) { g.Pods[1].Spec.NodeName = "b" }, goes: third},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			g.together()
			g.mover(50 * time.Second)
			g.noteTry(50*time.Second, "b")
			want := []PodRef{}
			names := []*corev1.Pod{first: g.Pods[0], second: g.Pods[1], third: g.Pods[2]}
			if c.goes != none {
				want = append(want, PodRef{names[c.goes].Name, names[c.goes].UID})
			}
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			if !slices.Equal(p.Delete, want) || len(p.Create) != c.creates || p.Move != nil {
				t.Errorf("goes: %v, want %v; made: %d, want %d; one more: %v", p.Delete, want, len(p.Create), c.creates, p.Move != nil)
			}
			if c.wake > 0 && p.Wake > c.wake {
				t.Errorf("it looks again after %v, want %v", p.Wake, c.wake)
			}
			for _, condition := range statusOr(p, g).Conditions {
				if condition.Type == v1alpha1.ConditionProgressing && c.says != "" && condition.Reason != c.says {
					t.Errorf("Progressing says %s: %s, want %s", condition.Reason, condition.Message, c.says)
				}
			}
		})
	}
}

func (g *given) created(pod int, since time.Duration) {
	g.Pods[pod].CreationTimestamp = metav1.NewTime(ago(since))
}

func (g *given) ask(to string) {
	g.Job.Annotations = map[string]string{contract.SwitchoverAnnotation: to + "@100"}
}

// TestMovedStandbyIsAnOrdinaryCandidate: when it is not ready for a moment, or is replaced by a rollout, it is treated like any other
// candidate.
func TestMovedStandbyIsAnOrdinaryCandidate(t *testing.T) {
	moved := func() *given {
		g := steady()
		inject.KeepFrom(g.Pods[1], "a")
		return g
	}
	same := func(what string, change func(*given)) {
		a, b := steady(), moved()
		change(a)
		change(b)
		p, q := Decide(a.Observed), Decide(b.Observed)
		if !slices.Equal(p.Delete, q.Delete) || len(p.Create) != len(q.Create) || q.Move != nil || p.Wake != q.Wake {
			t.Errorf("%s: %v go and %d come, want %v and %d", what, q.Delete, len(q.Create), p.Delete, len(p.Create))
		}
	}
	same("at rest", func(*given) {})
	same("not ready", func(g *given) { g.unready(1) })
	same("lost", func(g *given) { g.terminating(1) })
	same("active", func(g *given) { g.held(1, 101, ago(time.Hour)) })
	same("a rollout", func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Image = "v2" })
	same("a rollout without room", func(g *given) {
		g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
		pod := g.pod(0, "")
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}}
	})
}

// TestTriedNodes: a node that comes and goes is tried once, and the record has a limited length.
func TestTriedNodes(t *testing.T) {
	nodes := func(note string) string { _, names, _ := strings.Cut(note, " "); return names }
	last := try{time.Minute, []string{"b", "d"}}
	if got := nodes(last.with([]string{"c", "d"}, now)); got != "b,c,d" {
		t.Errorf("noted: %s", got)
	}
	var many []string
	for c := 'a'; c < 'a'+maxNodes+1; c++ {
		many = append(many, string(c))
	}
	if got := nodes((try{}).with(many, now)); got != manyNodes {
		t.Errorf("noted: %s", got)
	}
	if !(try{nodes: []string{manyNodes}}).covers([]string{"z"}) || (try{}).covers([]string{"z"}) {
		t.Error("many cover any, and none do none")
	}
}
