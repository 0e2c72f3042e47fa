package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// takers are the nodes to which a Pod may go and that accept it.
func (w *world) takers(pod *corev1.Pod) []string {
	var kept []string
	if names := pod.Annotations[inject.KeptFromAnnotation]; names != "" {
		for _, r := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields {
			kept = append(kept, r.Values...)
		}
	}
	return slices.DeleteFunc(slices.Clone(w.nodes), func(node string) bool { return w.full[node] || slices.Contains(kept, node) })
}

// unplaced reports, as a scheduler does, that no node accepts a Pod, once.
func (w *world) unplaced(pod *corev1.Pod, why string) {
	w.t.Helper()
	if len(pod.Status.Conditions) > 0 {
		return
	}
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why,
		LastTransitionTime: metav1.NewTime(w.clock.Now()),
	}}
	w.must(client.IgnoreNotFound(w.api.Status().Update(w.t.Context(), pod))) // it may only have been a dry run
}

// crowded is a job whose Pods all share the first node, because the other nodes are cordoned.
func crowded(t *testing.T, change func(*v1alpha1.SingletonJobSpec)) *world {
	t.Helper()
	t.Parallel()
	w := newWorld(t)
	w.full = map[string]bool{}
	for i, name := range w.nodes {
		var node corev1.Node
		w.must(w.api.Get(t.Context(), client.ObjectKey{Name: name}, &node))
		node.Labels = map[string]string{"world": w.key.Namespace}
		node.Spec.Unschedulable, node.Spec.Taints = i > 0, nil // admission gives a new node a taint, which a controller removes
		w.must(w.api.Update(t.Context(), &node))
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		w.must(w.api.Status().Update(t.Context(), &node))
		w.full[name] = i > 0
	}
	w.operators[0].around = func(verb string, obj client.Object, do func() error) error {
		err := do()
		if pod, is := obj.(*corev1.Pod); is && verb == "create" && err == nil {
			w.unplaced(pod.DeepCopy(), "not yet") // at once, because the API server's clock is not the test's
		}
		return err
	}
	w.job(func(s *v1alpha1.SingletonJobSpec) {
		s.Lease.LeaseDuration.Duration, s.Lease.RenewDeadline.Duration, s.Lease.RetryPeriod.Duration = time.Hour, 50*time.Minute, time.Minute
		s.Strategy.ProgressDeadlineSeconds = new(int32(3600))
		s.Template.Spec.NodeSelector = map[string]string{"world": w.key.Namespace}
		if change != nil {
			change(s)
		}
	})
	w.until("serving", w.serving)
	w.tick = 5 * time.Second
	w.until("all are on one node for a while", func() bool {
		c := condition(w.status(), v1alpha1.ConditionProtected)
		return c.Reason == v1alpha1.ReasonStandbyOnSameNode && strings.Contains(c.Message, "no other node can take one") && w.clock.Now().Sub(w.start) > 2*time.Minute
	})
	return w
}

// uncordon marks a node as schedulable. full: the node still accepts no Pod.
func (w *world) uncordon(i int, full bool) {
	w.t.Helper()
	var node corev1.Node
	w.must(w.api.Get(w.t.Context(), client.ObjectKey{Name: w.nodes[i]}, &node))
	node.Spec.Unschedulable = false
	w.must(w.api.Update(w.t.Context(), &node))
	w.full[node.Name] = full
}

// untilMoved is until, and checks that there are never fewer usable candidates than before, and at most one more than the spec asks
// for.
func (w *world) untilMoved(what string, holds func() bool) {
	w.t.Helper()
	acts := w.holder()
	w.until(what, func() bool {
		pods, job := w.pods(), w.read()
		live, ready := 0, 0
		for i := range pods {
			if pods[i].DeletionTimestamp == nil {
				live++
				if podReady(&pods[i]) {
					ready++
				}
			}
		}
		progressing := condition(job.Status, v1alpha1.ConditionProgressing)
		if want := int(job.Spec.Candidates); live > want+1 || ready < want || w.holder() != acts || progressing.Reason != v1alpha1.ReasonUpToDate {
			w.t.Fatalf("%d live and %d are ready of %d, Progressing says %s\n%s", live, ready, want, progressing.Reason, w.describe())
		}
		return holds()
	})
}

