//go:build linux

package samples

import (
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/samples"
)

const (
	// The namespaces, and our kind.
	ours, today = "samples", "today"
	singleton   = "SingletonJob"
	utc         = "Etc/UTC"
	// sampleLabel is on the Pods of today's kinds.
	sampleLabel = "sample"
)

// A sample is a folder of config/samples.
type sample struct {
	name string
	job  string // its name, if that is another
	// today is the kind that people run it in.
	today string
	// process is how the command line begins of what is killed.
	process string
	sink    func(*subject)
	// runs ends, and each fault meets a new run.
	runs bool
	// twice is how much its README allows to be done twice by each fault but a drain. lossy allows losses.
	twice int
	lossy bool
}

var all = []sample{
	{name: "beat", today: "Deployment", process: "python3 -m celery", sink: sinkBeat, lossy: true},
	{name: "scheduler", today: "Deployment", process: "python3", sink: sinkScheduler},
	{name: "bot", today: "Deployment", process: "python3", sink: sinkBot, twice: 10},
	{name: "exporter", today: "Deployment", process: "python3", sink: sinkExporter, twice: 1},
	{name: "outbox", today: "Deployment", process: "python3", sink: sinkOutbox},
	{name: "migration", job: "migrate-v42", today: "Job", process: "python3", sink: sinkMigration, runs: true},
	{name: "nightly", today: "CronJob", process: "python3", sink: sinkNightly, runs: true},
	{name: "signer", today: "StatefulSet", process: "python3", sink: sinkSigner, lossy: true},
	{name: "controller", job: "routes", today: "Deployment", process: "controller", sink: sinkController},
	{name: "sqlite", today: "Deployment", process: "python3", sink: sinkSQLite},
	{name: "poller", today: "Deployment", process: "sh -c", sink: sinkPoller, twice: 1},
}

// A subject is a sample in one kind.
type subject struct {
	*bench
	sample
	namespace, kind string

	env    map[string]string
	secret map[string]string
	// events are what its sink has. last is when that was last, if it is known without reading all.
	events func() (events []samples.Event, expected []string)
	last   func() time.Time
	change func(*unstructured.Unstructured)

	node, container string // where it is at work
	hits            []hit
	migrations      []string       // names
	steps           map[string]int // of each
	ticks           []string
}

func (s *subject) String() string { return s.name + " as " + s.kind }

func (s *subject) key() client.ObjectKey {
	name := s.name
	if s.job != "" {
		name = s.job
	}
	if n := len(s.migrations); n > 0 {
		name = s.migrations[n-1]
	}
	return client.ObjectKey{Namespace: s.namespace, Name: name}
}

func (s *subject) lastEvent() (last time.Time) {
	if s.last != nil {
		return s.last()
	}
	events, _ := s.events()
	for _, e := range events {
		if e.At.After(last) {
			last = e.At
		}
	}
	return last
}

// create applies the sample as a user does: ours as it is, but for the address of its sink and the nodes of this test. Today's has its
// template.
func (s *subject) create() {
	s.Helper()
	if s.secret != nil {
		s.must(s.cluster.Client.Create(s.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}, StringData: s.secret}))
		s.secret = nil
	}
	if s.name == "poller" {
		s.install()
		return
	}
	manifests, err := s.cluster.Kubectl(s.ctx, "kustomize", filepath.Join(root, "config/samples", s.name))
	s.must(err)
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		o := &unstructured.Unstructured{}
		s.must(yaml.Unmarshal([]byte(text), &o.Object))
		o.SetNamespace(s.namespace)
		if s.change != nil {
			s.change(o)
		}
		if o.GetKind() == "ConfigMap" && len(s.migrations) > 1 {
			continue // it is there
		}
		if o.GetKind() != singleton {
			s.must(s.cluster.Client.Create(s.ctx, o))
			continue
		}
		job := &v1alpha1.SingletonJob{}
		s.must(yaml.UnmarshalStrict([]byte(text), job))
		job.Namespace, job.Name = s.namespace, s.key().Name
		s.prepare(&job.Spec.Template.Spec, job.Name, job.Spec.Candidates)
		if job.Spec.Schedule != nil {
			job.Spec.Schedule.Cron, job.Spec.Schedule.TimeZone = "0 0 1 1 *", utc
		}
		if s.kind == singleton {
			s.must(s.cluster.Client.Create(s.ctx, job))
			continue
		}
		s.must(s.cluster.Client.Create(s.ctx, s.todays(job)))
	}
}

