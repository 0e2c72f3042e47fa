package charts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/test/tier"
)

// scene is what surrounds the commands of a page. The lines of a shell before and after all of them must succeed. names replaces placeholders
// in the commands. prints is what a command must print, by its beginning. If a page has several scenes, only chooses the commands of each.
type scene struct {
	page          string
	only          []string
	before, after string
	names         []string
	prints        map[string]string
}

// asOperator creates a job's Lease as the operator does, which the guard asks for.
const asOperator = `until kubectl create --as=system:serviceaccount:singletonjob-system:singletonjob -f - <<END
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: billing, labels: {app.kubernetes.io/managed-by: singletonjob}}}
END
do sleep 0.2; done
`

// scenes are in the order in which they must come: the first installs the release that the others use.
var scenes = []scene{
	{
		page:  "README.md",
		after: "kubectl get --raw /apis/singletonjob.io/v1alpha1/namespaces/default/singletonjobs/heartbeat >/dev/null",
	},
	{page: "docs/kubectl.md", before: "mkdir -p ~/.local/bin", prints: map[string]string{"kubectl singleton status": "heartbeat"}},
	{
		page: "docs/upgrade.md", prints: map[string]string{"helm upgrade": "STATUS: deployed"},
	},
	{
		page: "docs/guard.md", only: []string{"kubectl"}, before: asOperator, prints: map[string]string{"kubectl edit": "Edit cancelled"},
		after: "! kubectl label lease billing a=b",
	},
	{
		page: "docs/entrypoint.md", prints: map[string]string{"helm upgrade": "STATUS: deployed"},
		after: "kubectl get clusterrole singletonjob-system:singletonjob -o yaml | grep -q secrets",
	},
	{
		page:  "docs/volumes.md",
		after: "kubectl -n singletonjob-system get deployment singletonjob -o yaml | grep -q -- --agent-image-volume",
	},
	{
		page: "docs/monitoring.md",
		after: `kubectl auth can-i get /metrics --as=system:serviceaccount:monitoring:prometheus
kubectl delete clusterrolebinding prometheus-singletonjob`,
	},
	{
		page: "docs/rollout.md", names: []string{"NAME", "heartbeat"},
		after: `kubectl get sj heartbeat -o yaml | grep -q "singletonjob.io/switchover: '*[*]@48213'"`,
	},
	{
		page: "docs/runs.md", before: "cp config/samples/migration/migration.yaml migrate.yaml; cp migrate.yaml migrate-v42.yaml",
		after: "kubectl get lease billing -o jsonpath='{.metadata.annotations}' | grep -q singletonjob.io/tick; rm migrate.yaml migrate-v42.yaml",
	},
	{
		page: "docs/restore.md", prints: map[string]string{
			"kubectl get sj -A -o": "NAMESPACE   NAME", "kubectl -n singletonjob-system rollout restart": "restarted", "kubectl get sj -A --no-headers": "patched",
		},
		after: `test "$(kubectl get sj heartbeat -o jsonpath='{.spec.fencing.tokenBase}')" = 5000000`,
	},
	{
		page: "docs/troubleshooting.md", names: []string{"get lease NAME", "get lease billing", "NAME", "heartbeat"},
		prints: map[string]string{"kubectl singleton version": "Plugin: ", "kubectl singleton status": "heartbeat", "kubectl get lease": "kind: Lease"},
	},
	{
		page: "docs/guard.md", only: []string{"helm"}, names: []string{"CHART", "charts/singletonjob"},
		before: `helm uninstall singletonjob --namespace singletonjob-system
kubectl create namespace a && kubectl create namespace b
helm install one charts/singletonjob --namespace a --set crds.install=false`,
		prints: map[string]string{"helm": "STATUS: deployed"},
		after:  "helm uninstall one --namespace a && helm uninstall two --namespace b && kubectl delete namespace a b --wait=false",
	},
	{
		page: "docs/namespaced.md", only: []string{"helm install singletonjob charts/singletonjob --namespace team-a --set watchNamespaces='{team-a,team-a-batch}'"},
		before: "kubectl delete crd singletonjobs.singletonjob.io --timeout=60s; kubectl create namespace team-a; kubectl create namespace team-a-batch",
		after: `kubectl -n team-a-batch get roles -o name | grep singletonjob; helm uninstall singletonjob --namespace team-a
kubectl delete crd singletonjobs.singletonjob.io --timeout=60s`,
	},
	{
		page: "docs/namespaced.md", only: []string{"helm install singletonjob-cluster", "helm install singletonjob charts/singletonjob --namespace team-a --set watchNamespaces='{team-a}'"},
		after: `helm uninstall singletonjob --namespace team-a; helm uninstall singletonjob-cluster --namespace kube-system
kubectl delete namespace team-a team-a-batch --wait=false; kubectl delete crd singletonjobs.singletonjob.io --timeout=60s`,
	},
}

