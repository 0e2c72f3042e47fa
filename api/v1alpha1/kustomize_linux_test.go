package v1alpha1

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/singletonjob/operator/test/controlplane"
)

// The configuration for kustomize adds prefixes and hashes to every name in a SingletonJob. Without it no name changes.
func TestKustomize(t *testing.T) {
	t.Parallel()
	binaries, err := controlplane.Find(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	configuration, err := os.ReadFile("../../config/kustomize/singletonjob.yaml")
	if err != nil {
		t.Fatal(err)
	}
	named := func(kind, version, name string) string {
		return "apiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: " + name + "}\n---\n"
	}
	files := map[string]string{
		"singletonjob.yaml": string(configuration),
		"objects.yaml": named("ServiceAccount", "v1", "our-account") + named("PersistentVolumeClaim", "v1", "our-claim") +
			named("PriorityClass", "scheduling.k8s.io/v1", "our-priority") + named("Deployment", "apps/v1", "our-deployment") +
			named("StatefulSet", "apps/v1", "our-set") + kustomized,
		"kustomization.yaml": `
namePrefix: pre-
resources: [objects.yaml]
configMapGenerator: [{name: our-config, literals: [a=b]}]
secretGenerator: [{name: our-secret, literals: [a=b]}]
`,
	}
	build := func(more string) string {
		dir := t.TempDir()
		for name, content := range files {
			if name == "kustomization.yaml" {
				content += more
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		command := exec.CommandContext(t.Context(), binaries.Path("kubectl"), "kustomize", dir)
		var said bytes.Buffer
		command.Stderr = &said
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, said.Bytes())
		}
		var jobs []string
		for object := range strings.SplitSeq(string(out), "\n---\n") {
			if strings.Contains(object, "kind: SingletonJob") {
				jobs = append(jobs, object)
			}
		}
		return strings.Join(jobs, "\n")
	}
	const there = "name: our-config" // a name as it was written
	if !strings.Contains(build(""), there) {
		t.Error("kustomize knows SingletonJobs by itself: the file is not needed any more")
	}
	got := build("configurations: [singletonjob.yaml]\n")
	for line := range strings.SplitSeq(got, "\n") {
		if strings.Contains(line, " our-") {
			t.Errorf("no prefix arrived: %s", strings.TrimSpace(line))
		}
	}
	if references := strings.Count(got, " pre-our-"); references != 21 {
		t.Errorf("%d references with a prefix, want 21:\n%s", references, got)
	}
}

const kustomized = `apiVersion: singletonjob.io/v1alpha1
kind: SingletonJob
metadata: {name: our-job}
spec:
  template:
    spec:
      serviceAccountName: our-account
      priorityClassName: our-priority
      imagePullSecrets: [{name: our-secret}]
      initContainers:
      - name: init
        image: app
        env: [{name: A, valueFrom: {configMapKeyRef: {name: our-config, key: a}}}, {name: B, valueFrom: {secretKeyRef: {name: our-secret, key: a}}}]
        envFrom: [{configMapRef: {name: our-config}}, {secretRef: {name: our-secret}}]
      containers:
      - name: app
        image: app
        env: [{name: A, valueFrom: {configMapKeyRef: {name: our-config, key: a}}}, {name: B, valueFrom: {secretKeyRef: {name: our-secret, key: a}}}]
        envFrom: [{configMapRef: {name: our-config}}, {secretRef: {name: our-secret}}]
      volumes:
      - {name: config, configMap: {name: our-config}}
      - {name: secret, secret: {secretName: our-secret}}
      - {name: claim, persistentVolumeClaim: {claimName: our-claim}}
      - {name: both, projected: {sources: [{configMap: {name: our-config}}, {secret: {name: our-secret}}]}}
---
apiVersion: singletonjob.io/v1alpha1
kind: SingletonJob
metadata: {name: our-other}
spec: {workloadRef: {apiVersion: apps/v1, kind: Deployment, name: our-deployment}}
---
apiVersion: singletonjob.io/v1alpha1
kind: SingletonJob
metadata: {name: our-third}
spec: {workloadRef: {apiVersion: apps/v1, kind: StatefulSet, name: our-set}}
`
