//go:build linux

package standin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// heartbeat is when this process last saw a node's Lease change. No time of another machine is compared.
type heartbeat struct {
	version string
	seen    time.Time
}

// watchNodes marks nodes that miss their heartbeats: condition Unknown, pods not ready, taint unreachable. Nodes that are
// ready lose the taints that keep pods away.
func (s *StandIn) watchNodes(ctx context.Context) error {
	leases, err := s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	now := time.Now()
	for _, lease := range leases.Items {
		if s.heard[lease.Name].version != lease.ResourceVersion {
			s.heard[lease.Name] = heartbeat{lease.ResourceVersion, now}
		}
	}
	var errs []error
	for _, node := range s.allNodes() {
		last, ever := s.heard[node.Name]
		if !ever {
			last = heartbeat{seen: now}
			s.heard[node.Name] = last
		}
		if now.Sub(last.seen) > s.options.NodeGrace {
			errs = append(errs, s.markLost(ctx, node))
		} else if isReady(node) {
			errs = append(errs, s.taint(ctx, node, nil))
		}
	}
	return errors.Join(errs...)
}

// AwaitSchedulable waits until nothing keeps pods away from a node. The API server taints every new one.
func (s *StandIn) AwaitSchedulable(ctx context.Context, name string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		// From the cache that pods are bound by.
		found, exists, err := s.nodes.GetStore().GetByKey(name)
		if err != nil {
			return err
		}
		if exists && isReady(found.(*corev1.Node)) && len(found.(*corev1.Node).Spec.Taints) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until node %s takes pods: %w", name, context.Cause(ctx))
		}
	}
}

func (s *StandIn) markLost(ctx context.Context, node *corev1.Node) error {
	unreachable := &corev1.Taint{Key: corev1.TaintNodeUnreachable, TimeAdded: new(metav1.Now())}
	if err := s.taint(ctx, node, unreachable); err != nil {
		return err
	}
	if isReady(node) {
		lost := node.DeepCopy()
		for i := range lost.Status.Conditions {
			if c := &lost.Status.Conditions[i]; c.Type == corev1.NodeReady {
				c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusUnknown", "the node stopped posting its heartbeat", metav1.Now()
			}
		}
		if _, err := s.client.CoreV1().Nodes().UpdateStatus(ctx, lost, metav1.UpdateOptions{}); err != nil {
			return ignoreStale(err)
		}
	}
	var errs []error
	for _, pod := range s.allPods() {
		if pod.Spec.NodeName == node.Name {
			errs = append(errs, s.markNotReady(ctx, pod))
		}
	}
	return errors.Join(errs...)
}

func (s *StandIn) markNotReady(ctx context.Context, pod *corev1.Pod) error {
	pod = pod.DeepCopy()
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type != corev1.PodReady || c.Status != corev1.ConditionTrue {
			continue
		}
		c.Status, c.Reason, c.LastTransitionTime = corev1.ConditionFalse, "NodeLost", metav1.Now()
		_, err := s.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return ignoreStale(err)
	}
	return nil
}

// taint sets the taints by which the node's condition keeps pods away: one, for scheduling and for running, or none. The
// API server itself adds not-ready to a new node.
func (s *StandIn) taint(ctx context.Context, node *corev1.Node, with *corev1.Taint) error {
	byCondition := func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	}
	has := slices.ContainsFunc(node.Spec.Taints, byCondition)
	if with == nil && !has || with != nil && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == with.Key && t.Effect == corev1.TaintEffectNoExecute
	}) {
		return nil
	}
	changed := node.DeepCopy()
	changed.Spec.Taints = slices.DeleteFunc(changed.Spec.Taints, byCondition)
	if with != nil {
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			t := *with
			t.Effect = effect
			changed.Spec.Taints = append(changed.Spec.Taints, t)
		}
	}
	_, err := s.client.CoreV1().Nodes().Update(ctx, changed, metav1.UpdateOptions{})
	return ignoreStale(err)
}

// evictPods deletes pods from nodes whose taints they do not tolerate, or no longer, and pods whose node is gone.
func (s *StandIn) evictPods(ctx context.Context) error {
	nodes := map[string]*corev1.Node{}
	for _, n := range s.allNodes() {
		nodes[n.Name] = n
	}
	var errs []error
	for _, pod := range s.allPods() {
		if pod.Spec.NodeName == "" {
			continue
		}
		node := nodes[pod.Spec.NodeName]
		switch {
		case node == nil:
			errs = append(errs, s.deletePod(ctx, pod, new(int64(0))))
		case pod.DeletionTimestamp == nil && mustLeave(pod, node):
			errs = append(errs, s.deletePod(ctx, pod, nil))
		}
	}
	return errors.Join(errs...)
}

func mustLeave(pod *corev1.Pod, node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		if taint.Effect != corev1.TaintEffectNoExecute {
			return false
		}
		t, ok := toleration(pod, taint)
		if !ok || t.TolerationSeconds == nil || taint.TimeAdded == nil {
			return !ok
		}
		return time.Since(taint.TimeAdded.Time) > time.Duration(*t.TolerationSeconds)*time.Second
	})
}

func (s *StandIn) deletePod(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	err := s.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	return ignoreStale(err)
}

// ignoreStale drops errors that say that a cache was behind; the next round sees the present.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
