//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/workload/book"
)

const (
	namespace = "bench-schedule"
	// The kinds.
	warm     = "warm"
	onDemand = "on-demand"
	cronJob  = "cronjob"

	// work is how long a run takes, strike when after a tick it is broken, and hold for how long.
	work   = 20 * time.Second
	strike = 8 * time.Second
	hold   = 40 * time.Second
	// calm are ticks without a fault at the end, so that what is left of those before them is run before all is suspended.
	calm = 3
	// settles bounds the wait for what is left to run when the last tick is over.
	settles = 4 * time.Minute
)

var kinds = []string{warm, onDemand, cronJob}

// A trial is the whole run.
type trial struct {
	cluster  *cluster.Cluster
	progress io.Writer
	subjects []subject

	mu     sync.Mutex
	ledger ledger
}

// A subject is one job of a kind.
type subject struct{ kind, name string }

func newTrial(c *cluster.Cluster, progress io.Writer, jobs int) *trial {
	t := &trial{cluster: c, progress: progress, ledger: ledger{highest: map[string]fence.Token{}}}
	for _, kind := range kinds {
		for i := range jobs {
			t.subjects = append(t.subjects, subject{kind, fmt.Sprintf("%s-%d", kind, i)})
		}
	}
	return t
}

func (t *trial) say(format string, args ...any) { _, _ = fmt.Fprintf(t.progress, format+"\n", args...) }

// serve is the ledger, on an address of the host.
func (t *trial) serve(ctx context.Context) (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(t.cluster.Lab.Host, "0"))
	if err != nil {
		return "", err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e book.Entry
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.ledger.book(e, fencetest.Boottime(), time.Now()) {
			w.WriteHeader(http.StatusPreconditionFailed)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return "http://" + listener.Addr().String(), nil
}

// setUp has the operator on the first node, and what it is about on the others.
func (t *trial) setUp(ctx context.Context, image string) error {
	c, first := t.cluster, t.cluster.Lab.Nodes[0]
	if err := errors.Join(c.Lab.Fault(ctx, "heal"), c.Install(ctx, "charts/singletonjob", image, `nodeSelector.kubernetes\.io/hostname=`+first)); err != nil {
		return err
	}
	if err := c.CreateNamespace(ctx, namespace, ""); err != nil {
		return err
	}
	address, err := t.serve(ctx)
	if err != nil {
		return err
	}
	for _, j := range t.subjects {
		if err := c.Client.Create(ctx, t.object(j, address)); err != nil {
			return err
		}
	}
	return nil
}

// object is a SingletonJob or a CronJob.
func (t *trial) object(j subject, ledger string) client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: j.name}
	if j.kind == cronJob {
		cron := &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent, StartingDeadlineSeconds: new(int64(1800)),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: t.pod(j.name, ledger)}}},
		}}
		pod := &cron.Spec.JobTemplate.Spec.Template.Spec
		pod.RestartPolicy = corev1.RestartPolicyNever
		pod.Containers[0].Env = append(pod.Containers[0].Env, corev1.EnvVar{Name: "JOB", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobNameLabel + "']"},
		}})
		return cron
	}
	job := &v1alpha1.SingletonJob{ObjectMeta: meta}
	cluster.Fast.Apply(job)
	job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
	job.Spec.Schedule = &v1alpha1.Schedule{
		Cron: "* * * * *", CatchUp: "All", Overlap: "Queue", Standby: v1alpha1.StandbyOnDemand, LeadTime: &metav1.Duration{Duration: 20 * time.Second},
		StartingDeadline: metav1.Duration{Duration: 30 * time.Minute},
	}
	if j.kind == warm {
		job.Spec.Schedule.Standby = v1alpha1.StandbyWarm
	}
	job.Spec.Template.Spec = t.pod(j.name, ledger)
	return job
}

func (t *trial) pod(subject, ledger string) corev1.PodSpec {
	app := t.cluster.Workload(fence.ResourceOf(namespace, subject))
	app.Command = []string{"/workload", "book"}
	app.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("20m") // all fit on the nodes that are left when one is broken
	app.Env = []corev1.EnvVar{{Name: "SUBJECT", Value: subject}, {Name: "LEDGER", Value: ledger}, {Name: "WORK", Value: work.String()}}
	pod := cluster.RestrictedPod(app)
	pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: t.cluster.Lab.Nodes[:1]},
		}}},
	}}}
	return pod
}

