package v1alpha1

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/test/controlplane"
)

// generated are pod templates as generators, charts and users write them.
var generated = map[string]string{
	"a creation timestamp": `
metadata: {creationTimestamp: null, labels: {app: demo}}
spec: {containers: [{name: app, image: x, command: [x], resources: {}}]}`,
	"a creation timestamp that is one": `
metadata: {creationTimestamp: "2020-01-02T03:04:05Z"}
spec: {containers: [{name: app, image: x, command: [x]}]}`,
	"metadata of an object": `
metadata:
  {name: a, namespace: b, generateName: c, uid: d, resourceVersion: "5", selfLink: /e, generation: 6, deletionTimestamp: null,
   deletionGracePeriodSeconds: null, finalizers: [example.com/f], managedFields: [],
   ownerReferences: [{apiVersion: v1, kind: Pod, name: x, uid: "7", controller: true}]}
spec: {containers: [{name: app, image: x, command: [x]}]}`,
	"a claim with a creation timestamp": `
spec:
  containers: [{name: app, image: x, command: [x]}]
  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {metadata: {creationTimestamp: null}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1e9}}}}}}]`,
	"nulls": `
metadata: {annotations: , labels: {app: demo}}
spec:
  nodeSelector:
  affinity:
  tolerations:
  volumes:
  imagePullSecrets:
  securityContext:
  containers:
  - {name: app, image: x, command: [x], env: , resources: {limits: , requests: {cpu: 10m, memory: null}}, livenessProbe: }`,
	"no metadata":        `{metadata: , spec: {containers: [{name: app, image: x, command: [x]}]}}`,
	"no labels":          `{metadata: {labels: }, spec: {containers: [{name: app, image: x, command: [x]}]}}`,
	"values that are no": `{metadata: {labels: {a: }, annotations: {b: }}, spec: {containers: [{name: app, image: x, command: [x]}]}}`,
	"a value from nowhere": `
spec: {containers: [{name: app, image: x, command: [x], env: [{name: A, value: , valueFrom: }, {name: B, valueFrom: {fieldRef: {apiVersion: , fieldPath: metadata.name}}}]}]}`,
	"a port without a protocol": `{spec: {containers: [{name: app, image: x, command: [x], ports: [{containerPort: 80, protocol: , name: }]}]}}`,
	"a fraction of a CPU":       `{spec: {containers: [{name: app, image: x, command: [x], resources: {requests: {cpu: 0.5, memory: 64Mi}}}]}}`,
	"numbers": `
spec:
  containers: [{name: app, image: x, command: [x], resources: {limits: {cpu: 1.5, memory: 1e9, example.com/gpu: 1}, requests: {memory: 1.5e8}}}]
  initContainers: [{name: init, image: x, resources: {limits: {cpu: 0.25}}}]
  volumes: [{name: v, emptyDir: {sizeLimit: 1.5e6}}]`,
	"a variable twice": `{spec: {containers: [{name: app, image: x, command: [x], env: [{name: LOG_LEVEL, value: info}, {name: LOG_LEVEL, value: debug}]}]}}`,
	"a variable twice, in an init container": `
spec:
  containers: [{name: app, image: x, command: [x]}]
  initContainers: [{name: init, image: x, env: [{name: A, value: a}, {name: A, value: b}]}]`,
	"a port twice":           `{spec: {containers: [{name: app, image: x, command: [x], ports: [{containerPort: 80, name: a}, {containerPort: 80, name: b}]}]}}`,
	"a pull secret twice":    `{spec: {imagePullSecrets: [{name: a}, {name: a}], containers: [{name: app, image: x, command: [x]}]}}`,
	"a host's address twice": `{spec: {hostAliases: [{ip: 10.0.0.1, hostnames: [a]}, {ip: 10.0.0.1, hostnames: [b]}], containers: [{name: app, image: x, command: [x]}]}}`,
}

// refusedAlike are templates that a Deployment does not accept either.
var refusedAlike = map[string]string{
	"an invalid quantity":        `{spec: {containers: [{name: app, image: x, command: [x], resources: {requests: {cpu: half}}}]}}`,
	"a quantity that is true":    `{spec: {containers: [{name: app, image: x, command: [x], resources: {requests: {cpu: true}}}]}}`,
	"a quantity that is a list":  `{spec: {containers: [{name: app, image: x, command: [x], resources: {requests: {cpu: []}}}]}}`,
	"a quantity that is a map":   `{spec: {containers: [{name: app, image: x, command: [x], resources: {requests: {cpu: {}}}}]}}`,
	"a quantity that is nothing": `{spec: {containers: [{name: app, image: x, command: [x], resources: {requests: {cpu: ""}}}]}}`,
	"an unknown field":           `{metadata: {lables: {a: b}}, spec: {containers: [{name: app, image: x, command: [x]}]}}`,
	"containers that are null":   `{spec: {containers: }}`,
	"a name that is null":        `{spec: {containers: [{name: , image: x, command: [x]}]}}`,
	"a container twice":          `{spec: {containers: [{name: app, image: x, command: [x]}, {name: app, image: x, command: [x]}]}}`,
	"a path twice": `
spec:
  volumes: [{name: v, emptyDir: {}}]
  containers: [{name: app, image: x, command: [x], volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /a}]}]`,
}

