//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/bench/migration/row"
	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/postgres"
	"github.com/singletonjob/operator/test/subprocess"
)

// The kinds.
const (
	singleton = "SingletonJob"
	ofBatch   = "Job"
)

const (
	namespace = "migrations"
	program   = "./test/sinks/writer/migrate"
	image     = "local/migrate:1"
	// nodes: the first has the operator and stays. The next two are for SingletonJobs, the last two for Jobs. The first of each two is
	// broken.
	nodes = 5
	// every is how long a step's work takes, and begun how many steps are done before the fault.
	every = time.Second
	begun = 10
	// evicted is how long a Pod tolerates that its node is lost, instead of Kubernetes' 300 s.
	evicted = int64(15)
	// settles bounds each wait.
	settles = 8 * time.Minute
)

// bench is the database, and what writes to it.
type bench struct {
	cluster  *cluster.Cluster
	progress io.Writer
	each     int

	scratch, migrate, address string
	said                      bytes.Buffer
	server                    *subprocess.Process
}

func (b *bench) say(format string, args ...any) { _, _ = fmt.Fprintf(b.progress, format+"\n", args...) }

func (b *bench) close() {
	if b.server != nil {
		b.server.Stop(0)
	}
	_ = os.RemoveAll(b.scratch)
}

func (b *bench) setUp(ctx context.Context, operator string) (err error) {
	c := b.cluster
	if b.scratch, err = os.MkdirTemp("", "bench-migration-"); err != nil {
		return err
	}
	b.migrate = filepath.Join(b.scratch, "migrate")
	steps := []func() error{
		func() error { return c.Lab.Fault(ctx, "heal") },
		func() error { return cluster.Build(ctx, program, b.migrate) },
		func() error { return c.Lab.Image(ctx, image+"="+b.migrate+":/migrate@/migrate") },
		func() error { return b.startDatabase(ctx) },
		func() error {
			return c.Install(ctx, "charts/singletonjob", operator, `nodeSelector.kubernetes\.io/hostname=`+c.Lab.Nodes[0])
		},
		func() error { return c.CreateNamespace(ctx, namespace, "") },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// startDatabase is without fsync: nothing befalls this machine.
func (b *bench) startDatabase(ctx context.Context) error {
	host := b.cluster.Lab.Host
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	dir := filepath.Join(b.scratch, "postgres")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(b.scratch, 0o755)); err != nil {
		return err
	}
	cmd, err := postgres.Command(ctx, dir, host, port, "track_commit_timestamp=on")
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = &b.said, &b.said
	if b.server, err = subprocess.Start(cmd); err != nil {
		return err
	}
	b.address = fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable", postgres.User, net.JoinHostPort(host, port))
	return await(ctx, "the database", func() (bool, any, error) {
		_, err := b.ask(ctx, row.Prepare)
		return err == nil, nil, err
	})
}

// ask has the program look after the database.
func (b *bench) ask(ctx context.Context, what string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, b.migrate, what)
	cmd.Env = append(os.Environ(), row.AddressEnv+"="+b.address)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("migrate %s: %w: %s", what, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

func (b *bench) rows(ctx context.Context) (rows []row.Row, err error) {
	out, err := b.ask(ctx, row.List)
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	return rows, err
}

func await(ctx context.Context, what string, is func() (bool, any, error)) error {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	return observe.Await(ctx, what, is)
}

// A fault befalls all that is active, which is on the first node of each kind.
type fault struct {
	key, title string
	do, undo   func(ctx context.Context, t *trial) error
	// hold is from do to undo.
	hold time.Duration
}

var faults = []fault{
	{key: "kill", title: "process killed", do: onEach("signal", "KILL", "/migrate")},
	{key: "freeze", title: "frozen for 60 s", do: onEach("freeze"), undo: onEach("thaw"), hold: time.Minute},
	// So long that a Job has replaced the Pods, and the old processes still work.
	{key: "cut", title: "node cut off from the API servers for 110 s", do: onNodes("api", "drop"), undo: onNodes("mend", "api"), hold: 110 * time.Second},
	{key: "drain", title: "node drained", do: drain, undo: cordon("uncordon", 0)},
	{key: "crash", title: "node lost for 110 s", do: onNodes("crash"), undo: onNodes("heal"), hold: 110 * time.Second},
}

// onEach has a fault of the lab befall each container. After a fault it may be gone.
func onEach(what string, how ...string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		for _, m := range t.all {
			if err := t.cluster.Lab.Fault(ctx, append([]string{what, m.container}, how...)...); err != nil {
				if what != "thaw" {
					return err
				}
				t.say("  %s of %s: %v", what, m.name, err)
			}
		}
		return nil
	}
}

func onNodes(what string, how ...string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		var errs []error
		for _, node := range t.nodes(0) {
			errs = append(errs, t.cluster.Lab.Fault(ctx, append([]string{what, node}, how...)...))
		}
		return errors.Join(errs...)
	}
}

