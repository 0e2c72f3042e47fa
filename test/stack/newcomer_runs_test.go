//go:build linux

package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/tier"
)

// sample is a file with the job of a sample, for nodes of this test. Its program would need a database, so each attempt only ends well.
func (n *newcomer) sample(name string) (file string) {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "config/samples", name))
	n.must(err)
	var job v1alpha1.SingletonJob
	n.must(yaml.UnmarshalStrict(raw, &job))
	pod := &job.Spec.Template.Spec
	app := corev1.Container{Name: pod.Containers[0].Name, Image: WorkloadImage, Command: []string{"sh", "-c", "sleep 0.2"}}
	pod.NodeSelector, pod.Volumes, pod.Containers = map[string]string{testLabel: n.ns}, nil, []corev1.Container{app}
	text, err := yaml.Marshal(map[string]any{"apiVersion": job.APIVersion, "kind": job.Kind, "metadata": map[string]string{"name": job.Name}, "spec": job.Spec})
	n.must(err)
	file = filepath.Join(n.t.TempDir(), "job.yaml")
	n.must(os.WriteFile(file, text, 0o600))
	return file
}

// TestNewcomerRuns types the commands of docs/runs.md. One job is run once before the upgrade of a chart, and again by hand. Another one has a
// schedule, and runs ticks that were missed.
func TestNewcomerRuns(t *testing.T) {
	tier.Deep(t, "takes minutes")
	n := newNewcomer(newWorld(t))
	typist := n.typist("test/stack TestNewcomerRuns")
	n.shell("kubectl apply -f " + n.sample("migration/migration.yaml") + " && kubectl apply -f " + n.sample("nightly/nightly.yaml"))
	n.shell("helm install app config/samples/poller --set replicaCount=0 --values=" + n.values)
	n.dir = n.t.TempDir()
	chart, err := filepath.Abs(filepath.Join(root, "config/samples/poller"))
	n.must(err)
	n.must(os.Symlink(chart, filepath.Join(n.dir, "chart")))
	typist.Page("docs/runs.md", "kubectl wait")
	n.says("Complete  once", "kubectl singleton runs migrate-v42")
	n.says("by the name again", "kubectl singleton run migrate-v42 --name=again --wait --timeout=0")
	n.says("Complete  again", "kubectl singleton runs migrate-v42")

	typist.Page("docs/runs.md", "for day in")
	runs := n.shell("kubectl singleton runs nightly")
	for day := 16; day <= 20; day++ {
		if want := fmt.Sprintf("2026-11-%dT01:30:00Z", day); !strings.Contains(runs, want) {
			t.Errorf("no run of %s:\n%s", want, runs)
		}
	}
	n.says("30 2 * * * in Europe/Berlin, next in ", "kubectl singleton status nightly")
	n.shell("kubectl wait --for=condition=Scheduled sj/nightly --timeout=10m")
	typist.End()
}

// says types a command, which must print a text.
func (n *newcomer) says(text, command string) {
	n.t.Helper()
	if out := n.shell(command); !strings.Contains(out, text) {
		n.t.Errorf("$ %s\n%s\nwithout %q", command, out, text)
	}
}