// allNull is a template in which every optional field is null, one for each part of a pod.
func allNull() map[string]string {
	const within = `{"spec":{"volumes":[{"name":"v","configMap":{"name":"c"}}],"containers":[{"name":"app","image":"x","command":["x"],%s}]}}`
	nulls := func(of any, given ...string) string {
		fields := append([]string{}, given...)
		var add func(reflect.Type)
		add = func(is reflect.Type) {
			for field := range is.Fields() {
				name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
				switch {
				case name == "": // embedded
					add(field.Type)
				case !strings.Contains(strings.Join(given, ","), `"`+name+`":`):
					fields = append(fields, fmt.Sprintf("%q:null", name))
				}
			}
		}
		add(reflect.TypeOf(of))
		return "{" + strings.Join(fields, ",") + "}"
	}
	container := nulls(corev1.Container{}, `"name":"app"`, `"image":"x"`, `"command":["x"]`)
	pod := nulls(corev1.PodSpec{}, `"containers":[`+container+`]`)
	in := func(field string) string { return fmt.Sprintf(within, field) }
	probe := nulls(corev1.Probe{}, `"exec":{"command":["x"]}`)
	return map[string]string{
		"null, a pod":                       `{"spec":` + pod + `}`,
		"null, a pod's security":            `{"spec":{"securityContext":` + nulls(corev1.PodSecurityContext{}) + `,"containers":[` + container + `]}}`,
		"null, a container's security":      in(`"securityContext":` + nulls(corev1.SecurityContext{}, `"capabilities":`+nulls(corev1.Capabilities{}))),
		"null, a probe":                     in(`"livenessProbe":` + probe + `,"readinessProbe":` + probe + `,"startupProbe":` + probe),
		"null, a request of a probe":        in(`"livenessProbe":{"httpGet":` + nulls(corev1.HTTPGetAction{}, `"port":80`) + `}`),
		"null, hooks":                       in(`"lifecycle":` + nulls(corev1.Lifecycle{}, `"preStop":`+nulls(corev1.LifecycleHandler{}, `"exec":{"command":["x"]}`))),
		"null, a mount":                     in(`"volumeMounts":[` + nulls(corev1.VolumeMount{}, `"name":"v"`, `"mountPath":"/a"`) + `]`),
		"null, a port":                      in(`"ports":[` + nulls(corev1.ContainerPort{}, `"containerPort":80`) + `]`),
		"null, variables of a ConfigMap":    in(`"envFrom":[` + nulls(corev1.EnvFromSource{}, `"configMapRef":{"name":"a","optional":null}`) + `]`),
		"null, a volume":                    `{"spec":{"volumes":[` + nulls(corev1.Volume{}, `"name":"v"`, `"emptyDir":`+nulls(corev1.EmptyDirVolumeSource{})) + `],"containers":[` + container + `]}}`,
		"null, a volume of a Secret":        `{"spec":{"volumes":[{"name":"v","secret":` + nulls(corev1.SecretVolumeSource{}, `"secretName":"s"`) + `}],"containers":[` + container + `]}}`,
		"null, what a pod keeps away from":  `{"spec":{"affinity":` + nulls(corev1.Affinity{}, `"podAntiAffinity":`+nulls(corev1.PodAntiAffinity{})) + `,"containers":[` + container + `]}}`,
		"null, what a pod puts up with":     `{"spec":{"tolerations":[` + nulls(corev1.Toleration{}, `"operator":"Exists"`) + `],"containers":[` + container + `]}}`,
		"null, how pods are spread":         `{"spec":{"topologySpreadConstraints":[` + nulls(corev1.TopologySpreadConstraint{}, `"maxSkew":1`, `"topologyKey":"k"`, `"whenUnsatisfiable":"DoNotSchedule"`) + `],"containers":[` + container + `]}}`,
		"null, resources of a container":    in(`"resources":` + nulls(corev1.ResourceRequirements{})),
		"null, a container beside it":       `{"spec":{"initContainers":[` + strings.Replace(container, `"name":"app"`, `"name":"init"`, 1) + `],"containers":[` + container + `]}}`,
		"null, words of a command in a pod": in(`"args":[null]`),
	}
}

// verbs are the ways in which an object reaches the API server.
var verbs = map[string][][]string{
	"create":              {{"create"}},
	"apply":               {{"apply"}, {"apply"}}, // the second time is a patch
	"apply --server-side": {{"apply", "--server-side"}, {"apply", "--server-side"}},
}

// refusedByServerSideApply are the templates that a Deployment accepts only with other verbs.
var refusedByServerSideApply = []string{
	"a variable twice", "a variable twice, in an init container", "a port twice", "a pull secret twice", "a host's address twice",
}