// prepare has a Pod be on nodes of its kind, one of a job on each, and use the sink.
func (s *subject) prepare(pod *corev1.PodSpec, job string, candidates int32) {
	pod.Affinity = s.affinity()
	if s.kind == singleton && candidates != 1 {
		pod.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"singletonjob.io/name": job}},
		}}}
	}
	pod.Tolerations = tolerations()
	c := &pod.Containers[0]
	c.ImagePullPolicy = corev1.PullIfNotPresent
	env := maps.Clone(s.env)
	for i := range c.Env {
		if value, other := env[c.Env[i].Name]; other {
			c.Env[i].Value = value
			delete(env, c.Env[i].Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: env[name]})
	}
}

func (s *subject) affinity() *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: s.nodesOf(s.namespace)},
		}}},
	}}}
}

func tolerations() (all []corev1.Toleration) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		all = append(all, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(evicted)),
		})
	}
	return all
}

// todays is the job's template in today's kind. All tokens are one, so that fences let everything pass, and who runs twice writes twice.
func (s *subject) todays(job *v1alpha1.SingletonJob) client.Object {
	template := job.Spec.Template
	labels := map[string]string{sampleLabel: s.name}
	template.Labels = labels
	c := &template.Spec.Containers[0]
	for name, value := range map[string]string{fence.EnvToken: "1", fence.EnvName: job.Name, fence.EnvNamespace: s.namespace} {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
	object, selector := metav1.ObjectMeta{Namespace: s.namespace, Name: job.Name}, &metav1.LabelSelector{MatchLabels: labels}
	switch s.kind {
	case "StatefulSet":
		return &appsv1.StatefulSet{ObjectMeta: object, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1)), Selector: selector, Template: template}}
	case "Job":
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		return &batchv1.Job{ObjectMeta: object, Spec: batchv1.JobSpec{Template: template}}
	case "CronJob":
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		c.Env = append(c.Env, corev1.EnvVar{Name: "SINGLETONJOB_TICK", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobNameLabel + "']"},
		}})
		return &batchv1.CronJob{ObjectMeta: object, Spec: batchv1.CronJobSpec{
			Schedule: job.Spec.Schedule.Cron, TimeZone: new(utc), ConcurrencyPolicy: batchv1.ForbidConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}},
		}}
	}
	deployment := &appsv1.Deployment{ObjectMeta: object, Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: selector, Template: template}}
	if job.Spec.Candidates == 1 {
		deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	}
	return deployment
}

func sinkBeat(s *subject) {
	l := samples.NewLedger(s.T)
	s.env, s.events = map[string]string{"BROKER_URL": l.Broker, "REDIS_URL": l.URL}, l.Events
}

func sinkScheduler(s *subject) {
	api := samples.NewBills(s.T)
	s.env, s.events = map[string]string{"API_URL": api.URL}, api.Events
}

// each does something again and again until the test ends.
func (s *subject) each(every time.Duration, do func()) {
	tick := time.NewTicker(every)
	var ends sync.WaitGroup
	end := make(chan struct{})
	ends.Go(func() {
		for {
			select {
			case <-tick.C:
				do()
			case <-end:
				return
			}
		}
	})
	s.Cleanup(func() { tick.Stop(); close(end); ends.Wait() })
}

func sinkBot(s *subject) {
	api := samples.NewTelegram(s.T)
	s.env, s.secret, s.events = map[string]string{"API_URL": api.URL}, map[string]string{"token": samples.Token}, api.Events
	s.each(200*time.Millisecond, api.Say)
	s.Cleanup(func() { s.say("%v: %+v", s, api.Counts()) })
}

func callers(api *samples.Costs) func() ([]samples.Event, []string) {
	return func() ([]samples.Event, []string) { return api.Events(), nil }
}

func sinkExporter(s *subject) {
	api := samples.NewCosts(s.T)
	s.env, s.events = map[string]string{"API_URL": api.URL, "INTERVAL": "0.5"}, callers(api)
}

