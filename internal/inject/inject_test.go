package inject

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/tier"
)

var update = flag.Bool("update", false, "write the golden files anew")

var settings = Settings{AgentImage: "operator:v1"}

// jobs are the jobs of testdata and of the samples, by file name.
func jobs(t testing.TB) map[string]*v1alpha1.SingletonJob {
	t.Helper()
	parsed, err := parseJobs()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*v1alpha1.SingletonJob{}
	for name, job := range parsed {
		all[name] = job.DeepCopy()
	}
	return all
}

var parseJobs = sync.OnceValues(func() (map[string]*v1alpha1.SingletonJob, error) {
	all := map[string]*v1alpha1.SingletonJob{}
	for _, pattern := range []string{"testdata/*.job.yaml", "../../config/samples/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("%s: %w, %d files", pattern, err, len(files))
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			var job v1alpha1.SingletonJob
			if err := yaml.UnmarshalStrict(raw, &job); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if job.UID == "" {
				job.UID = "6f7f2a0e-0000-4000-8000-000000000000"
			}
			if errs := v1alpha1.Validate(&job); len(errs) > 0 {
				return nil, fmt.Errorf("%s: %w", file, errs.ToAggregate())
			}
			name, _, _ := strings.Cut(filepath.Base(file), ".")
			all[name] = &job
		}
	}
	return all, nil
})

func mustPod(t testing.TB, job *v1alpha1.SingletonJob, ordinal int, s Settings) *corev1.Pod {
	t.Helper()
	pod, err := Pod(job, ordinal, s)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// The golden files are complete candidate Pods: they show best what this package does.
func TestGolden(t *testing.T) {
	for name, job := range jobs(t) {
		t.Run(name, func(t *testing.T) {
			got, err := yaml.Marshal(mustPod(t, job, 1, settings))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".pod.yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("run with -update if this is wanted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoPodFromAnInvalidJob(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.SingletonJob)
		want   string
	}{
		"unknown container": {func(job *v1alpha1.SingletonJob) { job.Spec.Container = "web" }, `spec.container "web" is not a container`},
		"no container":      {func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.Containers = nil }, `is not a container`},
		"no command":        {func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.Containers[0].Command = nil }, `"app" sets no command`},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobs(t)["minimal"]
			c.change(job)
			if pod, err := Pod(job, 0, settings); err == nil || !strings.Contains(err.Error(), c.want) || pod != nil {
				t.Errorf("got %v, %v", pod, err)
			}
			_ = Hash(job) // must work before the job is validated
		})
	}
}

func TestNamesFit(t *testing.T) {
	name := PodName(strings.Repeat("x", v1alpha1.MaxNameLength), Hash(jobs(t)["minimal"]), 99)
	if len(name) > 63 {
		t.Errorf("%s has %d characters; a host name has at most 63", name, len(name))
	}
}

