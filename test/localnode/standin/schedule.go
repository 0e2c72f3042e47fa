//go:build linux

package standin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// bindPods binds each pod that has no node to the best one that it tolerates. It honours node selectors, required node
// affinity, taints, cordons, pod anti-affinity (required and preferred) and spread constraints (soft ones); beyond that, it
// spreads. Everything else that a scheduler knows is not here.
func (s *StandIn) bindPods(ctx context.Context) error {
	nodes, pods := s.allNodes(), s.withBindings(s.allPods())
	var errs []error
	for _, pod := range pods {
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 || pod.Spec.SchedulerName != corev1.DefaultSchedulerName {
			continue
		}
		node, why := place(pod, nodes, pods)
		if node == "" {
			errs = append(errs, s.sayUnschedulable(ctx, pod, why))
			continue
		}
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}
		err := s.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
		if err != nil { // by a conflict or an absence, this cache is behind: the pod is bound already, or gone
			errs = append(errs, ignoreStale(err))
			continue
		}
		s.bound[pod.UID] = node // so that the next pod sees where this one went
		pods[slices.Index(pods, pod)] = boundTo(pod, node)
	}
	return errors.Join(errs...)
}

// withBindings shows pods where they were bound to, which the cache may tell a while later.
func (s *StandIn) withBindings(pods []*corev1.Pod) []*corev1.Pod {
	untold := map[types.UID]string{}
	for i, pod := range pods {
		if node, is := s.bound[pod.UID]; is && pod.Spec.NodeName == "" {
			untold[pod.UID], pods[i] = node, boundTo(pod, node)
		}
	}
	s.bound = untold
	return pods
}

func boundTo(pod *corev1.Pod, node string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	return pod
}

func (s *StandIn) sayUnschedulable(ctx context.Context, pod *corev1.Pod, why string) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Message == why {
			return nil
		}
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":%q,"lastTransitionTime":%q}]}}`,
		pod.UID, why, time.Now().UTC().Format(time.RFC3339))
	_, err := s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// place chooses a node, or says why there is none.
func place(pod *corev1.Pod, nodes []*corev1.Node, pods []*corev1.Pod) (name, why string) {
	type choice struct {
		name   string
		weight int // of preferred anti-affinity terms and soft spread constraints that it violates
		pods   int
	}
	var choices []choice
	var refusals []string
	domains := map[string]*corev1.Node{}
	for _, n := range nodes {
		domains[n.Name] = n
	}
	for _, node := range nodes {
		if refusal := refuses(node, pod); refusal != "" {
			refusals = append(refusals, node.Name+" "+refusal)
			continue
		}
		required, preferred := repelled(pod, node, pods, domains)
		if required > 0 {
			refusals = append(refusals, node.Name+" has a pod that the pod must not be with")
			continue
		}
		c := choice{name: node.Name, weight: preferred}
		for _, other := range pods {
			if other.Spec.NodeName == node.Name && !isOver(other) {
				c.pods++
			}
		}
		choices = append(choices, c)
	}
	if len(choices) == 0 {
		slices.Sort(refusals)
		return "", fmt.Sprintf("0/%d nodes are available: %s", len(nodes), strings.Join(refusals, ", "))
	}
	return slices.MinFunc(choices, func(a, b choice) int {
		return cmp.Or(cmp.Compare(a.weight, b.weight), cmp.Compare(a.pods, b.pods), cmp.Compare(a.name, b.name))
	}).name, ""
}

// refuses says why a node does not take a pod; empty if it does.
func refuses(node *corev1.Node, pod *corev1.Pod) string {
	if node.DeletionTimestamp != nil {
		return "is being deleted"
	}
	if node.Spec.Unschedulable && !tolerated(pod, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return "is cordoned"
	}
	if !isReady(node) {
		return "is not ready"
	}
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated(pod, taint) {
			return "has the taint " + taint.Key
		}
	}
	if !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(node.Labels)) || !requiredAffinity(node, pod) {
		return "is not selected by the pod"
	}
	return ""
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func isOver(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func tolerated(pod *corev1.Pod, taint corev1.Taint) bool {
	_, ok := toleration(pod, taint)
	return ok
}

func toleration(pod *corev1.Pod, taint corev1.Taint) (corev1.Toleration, bool) {
	for _, t := range pod.Spec.Tolerations {
		keyFits := t.Key == taint.Key || t.Key == "" && t.Operator == corev1.TolerationOpExists
		valueFits := t.Operator == corev1.TolerationOpExists || t.Value == taint.Value
		if keyFits && valueFits && (t.Effect == "" || t.Effect == taint.Effect) {
			return t, true
		}
	}
	return corev1.Toleration{}, false
}

func requiredAffinity(node *corev1.Node, pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool { return !fits(node, e) })
	})
}

func fits(node *corev1.Node, e corev1.NodeSelectorRequirement) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
	return err == nil && r.Matches(labels.Set(node.Labels))
}

// spreadWeight is that of one pod that a soft spread constraint counts.
const spreadWeight = 100

// repelled counts the pods in the node's domains that pod must not be with, and the weight of those it should not be with.
func repelled(pod *corev1.Pod, node *corev1.Node, pods []*corev1.Pod, domains map[string]*corev1.Node) (required, preferred int) {
	meets := func(topology string, selector *metav1.LabelSelector, counts func(*corev1.Pod) bool) int {
		return count(pods, domains, node, topology, selector, func(other *corev1.Pod) bool {
			return other.UID != pod.UID && other.Namespace == pod.Namespace && !isOver(other) && counts(other)
		})
	}
	// As in the real scheduler, anti-affinity counts pods that are on their way out, and spread constraints do not.
	all := func(*corev1.Pod) bool { return true }
	staying := func(other *corev1.Pod) bool { return other.DeletionTimestamp == nil }
	if pod.Spec.Affinity != nil && pod.Spec.Affinity.PodAntiAffinity != nil {
		anti := pod.Spec.Affinity.PodAntiAffinity
		for _, term := range anti.RequiredDuringSchedulingIgnoredDuringExecution {
			required += meets(term.TopologyKey, term.LabelSelector, all)
		}
		for _, weighted := range anti.PreferredDuringSchedulingIgnoredDuringExecution {
			preferred += int(weighted.Weight) * meets(weighted.PodAffinityTerm.TopologyKey, weighted.PodAffinityTerm.LabelSelector, all)
		}
	}
	for _, c := range pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.ScheduleAnyway {
			preferred += spreadWeight * meets(c.TopologyKey, c.LabelSelector, staying)
		}
	}
	return required, preferred
}

// count tells how many pods are selected in the domain that node is in. Nodes without the topology's label are in none.
func count(pods []*corev1.Pod, domains map[string]*corev1.Node, node *corev1.Node, topology string, labelSelector *metav1.LabelSelector, counts func(*corev1.Pod) bool) int {
	selector, err := metav1.LabelSelectorAsSelector(labelSelector)
	domain, has := node.Labels[topology]
	if err != nil || !has {
		return 0
	}
	n := 0
	for _, other := range pods {
		at := domains[other.Spec.NodeName]
		if at == nil || !counts(other) || !selector.Matches(labels.Set(other.Labels)) {
			continue
		}
		if theirs, has := at.Labels[topology]; has && theirs == domain {
			n++
		}
	}
	return n
}
