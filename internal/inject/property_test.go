package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/tier"
)

// traits are properties of a template. A random template has some of them.
var traits = []func(*rand.Rand, *corev1.PodTemplateSpec){
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Labels = map[string]string{"app": "x", "tier": "y"} },
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Annotations = map[string]string{"a": "b"} },
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Spec.ServiceAccountName = "default" },
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Spec.AutomountServiceAccountToken = new(false) },
	func(r *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.SecurityContext.RunAsUser = new([]int64{1000, 65532, 1 << 20}[r.IntN(3)])
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Spec.SecurityContext.FSGroup = new(int64(2000)) },
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Spec.SecurityContext.RunAsUser = new(int64(0)) },
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Spec.SecurityContext = nil },
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Spec.HostNetwork = true },
	func(r *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.TerminationGracePeriodSeconds = new(1 + r.Int64N(100))
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}
	},
	func(r *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: topology(r), WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
		}}
	},
	func(r *rand.Rand, t *corev1.PodTemplateSpec) {
		term := corev1.PodAffinityTerm{TopologyKey: topology(r), LabelSelector: &metav1.LabelSelector{}}
		apart := &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}
		if r.IntN(2) == 0 {
			apart = &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
				Weight: 1, PodAffinityTerm: term,
			}}}
		}
		t.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: apart}
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: "data"})
		t.Spec.Containers[0].VolumeMounts = append(t.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data"})
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.InitContainers = append(t.Spec.InitContainers, container("first", "/first"))
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		sidecar := container("sidecar", "/sidecar")
		sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		t.Spec.InitContainers = append(t.Spec.InitContainers, sidecar)
	},
	func(r *rand.Rand, t *corev1.PodTemplateSpec) {
		proxy := container("proxy", "/proxy")
		proxy.Ports = []corev1.ContainerPort{{ContainerPort: contract.DefaultPort + r.Int32N(3), Protocol: corev1.ProtocolTCP}}
		proxy.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}}
		t.Spec.Containers = append(t.Spec.Containers, proxy)
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Env = append(t.Spec.Containers[0].Env, corev1.EnvVar{Name: "A", Value: "$(SINGLETONJOB_POD)"})
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Args = []string{"$(A)", "$$(B)", "--", "-x"}
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: contract.PortName, ContainerPort: 80, Protocol: corev1.ProtocolTCP}}
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) { t.Spec.Containers[0].SecurityContext = nil },
	// Quality of service: only a request for one container; then limits for all, equal to their requests.
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
	},
	func(_ *rand.Rand, t *corev1.PodTemplateSpec) {
		for _, containers := range [][]corev1.Container{t.Spec.InitContainers, t.Spec.Containers} {
			for i := range containers {
				containers[i].Resources.Limits = corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
				}
				containers[i].Resources.Requests = nil
			}
		}
	},
}

// container satisfies Pod Security's profile "restricted" in a pod of randomJob, as long as no trait takes that away.
func container(name, command string) corev1.Container {
	return corev1.Container{
		Name: name, Image: name, Command: []string{command},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

func topology(r *rand.Rand) string {
	return []string{corev1.LabelHostname, corev1.LabelTopologyZone, "rack"}[r.IntN(3)]
}

// randomJob has about four traits. Each trait is in every tenth job.
func randomJob(r *rand.Rand) *v1alpha1.SingletonJob {
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: "ns", UID: "uid"}}
	job.Spec.Template.Spec = corev1.PodSpec{
		Containers: []corev1.Container{container("app", "/app")},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   new(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	job.Spec.Candidates = 1 + r.Int32N(16)
	for _, trait := range traits {
		if job.Spec.Template.Spec.SecurityContext != nil && r.IntN(6) == 0 {
			trait(r, &job.Spec.Template)
		}
	}
	job.Spec.Container = job.Spec.Template.Spec.Containers[r.IntN(len(job.Spec.Template.Spec.Containers))].Name
	return job
}

func TestEveryTemplate(t *testing.T) {
	seed := tier.Seed(t, 1)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		job := randomJob(r)
		if errs := v1alpha1.Validate(job); len(errs) > 0 {
			t.Fatalf("seed %d: a template that is not valid tests nothing: %v", seed, errs.ToAggregate())
		}
		before := job.DeepCopy()
		pod := mustPod(t, job, r.IntN(20), settings)
		if diff := cmp.Diff(before, job); diff != "" {
			t.Fatalf("seed %d: the job was changed:\n%s", seed, diff)
		}
		if err := differences(job, pod); err != nil {
			raw, _ := json.Marshal(job)
			t.Fatalf("seed %d: %v\n%s", seed, err, raw)
		}
		scribble(pod)
		if diff := cmp.Diff(before, job); diff != "" {
			t.Fatalf("seed %d: pod and job share memory:\n%s", seed, diff)
		}
	}
}

// differences lists where a Pod is not the template plus the agent.
func differences(job *v1alpha1.SingletonJob, pod *corev1.Pod) error {
	want, got := &job.Spec.Template.Spec, &pod.Spec
	gated := job.GatedContainer()
	if err := podDifferences(want, got, gated); err != nil {
		return err
	}
	for key, value := range job.Spec.Template.Labels {
		if pod.Labels[key] != value {
			return fmt.Errorf("label %s is %q", key, pod.Labels[key])
		}
	}
	return gatedDifferences(&want.Containers[gated], &got.Containers[gated])
}

// podDifferences are the differences outside the gated container.
func podDifferences(want, got *corev1.PodSpec, gated int) error {
	for i := range want.Containers {
		if diff := cmp.Diff(want.Containers[i], got.Containers[i]); i != gated && diff != "" {
			return fmt.Errorf("container %s is not the user's:\n%s", want.Containers[i].Name, diff)
		}
	}
	if diff := cmp.Diff(want.InitContainers, got.InitContainers[1:], cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("the init containers are not the user's:\n%s", diff)
	}
	if diff := cmp.Diff(want.Volumes, got.Volumes[:len(want.Volumes)], cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("the volumes are not the user's:\n%s", diff)
	}
	if diff := cmp.Diff(*want, *got, cmpopts.IgnoreFields(corev1.PodSpec{}, "Containers", "InitContainers", "Volumes",
		"RestartPolicy", "ServiceAccountName", "Tolerations", "Affinity", "TopologySpreadConstraints")); diff != "" {
		return fmt.Errorf("the pod is not the user's:\n%s", diff)
	}
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
		theirs, all := apartOver(want, key), apartOver(got, key)
		if added := all - theirs; added != 1 && theirs == 0 || added != 0 && theirs > 0 {
			return fmt.Errorf("the template keeps pods apart over %s in %d ways, the pod in %d", key, theirs, all)
		}
	}
	return nil
}