// A change on which a running Pod depends is a rollout. Any other change is not.
func TestHash(t *testing.T) {
	app := func(job *v1alpha1.SingletonJob) *corev1.Container { return &job.Spec.Template.Spec.Containers[0] }
	for name, c := range map[string]struct {
		change  func(*v1alpha1.SingletonJob)
		rollout bool
	}{
		"image":   {func(job *v1alpha1.SingletonJob) { app(job).Image = "app:2" }, true},
		"command": {func(job *v1alpha1.SingletonJob) { app(job).Command = []string{"/app", "-v"} }, true},
		"an init container": {func(job *v1alpha1.SingletonJob) {
			job.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "a"}}
		}, true},
		"a label":        {func(job *v1alpha1.SingletonJob) { job.Spec.Template.Labels = map[string]string{"a": "b"} }, true},
		"an annotation":  {func(job *v1alpha1.SingletonJob) { job.Spec.Template.Annotations = map[string]string{"a": "b"} }, true},
		"grace period":   {func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(9)) }, true},
		"leaseDuration":  {func(job *v1alpha1.SingletonJob) { job.Spec.Lease.LeaseDuration.Duration *= 2 }, true},
		"retryPeriod":    {func(job *v1alpha1.SingletonJob) { job.Spec.Lease.RetryPeriod.Duration /= 2 }, true},
		"lockDelay":      {func(job *v1alpha1.SingletonJob) { job.Spec.Lease.LockDelay.Duration = 5 }, true},
		"onRenewFailure": {func(job *v1alpha1.SingletonJob) { job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning }, true},
		"envVar":         {func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.EnvVar = "EPOCH" }, true},
		"container": {func(job *v1alpha1.SingletonJob) {
			job.Spec.Container = job.Spec.Template.Spec.Containers[1].Name
		}, true},
		"another job of the name": {func(job *v1alpha1.SingletonJob) { job.UID = "other" }, true},
		"an empty struct that means something": {func(job *v1alpha1.SingletonJob) {
			job.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, true},

		"restartedAt": {func(job *v1alpha1.SingletonJob) {
			job.Annotations = map[string]string{contract.RestartedAtAnnotation: "now"}
		}, true},

		"the job's own annotations": {func(job *v1alpha1.SingletonJob) {
			job.Annotations = map[string]string{contract.SwitchoverAnnotation: "*@1", contract.RestartedAtAnnotation: ""}
		}, false},
		"candidates":           {func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = 5 }, false},
		"strategy":             {func(job *v1alpha1.SingletonJob) { job.Spec.Strategy.MaxSurge = new(int32(0)) }, false},
		"suspend":              {func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true }, false},
		"historyLimit":         {func(job *v1alpha1.SingletonJob) { job.Spec.HistoryLimit = new(int32(1)) }, false},
		"tokenBase":            {func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.TokenBase = 5 }, false},
		"the defaults":         {v1alpha1.Default, false},
		"the job's own labels": {func(job *v1alpha1.SingletonJob) { job.Labels = map[string]string{"a": "b"} }, false},
		"status":               {func(job *v1alpha1.SingletonJob) { job.Status.FencingToken = 7 }, false},
		"a nil made empty":     {func(job *v1alpha1.SingletonJob) { job.Spec.Template.Labels = map[string]string{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobs(t)["minimal"]
			job.Spec.Container = app(job).Name
			job.Spec.Template.Spec.Containers = append(job.Spec.Template.Spec.Containers, corev1.Container{Name: "b", Image: "b", Command: []string{"/b"}})
			before := Hash(job)
			if name != "the defaults" {
				v1alpha1.Default(job)
			}
			c.change(job)
			if got := Hash(job) != before; got != c.rollout {
				t.Errorf("rollout: %v, want %v", got, c.rollout)
			}
		})
	}
}

