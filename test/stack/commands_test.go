//go:build linux

package stack

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/test/tier"
)

// typed is the name of the test in the rows of commands.Rows.
const typed = "test/stack TestDocumentedCommands"

// typist types the commands of pages into a shell that has kubectl and the plugin.
type typist struct {
	*world
	env   []string
	ran   map[commands.Row]bool
	names *strings.Replacer
}

func newTypist(w *world) *typist {
	w.t.Helper()
	dir := w.t.TempDir()
	if out, err := gotool.Command(w.t.Context(), root, "build", "-o", filepath.Join(dir, "kubectl-singleton"), "./cmd/kubectl-singleton").CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	kubeconfig, err := os.ReadFile(w.p.Plane.Kubeconfig())
	w.must(err)
	config := filepath.Join(dir, "config")
	w.must(os.WriteFile(config, kubeconfig, 0o600))
	d := &typist{
		world: w, ran: map[commands.Row]bool{},
		env: append(os.Environ(), "KUBECONFIG="+config, "HOME="+dir, "PATH="+dir+":"+w.p.Plane.Binaries().Dir+":"+os.Getenv("PATH")),
	}
	d.shell("kubectl config set-context --current --namespace=" + w.ns)
	return d
}

func (d *typist) shell(line string) string {
	d.t.Helper()
	cmd := exec.CommandContext(d.context(), "bash", "-c", line)
	cmd.Env = d.env
	out, err := cmd.CombinedOutput()
	d.t.Logf("$ %s\n%s", line, out)
	if err != nil {
		d.t.Errorf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// page types the commands of a page that are this test's. The first line that the page shows below a command must be printed.
func (d *typist) page(name string) {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", name))
	d.must(err)
	for _, command := range commands.Of("docs/"+name, string(text)) {
		for _, r := range commands.Rows {
			if r.By != typed || !r.Is(command) {
				continue
			}
			d.ran[r] = true
			out := d.shell(d.names.Replace(command.Text))
			shown, _, _ := strings.Cut(d.names.Replace(command.Output), "\n")
			if !strings.Contains(out, shown) {
				d.t.Errorf("%s shows %q below %s", name, shown, command.Text)
			}
		}
	}
}

// varying are the words of an Event that differ in each cluster.
var varying = regexp.MustCompile(`\S+-\d \(node \S+, token \d+\)`)

// firstEvent compares the Event that the README shows of a new job with that of this one.
func (d *typist) firstEvent() {
	d.t.Helper()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	d.must(err)
	shown := regexp.MustCompile(`(?m) Elected +\S+ +(.*)$`).FindSubmatch(readme)
	if shown == nil {
		d.t.Fatal("README.md shows no Event Elected")
	}
	out := varying.ReplaceAllString(d.shell("kubectl events --for singletonjob/"+jobName), "POD")
	if want := varying.ReplaceAllString(string(shown[1]), "POD"); !strings.Contains(out, want) {
		d.t.Errorf("no Event says %q", want)
	}
}

// TestDocumentedCommands types the commands that the documents show for a job that runs, with kubectl itself and with the plugin as a program.
func TestDocumentedCommands(t *testing.T) {
	tier.Deep(t, "types commands that wait for rollouts")
	d := newTypist(newWorld(t))
	active := d.run(d.job(long))
	d.names = strings.NewReplacer("/ledger", "/"+jobName, " ledger", " "+jobName, " billing", " "+jobName, "NAME", jobName, "POD", active.pod)
	for _, page := range []string{"troubleshooting.md", "upgrade.md", "kubectl.md", "restore.md"} {
		d.page(page)
	}

	d.firstEvent()
	web := worldOn(t, d.p).workload(v1alpha1.WorkloadStatefulSet)
	web.runsItself(1)
	s := newTypist(web.world)
	s.ran, s.names = d.ran, strings.NewReplacer("billing", "web")
	s.page("from-statefulset.md")
	for _, r := range commands.Rows {
		if r.By == typed && !d.ran[r] {
			t.Errorf("%s: nothing types what begins with %q", r.Page, r.Begin)
		}
	}
}