// made is the number of times that the operator tried to create a Pod.
func (w *world) made() int {
	n := 0
	for _, line := range w.operators[0].log {
		if strings.HasPrefix(line, "create *v1.Pod") {
			n++
		}
	}
	return n
}

func (w *world) apart() bool {
	return condition(w.status(), v1alpha1.ConditionProtected).Reason == v1alpha1.ReasonStandbyReady && len(w.pods()) == int(w.read().Spec.Candidates)
}

// TestAStandbyIsMoved: once another node accepts Pods, the operator creates one more Pod there, and then deletes the one beside the
// active Pod.
func TestAStandbyIsMoved(t *testing.T) {
	for name, candidates := range map[string]int32{"two": 2, "three": 3} {
		t.Run(name, func(t *testing.T) {
			w := crowded(t, func(s *v1alpha1.SingletonJobSpec) { s.Candidates = candidates })
			before := w.made()
			w.uncordon(1, false)
			w.untilMoved("apart", w.apart)
			if made := w.made() - before; made != 1 {
				t.Errorf("%d pods were made for it", made)
			}
			w.records("Elected Elected")
			w.image("v2") // the rollout waits for nothing of the move
			w.until("all are new", w.renewed("v2"))
			w.records("Elected Elected", "Handover RolloutHandover")
		})
	}
}

// TestAMoveIsTriedOnce: the operator gives up a Pod that no node accepts, and creates no other until another node may accept it.
func TestAMoveIsTriedOnce(t *testing.T) {
	w := crowded(t, nil)
	before := w.made()
	w.uncordon(1, true)
	w.untilMoved("one is made", func() bool { return len(w.pods()) == 3 })
	w.untilMoved("it is given up", func() bool { return len(w.pods()) == 2 })
	tried := w.clock.Now()
	w.untilMoved("it is waited with that", func() bool { return w.clock.Now().Sub(tried) > 8*time.Minute })
	if made := w.made() - before; made != 1 {
		t.Errorf("%d pods were made for it", made)
	}
	if c := condition(w.status(), v1alpha1.ConditionProtected); !strings.Contains(c.Message, "another node was tried") {
		t.Errorf("Protected says %q", c.Message)
	}
	w.operators[0].restart() // the new process remembers nothing
	w.uncordon(2, false)
	w.untilMoved("apart", w.apart)
	w.records("Elected Elected")
}

// TestRolloutDoesNotWaitForAMove: a Pod that waits for a node does not delay a rollout.
func TestRolloutDoesNotWaitForAMove(t *testing.T) {
	w := crowded(t, nil)
	w.uncordon(1, true)
	w.untilMoved("one is made", func() bool { return len(w.pods()) == 3 })
	w.image("v2")
	w.until("a new one is made", func() bool { return slices.Contains(w.images(), "v2") })
	for _, pod := range w.pods() {
		if pod.Annotations[inject.KeptFromAnnotation] != "" {
			t.Errorf("%s is there still\n%s", pod.Name, w.describe())
		}
	}
	w.until("all are new", w.renewed("v2"))
	w.records("Elected Elected", "Handover RolloutHandover")
}

// TestAMoveUnderAnExactQuota: a refusal by the quota is reported nowhere, and the operator does not repeat the request in a loop.
func TestAMoveUnderAnExactQuota(t *testing.T) {
	w := crowded(t, nil)
	w.quota(2)
	before := w.made()
	w.uncordon(1, false)
	w.untilMoved("it is said", func() bool {
		return strings.Contains(condition(w.status(), v1alpha1.ConditionProtected).Message, "exceeded a quota")
	})
	tried := w.clock.Now()
	w.untilMoved("it is waited with that", func() bool { return w.clock.Now().Sub(tried) > 8*time.Minute })
	if made := w.made() - before; made != 1 {
		t.Errorf("it was asked for %d times", made)
	}
}

// TestMoveSurvivesCrashes: wherever an operator ends, the next one continues, and they create no more Pods than one operator would.
func TestMoveSurvivesCrashes(t *testing.T) {
	for name, after := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			w := crowded(t, nil)
			o := w.operators[0]
			o.always, o.after, o.endedAt = true, after, map[string]bool{}
			w.uncordon(1, false)
			for range 3 { // a move that was noted but not made is not tried again for a while
				w.uncordon(2, false)
				tried := w.clock.Now()
				w.untilMoved("apart, or it is time to try again", func() bool { return w.apart() || w.clock.Now().Sub(tried) > 11*time.Minute })
			}
			if !w.apart() {
				t.Errorf("it is not moved\n%s", w.describe())
			}
			w.records("Elected Elected")
		})
	}
}

