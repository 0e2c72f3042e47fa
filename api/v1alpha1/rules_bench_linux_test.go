package v1alpha1

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
)

// benchmarked are a job with few fields, and one as a user writes it.
func benchmarked() map[string]*SingletonJob {
	usual := validJob()
	app := &usual.Spec.Template.Spec.Containers[0]
	app.Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}, {Name: "GOMEMLIMIT", Value: "100MiB"}}
	app.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	app.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
	app.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	app.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
	app.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("http")}}}
	app.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	app.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}}
	usual.Spec.Template.Labels = map[string]string{"app": "billing"}
	usual.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}}
	return map[string]*SingletonJob{"small": validJob(), "usual": usual}
}

// BenchmarkRules evaluates the CEL rules of the definition for an object. The API server does so at each write, also of a status.
func BenchmarkRules(b *testing.B) {
	compiled, err := compileRules()
	if err != nil {
		b.Fatal(err)
	}
	judge := judgeOf(compiled.validator, compiled.structural)
	for name, job := range benchmarked() {
		Default(job)
		sent := lexical(b, job)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if errs := judge(sent); len(errs) > 0 {
					b.Fatal(errs)
				}
			}
		})
	}
}

// BenchmarkStatusWrite writes statuses, and reports the API server's CPU for each, in milliseconds. It is for a quiet machine.
func BenchmarkStatusWrite(b *testing.B) {
	_, namespace, client := server(b)
	for name, job := range benchmarked() {
		job.Name = name
		job, err := create(b, client, namespace, job)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			before := cpuOf(b, client)
			for b.Loop() {
				job.Status.FencingToken++
				if err := client.Put().Namespace(namespace).Resource(Resource.Resource).Name(name).SubResource("status").Body(job).Do(b.Context()).Into(job); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpuOf(b, client)-before)*1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// cpuOf is the CPU time that the API server has used, in seconds.
func cpuOf(b *testing.B, client rest.Interface) float64 {
	b.Helper()
	metrics, err := client.Get().AbsPath("/metrics").DoRaw(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for lines := bufio.NewScanner(strings.NewReader(string(metrics))); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), "process_cpu_seconds_total "); is {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil {
				b.Fatal(err)
			}
			return seconds
		}
	}
	b.Fatal("the API server's metrics have no CPU time")
	return 0
}