// The hash of a job never changes: a change would restart every workload when the operator is upgraded. If this test fails after an
// upgrade of the Kubernetes libraries, withoutEmpty must handle their new encoding.
func TestHashIsStable(t *testing.T) {
	for name, want := range map[string]string{"minimal": "wvkmf9c", "opinionated": "5cdw927"} {
		if got := Hash(jobs(t)[name]); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// Naming the container that was gated by default causes no rollout. It is the only container, the one of the annotation, or the first of
// two. In the last case the hash is that of the versions that gated the first container by default.
func TestNamingTheContainerCausesNoRollout(t *testing.T) {
	job := jobs(t)["minimal"]
	before := Hash(job)
	if job.Spec.Container = job.Spec.Template.Spec.Containers[0].Name; Hash(job) != before {
		t.Error("the only container, by name: a rollout")
	}
	job.Spec.Template.Spec.Containers = append(job.Spec.Template.Spec.Containers, corev1.Container{Name: "b", Image: "b", Command: []string{"/b"}})
	if got := Hash(job); got != "z7qb9lq" {
		t.Errorf("the first of two: %s", got)
	}
	job.Spec.Template.Annotations = map[string]string{v1alpha1.DefaultContainerAnnotation: "b"}
	job.Spec.Container = ""
	before = Hash(job)
	if job.Spec.Container = "b"; Hash(job) != before {
		t.Error("the one of the annotation, by name: a rollout")
	}
}

// Empty values that generators and charts leave in a template do not change its hash.
func TestEmptyValuesCauseNoRollout(t *testing.T) {
	hash := func(template string) string {
		job := jobs(t)["minimal"]
		job.Spec.Template = corev1.PodTemplateSpec{}
		if err := json.Unmarshal([]byte(template), &job.Spec.Template); err != nil {
			t.Fatal(err)
		}
		return Hash(job)
	}
	plain := hash(`{"spec":{"containers":[{"name":"app","image":"x","resources":{"requests":{"cpu":"500m"}}}]}}`)
	if got := hash(`{"metadata":{"creationTimestamp":null,"labels":null,"annotations":null,"ownerReferences":null,"managedFields":null},
		"spec":{"nodeSelector":null,"affinity":null,"tolerations":null,"volumes":null,"securityContext":null,"restartPolicy":null,"hostNetwork":null,
		"containers":[{"name":"app","image":"x","env":null,"livenessProbe":null,"resources":{"limits":null,"requests":{"cpu":0.5}}}]}}`); got != plain {
		t.Errorf("%s, want %s", got, plain)
	}
}

func TestOperatorImageCausesNoRollout(t *testing.T) {
	job := jobs(t)["minimal"]
	old, upgraded := mustPod(t, job, 0, settings), mustPod(t, job, 0, Settings{AgentImage: "operator:v2"})
	if old.Name != upgraded.Name {
		t.Errorf("pods are called %s and %s", old.Name, upgraded.Name)
	}
	if got := upgraded.Spec.InitContainers[0].Image; got != "operator:v2" || upgraded.Annotations[contract.AgentImageAnnotation] != got {
		t.Errorf("a new pod has the agent of %s, and says %q", got, upgraded.Annotations[contract.AgentImageAnnotation])
	}
}

// Only the init container can write to the volume with the agent. The agent writes to another volume. No other container has either volume.
func TestTheAgentIsReadOnly(t *testing.T) {
	for name, job := range jobs(t) {
		pod := mustPod(t, job, 0, settings)
		gated := gatedOf(t, pod)
		writes := map[string]string{} // by volume, the path
		for _, m := range gated.VolumeMounts {
			if !m.ReadOnly {
				writes[m.Name] = m.MountPath
			}
		}
		if at, is := writes[binVolume]; is || writes[runVolume] != contract.RunDir {
			t.Errorf("%s: the process can write to the agent's volume at %q, and has %q to write to; want %q alone", name, at, writes[runVolume], contract.RunDir)
		}
		install := pod.Spec.InitContainers[0].VolumeMounts
		if len(install) != 1 || install[0].Name != binVolume || install[0].ReadOnly || install[0].MountPath != contract.AgentDir {
			t.Errorf("%s: the init container has %+v", name, install)
		}
		for _, v := range pod.Spec.Volumes {
			if own := v.Name == binVolume || v.Name == runVolume; own && !cmp.Equal(v.EmptyDir, &corev1.EmptyDirVolumeSource{}) {
				t.Errorf("%s: volume %+v", name, v)
			}
		}
	}
}

// With the agent's image as a volume, the Pod has no emptyDir that stops kubectl drain. The agent's socket is in a writable place
// outside that volume, with one path per Pod.
func TestAgentImageVolume(t *testing.T) {
	mounting := Settings{AgentImage: "operator:v1", AgentPullPolicy: corev1.PullAlways, AgentImageVolume: true}
	job := jobs(t)["minimal"]
	pod := mustPod(t, job, 0, mounting)
	if len(pod.Spec.InitContainers) != 0 {
		t.Errorf("init containers %v", pod.Spec.InitContainers)
	}
	want := &corev1.ImageVolumeSource{Reference: "operator:v1", PullPolicy: corev1.PullAlways}
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil || v.Name == binVolume && !cmp.Equal(v.Image, want) {
			t.Errorf("volume %+v", v)
		}
	}
	gated := gatedOf(t, pod)
	for _, m := range gated.VolumeMounts {
		if m.Name == runVolume || m.Name == binVolume && (m.MountPath != contract.AgentDir || !m.ReadOnly) {
			t.Errorf("mount %+v", m)
		}
	}
	at := func(name string) int {
		return slices.IndexFunc(gated.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	}
	if i := at(contract.SocketEnv); i < at(contract.PodUIDEnv) || gated.Env[i].Value != "/dev/shm/singletonjob-$(SINGLETONJOB_POD_UID).sock" {
		t.Errorf("Kubernetes would not put the pod's UID into the socket's path, variable %d of %+v", i, gated.Env)
	}
	if copying := mustPod(t, job, 0, settings); copying.Name != pod.Name {
		t.Errorf("a pod with a volume is called %s, one with a copy %s: a change between them would be a rollout", pod.Name, copying.Name)
	}
}

// The template, its envFrom and the image cannot override the agent's variables: a kubelet gives env precedence, and a reference in
// env sees only earlier values.
func TestTheAgentsVariablesCannotBeOverridden(t *testing.T) {
	from := []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "theirs"}}}}
	theirs := []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST"}, {Name: "KUBERNETES_SERVICE_PORT", Value: "1"}}
	inCluster := Settings{AgentImage: "operator:v1", APIHost: "fd00::1", APIPort: "443"}
	for name, test := range map[string]struct {
		settings   Settings
		env        []corev1.EnvVar
		from       []corev1.EnvFromSource
		host, port string
	}{
		"as it is":                        {settings: inCluster, host: "$(KUBERNETES_SERVICE_HOST)", port: "$(KUBERNETES_SERVICE_PORT)"},
		"env":                             {settings: inCluster, env: theirs, host: "$(KUBERNETES_SERVICE_HOST)", port: "$(KUBERNETES_SERVICE_PORT)"},
		"envFrom":                         {settings: inCluster, from: from, host: "fd00::1", port: "443"},
		"both":                            {settings: inCluster, env: theirs, from: from, host: "fd00::1", port: "443"},
		"envFrom, an operator outside":    {settings: settings, from: from, host: "$(KUBERNETES_SERVICE_HOST)", port: "$(KUBERNETES_SERVICE_PORT)"},
		"envFrom, an operator half there": {settings: Settings{AgentImage: "x", APIHost: "h"}, from: from, host: "$(KUBERNETES_SERVICE_HOST)", port: "$(KUBERNETES_SERVICE_PORT)"},
		"the agent's image as a volume":   {settings: Settings{AgentImage: "x", AgentImageVolume: true}, host: "$(KUBERNETES_SERVICE_HOST)", port: "$(KUBERNETES_SERVICE_PORT)"},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobs(t)["minimal"]
			c := &job.Spec.Template.Spec.Containers[0]
			c.Env, c.EnvFrom = test.env, test.from
			env := gatedOf(t, mustPod(t, job, 0, test.settings)).Env
			own := len(env) - len(test.env)
			if !slices.Equal(test.env, env[own:]) {
				t.Errorf("the template's variables are %v, want %v", env[own:], test.env)
			}
			found := map[string]string{}
			for _, e := range env[:own] {
				if _, twice := found[e.Name]; twice {
					t.Errorf("%s is there twice", e.Name)
				}
				found[e.Name] = e.Value
			}
			for _, name := range append(contract.AgentsEnv(), contract.PodEnv, contract.NamespaceEnv, contract.SocketEnv) {
				if _, is := found[name]; !is {
					t.Errorf("%s is left to the template and the image", name)
				}
			}
			if found[contract.APIHostEnv] != test.host || found[contract.APIPortEnv] != test.port {
				t.Errorf("the API server is at %q, %q; want %q, %q", found[contract.APIHostEnv], found[contract.APIPortEnv], test.host, test.port)
			}
		})
	}
}

