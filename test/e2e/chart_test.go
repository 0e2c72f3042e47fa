//go:build linux

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/fence"
)

// chartValues are what a user sets for the chart that "helm create" writes, and that most published charts come from.
const chartValues = `
replicaCount: 0
image: {tag: v1}
podSecurityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
resources: {requests: {cpu: 100m}}
livenessProbe: null
readinessProbe: null
`

// TestSomebodyElsesChart: the chart that "helm create" writes has nothing of a SingletonJob in it. Its Deployment, scaled to 0 by its values,
// is adopted. Helm then upgrades it and rolls it back with one handover each; its process crashes, its node is drained, and Helm uninstalls it.
func TestSomebodyElsesChart(t *testing.T) {
	x := begin(t)
	x.needLab()
	page, err := os.ReadFile("../../docs/workloads.md")
	x.must(err)
	for _, missing := range commands.Missing(string(page), "helm install app ./app --set replicaCount=0", "kubectl singleton adopt deployment/app") {
		x.Errorf("docs/workloads.md does not show what is typed here: %s", missing)
	}
	h := x.newHub()
	j := &job{trial: x, name: "app", key: client.ObjectKey{Namespace: x.namespace, Name: "app"}}
	image := h.push("app", v1.Config{Entrypoint: []string{"/workload"}, User: "65532", Env: []string{
		"PATH=/bin", "SINK=" + bed.SinkURL(), "RESOURCE=" + string(fence.ResourceOf(x.namespace, j.name)),
	}})
	program, err := bed.Program(x.ctx, "helm")
	x.must(err)
	helm := func(args ...string) {
		x.Helper()
		x.note("helm %s", strings.Join(args, " "))
		out, err := bed.Run(x.ctx, append([]string{program, "--namespace=" + x.namespace}, args...)...)
		x.Logf("helm %s: %s", args[0], out)
		x.must(err)
	}
	chart, values := filepath.Join(x.TempDir(), j.name), filepath.Join(x.TempDir(), "values.yaml")
	helm("create", chart)
	x.must(os.WriteFile(values, []byte(chartValues), 0o600))
	release := []string{j.name, chart, "--values=" + values, "--set=image.repository=" + strings.TrimSuffix(image, ":v1")}
	helm(append([]string{"install"}, release...)...)

	var out, errOut bytes.Buffer
	status := x.singleton(x.ctx, &out, &errOut, "adopt", "deployment/"+j.name)
	x.Logf("kubectl singleton adopt deployment/%s\n%s%s", j.name, &errOut, &out)
	if status != 0 || !strings.Contains(out.String(), "is a singleton") || !strings.Contains(errOut.String(), "the Helm release "+x.namespace+"/"+j.name+" sets the replicas") {
		x.Fatalf("adopt ended with %d", status)
	}
	j.awaitSettled()
	j.awaitWriteAfter(0)
	handovers := func(n int64, why string) {
		x.Helper()
		after := j.awaitStatus(why, func(o *v1alpha1.SingletonJob) bool { return settled(o) && o.Status.Handovers >= n }).Status
		if after.Handovers != n || after.Failovers != 0 {
			x.Errorf("%s: %d handovers and %d failovers, want %d handovers", why, after.Handovers, after.Failovers, n)
		}
	}
	helm(append([]string{"upgrade", "--set=podAnnotations.version=two"}, release...)...)
	handovers(1, "helm upgrade")
	helm("rollback", j.name, "1")
	handovers(2, "helm rollback")
	j.crash()
	before := j.awaitSettled()
	x.kubectl("drain", before.Status.ActiveNode, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=4m", "--pod-selector=singletonjob.io/name")
	if after := j.awaitActiveAfter(before.Status.FencingToken).Status; after.ActiveNode == before.Status.ActiveNode {
		x.Errorf("the active pod is still on the drained node %s", after.ActiveNode)
	}
	x.restoreNodes(x.ctx)
	j.awaitSettled()
	j.check(false)

	helm("uninstall", j.name) // with the service account, without which no agent can renew for long
	j.awaitStatus("the status says that the Deployment is missing", func(o *v1alpha1.SingletonJob) bool {
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProgressing)
		return c != nil && c.Reason == v1alpha1.ReasonWorkloadMissing
	})
	j.check(false)
	x.kubectl("delete", "singletonjob", j.name, "--timeout=4m")
}