// TestAMoveWithoutNodes: an operator that may not read nodes reports that.
func TestAMoveWithoutNodes(t *testing.T) {
	w := crowded(t, nil)
	w.operators[0].r.WithoutNodes = true
	before := w.made()
	w.uncordon(1, false)
	w.until("it is said", func() bool {
		return strings.Contains(condition(w.status(), v1alpha1.ConditionProtected).Message, "the operator has no permission to read nodes")
	})
	for range 10 {
		w.round()
	}
	if made := w.made() - before; made != 0 {
		t.Errorf("%d pods were made for it", made)
	}
}

// TestNodeChangeTriggersJobs: a change in what a node accepts triggers jobs whose standbys share the active Pod's node, and no others.
func TestNodeChangeTriggersJobs(t *testing.T) {
	was := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"uncordoned": {func(n *corev1.Node) { n.Spec.Unschedulable = false }, true},
		"ready": {func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}, true},
		"tainted":   {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }, true},
		"labelled":  {func(n *corev1.Node) { n.Labels = map[string]string{"k": "v"} }, true},
		"heartbeat": {func(n *corev1.Node) { n.ResourceVersion = "2" }, false},
	} {
		is := was.DeepCopy()
		c.change(is)
		if got := takesOthers.Update(event.UpdateEvent{ObjectOld: was, ObjectNew: is}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if takesOthers.Create(event.CreateEvent{Object: was, IsInInitialList: true}) || !takesOthers.Create(event.CreateEvent{Object: was}) {
		t.Error("a node is news when it is made, and not when the operator starts")
	}
	w := crowded(t, nil)
	awakes := func() bool {
		return slices.Contains(w.operators[0].r.jobsCrowded(t.Context(), was), reconcile.Request{NamespacedName: w.key})
	}
	// The status may be stale: the operator reads nodes before it writes the status.
	job := w.read()
	job.Status.Conditions = nil
	w.must(w.api.Status().Update(t.Context(), job))
	if !awakes() {
		t.Error("a job is not woken whose standby may be moved")
	}
	w.uncordon(1, false)
	w.until("it is moved", w.apart)
	w.until("that is seen", func() bool { return !awakes() })
}

// TestLostNodeTriggersJobs: the loss and the recovery of a node trigger the jobs with Pods on it.
func TestLostNodeTriggersJobs(t *testing.T) {
	ready := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"not ready":      {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, true},
		"unknown":        {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, true},
		"out of service": {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}} }, true},
		"cordoned":       {func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"heartbeat":      {func(n *corev1.Node) { n.ResourceVersion = "2" }, false},
	} {
		is := ready.DeepCopy()
		c.change(is)
		for _, e := range []event.UpdateEvent{{ObjectOld: ready, ObjectNew: is}, {ObjectOld: is, ObjectNew: ready}} {
			if got := lostOrFound.Update(e); got != c.want {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
}

// TestOutOfServiceNodeTriggersJobs: an out-of-service node triggers the job that has a Pod on it, or whose holder was on it.
func TestOutOfServiceNodeTriggersJobs(t *testing.T) {
	w := served(t, nil)
	on := w.holder().node
	stands := map[string]bool{}
	for _, pod := range w.pods() {
		if pod.Spec.NodeName == on {
			w.must(w.api.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
		} else {
			stands[pod.Spec.NodeName] = true
		}
	}
	for _, name := range w.nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		woken := slices.Contains(w.operators[0].r.jobsOnNode(t.Context(), node), reconcile.Request{NamespacedName: w.key})
		if woken != (name == on || stands[name]) {
			t.Errorf("%s: %v, the holder was on %s, and pods are on %v", name, woken, on, stands)
		}
	}
	node := &corev1.Node{}
	w.must(w.api.Get(t.Context(), client.ObjectKey{Name: on}, node))
	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionUnknown} {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		w.must(w.api.Status().Update(t.Context(), node))
		o, err := w.operators[0].r.observe(t.Context(), w.key)
		w.must(err)
		if lost := status != corev1.ConditionTrue; o.NotReady[on] != lost {
			t.Errorf("it is %s, and seen: %v", status, o.NotReady)
		}
	}
}