// Injected names are among those that validation reserves. Otherwise they could collide with the template's names.
func TestInjectedNamesAreReserved(t *testing.T) {
	job := jobs(t)["minimal"]
	pod := mustPod(t, job, 0, settings)
	for _, v := range pod.Spec.Volumes {
		if !strings.HasPrefix(v.Name, v1alpha1.ReservedNamePrefix) {
			t.Errorf("volume %s", v.Name)
		}
	}
	if name := pod.Spec.InitContainers[0].Name; !strings.HasPrefix(name, v1alpha1.ReservedNamePrefix) {
		t.Errorf("init container %s", name)
	}
	for _, e := range pod.Spec.Containers[0].Env {
		if !strings.HasPrefix(e.Name, v1alpha1.ReservedEnvPrefix) {
			t.Errorf("variable %s", e.Name)
		}
	}
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		if !strings.HasPrefix(m.MountPath, v1alpha1.ReservedMountPath+"/") {
			t.Errorf("mount %s", m.MountPath)
		}
	}
	for key := range pod.Labels {
		if !strings.HasPrefix(key, v1alpha1.ReservedKeyPrefix) && key != contract.ManagedByLabel {
			t.Errorf("label %s", key)
		}
	}
}

// The agent accepts every configuration that validation accepts.
func TestAgentAcceptsItsConfiguration(t *testing.T) {
	for name, job := range jobs(t) {
		for _, ordinal := range []int{0, 1, 15, 99} {
			pod := mustPod(t, job, ordinal, settings)
			config, err := contract.DecodeConfig(gatedOf(t, pod).Env[0].Value)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if jitter := contract.Duration(maxJitter); config.Jitter > jitter || ordinal == 0 && config.Jitter != 0 {
				t.Errorf("%s: jitter %v of ordinal %d", name, config.Jitter, ordinal)
			}
			if config.Pod != pod.Name {
				t.Errorf("%s: the agent is told that its pod is %q, and it is %q", name, config.Pod, pod.Name)
			}
		}
	}
}

