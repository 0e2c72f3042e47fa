package v1alpha1

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/randfill"

	"github.com/singletonjob/operator/test/tier"
)

// words are the values for fields of each type. Nearly all of them are valid, so that many templates are.
var words = map[reflect.Type][]string{
	reflect.TypeFor[corev1.Protocol]():                      {"TCP", "UDP", "SCTP"},
	reflect.TypeFor[corev1.PullPolicy]():                    {"Always", "IfNotPresent", "Never"},
	reflect.TypeFor[corev1.URIScheme]():                     {"HTTP", "HTTPS"},
	reflect.TypeFor[corev1.TerminationMessagePolicy]():      {"File", "FallbackToLogsOnError"},
	reflect.TypeFor[corev1.DNSPolicy]():                     {"ClusterFirst", "Default"},
	reflect.TypeFor[corev1.RestartPolicy]():                 {"Always"},
	reflect.TypeFor[corev1.ContainerRestartPolicy]():        {"Always"},
	reflect.TypeFor[corev1.TaintEffect]():                   {"NoExecute", "NoSchedule"},
	reflect.TypeFor[corev1.TolerationOperator]():            {"Exists", "Equal"},
	reflect.TypeFor[corev1.UnsatisfiableConstraintAction](): {"DoNotSchedule", "ScheduleAnyway"},
	reflect.TypeFor[corev1.NodeSelectorOperator]():          {"In", "Exists", "DoesNotExist"},
	reflect.TypeFor[metav1.LabelSelectorOperator]():         {"In", "Exists", "DoesNotExist"},
	reflect.TypeFor[corev1.MountPropagationMode]():          {"None", "HostToContainer"},
	reflect.TypeFor[corev1.StorageMedium]():                 {"", "Memory"},
	reflect.TypeFor[corev1.HostPathType]():                  {"", "Directory", "File"},
	reflect.TypeFor[corev1.SeccompProfileType]():            {"RuntimeDefault", "Unconfined"},
	reflect.TypeFor[corev1.AppArmorProfileType]():           {"RuntimeDefault", "Unconfined"},
	reflect.TypeFor[corev1.PodFSGroupChangePolicy]():        {"Always", "OnRootMismatch"},
	reflect.TypeFor[corev1.SupplementalGroupsPolicy]():      {"Merge", "Strict"},
	reflect.TypeFor[corev1.PreemptionPolicy]():              {"Never", "PreemptLowerPriority"},
	reflect.TypeFor[corev1.PersistentVolumeAccessMode]():    {"ReadWriteOnce", "ReadOnlyMany"},
	reflect.TypeFor[corev1.PersistentVolumeMode]():          {"Filesystem", "Block"},
	reflect.TypeFor[corev1.NodeInclusionPolicy]():           {"Honor", "Ignore"},
	reflect.TypeFor[corev1.RecursiveReadOnlyMode]():         {"Disabled"},
	reflect.TypeFor[corev1.ProcMountType]():                 {"Default"},
	reflect.TypeFor[corev1.OSName]():                        {"linux"},
	reflect.TypeFor[corev1.Capability]():                    {"NET_ADMIN", "CHOWN", "ALL", "KILL", "SETUID"},
	reflect.TypeFor[corev1.ResourceName]():                  {"cpu", "memory", "ephemeral-storage", "example.com/gpu"},
	reflect.TypeFor[string]():                               {"a", "b-c", "d.example", "/e", "1", "", "$(A)", "10.0.0.1", "metadata.name", "true"},
}

// randomly sets the fields that the fuzzer has allocated.
func randomly(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			randomly(r, v.Elem())
		}
	case reflect.Struct:
		switch v.Type() {
		case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.Time]():
			return
		}
		for _, field := range v.Fields() {
			if field.CanSet() {
				randomly(r, field)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			randomly(r, v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := v.MapIndex(key)
			v.SetMapIndex(key, reflect.Value{})
			to := reflect.New(key.Type()).Elem()
			randomly(r, to)
			if value.Kind() == reflect.String {
				value = reflect.ValueOf("a").Convert(value.Type())
			}
			v.SetMapIndex(to, value)
		}
	case reflect.String:
		if some := words[v.Type()]; some != nil {
			v.SetString(some[r.IntN(len(some))])
		} else {
			v.SetString("")
		}
	case reflect.Int32, reflect.Int64:
		v.SetInt([]int64{0, 1, 1, 2, 80, 1000}[r.IntN(6)])
	}
}

