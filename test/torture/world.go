//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/stack"
	"github.com/singletonjob/operator/test/torture/judge"
)

const (
	namespace = "torture"
	// nodeLabel keeps the pods of a subject on its own nodes, so that a fault of a node affects only that subject.
	nodeLabel = "torture"
	// every is the time between two writes of a process.
	every = 50 * time.Millisecond
	// patience limits the wait for recovery after all faults have ended. A starved machine is slow, not broken.
	patience = 15 * time.Minute
	// settles is how long a subject may take to have its first holder.
	settles = 10 * time.Minute
)

// subject is a singleton that gets faults.
type subject struct {
	judge.Subject
	lease cluster.LeaseSetting
	// change is made to the job.
	change func(*v1alpha1.SingletonJob)
	nodes  []*localnode.Node
}

func (s *subject) resource() fence.Resource { return fence.Resource(s.Name) }

// jobs are the singletons of the product.
func jobs() []*subject {
	of := func(name, title string, setting cluster.LeaseSetting, change func(*v1alpha1.SingletonJob)) *subject {
		return &subject{
			Subject: judge.Subject{Name: name, Title: title, Margin: lease.Margin(setting.Duration)}, lease: setting, change: change,
		}
	}
	keeps := of("keeps", "6/4/0.5, KeepRunning", cluster.LeaseSetting{Duration: 6 * time.Second, Deadline: 4 * time.Second, Retry: 500 * time.Millisecond},
		func(job *v1alpha1.SingletonJob) {
			job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
			preActivates(job, "sleep 1 & sleep 0.1") // its remaining processes are killed
			c := writer(job)
			c.ReadinessProbe, c.LivenessProbe = probe(script(succeeds)), probe(connects())
			c.Lifecycle = &corev1.Lifecycle{PreStop: hook(script("sleep 0.5"))}
		})
	keeps.Outlives = true
	shortest := cluster.LeaseSetting{Duration: 3 * time.Second, Deadline: 1500 * time.Millisecond, Retry: 500 * time.Millisecond}
	return []*subject{
		of("shortest", "3/1.5/0.5", shortest, func(job *v1alpha1.SingletonJob) {
			writer(job).ReadinessProbe, writer(job).LivenessProbe = probe(answers()), probe(script(succeeds))
		}),
		of("fast", "5/2.5/0.5", cluster.Fast, func(job *v1alpha1.SingletonJob) {
			preActivates(job, "sleep 0.2; "+fails(13))
			c := writer(job)
			c.ReadinessProbe, c.LivenessProbe = probe(script(succeeds)), probe(answers())
			c.Lifecycle = &corev1.Lifecycle{PostStart: hook(script("sleep 0.2")), PreStop: hook(script("sleep 0.5"))}
		}),
		of("usual", "15/10/2", cluster.ClientGo, func(job *v1alpha1.SingletonJob) {
			preActivates(job, "sleep 0.5")
			c := writer(job)
			c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = probe(answers()), probe(script(succeeds)), probe(answers())
			c.Lifecycle = &corev1.Lifecycle{PostStart: hook(script("sleep 0.2; " + fails(17))), PreStop: hook(script(fails(2)))}
		}),
		// It ignores its stop signal, and its grace period is long. Only its deadline ends it.
		of("stubborn", "6/4/0.5, deaf to SIGTERM", keeps.lease, func(job *v1alpha1.SingletonJob) {
			job.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(8))
			c := writer(job)
			c.Env = append(c.Env, corev1.EnvVar{Name: "LINGER", Value: "1h"})
			c.ReadinessProbe, c.LivenessProbe = probe(answers()), probe(answers())
			c.LivenessProbe.TerminationGracePeriodSeconds = new(int64(3))
			c.Lifecycle = &corev1.Lifecycle{PreStop: hook(script("sleep 60"))} // longer than its time
		}),
		keeps,
	}
}

// elector is the control: client-go's, with its usual settings.
func elector() *subject {
	return &subject{
		Subject: judge.Subject{Name: "elector", Title: "client-go 15/10/2", Control: true, Margin: time.Second}, lease: cluster.ClientGo,
	}
}

// world is everything that runs.
type world struct {
	*stack.Product
	sinks     *sinks
	chronicle *chronicle
	witnesses *witnesses
	balancer  *balancer
	subjects  []*subject
	progress  io.Writer

	mu        sync.Mutex
	faults    []judge.Fault
	forgeries []judge.Forgery
	honest    []judge.Refusal // of those who may write
}