func gatedOf(t testing.TB, pod *corev1.Pod) *corev1.Container {
	t.Helper()
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return len(c.Env) > 0 && c.Env[0].Name == contract.ConfigEnv
	})
	if i < 0 {
		t.Fatal("no container is gated")
	}
	return &pod.Spec.Containers[i]
}

// The install container never runs as root. If the Pod sets no user, neither does the container, so that the image's user, or one
// that the cluster assigns per namespace, applies.
func TestInstallUser(t *testing.T) {
	for name, c := range map[string]struct{ pod, want *int64 }{
		"none":  {nil, nil},
		"root":  {new(int64(0)), new(int64(nobody))},
		"other": {new(int64(1000)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			job := jobs(t)["minimal"]
			job.Spec.Template.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: c.pod}
			got := mustPod(t, job, 0, settings).Spec.InitContainers[0].SecurityContext
			if diff := cmp.Diff(c.want, got.RunAsUser); diff != "" || !*got.RunAsNonRoot {
				t.Errorf("runAsUser (-want +got), runAsNonRoot %v:\n%s", *got.RunAsNonRoot, diff)
			}
		})
	}
}

// The agent runs the hooks of the gated container. The kubelet runs those of other containers.
func TestHooks(t *testing.T) {
	job := jobs(t)["minimal"]
	containers := &job.Spec.Template.Spec.Containers
	job.Spec.Container = (*containers)[0].Name
	*containers = append(*containers, corev1.Container{Name: "b", Command: []string{"b"}})
	for i := range *containers {
		(*containers)[i].Lifecycle = &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo $(SINGLETONJOB_POD) $$"}}},
			PreStop:   &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}},
		}
	}
	pod := mustPod(t, job, 0, settings)
	gated := gatedOf(t, pod)
	if gated.Lifecycle != nil || pod.Spec.Containers[1].Lifecycle == nil {
		t.Errorf("left to the kubelet: %v of the gated container, %v of another", gated.Lifecycle, pod.Spec.Containers[1].Lifecycle)
	}
	if strings.Contains(gated.Env[0].Value, "$") {
		t.Errorf("the kubelet would replace something in %s", gated.Env[0].Value)
	}
	config, err := contract.DecodeConfig(gated.Env[0].Value)
	want := contract.Hooks{
		PostStart: &contract.Hook{Exec: []string{"sh", "-c", "echo $(SINGLETONJOB_POD) $$"}},
		PreStop:   &contract.Hook{Sleep: contract.Duration(5 * time.Second)},
	}
	if diff := cmp.Diff(want, config.Hooks); diff != "" || err != nil {
		t.Errorf("%v, hooks (-want +got):\n%s", err, diff)
	}
}

// The agent gets the requests of hooks like those of probes: complete, and never with a port of the agent.
func TestHooksBySendingARequest(t *testing.T) {
	job := jobs(t)["minimal"]
	c := &job.Spec.Template.Spec.Containers[0]
	c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}
	c.Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}},
		PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
			Port: intstr.FromInt32(contract.DefaultPort), Scheme: corev1.URISchemeHTTPS, Path: "/drain?hard",
			HTTPHeaders: []corev1.HTTPHeader{{Name: "X-A", Value: "$(B)"}},
		}},
	}
	gated := gatedOf(t, mustPod(t, job, 0, settings))
	config, err := contract.DecodeConfig(gated.Env[0].Value)
	want := contract.Hooks{
		PostStart: &contract.Hook{HTTPGet: &contract.HTTPGet{Port: 8080, Path: "/"}},
		PreStop: &contract.Hook{HTTPGet: &contract.HTTPGet{
			Port: contract.DefaultPort, TLS: true, Path: "/drain?hard", Headers: []contract.Header{{Name: "X-A", Value: "$(B)"}},
		}},
	}
	if diff := cmp.Diff(want, config.Hooks); diff != "" || err != nil {
		t.Errorf("%v, hooks (-want +got):\n%s", err, diff)
	}
	if config.Port == contract.DefaultPort {
		t.Errorf("the agent listens on %d, which the process is asked at", config.Port)
	}
	if !slices.ContainsFunc(gated.Env, func(e corev1.EnvVar) bool { return e.Name == contract.PodIPEnv && e.ValueFrom != nil }) {
		t.Error("the agent does not know the pod's address")
	}
}