// A template accepts, with each verb, whatever a Deployment accepts. The stored object is valid for the operator too.
func TestTemplateAcceptsWhatADeploymentAccepts(t *testing.T) {
	plane, namespace, client := server(t)
	for verb := range verbs {
		templates := maps.Clone(generated)
		if verb != "apply" { // server-side apply sends no nulls
			maps.Copy(templates, allNull())
		}
		for name, sent := range send(t, plane, namespace, templates, verb) {
			t.Run(name+", "+verb, func(t *testing.T) {
				if verb == "apply --server-side" && slices.Contains(refusedByServerSideApply, name) {
					return
				}
				if sent.theirs != nil || sent.ours != nil {
					t.Fatalf("a Deployment: %v\na SingletonJob: %v", sent.theirs, sent.ours)
				}
				var stored SingletonJob
				if err := client.Get().Namespace(namespace).Resource(Resource.Resource).Name(sent.job).Do(t.Context()).Into(&stored); err != nil {
					t.Fatalf("what is stored can't be read: %v", err)
				}
				if errs := Validate(&stored); len(errs) > 0 {
					t.Errorf("Validate refuses what is stored: %v", errs.ToAggregate())
				}
			})
		}
	}
}

// The schema of a template accepts no more than a Deployment does.
func TestTemplateRefusesWhatADeploymentRefuses(t *testing.T) {
	plane, namespace, _ := server(t)
	for _, verb := range []string{"create", "apply --server-side"} {
		for name, sent := range send(t, plane, namespace, refusedAlike, verb) {
			t.Run(name+", "+verb, func(t *testing.T) {
				if sent.theirs == nil || sent.ours == nil {
					t.Errorf("a Deployment: %v\na SingletonJob: %v", sent.theirs, sent.ours)
				}
			})
		}
	}
}

// sending is the result of sending a Deployment and a SingletonJob with one template.
type sending struct {
	job          string
	theirs, ours error
}

// send sends a Deployment and a SingletonJob of each template with a verb. One kubectl process sends them all, because each start takes
// half a second. It continues after a rejected object: the last two objects are valid and show that it reached the end.
func send(t *testing.T, plane *controlplane.APIServer, namespace string, templates map[string]string, verb string) map[string]sending {
	t.Helper()
	const last = "the last one"
	dir, all := t.TempDir(), map[string]sending{}
	prefix := strings.NewReplacer(" ", "", "--", "-").Replace(verb)
	for i, name := range append(slices.Sorted(maps.Keys(templates)), last) {
		text, given := templates[name]
		if !given {
			text = generated["no labels"]
		}
		job := fmt.Sprintf("%s-%03d", prefix, i)
		deployment, singleton := objects(t, job, text)
		write(t, filepath.Join(dir, job+"-deployment.json"), deployment)
		write(t, filepath.Join(dir, job+"-job.json"), singleton)
		all[name] = sending{job: job}
	}
	for _, command := range verbs[verb] {
		out, err := plane.Kubectl(t.Context(), append(slices.Clone(command), "-o", "name", "-n", namespace, "-f", dir)...)
		taken := strings.Fields(out)
		for name, s := range all {
			s.theirs = errors.Join(s.theirs, notAmong(taken, "deployment.apps/"+s.job, err))
			s.ours = errors.Join(s.ours, notAmong(taken, "singletonjob.singletonjob.io/"+s.job, err))
			all[name] = s
		}
	}
	if end := all[last]; end.theirs != nil || end.ours != nil {
		t.Fatalf("kubectl has not come to the end: %v\n%v", end.theirs, end.ours)
	}
	delete(all, last)
	return all
}

// notAmong returns why an object was not accepted: the messages of kubectl about all rejected objects.
func notAmong(taken []string, object string, said error) error {
	if slices.Contains(taken, object) {
		return nil
	}
	return fmt.Errorf("%s was not accepted: %w", object, cmp.Or(said, errors.New("without a message")))
}

func write(t *testing.T, file string, object map[string]any) {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// objects returns a Deployment and a SingletonJob with one template, and the fields that a Deployment requires.
func objects(t *testing.T, name, template string) (deployment, job map[string]any) {
	t.Helper()
	read := func() map[string]any {
		var out map[string]any
		if err := yaml.Unmarshal([]byte(template), &out); err != nil {
			t.Fatalf("%v in %s", err, template)
		}
		return out
	}
	labelled := read()
	metadata, _ := labelled["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	labels, _ := metadata["labels"].(map[string]any)
	if labels == nil {
		labels = map[string]any{}
	}
	labels["name"], metadata["labels"], labelled["metadata"] = name, labels, metadata
	deployment = map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name, "creationTimestamp": nil},
		"spec": map[string]any{"replicas": 0, "selector": map[string]any{"matchLabels": map[string]any{"name": name}}, "template": labelled},
	}
	job = map[string]any{
		"apiVersion": GroupVersion.String(), "kind": Kind, "metadata": map[string]any{"name": name, "creationTimestamp": nil},
		"spec": map[string]any{"template": read()},
	}
	return deployment, job
}
