//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/observe"
)

// settles bounds each wait: for the jobs to run, for their successors, for the cluster to be whole again.
const settles = 4 * time.Minute

// namespace has the jobs.
const namespace = "sinks"

// A job writes to one sink.
type job struct {
	name, kind string
	fenced     bool
	log        fence.Resource
	// When the fault comes: its active container, its tenure, how much the sink's log has, and the time after that.
	container string
	token     fence.Token
	before    int
	since     time.Duration
}

// start has two jobs for each kind of sink, and follows what they write to Kubernetes for as long as the second context lasts.
func (b *bench) start(ctx, following context.Context) error {
	for _, kind := range b.kinds {
		for _, fenced := range []bool{true, false} {
			name := kind
			if !fenced {
				name += suffix
			}
			b.jobs = append(b.jobs, &job{name: name, kind: kind, fenced: fenced, log: fence.ResourceOf(namespace, name)})
		}
	}
	if err := b.cluster.CreateNamespace(ctx, namespace, ""); err != nil {
		return err
	}
	for _, object := range objects(b.jobs) {
		if err := b.cluster.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T: %w", object, err)
		}
	}
	for _, j := range b.jobs {
		if j.kind == "kubernetes" {
			go b.follow(following, j)
		}
		if err := b.cluster.Client.Create(ctx, b.object(j)); err != nil {
			return fmt.Errorf("create job %s: %w", j.name, err)
		}
	}
	return nil
}

// A trial is one fault under all jobs at once.
type trial struct {
	*bench

	node string // the one that the fault is for
}

func (b *bench) trial(ctx context.Context, f faultCase) (results []Result, err error) {
	t := &trial{bench: b}
	defer func() { err = errors.Join(err, b.cluster.Lab.Fault(context.WithoutCancel(ctx), "heal")) }()
	b.say("%s", faultTitles[f.key])
	if err := t.settled(ctx, ""); err != nil {
		return nil, err
	}
	if err := t.gather(ctx); err != nil {
		return nil, err
	}
	if err := t.inflict(ctx, f); err != nil {
		return nil, err
	}
	for _, j := range b.jobs {
		r, err := b.result(ctx, j, f)
		if err != nil {
			return results, err
		}
		b.say("  %s: offered %d, stored %d; stale: offered %d, stored %d; nothing stored for %v", j.name, r.Offered, r.Accepted, r.StaleOffered, r.StaleAccepted,
			r.Gap.Round(time.Millisecond))
		results = append(results, r)
	}
	return results, nil
}

// inflict breaks, waits for the successors, mends while the predecessors can't learn of them, heals, and waits for what is sent late.
func (t *trial) inflict(ctx context.Context, f faultCase) error {
	if err := t.findActive(ctx); err != nil {
		return err
	}
	if err := f.inject(ctx, t); err != nil {
		return err
	}
	err := await(ctx, "a successor of each to write", func() (bool, any, error) {
		var missing []string
		for _, j := range t.jobs {
			if t.witness.highest(j.log) <= j.token {
				missing = append(missing, j.name)
			}
		}
		return len(missing) == 0, missing, nil
	})
	if err != nil {
		return err
	}
	if err := onlab.Sleep(ctx, stays); err != nil {
		return err
	}
	if !f.silent() {
		for _, step := range []func(context.Context, *trial) error{withholdLeases, f.mend} {
			if err := step(ctx, t); err != nil {
				return err
			}
		}
		if err := onlab.Sleep(ctx, blind); err != nil {
			return err
		}
	}
	if err := t.cluster.Lab.Fault(ctx, "heal"); err != nil {
		return err
	}
	return onlab.Sleep(ctx, f.after)
}

func await(ctx context.Context, what string, is func() (bool, any, error)) error {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	return observe.Await(ctx, what, is)
}

// follow notes each version of the ConfigMap that a job writes to. A watch that ends is taken up where it ended: no version is missed.
func (b *bench) follow(ctx context.Context, j *job) {
	last, version := "", "0"
	for ctx.Err() == nil {
		w, err := b.cluster.Client.Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace(namespace), &client.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", j.name), Raw: &metav1.ListOptions{ResourceVersion: version},
		})
		if err != nil {
			_ = onlab.Sleep(ctx, 100*time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			seen, ok := event.Object.(*corev1.ConfigMap)
			if !ok {
				break
			}
			version = seen.ResourceVersion
			if text := seen.Data["last"]; text != "" && text != last {
				last = text
				b.witness.add(j.log, text)
			}
		}
		w.Stop()
	}
}

func (t *trial) get(ctx context.Context, j *job) (*v1alpha1.SingletonJob, error) {
	var object v1alpha1.SingletonJob
	return &object, t.cluster.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: j.name}, &object)
}

// settled waits until all nodes take pods, and each job has written in its present tenure, has its standby, and is active on the node, if
// one is named.
func (t *trial) settled(ctx context.Context, node string) error {
	ready := func() (bool, any, error) { return onlab.NodesReady(ctx, t.cluster.Client) }
	if err := await(ctx, "the nodes to be ready", ready); err != nil {
		return err
	}
	for _, j := range t.jobs {
		err := await(ctx, j.name+" to write and have its standby", func() (bool, any, error) {
			object, err := t.get(ctx, j)
			if err != nil {
				return false, nil, err
			}
			s := object.Status
			return s.FencingToken > 0 && t.witness.highest(j.log) == fence.Token(s.FencingToken) && (node == "" || s.ActiveNode == node) &&
				meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionProtected), s, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// gather has all be active on one node.
func (t *trial) gather(ctx context.Context) error {
	for _, j := range t.jobs {
		object, err := t.get(ctx, j)
		if err != nil {
			return err
		}
		if t.node == "" {
			t.node = object.Status.ActiveNode
		}
		if object.Status.ActiveNode == t.node {
			continue
		}
		before := object.DeepCopy()
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, contract.SwitchoverAnnotation, "*@"+strconv.FormatInt(object.Status.FencingToken, 10))
		if err := t.cluster.Client.Patch(ctx, object, client.MergeFrom(before)); err != nil {
			return err
		}
	}
	return t.settled(ctx, t.node)
}

// findActive notes who is active before the fault.
func (t *trial) findActive(ctx context.Context) error {
	for _, j := range t.jobs {
		object, err := t.get(ctx, j)
		if err != nil {
			return err
		}
		var pod corev1.Pod
		if err := t.cluster.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: object.Status.ActivePod}, &pod); err != nil {
			return err
		}
		_, j.container, _ = strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		stored, err := t.stored(ctx, j)
		if err != nil {
			return err
		}
		j.token, j.before, j.since = fence.Token(object.Status.FencingToken), len(stored), fencetest.Boottime()
	}
	return nil
}