func TestPorts(t *testing.T) {
	portOf := func(t *testing.T, change func(*v1alpha1.SingletonJob), s Settings) int {
		job := jobs(t)["minimal"]
		change(job)
		c := gatedOf(t, mustPod(t, job, 0, s))
		config, err := contract.DecodeConfig(c.Env[0].Value)
		if err != nil {
			t.Fatal(err)
		}
		if probed := c.ReadinessProbe.HTTPGet.Port.IntValue(); probed != config.Port || int(c.Ports[len(c.Ports)-1].ContainerPort) != probed {
			t.Errorf("the agent listens on %d, is probed on %d, declares %v", config.Port, probed, c.Ports)
		}
		return config.Port
	}
	uses := func(port int32) func(*v1alpha1.SingletonJob) {
		return func(job *v1alpha1.SingletonJob) {
			job.Spec.Container = job.Spec.Template.Spec.Containers[0].Name
			job.Spec.Template.Spec.Containers = append(job.Spec.Template.Spec.Containers,
				corev1.Container{Name: "b", Ports: []corev1.ContainerPort{{ContainerPort: port}}})
		}
	}
	onHost := func(uid string) func(*v1alpha1.SingletonJob) {
		return func(job *v1alpha1.SingletonJob) {
			job.UID, job.Spec.Template.Spec.HostNetwork = types.UID(uid), true
		}
	}
	if got := portOf(t, func(*v1alpha1.SingletonJob) {}, settings); got != contract.DefaultPort {
		t.Errorf("default: %d", got)
	}
	if got := portOf(t, uses(contract.DefaultPort), settings); got != contract.DefaultPort+1 {
		t.Errorf("taken by another container: %d", got)
	}
	serves := func(port int32, target *intstr.IntOrString) func(*v1alpha1.SingletonJob) {
		return func(job *v1alpha1.SingletonJob) {
			job.Spec.Service = &v1alpha1.ServiceSpec{Ports: []v1alpha1.ServicePort{{Port: port, TargetPort: target}}}
		}
	}
	if got := portOf(t, serves(contract.DefaultPort, nil), settings); got != contract.DefaultPort+1 {
		t.Errorf("taken by the program for its Service: %d", got)
	}
	if got := portOf(t, serves(80, new(intstr.FromInt32(contract.DefaultPort))), settings); got != contract.DefaultPort+1 {
		t.Errorf("taken by the program for its Service, by targetPort: %d", got)
	}
	if got := portOf(t, serves(contract.DefaultPort, new(intstr.FromString("web"))), settings); got != contract.DefaultPort {
		t.Errorf("a Service's own port: %d", got)
	}
	if got := portOf(t, uses(65535), Settings{Port: 65535}); got != firstUserPort {
		t.Errorf("the last port taken: %d", got)
	}
	a, b := portOf(t, onHost("a"), settings), portOf(t, onHost("b"), settings)
	if a == b || a < contract.DefaultPort || a >= contract.DefaultPort+hostPorts {
		t.Errorf("on the host's network: %d and %d", a, b)
	}
}