func drain(ctx context.Context, t *trial) error {
	for i, selector := range []string{contract.NameLabel, batchv1.JobNameLabel} {
		if _, err := t.cluster.Kubectl(ctx, "drain", t.nodes(0)[i], "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m", "--pod-selector="+selector); err != nil {
			return err
		}
	}
	return nil
}

// cordon cordons or uncordons a node of each kind.
func cordon(verb string, which int) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		_, err := t.cluster.Kubectl(ctx, append([]string{verb}, t.nodes(which)...)...)
		return err
	}
}

// nodes are the first or the second nodes of each kind.
func (b *bench) nodes(which int) []string {
	return []string{b.cluster.Lab.Nodes[1+which], b.cluster.Lab.Nodes[3+which]}
}

// A migration is one of those under a fault.
type migration struct {
	kind, name, container string
	took                  time.Duration
	over, complete        bool
}

// trial is one fault under all at once.
type trial struct {
	*bench

	all []*migration
}

func (b *bench) trial(ctx context.Context, f fault) (results []Result, err error) {
	b.say("%s", f.title)
	t := &trial{bench: b}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		_, cleaned := b.cluster.Kubectl(ctx, "delete", "singletonjobs,jobs", "--all", "--namespace", namespace, "--cascade=foreground", "--timeout=3m")
		err = errors.Join(err, b.cluster.Lab.Fault(ctx, "heal"), cordon("uncordon", 0)(ctx, t), cordon("uncordon", 1)(ctx, t), cleaned)
	}()
	if err := await(ctx, "the nodes to be ready", func() (bool, any, error) { return onlab.NodesReady(ctx, b.cluster.Client) }); err != nil {
		return nil, err
	}
	if err := t.start(ctx, f); err != nil {
		return nil, err
	}
	if err := f.do(ctx, t); err != nil {
		return nil, err
	}
	if err := t.finish(ctx, f, time.Now()); err != nil {
		b.say("  %v", err)
	}
	rows, err := b.rows(ctx)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{singleton, ofBatch} {
		results = append(results, t.result(f, kind, rows))
	}
	b.say("%s", table(results))
	return results, nil
}

func (t *trial) result(f fault, kind string, rows []row.Row) Result {
	r := Result{Fault: f.title, Kind: kind}
	for _, m := range t.all {
		if m.kind != kind {
			continue
		}
		r.judge(m.name, rows)
		if m.complete {
			r.Complete++
			r.Took = append(r.Took, m.took)
		}
	}
	slices.Sort(r.Took)
	return r
}