func sinkOutbox(s *subject) {
	o := s.databases.Outbox("_" + s.namespace)
	s.secret, s.events, s.last = map[string]string{"source": o.Source, "target": o.Target}, o.Events, o.Last
	s.Cleanup(o.Write())
}

func sinkMigration(s *subject) {
	address := s.databases.New("migration_"+s.namespace, "migration/schema.sql")
	s.secret, s.steps, s.env = map[string]string{"url": address}, map[string]int{}, map[string]string{}
	s.events = func() (events []samples.Event, expected []string) {
		for _, name := range s.migrations {
			for _, e := range samples.Steps(s.T, address, name) {
				e.Unit = name + "/" + e.Unit
				events = append(events, e)
			}
			for step := range s.steps[name] {
				expected = append(expected, name+"/"+strconv.Itoa(step+1))
			}
		}
		return events, expected
	}
}

// migrate begins a migration.
func (s *subject) migrate(fault string, steps int) {
	name := fmt.Sprintf("migrate-%s-%d", fault, len(s.migrations)+1)
	s.migrations = append(s.migrations, name)
	s.steps[name], s.env["STEPS"] = steps, strconv.Itoa(steps)
	s.create()
}

func sinkNightly(s *subject) {
	address := s.databases.New("nightly_"+s.namespace, "nightly/schema.sql")
	// The work outlasts the time after which Kubernetes replaces a Pod on a lost node.
	s.secret, s.env = map[string]string{"url": address}, map[string]string{"WORK": "100"}
	s.events = func() ([]samples.Event, []string) { return samples.Booked(s.T, address), s.ticks }
	s.create()
}

// tick moves the schedule's one tick of the day to a time, and has it counted.
func (s *subject) tick(at time.Time) {
	at = at.UTC()
	text, patch := at.Format(time.RFC3339), `{"spec":{"schedule":{"cron":"%s"}}}`
	if s.kind != singleton {
		text = fmt.Sprintf("%s-%d", s.name, at.Unix()/60) // what the controller calls the Job
		patch = `{"spec":{"schedule":"%s"}}`
	}
	s.ticks = append(s.ticks, text)
	patch = fmt.Sprintf(patch, fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour()))
	s.kubectl("patch", s.kind, s.name, "--namespace="+s.namespace, "--type=merge", "--patch="+patch)
}

// unfinished says what is missing until the last run is over.
func (s *subject) unfinished() string {
	switch {
	case s.name == "nightly":
		events, expected := s.events()
		if c := samples.Count(events, expected); c.Lost > 0 {
			return fmt.Sprintf("%d ticks are not booked", c.Lost)
		}
		if pods, err := s.pods(); s.kind != singleton && (err != nil || len(pods) > 0) {
			return fmt.Sprintf("%d Pods, %v", len(pods), err)
		}
	case len(s.migrations) == 0:
	case s.kind == singleton:
		var job v1alpha1.SingletonJob
		if err := s.cluster.Client.Get(s.ctx, s.key(), &job); err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionComplete) {
			return "not complete"
		}
	default:
		var job batchv1.Job
		if err := s.cluster.Client.Get(s.ctx, s.key(), &job); err != nil {
			return err.Error()
		}
		if job.Status.Succeeded == 0 {
			return "not complete"
		}
	}
	return ""
}

func sinkSigner(s *subject) {
	chain := samples.NewChain(s.T)
	s.env, s.secret, s.events = map[string]string{"CHAIN_URL": chain.URL}, map[string]string{"key": "key"}, chain.Events
}