// The agent gets the probes with port names as numbers and with Kubernetes' defaults. Nothing in their commands looks like a
// reference to the kubelet.
func TestAgentGetsTheProbes(t *testing.T) {
	pod := mustPod(t, jobs(t)["probed"], 0, settings)
	c := &pod.Spec.Containers[0]
	value := ""
	for _, e := range c.Env {
		if e.Name == contract.ConfigEnv {
			value = e.Value
		}
	}
	config, err := contract.DecodeConfig(value)
	if err != nil || strings.Contains(value, "$") {
		t.Fatalf("%v in %s", err, value)
	}
	second := contract.Duration(time.Second)
	want := contract.Probes{
		Startup: &contract.Probe{
			Check: contract.Check{HTTPGet: &contract.HTTPGet{
				Port: 8080, TLS: true, Path: "/", Headers: []contract.Header{{Name: "Host", Value: "app.example.org"}},
			}},
			Period: second, Timeout: second, SuccessThreshold: 1, FailureThreshold: 30,
		},
		Liveness: &contract.Probe{
			Check:        contract.Check{Exec: []string{"sh", "-c", `test "$(cat /tmp/alive)" = $$`}},
			InitialDelay: 5 * second, Period: 10 * second, Timeout: second, SuccessThreshold: 1, FailureThreshold: 3, GracePeriod: 60 * second,
		},
		Readiness: &contract.Probe{
			Check:  contract.Check{GRPC: &contract.GRPC{Port: 18282, Service: "billing"}},
			Period: 10 * second, Timeout: 3 * second, SuccessThreshold: 2, FailureThreshold: 3,
		},
	}
	if diff := cmp.Diff(want, config.Probes); diff != "" {
		t.Error(diff)
	}
	if c.StartupProbe != nil || c.LivenessProbe.HTTPGet.Path != contract.LivePath || c.ReadinessProbe.HTTPGet.Path != contract.ReadyPath {
		t.Errorf("the kubelet asks %v, %v, %v", c.StartupProbe, c.LivenessProbe, c.ReadinessProbe)
	}
	if config.Port == contract.DefaultPort {
		t.Errorf("the agent listens on %d, where the process is probed", config.Port)
	}
}

// A very long grace period does not become negative.
func TestSecondsDoNotOverflow(t *testing.T) {
	if got := seconds(math.MaxInt64); got <= 0 {
		t.Errorf("%v", time.Duration(got))
	}
}

// TestEarlierHashes: the hash at an earlier injection version is the same as then, so that Pods of an earlier operator are known by
// their names. For the first version it is the hash of TestHashIsStable. A known entrypoint stays known.
func TestEarlierHashes(t *testing.T) {
	for name, job := range jobs(t) {
		if len(v1alpha1.Validate(job)) > 0 {
			continue
		}
		var made []string
		for version := 1; version < 4; version++ {
			pod, err := Pod(job, 0, Settings{InjectionVersion: version})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			made = append(made, pod.Name)
		}
		var known []string
		for _, hash := range append((Settings{InjectionVersion: 3}).EarlierHashes(job), (Settings{InjectionVersion: 3}).Hash(job)) {
			known = append(known, PodName(job.Name, hash, 0))
		}
		if !slices.Equal(known, made) || made[0] == made[1] || made[1] == made[2] || made[0] != PodName(job.Name, hashAt(job, 1), 0) {
			t.Errorf("%s: there are %v, and known are %v", name, made, known)
		}
		if now := (Settings{}); now.Hash(job) != Hash(job) || len(now.EarlierHashes(job)) != injectionVersion-1 {
			t.Errorf("%s: now it is %s, %s with settings, and was %v", name, Hash(job), now.Hash(job), now.EarlierHashes(job))
		}
	}
	job := jobs(t)["minimal"]
	app := &job.Spec.Template.Spec.Containers[0]
	app.Command = nil
	job.Status.Entrypoint = &v1alpha1.Entrypoint{TemplateHash: (Settings{InjectionVersion: 1}).Hash(job), Image: app.Image, Command: []string{"/run"}}
	if _, err := Pod(job, 0, Settings{InjectionVersion: 2}); err != nil || Unknown(job) {
		t.Errorf("an operator of a later version asks anew what an image runs: %v", err)
	}
}

// The agent handles every stop signal that validation accepts. The runtime handles none.
func TestStopSignals(t *testing.T) {
	for _, signal := range v1alpha1.StopSignals() {
		job := jobs(t)["minimal"]
		job.Spec.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: &signal}
		gated := gatedOf(t, mustPod(t, job, 0, settings))
		config, err := contract.DecodeConfig(gated.Env[0].Value)
		if err != nil || config.StopSignal != string(signal) || gated.Lifecycle != nil {
			t.Errorf("%s: the agent is told of %q, the pod of %v (%v)", signal, config.StopSignal, gated.Lifecycle, err)
		}
	}
}