// randomTemplate is a template that a Deployment accepts, with a few parts set by the fuzzer.
func randomTemplate(r *rand.Rand, f *randfill.Filler) *corev1.PodTemplateSpec {
	t := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "app", Image: "x", Command: []string{"x"}}, {Name: "side", Image: "x"}},
		Volumes:    []corev1.Volume{{Name: "a"}},
	}}
	for range 1 + r.IntN(4) {
		of := []any{&t.Spec, &t.Spec.Containers[0], &t.Spec.Containers[0], &t.Spec.Containers[1], &t.Spec.Volumes[0].VolumeSource, &t.ObjectMeta}[r.IntN(6)]
		v := reflect.ValueOf(of).Elem()
		i := r.IntN(v.NumField())
		switch v.Type().Field(i).Name {
		case "Name", "Image", "Containers", "InitContainers", "EphemeralContainers", "Volumes", "Command":
			continue
		case "EvictionResponders", "ScaleIO":
			// A Deployment drops the first one, whose feature is off, before it validates it. The second one, a volume that Kubernetes no
			// longer mounts, may lack fields that its schema requires.
			continue
		}
		field := v.Field(i)
		f.Fill(field.Addr().Interface())
		if field.Kind() == reflect.Pointer && field.IsNil() {
			field.Set(reflect.New(field.Type().Elem()))
			f.Fill(field.Interface())
		}
		randomly(r, field)
	}
	return t
}

// source is the random source of the fuzzer, with the method names of the older package.
type source struct{ *rand.PCG }

func (s source) Int63() int64 { return int64(s.Uint64() >> 1) }

func (source) Seed(int64) {}

// A template that a Deployment accepts is accepted, or rejected for a reason that Validate also has: the schema alone rejects none.
func TestRandomTemplates(t *testing.T) {
	t.Parallel()
	plane, namespace, ours := server(t)
	config := rest.CopyConfig(plane.Config())
	config.WarningHandler = rest.NoWarnings{} // about removed volume types
	theirs, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	seed := tier.Seed(t, 1)
	r := rand.New(rand.NewPCG(seed, 0))
	f := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, func(serializer.CodecFactory) []any {
		return []any{
			func(q *resource.Quantity, c randfill.Continue) {
				*q = resource.MustParse([]string{"1", "0.5", "100m", "64Mi", "1e3"}[c.Intn(5)])
			},
			func(p *intstr.IntOrString, c randfill.Continue) {
				*p = []intstr.IntOrString{intstr.FromInt32(80), intstr.FromString("http"), intstr.FromString("80")}[c.Intn(3)]
			},
		}
	}), source{rand.NewPCG(seed, 1)}, serializer.NewCodecFactory(runtime.NewScheme()))
	trials := 300
	if tier.IsDeep() {
		trials = 5000
	}
	both, reasons := 0, map[string]int{}
	for range trials {
		template := randomTemplate(r, f)
		if !deploys(t, theirs, namespace, template) {
			continue
		}
		refused, wrong := judge(t, ours, namespace, template)
		switch {
		case wrong != nil:
			raw, _ := json.Marshal(template)
			t.Errorf("%v\n%s", wrong, raw)
		case len(refused) == 0:
			both++
		}
		for _, e := range refused {
			reasons[e.Field]++
		}
	}
	t.Logf("of %d templates a Deployment and a SingletonJob accept %d; refused with reason: %v", trials, both, reasons)
	if both < trials/10 {
		t.Errorf("only %d of %d templates are accepted by both: the fuzzer shows nothing", both, trials)
	}
}

var dry = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}

// deploys reports whether a Deployment accepts the template.
func deploys(t *testing.T, theirs kubernetes.Interface, namespace string, template *corev1.PodTemplateSpec) bool {
	t.Helper()
	labelled := template.DeepCopy()
	if labelled.Labels == nil {
		labelled.Labels = map[string]string{}
	}
	labelled.Labels["name"] = "random"
	_, err := theirs.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "random"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "random"}}, Template: *labelled,
		},
	}, dry)
	if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		t.Fatal(err)
	}
	return err == nil
}

// judge returns why Validate rejects a job with the template, and how the API server's result differs.
func judge(t *testing.T, ours rest.Interface, namespace string, template *corev1.PodTemplateSpec) (refused field.ErrorList, wrong error) {
	t.Helper()
	job := &SingletonJob{ObjectMeta: metav1.ObjectMeta{Name: "random", Namespace: namespace}}
	job.Spec.Container, job.Spec.Template = "app", *template
	said := ours.Post().Namespace(namespace).Resource(Resource.Resource).VersionedParams(&dry, metav1.ParameterCodec).Body(job).Do(t.Context()).Error()
	Default(job)
	refused = Validate(job)
	if (said == nil) != (len(refused) == 0) {
		return refused, fmt.Errorf("the API server says %w, Validate %w", said, refused.ToAggregate())
	}
	for _, e := range refused {
		if !strings.Contains(said.Error(), e.Detail) {
			return refused, fmt.Errorf("the API server says %w, Validate %w", said, e)
		}
	}
	return refused, nil
}
