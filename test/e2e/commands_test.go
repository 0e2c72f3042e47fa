//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/docs/commands"
)

// shell is where a user types: kubectl, Helm and the plugin are in its PATH, and the namespace is the trial's.
type shell struct {
	*trial
	// dir is the current directory, the top of the checkout at first.
	dir string
	env []string
}

func (x *trial) shell() *shell {
	x.Helper()
	dir := x.TempDir()
	if out, err := gotool.Command(x.ctx, "../..", "build", "-o", filepath.Join(dir, "kubectl-singleton"), "./cmd/kubectl-singleton").CombinedOutput(); err != nil {
		x.Fatalf("%v: %s", err, out)
	}
	config, err := os.ReadFile(bed.Kubeconfig)
	x.must(err)
	own := filepath.Join(dir, "config")
	x.must(os.WriteFile(own, config, 0o600))
	for _, name := range []string{"kubectl", "helm"} {
		program, err := bed.Program(x.ctx, name)
		x.must(err)
		x.must(os.Symlink(program, filepath.Join(dir, name)))
	}
	s := &shell{trial: x, dir: "../..", env: append(os.Environ(), "KUBECONFIG="+own, "HOME="+dir, "HELM_NAMESPACE="+x.namespace, "PATH="+dir+":"+os.Getenv("PATH"))}
	s.run("kubectl config set-context --current --namespace=" + x.namespace)
	return s
}

// run runs lines, which must succeed.
func (s *shell) run(lines string) string {
	s.Helper()
	s.note("$ %s", lines)
	cmd := exec.CommandContext(s.ctx, "bash", "-c", lines)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	s.Logf("$ %s\n%s", lines, out)
	if err != nil {
		s.Errorf("%s: %v\n%s", lines, err, out)
	}
	return string(out)
}

// TestDocumentedCommands runs those commands of the documents that need a kubelet: they read logs, or run a program in a container.
func TestDocumentedCommands(t *testing.T) {
	x := beginBeside(t)
	j := x.createNamed("ledger", patient)
	j.awaitSettled()
	crashed := j.get().Status.ActivePod // has a container before the present one
	active := j.crash().Status.ActivePod
	s := x.shell()
	typist := &commands.Typist{TB: t, Test: "test/e2e TestDocumentedCommands", Top: "../..", Run: s.run, Names: []string{
		"migrate-v42", j.name, "NAME", j.name, "POD --previous", crashed + " --previous", "POD", active,
	}}
	for _, page := range []string{"docs/kubectl.md", "docs/probes.md", "docs/runs.md", "docs/troubleshooting.md"} {
		typist.Page(page)
	}
	typist.End()
}