// gatedDifferences are the differences between the user's container u and the gated one.
func gatedDifferences(u, g *corev1.Container) error {
	added := []string{contract.AgentPath, "run", "--"}
	if diff := cmp.Diff(append(added, u.Command...), g.Command); diff != "" {
		return fmt.Errorf("command:\n%s", diff)
	}
	if diff := cmp.Diff(u.Env, g.Env[len(g.Env)-len(u.Env):], cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("the user's variables must come last:\n%s", diff)
	}
	if diff := cmp.Diff(*u, *g, cmpopts.IgnoreFields(corev1.Container{}, "Command", "Env", "VolumeMounts", "Ports",
		"ReadinessProbe", "LivenessProbe", "StartupProbe", "Lifecycle")); diff != "" {
		return fmt.Errorf("the gated container:\n%s", diff)
	}
	return nil
}

// apartOver counts the settings that keep Pods apart over a topology.
func apartOver(pod *corev1.PodSpec, key string) int {
	raw, _ := json.Marshal([]any{pod.TopologySpreadConstraints, pod.Affinity})
	return bytes.Count(raw, []byte(`"topologyKey":"`+key+`"`))
}

// scribble overwrites everything in pod that an incomplete copy would share with the template.
func scribble(pod *corev1.Pod) {
	for key := range pod.Labels {
		pod.Labels[key] = "scribbled"
	}
	for key := range pod.Annotations {
		pod.Annotations[key] = "scribbled"
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Name, c.Command[0] = "scribbled", "scribbled"
			for name := range c.Resources.Requests {
				c.Resources.Requests[name] = resource.MustParse("7")
			}
			for name := range c.Resources.Limits {
				c.Resources.Limits[name] = resource.MustParse("7")
			}
			for j := range c.Env {
				c.Env[j].Value = "scribbled"
			}
		}
	}
	for i := range pod.Spec.Volumes {
		pod.Spec.Volumes[i].Name = "scribbled"
	}
	for i := range pod.Spec.Tolerations {
		pod.Spec.Tolerations[i].Key = "scribbled"
	}
}

func TestSameArgumentsSamePod(t *testing.T) {
	for name, job := range jobs(t) {
		first := mustPod(t, job, 1, settings)
		for range 20 {
			if diff := cmp.Diff(first, mustPod(t, job.DeepCopy(), 1, settings)); diff != "" {
				t.Fatalf("%s: %s", name, diff)
			}
		}
	}
}

// Arbitrary JSON for a SingletonJob, valid or not, gives a Pod or an error.
func FuzzPod(f *testing.F) {
	for _, job := range jobs(f) {
		raw, err := json.Marshal(job)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, 1)
	}
	f.Add([]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"app","image":"app"}]}}}}`), 1)
	f.Fuzz(func(t *testing.T, raw []byte, ordinal int) {
		var job v1alpha1.SingletonJob
		if json.Unmarshal(raw, &job) != nil {
			return
		}
		pod, err := Pod(&job, ordinal, settings)
		if (pod == nil) == (err == nil) {
			t.Errorf("%v, %v", pod, err)
		}
		valid := len(v1alpha1.Validate(&job)) == 0
		if unknown := Unknown(&job); valid && unknown {
			if err == nil {
				t.Errorf("a pod is made without knowing of what: %v", gatedOf(t, pod).Command)
			}
			job.Status.Entrypoint = &v1alpha1.Entrypoint{TemplateHash: Hash(&job), Command: []string{"/entrypoint"}}
			pod, err = Pod(&job, ordinal, settings)
		}
		if valid && err != nil {
			t.Errorf("no pod from a valid job: %v", err)
		}
		if valid && ordinal >= 0 {
			if _, err := contract.DecodeConfig(gatedOf(t, pod).Env[0].Value); err != nil {
				t.Errorf("the agent refuses its configuration: %v", err)
			}
		}
	})
}
