package charts

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The README's first commands, pasted as they are. Only the image is not built, and no node runs it: the test reports the
// operator's Deployment as available as soon as it is created.
func TestReadmeInstallCommands(t *testing.T) {
	c := newCluster(t)
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```\n(helm install .*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("README.md has no block that begins with helm install")
	}
	t.Cleanup(func() {
		for _, end := range []string{
			"helm uninstall singletonjob --namespace singletonjob-system", "kubectl delete crd singletonjobs.singletonjob.io --timeout=60s",
		} {
			if out, err := c.paste(context.Background(), end); err != nil {
				t.Errorf("%s: %v\n%s", end, err, out)
			}
		}
	})
	go c.pretendOperator(t.Context())
	if out, err := c.paste(t.Context(), string(block[1])); err != nil {
		t.Fatalf("%v, of:\n%s\n%s", err, block[1], out)
	}
	if got := c.mustKubectl("get", "singletonjobs", "--output=name"); !strings.Contains(got, "heartbeat") {
		t.Errorf("the jobs are %q, want heartbeat", got)
	}
}

// paste runs lines one after the other in the root of the checkout. All must succeed.
func (c *cluster) paste(ctx context.Context, lines string) (output string, err error) {
	cmd := c.command(ctx, "bash", "-c", "set -e\n"+lines)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// pretendOperator delays its report, and helm install has to wait for it. If helm returned earlier, the next line could fail.
func (c *cluster) pretendOperator(ctx context.Context) {
	const running = `{"status": {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
	  "conditions": [{"type": "Available", "status": "True"}, {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}}`
	kubectl := func(args ...string) (string, error) {
		return c.plane.Kubectl(ctx, append(args, "--namespace=singletonjob-system")...)
	}
	var created time.Time
	for ctx.Err() == nil {
		if _, err := kubectl("get", "deployment", "singletonjob"); err != nil {
			continue
		} else if created.IsZero() {
			created = time.Now()
		}
		// Helm's own record of finished installations.
		if done, err := kubectl("get", "secrets", "--selector=owner=helm,status=deployed", "--output=name"); err == nil && done != "" {
			c.t.Error("helm install returned before the operator ran: the next line may come too early")
		} else if time.Since(created) < 4*time.Second {
			continue
		}
		_, _ = kubectl("patch", "deployment", "singletonjob", "--subresource=status", "--type=merge", "--patch="+running)
		return
	}
}
