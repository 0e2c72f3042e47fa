//go:build linux

package stack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/tier"
)

// terminal is where a user types: kubectl, Helm and the plugin are in its PATH, and the namespace is the world's.
type terminal struct {
	*world
	// dir is the current directory, the top of the checkout at first.
	dir string
	env []string
}

func newTerminal(w *world) *terminal {
	w.t.Helper()
	dir := w.t.TempDir()
	if out, err := gotool.Command(w.t.Context(), root, "build", "-o", filepath.Join(dir, "kubectl-singleton"), "./cmd/kubectl-singleton").CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	helm, err := HelmPath(w.t.Context(), root)
	w.must(err)
	w.must(os.Symlink(helm, filepath.Join(dir, "helm")))
	kubeconfig, err := os.ReadFile(w.p.Plane.Kubeconfig())
	w.must(err)
	config := filepath.Join(dir, "config")
	w.must(os.WriteFile(config, kubeconfig, 0o600))
	d := &terminal{
		world: w, dir: root,
		env: append(os.Environ(), "KUBECONFIG="+config, "HOME="+dir, "HELM_NAMESPACE="+w.ns, "PATH="+dir+":"+w.p.Plane.Binaries().Dir+":"+os.Getenv("PATH")),
	}
	d.shell("kubectl config set-context --current --namespace=" + w.ns)
	return d
}

// shell runs lines, which must succeed.
func (d *terminal) shell(lines string) string {
	d.t.Helper()
	out, err := d.try(lines)
	d.must(err)
	return out
}

func (d *terminal) try(lines string) (printed string, err error) {
	d.t.Helper()
	cmd := exec.CommandContext(d.context(), "bash", "-c", lines)
	cmd.Dir, cmd.Env = d.dir, d.env
	out, err := cmd.CombinedOutput()
	d.t.Logf("$ %s\n%s", lines, out)
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", lines, err, out)
	}
	return string(out), nil
}

// shows are how the documents name the namespace, the nodes and the zones.
func (d *terminal) shows() []string {
	return []string{"zone-of-" + d.ns, "zone", d.ns + "-a", "node-a", d.ns + "-b", "node-b", d.ns, "default"}
}

// has starts a job that a page is about, and waits until it is protected.
func (d *terminal) has(name string, lease cluster.LeaseSetting) *tenure {
	d.t.Helper()
	d.must(d.p.Client.Create(d.t.Context(), d.job(lease, func(job *v1alpha1.SingletonJob) { job.Name = name })))
	now := d.next(nil)
	_, err := d.p.AwaitJob(d.context(), d.ns, name, "protected", Protected)
	d.must(err)
	return now
}

// TestDocumentedCommands types the commands that the documents show for a job that runs, with kubectl itself and with the plugin as a program.
func TestDocumentedCommands(t *testing.T) {
	tier.Deep(t, "types commands that wait for rollouts")
	d := newTerminal(newWorld(t))
	active := d.has("ledger", long)
	typist := &commands.Typist{TB: t, Test: "test/stack TestDocumentedCommands", Top: root, Run: d.shell, Shows: d.shows()}
	typist.Names = []string{" billing", " ledger", "NAME", "ledger", "POD", active.pod}
	for _, page := range []string{"docs/troubleshooting.md", "docs/upgrade.md", "docs/kubectl.md", "docs/restore.md"} {
		typist.Page(page)
	}

	d = newTerminal(worldOn(t, d.p))
	first := d.has("heartbeat", long)
	d.must(syscall.Kill(first.process.Pid, syscall.SIGKILL))
	second := d.next(first)
	_, err := d.p.AwaitJob(d.context(), d.ns, "heartbeat", "protected again", func(job *v1alpha1.SingletonJob) bool {
		return Protected(job) && job.Status.ActivePod == second.pod && job.Status.Failovers == 1
	})
	d.must(err)
	typist.Run, typist.Names, typist.Shows = d.shell, nil, d.shows()
	typist.Page("README.md")

	web := worldOn(t, d.p).workload(v1alpha1.WorkloadStatefulSet)
	web.runsItself(1)
	typist.Run, typist.Names = newTerminal(web.world).shell, []string{"billing", "web"}
	typist.Page("docs/from-statefulset.md")
	typist.End()
}
