//go:build linux

package stack

import (
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/tier"
)

// startRegistry serves the image "poller", which runs the workload by itself, until the tests end.
func startRegistry(t *testing.T) (host string) {
	t.Helper()
	host = httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)))).Listener.Addr().String()
	image, err := mutate.Config(empty.Image, v1.Config{Entrypoint: []string{"workload"}})
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(host+"/poller:1.37", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, image); err != nil {
		t.Fatal(err)
	}
	return host
}

// newcomer types commands, and has values that only say where the image is and what it is to do.
type newcomer struct {
	*terminal
	values string
}

func newNewcomer(w *world) *newcomer {
	w.t.Helper()
	n := &newcomer{terminal: newTerminal(w), values: filepath.Join(w.t.TempDir(), "values.yaml")}
	port, err := controlplane.FreePort()
	w.must(err)
	// Soon, and patient with a busy machine. The workload answers only to requests that have a number.
	probe := map[string]any{"httpGet": nil, "tcpSocket": map[string]any{"port": "http"}, "periodSeconds": 1, "timeoutSeconds": 60}
	text, err := yaml.Marshal(map[string]any{
		"image": map[string]any{"repository": w.p.registry + "/poller"}, "args": []string{},
		"env": map[string]string{
			"SINK": w.p.SinkLink.URL(), "RESOURCE": string(w.resource()), "EVERY": "50ms", "LISTEN": fmt.Sprint(":", port),
		},
		"service": map[string]any{"targetPort": port}, "nodeSelector": map[string]string{testLabel: w.ns},
		"livenessProbe": probe, "readinessProbe": probe,
	})
	w.must(err)
	w.must(os.WriteFile(n.values, text, 0o600))
	return n
}

// upgrade upgrades the release poller of the sample chart, scaled to 0.
func (n *newcomer) upgrade(more string) error {
	n.t.Helper()
	_, err := n.try("helm upgrade poller config/samples/poller --set replicaCount=0 --values=" + n.values + " " + more)
	return err
}

// typist types the commands of the pages. Helm gets the values, too.
func (n *newcomer) typist(test string) *commands.Typist {
	return &commands.Typist{TB: n.t, Test: test, Top: root, Shows: n.shows(), Run: func(command string) string {
		if strings.HasPrefix(command, "helm ") {
			command += " --values=" + n.values
		}
		return n.shell(command)
	}}
}

// behind are the pods that a Service selects.
func (n *newcomer) behind(name string) []string {
	n.t.Helper()
	pods, err := n.selected(name)
	n.must(err)
	var names []string
	for i := range pods {
		names = append(names, pods[i].Name)
	}
	return names
}

// serves waits until another pod than old is active, with the present template and a standby, and alone behind the Service.
func (n *newcomer) serves(service, old string) *v1alpha1.SingletonJob {
	n.t.Helper()
	job, err := n.p.AwaitJob(n.context(), n.ns, "poller", "active, protected and up to date", func(job *v1alpha1.SingletonJob) bool {
		active := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionActive)
		return Protected(job) && active.Reason == v1alpha1.ReasonRunning && job.Status.ActivePod != old && job.Status.Candidates.Updated == 2
	})
	n.must(err)
	n.await("the active pod alone behind "+service, func() (bool, any, error) {
		behind := n.behind(service)
		return slices.Equal(behind, []string{job.Status.ActivePod}), behind, nil
	})
	return job
}

// TestNewcomer: a chart that knows nothing of SingletonJob becomes one by the commands of docs/from-deployment.md, and an upgrade of it is
// one handover.
func TestNewcomer(t *testing.T) {
	n := newNewcomer(newWorld(t))
	typist := n.typist("test/stack TestNewcomer")
	typist.Page("docs/from-deployment.md", "helm", "kubectl singleton adopt", "kubectl expose")
	first := n.serves("poller-active", "")
	if tier.IsDeep() { // a busy machine can have a failover by now, which the page does not show
		typist.Page("docs/from-deployment.md", "kubectl singleton status")
	}
	if behind := n.behind("poller"); len(behind) < 2 {
		t.Errorf("the chart's own Service selects %v: who told it?", behind)
	}

	n.must(n.upgrade("--set=env.UPSTREAM=elsewhere"))
	second := n.serves("poller-active", first.Status.ActivePod)
	taken := 0 // a busy machine may have the old pod take the Lease back, which is not this handover
	for _, c := range second.Status.History {
		if c.Reason == v1alpha1.ChangeLivenessFailed {
			t.Errorf("the process fails its probe: %+v", c)
		}
		if c.Token > first.Status.FencingToken && c.Type == v1alpha1.Handover && c.From != c.To {
			taken++
		}
	}
	if taken != 1 && second.Status.Failovers == first.Status.Failovers {
		t.Errorf("the upgrade cost %d handovers: %+v", taken, second.Status.History)
	}
	n.tellsTheChartsService(typist)
	if tier.IsDeep() {
		typist.End()
	}
	for _, v := range observe.Violations(n.p.Lives(n.resource()), false) {
		t.Error(v)
	}
}

// tellsTheChartsService shows what docs/service.md says of the label in the chart's own Service: which upgrade is refused, which keeps
// it, and which takes it off.
func (n *newcomer) tellsTheChartsService(typist *commands.Typist) {
	n.t.Helper()
	n.shell("kubectl delete service poller-active")
	typist.Page("docs/service.md")
	n.serves("poller", "")
	if err := n.upgrade("--set=env.UPSTREAM=elsewhere"); err == nil || !strings.Contains(err.Error(), ".spec.selector") {
		n.t.Errorf("an upgrade over the Service's selector: %v", err)
	}
	n.must(n.upgrade("--set=env.UPSTREAM=elsewhere --server-side=false"))
	n.serves("poller", "")
	n.must(n.upgrade("--set=env.UPSTREAM=elsewhere --server-side=true --force-conflicts"))
	if behind := n.behind("poller"); len(behind) < 2 {
		n.t.Errorf("an upgrade by force has kept the label: the Service selects %v", behind)
	}
}