// start has all be at work on the first nodes, with the standbys on the second ones.
func (t *trial) start(ctx context.Context, f fault) error {
	if err := cordon("cordon", 1)(ctx, t); err != nil {
		return err
	}
	for i := range t.each {
		for _, kind := range []string{singleton, ofBatch} {
			m := &migration{kind: kind, name: fmt.Sprintf("%s-%s-%d", strings.ToLower(kind), f.key, i)}
			t.all = append(t.all, m)
			if err := t.cluster.Client.Create(ctx, t.object(m)); err != nil {
				return err
			}
		}
	}
	if err := t.working(ctx, 1); err != nil {
		return err
	}
	if err := cordon("uncordon", 1)(ctx, t); err != nil {
		return err
	}
	if err := t.working(ctx, begun); err != nil {
		return err
	}
	for _, m := range t.all {
		if err := t.find(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// object is a migration of either kind.
func (t *trial) object(m *migration) client.Object {
	app := corev1.Container{Name: "app", Image: image, Command: []string{"/migrate"}, Env: []corev1.EnvVar{
		{Name: row.AddressEnv, Value: t.address}, {Name: row.SubjectEnv, Value: m.name}, {Name: row.EveryEnv, Value: every.String()},
	}}
	pod := cluster.RestrictedPod(app)
	on := t.cluster.Lab.Nodes[1:3]
	if m.kind == ofBatch {
		on = t.cluster.Lab.Nodes[3:5]
	}
	pod.RestartPolicy = corev1.RestartPolicyNever
	pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: on},
		}}},
	}}}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		pod.Tolerations = append(pod.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(evicted),
		})
	}
	named := metav1.ObjectMeta{Namespace: namespace, Name: m.name}
	if m.kind == ofBatch {
		return &batchv1.Job{ObjectMeta: named, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod}}}
	}
	job := &v1alpha1.SingletonJob{ObjectMeta: named}
	cluster.ClientGo.Apply(job)
	job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
	// One candidate on each node: with the second node cordoned, both would be on the first.
	pod.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{contract.NameLabel: m.name}},
	}}}
	job.Spec.Template.Spec = pod
	return job
}

// working waits until each has done so many steps. More than one are done only when a standby is there as well.
func (t *trial) working(ctx context.Context, steps int) error {
	return await(ctx, fmt.Sprintf("each to have done step %d", steps), func() (bool, any, error) {
		rows, err := t.rows(ctx)
		if err != nil {
			return false, nil, err
		}
		var missing []string
		for _, m := range t.all {
			at := slices.IndexFunc(rows, func(r row.Row) bool { return r.Subject == m.name && r.Step >= steps })
			var job v1alpha1.SingletonJob
			switch {
			case at < 0:
				missing = append(missing, m.name)
			case m.kind == ofBatch || steps == 1:
			default:
				if err := t.cluster.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: m.name}, &job); err != nil {
					return false, nil, err
				}
				if !meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionProtected) {
					missing = append(missing, "a standby of "+m.name)
				}
			}
		}
		return len(missing) == 0, missing, nil
	})
}

// find notes the container that works for a migration.
func (t *trial) find(ctx context.Context, m *migration) error {
	var pods corev1.PodList
	label := contract.NameLabel
	if m.kind == ofBatch {
		label = batchv1.JobNameLabel
	}
	if err := t.cluster.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{label: m.name}); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if slices.Contains(t.nodes(0), pod.Spec.NodeName) && len(pod.Status.ContainerStatuses) == 1 {
			_, m.container, _ = strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
			return nil
		}
	}
	return fmt.Errorf("no pod of %s is on %v", m.name, t.nodes(0))
}

// finish waits until all are over, and undoes the fault in the meantime.
func (t *trial) finish(ctx context.Context, f fault, struck time.Time) error {
	undone := f.undo == nil
	return await(ctx, "the end of all", func() (bool, any, error) {
		var left []string
		for _, m := range t.all {
			if err := t.look(ctx, m, struck); err != nil {
				return false, nil, err
			}
			if !m.over {
				left = append(left, m.name)
			}
		}
		if !undone && time.Since(struck) >= f.hold {
			undone = true
			if err := f.undo(ctx, t); err != nil {
				return false, nil, err
			}
		}
		return undone && len(left) == 0, left, nil
	})
}

// look notes when a migration is over.
func (t *trial) look(ctx context.Context, m *migration, struck time.Time) error {
	if m.over {
		return nil
	}
	key := client.ObjectKey{Namespace: namespace, Name: m.name}
	if m.kind == singleton {
		var job v1alpha1.SingletonJob
		if err := t.cluster.Client.Get(ctx, key, &job); err != nil {
			return err
		}
		m.complete = meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionComplete)
		m.over = m.complete || meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionFailed)
	} else {
		var job batchv1.Job
		if err := t.cluster.Client.Get(ctx, key, &job); err != nil {
			return err
		}
		for _, c := range job.Status.Conditions {
			m.complete = m.complete || c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
			m.over = m.over || m.complete || c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue
		}
	}
	m.took = time.Since(struck)
	return nil
}
