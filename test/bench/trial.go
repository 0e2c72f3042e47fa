//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
)

const (
	// settles is how long a subject may take to run and to have its standby.
	settles = 3 * time.Minute
	// never is how long a takeover is waited for that the subject does not promise at all.
	never = time.Minute
	// expected bounds a takeover by a standby, or by a new pod on a living node.
	expected = 90 * time.Second
)

// A trial is one subject under one fault, once, in a namespace of its own.
type trial struct {
	cluster   *cluster.Cluster
	subject   subject
	fault     faultCase
	namespace string
	progress  io.Writer

	// The active pod at the time of the fault.
	pod, node, container string

	mu      sync.Mutex
	renewed []time.Duration // when each write to the subject's Lease was seen, by CLOCK_BOOTTIME
}

func (t *trial) say(format string, args ...any) {
	_, _ = fmt.Fprintf(t.progress, "    "+format+"\n", args...)
}

// run does the trial and leaves the cluster as it found it.
func (t *trial) run(ctx context.Context) (run Run, err error) {
	watching, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		err = errors.Join(err, t.cleanUp(context.WithoutCancel(ctx)))
	}()
	go t.watchLease(watching)
	if err := t.start(ctx); err != nil {
		return Run{}, err
	}
	if err := t.findActive(ctx); err != nil {
		return Run{}, err
	}
	// At a random moment between two renewals.
	if err := onlab.Sleep(ctx, time.Second+rand.N(2*time.Second)); err != nil {
		return Run{}, err
	}
	fault := fencetest.Boottime()
	if err := t.fault.inject(ctx, t); err != nil {
		return Run{}, err
	}
	taken := t.awaitTakeover(ctx, fault)
	if taken && t.fault.vanishes {
		if err := onlab.Sleep(ctx, overlapShows); err != nil {
			return Run{}, err
		}
	}
	if rest := t.fault.lasts - (fencetest.Boottime() - fault); rest > 0 {
		if err := onlab.Sleep(ctx, rest); err != nil {
			return Run{}, err
		}
	}
	if err := t.cluster.Lab.Fault(ctx, "heal"); err != nil {
		return Run{}, err
	}
	if err := onlab.Sleep(ctx, t.fault.after); err != nil {
		return Run{}, err
	}
	end := fencetest.Boottime() // asking the sink takes time, in which it is written to
	attempts, err := t.cluster.Attempts(ctx, resourceIn(t.namespace))
	if err != nil {
		return Run{}, err
	}
	return measure(attempts, resourceIn(t.namespace), fault, end, t.lastRenewal(fault)), nil
}

func (t *trial) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	if err := t.cluster.CreateNamespace(ctx, t.namespace, ""); err != nil {
		return err
	}
	change := t.fault.change
	if change == nil {
		change = func(*corev1.PodSpec) {}
	}
	for _, object := range t.subject.objects(t.cluster, t.namespace, change) {
		if err := t.cluster.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T: %w", object, err)
		}
	}
	return observe.Await(ctx, t.subject.title+" to be ready", func() (bool, any, error) {
		return t.subject.ready(ctx, t.cluster.Client, t.namespace)
	})
}

// findActive finds the pod that writes.
func (t *trial) findActive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	err := observe.Await(ctx, "the first writes", func() (bool, any, error) {
		attempts, err := t.cluster.Attempts(ctx, resourceIn(t.namespace))
		lives := observe.Lives(attempts, resourceIn(t.namespace), true)
		if err != nil || len(lives) == 0 || lives[len(lives)-1].Accepted < 10 {
			return false, lives, err
		}
		t.pod, _, _ = strings.Cut(lives[len(lives)-1].Writer, "@")
		return true, nil, nil
	})
	if err != nil {
		return err
	}
	var pod corev1.Pod
	if err := t.cluster.Client.Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: t.pod}, &pod); err != nil {
		return err
	}
	t.node = pod.Spec.NodeName
	_, t.container, _ = strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	return nil
}

// patience is how long a takeover is waited for.
func (t *trial) patience() time.Duration {
	switch {
	case t.subject.elected, !t.fault.vanishes && t.fault.lasts == 0:
		return expected
	case t.fault.lasts > 0:
		return t.fault.lasts
	case t.subject.key == "deployment":
		return evictionTakes
	}
	return never
}

func (t *trial) awaitTakeover(ctx context.Context, fault time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, t.patience())
	defer cancel()
	err := observe.Await(ctx, "a takeover", func() (bool, any, error) {
		attempts, err := t.cluster.Attempts(ctx, resourceIn(t.namespace))
		if err != nil {
			return false, nil, err
		}
		lives := observe.Lives(attempts, resourceIn(t.namespace), true)
		return lives[len(lives)-1].First > fault, nil, nil
	})
	return err == nil
}

// watchLease notes when the subject's Lease is written. The watch's delay, a millisecond or two, counts against the subject.
func (t *trial) watchLease(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := t.cluster.Client.Watch(ctx, &coordinationv1.LeaseList{}, client.InNamespace(t.namespace))
		if err != nil {
			_ = onlab.Sleep(ctx, 100*time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			if event.Type == watch.Modified {
				t.mu.Lock()
				t.renewed = append(t.renewed, fencetest.Boottime())
				t.mu.Unlock()
			}
		}
		w.Stop()
	}
}

// lastRenewal is the last write to the Lease that the old holder can have made: before the fault, or just after it if a
// request was on its way. A gap of a second and more is the wait of the one that takes over.
func (t *trial) lastRenewal(fault time.Duration) time.Duration {
	if !t.fault.vanishes && t.fault.lasts == 0 {
		return 0 // the holder or somebody for it gives the Lease up: nobody waits for it to run out
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var last time.Duration
	for _, at := range t.renewed {
		if at < fault+500*time.Millisecond {
			last = at
		}
	}
	return last
}

// cleanUp heals what is broken, deletes the namespace and waits until every node takes pods.
func (t *trial) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	if err := errors.Join(t.cluster.Lab.Fault(ctx, "heal"), t.cluster.DeleteNamespace(ctx, t.namespace)); err != nil {
		return err
	}
	if t.node != "" {
		if _, err := t.cluster.Kubectl(ctx, "uncordon", t.node); err != nil {
			return err
		}
	}
	return observe.Await(ctx, "the cluster to be as before", func() (bool, any, error) {
		pods, err := podsOf(ctx, t.cluster.Client, t.namespace)
		if err != nil || len(pods) > 0 {
			return false, len(pods), err
		}
		return onlab.NodesReady(ctx, t.cluster.Client)
	})
}