// A blow is done to what runs, and undone after a while.
type blow struct {
	title string
	// each is done to the container of each run, node to the node with the most runs, and alone to neither.
	each, node func(ctx context.Context, t *trial, at target) error
	alone      func(ctx context.Context, t *trial) error
	undo       func(ctx context.Context, t *trial, at target) error
}

// target is a pod that runs, with the id of its container.
type target struct{ pod, node, container string }

var blows = []blow{
	{title: "none"},
	{title: "process killed", each: onContainer("signal", "KILL", "/workload")},
	{title: "frozen", each: onContainer("freeze"), undo: onContainer("thaw")},
	{title: "agent killed", each: onContainer("signal", "KILL")},
	{title: "API servers cut off", node: onNode("api"), undo: onNode("heal")},
	{title: "pod deleted", each: func(ctx context.Context, t *trial, at target) error {
		_, err := t.cluster.Kubectl(ctx, "delete", "pod", at.pod, "--namespace", namespace, "--wait=false")
		return err
	}},
	{title: "node crashed", node: onNode("crash"), undo: onNode("heal")},
	{title: "operators killed", alone: killOperators},
	{title: "no operator, over the next tick", alone: withoutOperator},
}

func onContainer(fault string, how ...string) func(context.Context, *trial, target) error {
	return func(ctx context.Context, t *trial, at target) error {
		return t.cluster.Lab.Fault(ctx, append([]string{fault, at.container}, how...)...)
	}
}

func onNode(fault string) func(context.Context, *trial, target) error {
	return func(ctx context.Context, t *trial, at target) error { return t.cluster.Lab.Fault(ctx, fault, at.node) }
}

// all waits for one tick after another, and breaks what runs it.
func (t *trial) all(ctx context.Context, o *options) ([]Result, error) {
	first := time.Now().Truncate(time.Minute).Add(2 * time.Minute)
	var failed error
	ticks := o.ticks + calm
	for i := range ticks {
		if err := onlab.Sleep(ctx, time.Until(first.Add(time.Duration(i)*time.Minute+strike))); err != nil {
			return nil, err
		}
		b := blows[i%len(blows)]
		if o.quiet || i >= o.ticks {
			b = blows[0]
		}
		t.say("tick %d: %s", i+1, b.title)
		if err := t.blow(ctx, b); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", b.title, err))
		}
	}
	last := first.Add(time.Duration(ticks-1) * time.Minute)
	t.say("suspended; what is under way ends")
	return t.settle(ctx, first, last, failed)
}