// newWorld gets and starts everything, from the checkout root. stop ends what was started, also after an error.
func newWorld(ctx context.Context, root string, progress io.Writer) (w *world, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, end := range slices.Backward(stops) {
			end()
		}
		stops = nil
	}
	w = &world{sinks: newSinks(), progress: progress, subjects: append(jobs(), elector())}
	images, err := os.MkdirTemp("", "singletonjob-torture-")
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, func() { _ = os.RemoveAll(images) })
	w.say("building agent, operator, writer and the control's elector")
	if err := build(ctx, root, images); err != nil {
		return nil, stop, err
	}
	binaries, err := controlplane.Find(ctx, progress, controlplane.All...)
	if err != nil {
		return nil, stop, err
	}
	plane, err := controlplane.Start(ctx, controlplane.Options{Binaries: binaries, Progress: progress, Servers: servers})
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, plane.Stop)
	if err := stack.Install(ctx, plane, root); err != nil {
		return nil, stop, err
	}
	following, end := context.WithCancel(context.Background())
	stops = append(stops, end)
	link, err := w.balance(following, plane)
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, link.Close)
	w.Product, err = stack.Start(ctx, stack.Options{
		Plane: plane, Root: root, Front: w.sinks.front, NodeGrace: time.Minute, Output: w.heard, OperatorLink: link,
		Images: map[string]localnode.Image{electorImage: {Root: filepath.Join(images, "elector")}},
	}, images)
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, w.Stop)
	if err := w.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return nil, stop, err
	}
	if err := errors.Join(w.nameForeigner(ctx), w.raiseGuard(ctx, root, plane.URLs()...)); err != nil {
		return nil, stop, err
	}
	go w.revive(following)
	if w.witnesses, err = bearWitness(); err != nil {
		return nil, stop, err
	}
	return w, stop, w.populate(ctx, following)
}

// balance begins to balance the load between the API servers, and returns the operator's link to them.
func (w *world) balance(ctx context.Context, plane *controlplane.ControlPlane) (*faultproxy.Proxy, error) {
	w.balancer = &balancer{urls: plane.URLs()}
	if err := w.balancer.run(ctx, plane.Config()); err != nil {
		return nil, err
	}
	certificate, err := plane.ServerCertificate()
	if err != nil {
		return nil, err
	}
	link, err := faultproxy.Start(faultproxy.Options{
		Listen: "127.0.0.1:0", Certificate: &certificate, Upstream: plane.URL(), UpstreamCA: plane.CA(),
	})
	if err != nil {
		return nil, err
	}
	return link, w.balancer.add(link)
}

// revive restarts a program that ends because of an error or without an API server, as a kubelet would.
func (w *world) revive(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, time.Second)
		if ctx.Err() == nil {
			_ = errors.Join(w.Plane.ReviveControllers(), w.ReviveOperator()) // the next time comes
		}
	}
}

const electorImage = "local/elector"

func build(ctx context.Context, root, images string) error {
	if err := stack.Build(ctx, root, images); err != nil {
		return err
	}
	into := filepath.Join(images, "elector")
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	out, err := gotool.Command(ctx, root, "build", "-ldflags=-s -w", "-o", into+"/", "./test/bench/elector").CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the elector: %w\n%s", err, out)
	}
	return nil
}

func (w *world) say(format string, args ...any) { _, _ = fmt.Fprintf(w.progress, format+"\n", args...) }

// populate makes nodes and subjects, and waits until each has a holder.
func (w *world) populate(ctx, following context.Context) error {
	watching, err := client.NewWithWatch(w.Plane.Config(), client.Options{Scheme: w.Client.Scheme()})
	if err != nil {
		return err
	}
	w.chronicle = newChronicle(watching, namespace)
	go w.chronicle.follow(following, &coordinationv1.LeaseList{})
	go w.chronicle.follow(following, &v1alpha1.SingletonJobList{})
	for _, s := range w.subjects {
		for _, place := range []string{"a", "b"} {
			node, err := w.Cluster.AddNode(ctx, s.Name+"-"+place, map[string]string{nodeLabel: s.Name})
			if err != nil {
				return err
			}
			if err := w.balancer.add(node.Proxy()); err != nil {
				return err
			}
			s.nodes = append(s.nodes, node)
		}
		if err := w.create(ctx, following, s); err != nil {
			return err
		}
	}
	w.say("%d nodes, %d jobs and the control", len(w.Cluster.Nodes()), len(w.subjects)-1)
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	for _, s := range w.subjects {
		if err := w.awaitWrite(ctx, s, 0); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) create(ctx, following context.Context, s *subject) error {
	if !s.Control {
		return w.Client.Create(ctx, w.job(s))
	}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: s.Name}
	for _, o := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: s.Name}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: s.Name},
		},
	} {
		if err := w.Client.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %s: %w", o, s.Name, err)
		}
	}
	go w.deploy(following, s)
	return nil
}

