//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A kind is one thing that has another process take over from that of the active pod.
type kind struct {
	title string
	do    func(ctx context.Context, t *trial, active *corev1.Pod) error
	undo  func(ctx context.Context, t *trial, active *corev1.Pod) error // once another has taken over; may be nil
}

var (
	handovers = []kind{
		{title: "switchover", do: func(ctx context.Context, t *trial, _ *corev1.Pod) error { return t.switchOver(ctx) }},
		{title: "rollout", do: func(ctx context.Context, t *trial, _ *corev1.Pod) error { return t.rollOut(ctx) }},
	}
	failovers = []kind{
		{title: "process killed", do: killProcess},
		{title: "container killed", do: killContainer},
		{title: "pod deleted by force", do: func(ctx context.Context, t *trial, active *corev1.Pod) error {
			return t.delete(ctx, active, "--force", "--grace-period=0")
		}},
	}
	crash   = kind{title: "node crashed", do: crashNode, undo: healNode}
	outages = []kind{
		{title: "pod deleted", do: func(ctx context.Context, t *trial, active *corev1.Pod) error { return t.delete(ctx, active) }},
		failovers[1],
	}
)

func killProcess(ctx context.Context, t *trial, active *corev1.Pod) error {
	return t.signal(ctx, active, "/workload")
}

func killContainer(ctx context.Context, t *trial, active *corev1.Pod) error {
	return t.signal(ctx, active)
}

// signal kills process 1 of the active container, or the one whose command line is given.
func (t *trial) signal(ctx context.Context, active *corev1.Pod, of ...string) error {
	if len(active.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("%s has no container", active.Name)
	}
	_, id, _ := strings.Cut(active.Status.ContainerStatuses[0].ContainerID, "://")
	return t.cluster.Lab.Fault(ctx, append([]string{"signal", id, "KILL"}, of...)...)
}

func (t *trial) delete(ctx context.Context, pod *corev1.Pod, how ...string) error {
	_, err := t.cluster.Kubectl(ctx, append([]string{"delete", "pod", pod.Name, "--namespace", name, "--wait=false"}, how...)...)
	return err
}

func crashNode(ctx context.Context, t *trial, active *corev1.Pod) error {
	if len(active.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("%s has no container", active.Name)
	}
	return t.cluster.Lab.Fault(ctx, "crash", active.Spec.NodeName)
}

// healNode waits until what ran there runs again or is replaced. Kubernetes does not report pods as not ready if their node was away for
// a moment, and there is no standby before they are ready.
func healNode(ctx context.Context, t *trial, active *corev1.Pod) error {
	if err := t.cluster.Lab.Fault(ctx, "heal", active.Spec.NodeName); err != nil {
		return err
	}
	return await(ctx, "the pod on the node to run again", func() (bool, any, error) {
		var pod corev1.Pod
		err := t.cluster.Client.Get(ctx, client.ObjectKeyFromObject(active), &pod)
		if apierrors.IsNotFound(err) || err == nil && pod.UID != active.UID {
			return true, nil, nil
		}
		is := pod.Status.ContainerStatuses
		return len(is) > 0 && is[0].Ready && is[0].ContainerID != active.Status.ContainerStatuses[0].ContainerID, is, err
	})
}
