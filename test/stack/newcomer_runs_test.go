//go:build linux

package stack

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/tier"
)

// sample is a file with the job of a sample, for nodes of this test.
func (n *newcomer) sample(name string) (file string) {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "config/samples", name))
	n.must(err)
	var job v1alpha1.SingletonJob
	n.must(yaml.UnmarshalStrict(raw, &job))
	job.Spec.Template.Spec.NodeSelector = map[string]string{testLabel: n.ns}
	text, err := yaml.Marshal(map[string]any{"apiVersion": job.APIVersion, "kind": job.Kind, "metadata": map[string]string{"name": job.Name}, "spec": job.Spec})
	n.must(err)
	file = filepath.Join(n.t.TempDir(), "job.yaml")
	n.must(os.WriteFile(file, text, 0o600))
	return file
}

// TestNewcomerRuns types the commands of docs/runs.md: a job that is run once, and again by hand; one that has a schedule, and a tick
// of it that was missed.
func TestNewcomerRuns(t *testing.T) {
	tier.Deep(t, "takes minutes")
	n := newNewcomer(newWorld(t))
	n.shows("runs.md", "kubectl wait --for=condition=Complete sj/migrate-v42 --timeout=10m", "kubectl singleton status nightly")
	n.kubectl("apply", "--filename="+n.sample("migration/migration.yaml"))
	n.kubectl("wait", "--for=condition=Complete", "sj/migrate-v42", "--timeout=10m")
	n.singleton("Complete  once", "runs", "migrate-v42")
	n.singleton("by the name again", "run", "migrate-v42", "--name=again", "--wait", "--timeout=0")
	n.singleton("Complete  again", "runs", "migrate-v42")

	n.kubectl("apply", "--filename="+n.sample("nightly/nightly.yaml"))
	n.singleton("asked to run", "run", "nightly", "--tick=2026-01-05T02:30:00+01:00", "--name=missed", "--wait", "--timeout=0")
	n.singleton("missed of 2026-01-05T01:30:00Z", "runs", "nightly")
	n.singleton("30 2 * * * in Europe/Berlin, next in ", "status", "nightly")
	n.kubectl("wait", "--for=condition=Scheduled", "sj/nightly", "--timeout=10m")
}