// job is the subject's, made from nothing.
func (w *world) job(s *subject) *v1alpha1.SingletonJob {
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.Name}}
	s.lease.Apply(job)
	job.Spec.HistoryLimit = new(v1alpha1.MaxHistoryLimit)
	job.Spec.Template.Spec = w.pod(s, corev1.Container{
		Name: "writer", Image: stack.WorkloadImage, Command: []string{"workload"}, Env: []corev1.EnvVar{
			{Name: "ADDRESS", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
			{Name: "LISTEN", Value: fmt.Sprintf("$(ADDRESS):%d", port)},
		},
	})
	s.change(job)
	return job
}

func (w *world) pod(s *subject, container corev1.Container) corev1.PodSpec {
	container.Env = append(container.Env, []corev1.EnvVar{
		{Name: "SINK", Value: w.SinkLink.URL()}, {Name: "RESOURCE", Value: s.Name}, {Name: "EVERY", Value: every.String()},
	}...)
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(2)),
		NodeSelector:                  map[string]string{nodeLabel: s.Name},
		Containers:                    []corev1.Container{container},
	}
}

// deploy is the control's Deployment of two, a pod on each node: no controller of Deployments runs here.
func (w *world) deploy(ctx context.Context, s *subject) {
	for ctx.Err() == nil {
		for _, node := range s.nodes {
			container := corev1.Container{Name: "elector", Image: electorImage + ":1", Command: []string{"elector"}}
			container.Env = []corev1.EnvVar{
				{Name: "NAMESPACE", Value: namespace},
				{Name: contract.PodEnv, Value: node.Name()},
				{Name: "CREDENTIALS", Value: "/var/run/secrets/kubernetes.io/serviceaccount"},
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node.Name()}, Spec: w.pod(s, container)}
			pod.Spec.ServiceAccountName, pod.Spec.NodeSelector = s.Name, map[string]string{corev1.LabelHostname: node.Name()}
			_ = w.Client.Create(ctx, pod) // it is there already, or the next time comes
		}
		pause(ctx, time.Second)
	}
}

// awaitWrite waits for a write of any process of the subject after a given time.
func (w *world) awaitWrite(ctx context.Context, s *subject, after time.Duration) error {
	return observe.Await(ctx, "a write of "+s.Name, func() (bool, any, error) {
		last := w.sinks.lastWrite(s.resource())
		return last.at > after, last, nil
	})
}

// active is the node on which the subject's process runs, by its writes.
func (w *world) active(s *subject) (pod string, node *localnode.Node, err error) {
	pod = w.sinks.lastWrite(s.resource()).pod
	if pod == "" {
		return "", nil, errors.New("nobody has written")
	}
	node, err = w.Cluster.NodeOf(namespace, pod)
	return pod, node, err
}

// heal ends all remaining faults.
func (w *world) heal() error { return errors.Join(w.Cluster.Heal(), w.SinkLink.Heal()) }

// settle waits until each subject has a holder after all faults, and each job's status reports it.
func (w *world) settle(ctx context.Context) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ended := fencetest.Boottime()
	returned := map[string]bool{}
	for _, s := range w.subjects {
		if err := w.awaitWrite(ctx, s, ended); err != nil {
			w.say("%v", err)
			continue
		}
		if s.Control {
			returned[s.Name] = true
			continue
		}
		job, err := w.AwaitJob(ctx, namespace, s.Name, "active, and told", func(job *v1alpha1.SingletonJob) bool {
			return stack.ActiveAfter(0)(job) && len(job.Status.History) > 0 && job.Status.History[0].Token == job.Status.FencingToken
		})
		if err != nil {
			w.say("%v", err)
			continue
		}
		returned[s.Name] = job != nil
	}
	return returned
}

// history is the complete record.
func (w *world) history(judged time.Duration, returned map[string]bool) *judge.History {
	h := &judge.History{
		Fenced: w.Sink.Attempts(0), Unfenced: w.sinks.unfenced.Attempts(0), Operations: w.sinks.recorded(),
		Late: w.witnesses.series(), Judged: judged, Returned: returned,
	}
	for _, s := range w.subjects {
		h.Subjects = append(h.Subjects, s.Subject)
	}
	w.chronicle.tellInto(h)
	w.mu.Lock()
	defer w.mu.Unlock()
	h.Faults = append(h.Faults, w.faults...)
	h.Forgeries = append(h.Forgeries, w.forgeries...)
	h.Refusals = append(h.Refusals, w.honest...)
	return h
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// between is a random duration.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(max(1, most-least))))
}
