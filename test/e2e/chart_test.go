//go:build linux

package e2e

import (
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
	h := x.newHub()
	j := &job{trial: x, name: "app", key: client.ObjectKey{Namespace: x.namespace, Name: "app"}}
	image := h.push("app", v1.Config{Entrypoint: []string{"/workload"}, User: "65532", Env: []string{
		"PATH=/bin", "SINK=" + bed.SinkURL(), "RESOURCE=" + string(fence.ResourceOf(x.namespace, j.name)),
	}})
	s := x.shell()
	s.dir = x.TempDir()
	values := " --values=" + filepath.Join(s.dir, "values.yaml") + " --set=image.repository=" + strings.TrimSuffix(image, ":v1")
	x.must(os.WriteFile(filepath.Join(s.dir, "values.yaml"), []byte(chartValues), 0o600))
	s.run("helm create app")
	typist := &commands.Typist{TB: t, Test: "test/e2e TestSomebodyElsesChart", Top: "../..", Shows: []string{x.namespace, "default"}}
	typist.Run = func(command string) string {
		if strings.HasPrefix(command, "helm ") {
			command += values
		}
		return s.run(command)
	}
	typist.Page("docs/workloads.md")
	typist.End()
	j.awaitSettled()
	j.awaitWriteAfter(0)
	handovers := func(n int64, why string) {
		x.Helper()
		after := j.awaitStatus(why, func(o *v1alpha1.SingletonJob) bool { return settled(o) && o.Status.Handovers >= n }).Status
		if after.Handovers != n || after.Failovers != 0 {
			x.Errorf("%s: %d handovers and %d failovers, want %d handovers", why, after.Handovers, after.Failovers, n)
		}
	}
	s.run("helm upgrade app ./app --set replicaCount=0 --set=podAnnotations.version=two" + values)
	handovers(1, "helm upgrade")
	s.run("helm rollback app 1")
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

	s.run("helm uninstall app") // with the service account, without which no agent can renew for long
	j.awaitStatus("the status says that the Deployment is missing", func(o *v1alpha1.SingletonJob) bool {
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProgressing)
		return c != nil && c.Reason == v1alpha1.ReasonWorkloadMissing
	})
	j.check(false)
	x.kubectl("delete", "singletonjob", j.name, "--timeout=4m")
}