// blow takes less than a minute.
func (t *trial) blow(ctx context.Context, b blow) error {
	if b.alone != nil {
		return b.alone(ctx, t)
	}
	if b.each == nil && b.node == nil {
		return nil
	}
	hit, do := t.targets(ctx), b.each
	if b.node != nil {
		hit, do = busiest(hit), b.node
	}
	var errs []error
	for _, at := range hit {
		errs = append(errs, do(ctx, t, at))
		if b.node != nil {
			t.say("  on %s", at.node)
			break
		}
	}
	t.say("  %d runs are hit", len(hit))
	if b.undo == nil {
		return errors.Join(errs...)
	}
	errs = append(errs, onlab.Sleep(ctx, hold))
	for _, at := range hit {
		if err := b.undo(ctx, t, at); err != nil {
			t.say("  undoing it for %s: %v", at.pod, err) // its container may be gone
		}
		if b.node != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// busiest are the targets on the node that has most.
func busiest(all []target) (hit []target) {
	on := map[string][]target{}
	for _, at := range all {
		on[at.node] = append(on[at.node], at)
		if len(on[at.node]) > len(hit) {
			hit = on[at.node]
		}
	}
	return hit
}

// targets are where runs are under way.
func (t *trial) targets(ctx context.Context) (all []target) {
	for _, j := range t.subjects {
		at, err := t.target(ctx, j.name)
		if err != nil {
			t.say("  %s is missed: %v", j.name, err)
			continue
		}
		all = append(all, at)
	}
	return all
}

func killOperators(ctx context.Context, t *trial) error {
	var pods corev1.PodList
	if err := t.cluster.Client.List(ctx, &pods, client.InNamespace(cluster.SystemNamespace)); err != nil {
		return err
	}
	killed := 0
	var errs []error
	for i := range pods.Items {
		if at, err := running(&pods.Items[i]); err == nil {
			errs = append(errs, t.cluster.Lab.Fault(ctx, "signal", at.container, "KILL"))
			killed++
		}
	}
	if killed == 0 {
		errs = append(errs, errors.New("no operator runs"))
	}
	t.say("  %d operators are killed", killed)
	return errors.Join(errs...)
}

// withoutOperator has none for half a minute before the next tick and a few seconds after it.
func withoutOperator(ctx context.Context, t *trial) error {
	scale := func(replicas string) error {
		_, err := t.cluster.Kubectl(ctx, "scale", "deployment/"+cluster.Release, "--namespace", cluster.SystemNamespace, "--replicas="+replicas)
		return err
	}
	err := scale("0")
	return errors.Join(err, onlab.Sleep(ctx, time.Until(time.Now().Truncate(time.Minute).Add(time.Minute+5*time.Second))), scale("2"))
}

// target is where a subject's run is under way: who wrote last.
func (t *trial) target(ctx context.Context, subject string) (target, error) {
	name := t.writes(subject)
	if name == "" {
		return target{}, errors.New("nothing of it runs")
	}
	var pod corev1.Pod
	if err := t.cluster.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod); err != nil {
		return target{}, err
	}
	return running(&pod)
}

func running(pod *corev1.Pod) (target, error) {
	for _, s := range pod.Status.ContainerStatuses {
		if _, id, ok := strings.Cut(s.ContainerID, "://"); ok {
			return target{pod.Name, pod.Spec.NodeName, id}, nil
		}
	}
	return target{}, errors.New("its container is not known")
}

// writes is the pod of a subject that wrote within the last second, and has not ended.
func (t *trial) writes(subject string) (pod string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range slices.Backward(t.ledger.all) {
		switch {
		case fencetest.Boottime()-a.At > time.Second:
			return ""
		case a.Subject == subject && !a.Refused && a.Kind != book.End:
			return a.Pod
		case a.Subject == subject:
			return ""
		}
	}
	return ""
}

// settle has all begin nothing more, waits until nothing is under way, and judges.
func (t *trial) settle(ctx context.Context, first, last time.Time, failed error) ([]Result, error) {
	if err := onlab.Sleep(ctx, time.Until(last.Add(55*time.Second))); err != nil {
		return nil, err
	}
	var errs []error
	for _, j := range t.subjects {
		resource := "singletonjob"
		if j.kind == cronJob {
			resource = "cronjob"
		}
		_, err := t.cluster.Kubectl(ctx, "patch", resource, j.name, "--namespace", namespace, "--type=merge", `--patch={"spec":{"suspend":true}}`)
		errs = append(errs, err)
	}
	within, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	errs = append(errs, observe.Await(within, "the ledger to be quiet", func() (bool, any, error) {
		quiet := true
		for _, j := range t.subjects {
			quiet = quiet && t.quiet(j.name)
		}
		return quiet, nil, nil
	}))
	var ticks []int64
	for tick := first; !tick.After(last); tick = tick.Add(time.Minute) {
		ticks = append(ticks, tick.Unix())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	results := make([]Result, len(kinds))
	for _, j := range t.subjects {
		r := &results[slices.Index(kinds, j.kind)]
		r.Kind = j.kind
		r.judge(j.name, ticks, t.ledger.all)
		var job v1alpha1.SingletonJob
		switch err := t.cluster.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: j.name}, &job); {
		case err == nil:
			r.Missed += job.Status.Missed
			r.Skipped += job.Status.Skipped
		case !apierrors.IsNotFound(err):
			errs = append(errs, err)
		}
	}
	return results, errors.Join(append(errs, failed)...)
}

// quiet reports whether a subject has written nothing for longer than it takes to begin another attempt.
func (t *trial) quiet(subject string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range slices.Backward(t.ledger.all) {
		if a.Subject == subject {
			return fencetest.Boottime()-a.At > time.Minute
		}
	}
	return true
}