// kubelet expands a container as a kubelet does, given the contents of Secrets: its variables in order, then its command and args.
func kubelet(c *corev1.Container, secrets map[string]string) (argv []string, env map[string]string) {
	env = map[string]string{}
	value := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for _, e := range c.Env {
		env[e.Name] = contract.ExpandAll(e.Value, value)
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			env[e.Name] = secrets[e.ValueFrom.SecretKeyRef.Key]
		}
	}
	for _, arg := range slices.Concat(c.Command, c.Args) {
		argv = append(argv, contract.ExpandAll(arg, value))
	}
	return argv, env
}

// marksOf is the secret that a container's agent gets.
func marksOf(t *testing.T, gated *corev1.Container) string {
	t.Helper()
	config, err := contract.DecodeConfig(gated.Env[0].Value)
	if err != nil {
		t.Fatal(err)
	}
	return config.Marks
}

// The process gets what a kubelet would have made of the template if it knew the token, whatever Secrets contain. The same holds
// for variables that refer to variables that refer to the token.
func TestReferencesExpandAsInAKubelet(t *testing.T) {
	seed := tier.Seed(t, 1)
	r := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{
		"$", "$$", "(", ")", "FENCING_TOKEN", "$(FENCING_TOKEN)", "$$(FENCING_TOKEN)", "$(SECRET)", "$(A)", "$(B)", "$(NOBODYS)", "x", "pa$", "{", "}",
		"$(SINGLETONJOB_LEASE_DURATION)",
	}
	text := func() string {
		var text strings.Builder
		for range r.IntN(6) {
			text.WriteString(pieces[r.IntN(len(pieces))])
		}
		return text.String()
	}
	promised := map[string]string{"FENCING_TOKEN": "7", contract.LeaseDurationEnv: "15s"}
	job := jobs(t)["minimal"]
	v1alpha1.Default(job)
	for range 5000 {
		template := &job.Spec.Template.Spec.Containers[0]
		fromSecret := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "key"}}
		template.Env = []corev1.EnvVar{{Name: "SECRET", ValueFrom: fromSecret}, {Name: "A", Value: text()}, {Name: "B", Value: text()}, {Name: "A", Value: text()}}
		template.Command, template.Args = []string{"/app", text()}, []string{text(), text()}
		secrets := map[string]string{"key": text()}

		asIfKnown := template.DeepCopy()
		asIfKnown.Env = append([]corev1.EnvVar{{Name: "FENCING_TOKEN", Value: "7"}, {Name: contract.LeaseDurationEnv, Value: "15s"}}, asIfKnown.Env...)
		wantArgv, wantEnv := kubelet(asIfKnown, secrets)

		gated := template.DeepCopy()
		secret := markReferences(gated, job)
		argv, env := kubelet(gated, secrets)
		agents := func(text string) string {
			return contract.Expand(text, secret, func(name string) (string, bool) { v, ok := promised[name]; return v, ok })
		}
		for i, want := range wantArgv {
			if got := agents(argv[i]); got != want {
				t.Fatalf("seed %d: the argument %q becomes %q, want %q", seed, slices.Concat(template.Command, template.Args)[i], got, want)
			}
		}
		for _, name := range []string{"SECRET", "A", "B"} {
			if got := agents(env[name]); got != wantEnv[name] {
				t.Fatalf("seed %d: %s becomes %q, want %q, in %+v", seed, name, got, wantEnv[name], template.Env)
			}
		}
	}
}

// If nothing refers to the token there is no mark. If something does, the secret occurs in no text of the template or of another
// job.
func TestMarksOccurNowhereElse(t *testing.T) {
	marks := func(uid, arg string) string {
		job := jobs(t)["minimal"]
		job.UID = types.UID(uid)
		job.Spec.Template.Spec.Containers[0].Args = []string{arg}
		return marksOf(t, gatedOf(t, mustPod(t, job, 0, settings)))
	}
	if got := marks("uid", "$$(FENCING_TOKEN) $(SINGLETONJOB_POD)"); got != "" {
		t.Errorf("there are marks with the secret %s, and nothing is marked", got)
	}
	first := marks("uid", "$(FENCING_TOKEN)")
	if first == "" || first == marks("other", "$(FENCING_TOKEN)") || first == marks("uid", "$(FENCING_TOKEN)"+first) {
		t.Errorf("the secret %q is another job's, too, or that of a template that contains it", first)
	}
}
