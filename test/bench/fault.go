//go:build linux

package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A faultCase is one thing that befalls the active process.
type faultCase struct {
	key, title string
	// inject does it to the active pod.
	inject func(ctx context.Context, t *trial) error
	// change is made to the pods beforehand.
	change func(*corev1.PodSpec)
	// lasts is how long the fault stays at least, whatever happens meanwhile; after the takeover it stays as long again as
	// an overlap takes to show.
	lasts time.Duration
	// vanishes: the cluster can't reach the holder and learns of its loss only by a timeout. A subject without a standby waits for minutes.
	vanishes bool
	// after is how long to watch when the fault is healed: old processes may wake up.
	after time.Duration
}

const (
	// frozen is longer than any lease here.
	frozen = 40 * time.Second
	// overlapShows is how long a fault continues after the takeover.
	overlapShows = 10 * time.Second
	// evictionTakes bounds how long the cluster takes to replace the pod of a lost node: 50 s until the node counts as lost,
	// then 5 min of toleration.
	evictionTakes = 7 * time.Minute
)

func faultCases() []faultCase {
	return []faultCase{
		{key: "process-crash", title: "process crashes", inject: killProgram, after: 3 * time.Second},
		{key: "container-kill", title: "container killed", inject: killContainer, after: 3 * time.Second},
		{key: "pod-delete", title: "pod deleted", inject: deletePod, after: 3 * time.Second},
		{key: "slow-stop", title: "pod deleted, process works on for 5 s", inject: deletePod, change: linger, after: 8 * time.Second},
		{key: "drain", title: "node drained", inject: drain, after: 3 * time.Second},
		{key: "api-partition", title: "node cut off from the API server", inject: cutAPI, vanishes: true, after: 15 * time.Second},
		{key: "node-loss", title: "node cut off from everything", inject: cutNode, vanishes: true, after: 30 * time.Second},
		{key: "freeze", title: "container frozen for 40 s", inject: freeze, lasts: frozen, after: 15 * time.Second},
	}
}

func killProgram(ctx context.Context, t *trial) error {
	return t.cluster.Lab.Fault(ctx, "signal", t.container, "KILL", t.subject.program)
}

func killContainer(ctx context.Context, t *trial) error {
	return t.cluster.Lab.Fault(ctx, "signal", t.container, "KILL")
}

func deletePod(ctx context.Context, t *trial) error {
	_, err := t.cluster.Kubectl(ctx, "delete", "pod", t.pod, "--namespace", t.namespace, "--wait=false")
	return err
}

func linger(pod *corev1.PodSpec) {
	pod.Containers[0].Env = append(pod.Containers[0].Env, corev1.EnvVar{Name: "LINGER", Value: "5s"})
}

// drain does not wait for kubectl, which returns when the pod has gone.
func drain(ctx context.Context, t *trial) error {
	if _, err := t.cluster.Kubectl(ctx, "cordon", t.node); err != nil {
		return err
	}
	go func() {
		_, err := t.cluster.Kubectl(ctx, "drain", t.node, "--pod-selector=app="+name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
		if err != nil && ctx.Err() == nil {
			t.say("%v", err)
		}
	}()
	return nil
}

func cutAPI(ctx context.Context, t *trial) error {
	return t.cluster.Lab.Fault(ctx, "api", t.node, "drop")
}

func cutNode(ctx context.Context, t *trial) error { return t.cluster.Lab.Fault(ctx, "node", t.node) }

func freeze(ctx context.Context, t *trial) error {
	return t.cluster.Lab.Fault(ctx, "freeze", t.container)
}