// sinkController changes a route again and again, and notes what each version of the table says of it. The table that goes back does the
// same twice.
func sinkController(s *subject) {
	var mu sync.Mutex
	var events []samples.Event
	latest := 0
	route := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "a", Labels: map[string]string{"example.com/route": ""}}}
	s.must(s.cluster.Client.Create(s.ctx, route))
	s.each(250*time.Millisecond, func() {
		patch := fmt.Sprintf(`{"data":{"target":"%d"}}`, latest+1)
		if s.cluster.Client.Patch(s.ctx, route.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))) == nil {
			latest++
		}
	})
	versions, err := s.cluster.Client.Watch(s.ctx, &corev1.ConfigMapList{}, client.InNamespace(s.namespace), client.MatchingFields{"metadata.name": "routes"})
	s.must(err)
	s.Cleanup(versions.Stop)
	go func() {
		for version := range versions.ResultChan() {
			table, ok := version.Object.(*corev1.ConfigMap)
			if !ok || version.Type == watch.Deleted || table.Data["a"] == "" {
				continue
			}
			mu.Lock()
			if n := len(events); n == 0 || events[n-1].Unit != table.Data["a"] { // a new tenure writes at its beginning what there is
				events = append(events, samples.Event{At: time.Now(), Unit: table.Data["a"]})
			}
			mu.Unlock()
		}
	}()
	s.events = func() ([]samples.Event, []string) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(events), nil
	}
}

// sinkSQLite has a volume that all nodes see, which Kubernetes does not attach.
func sinkSQLite(s *subject) {
	dir, err := os.MkdirTemp("", "bench-samples-")
	s.must(errors.Join(err, os.Chmod(dir, 0o777)))
	s.Cleanup(func() { _ = os.RemoveAll(dir) }) // while Pods still write there
	meter := samples.NewMeter(s.T, filepath.Join(dir, "readings.db"), 200*time.Millisecond)
	s.env, s.events, s.last = map[string]string{"METER_URL": meter.URL}, meter.Events, meter.Last
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-readings"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		ClaimRef:               &corev1.ObjectReference{Namespace: s.namespace, Name: "readings"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	}}
	s.must(s.cluster.Client.Create(s.ctx, volume))
	s.change = func(o *unstructured.Unstructured) {
		if o.GetKind() == "PersistentVolumeClaim" {
			s.must(unstructured.SetNestedField(o.Object, "", "spec", "storageClassName"))
			s.must(unstructured.SetNestedField(o.Object, volume.Name, "spec", "volumeName"))
		}
	}
}

func sinkPoller(s *subject) {
	api := samples.NewCosts(s.T)
	s.env, s.events = map[string]string{"UPSTREAM": api.URL}, callers(api)
}

// install installs the chart: for ours with no replicas, and the job that has its template.
func (s *subject) install() {
	replicas := 1
	if s.kind == singleton {
		replicas = 0
	}
	values, err := yaml.Marshal(map[string]any{
		"replicaCount": replicas, "image": map[string]string{"repository": s.registry + "/poller"}, "env": s.env,
		"affinity": s.affinity(), "tolerations": tolerations(), "podLabels": map[string]string{sampleLabel: s.name},
	})
	s.must(err)
	file := filepath.Join(s.TempDir(), "values.yaml")
	s.must(os.WriteFile(file, values, 0o600))
	helm, err := s.cluster.Program(s.ctx, "helm")
	s.must(err)
	chart := filepath.Join(root, "config/samples/poller")
	_, err = s.cluster.Run(s.ctx, helm, "install", "poller", chart, "--namespace="+s.namespace, "--values="+file)
	s.must(err)
	if s.kind == singleton {
		s.kubectl("apply", "--namespace="+s.namespace, "--filename="+filepath.Join(chart, "singleton.yaml"))
	}
}

// serveImages has the chart's image in a registry for the operator, which asks it for the entrypoint, and on all nodes.
func (b *bench) serveImages() string {
	listener, err := net.Listen("tcp", net.JoinHostPort(samples.Host, "0"))
	b.must(err)
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(func() { _ = server.Close() })
	host := listener.Addr().String()
	file, err := empty.Image.ConfigFile()
	b.must(err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, v1.Config{Cmd: []string{"sh"}}
	image, err := mutate.ConfigFile(empty.Image, file)
	b.must(err)
	to, err := name.ParseReference(host+"/poller:1.37", name.Insecure)
	b.must(err)
	b.must(remote.Write(to, image))
	busybox, err := exec.LookPath("busybox")
	b.must(err)
	spec := to.String() + "=" + busybox + ":/bin/busybox"
	for _, applet := range []string{"sh", "cat", "httpd", "sleep", "wget"} {
		spec += ",->/bin/busybox:/bin/" + applet
	}
	b.must(b.cluster.Lab.Image(b.ctx, spec))
	return host
}