// TestDocumentedCommands pastes the commands that the documents show for a cluster into a shell. They meet a real API server, the chart, and
// the plugin that the page of the plugin builds. No operator and no kubelet run: what waits for those is run by test/stack and test/e2e.
func TestDocumentedCommands(t *testing.T) {
	tier.Deep(t, "installs the chart many times, and builds the plugin")
	c := newCluster(t)
	go c.pretendOperator(t.Context())
	typist := &commands.Typist{TB: t, Test: "charts TestDocumentedCommands", Top: ".."}
	for i, s := range scenes {
		c.play(s, typist)
		if i == 0 {
			c.samples(typist)
		}
	}
	c.inline()
	typist.End()
}

// play runs the commands of a page that are this test's.
func (c *cluster) play(s scene, typist *commands.Typist) {
	c.t.Helper()
	c.shell(s.page, s.before)
	typist.Names = s.names
	typist.Run = func(command string) string {
		out := c.shell(s.page, command)
		for begin, want := range s.prints {
			if strings.HasPrefix(command, begin) && !strings.Contains(out, want) {
				c.t.Errorf("%s: %s\nprints\n%s\nwithout %q", s.page, command, out, want)
			}
		}
		return out
	}
	typist.Page(s.page, s.only...)
	c.shell(s.page, s.after)
}

// samples applies the samples. No operator runs, so the API server and the guard alone judge them.
func (c *cluster) samples(typist *commands.Typist) {
	c.t.Helper()
	pages, err := filepath.Glob("../config/samples/*/README.md")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, page := range pages {
		c.play(scene{page: strings.TrimPrefix(page, "../")}, typist)
	}
}

// partial are beginnings of commands that end with a flag without its value, or with none of a command.
var partial = []string{"helm --wait", "kubectl debug --copy-to", "kubectl delete --grace-period", "kubectl singleton run --tick"}

// inline asks kubectl, the plugin and Helm for help about each command in a sentence or a table. They refuse a verb or a flag that they do not
// have, and read no value of a flag.
func (c *cluster) inline() {
	pages, _ := filepath.Glob("../docs/*.md")
	asked, script := map[string]bool{}, ""
	for _, page := range append(pages, "../README.md", "../SECURITY.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, line := range commands.Inline(string(text)) {
			if asked[line] || slices.Contains(partial, line) || !strings.HasPrefix(line, "kubectl ") && !strings.HasPrefix(line, "helm ") {
				continue
			}
			asked[line] = true
			own, _, _ := strings.Cut(line, " -- ")
			script += own + " --help >help 2>&1 || { echo '" + filepath.Base(page) + ":' " + strings.ReplaceAll(own, "$", "") + "; head -3 help; }\n"
		}
	}
	if out := c.shell("inline", script+"rm help"); out != "" || len(asked) < 50 {
		c.t.Errorf("of %d commands in sentences, these are not known:\n%s", len(asked), out)
	}
}

// shell runs lines at the top of the checkout, where the tools of a user are in PATH.
func (c *cluster) shell(page, lines string) string {
	c.t.Helper()
	caches, err := exec.CommandContext(c.t.Context(), "go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		c.t.Fatal(err)
	}
	at := strings.Split(strings.TrimSpace(string(caches)), "\n")
	setting := "export GOCACHE=" + at[0] + " GOMODCACHE=" + at[1] + " GOPATH=" + at[2] + ` KUBE_EDITOR=true PATH="$HOME/.local/bin:$PATH"; set -o pipefail` + "\n"
	out, err := c.paste(c.t.Context(), setting+lines)
	if err != nil {
		c.t.Errorf("%s: %v, of:\n%s\n%s", page, err, lines, out)
	}
	return out
}
