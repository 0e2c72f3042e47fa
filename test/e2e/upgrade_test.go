//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/test/cluster"
)

// earlierCommit is the source from which TestUpgradeFrom upgrades, unless FROM names another one. Its definition, guard and agents differ
// from those of today.
const earlierCommit = "74e0789dc1a1"

const earlierImage = "singletonjob/operator:e2e-earlier"

// TestUpgradeFrom upgrades twenty jobs from an earlier source by its own chart to this one: the operator, the guard and the definition change
// under agents of the earlier source. No tenure ends and no Pod is replaced. Then agents of both take over from each other, a job is rolled
// out, and helm rollback ends no tenure either. Before the upgrade, the definition is later than its operator, and after it, earlier.
func TestUpgradeFrom(t *testing.T) {
	const all, mixed = 20, 3
	x := begin(t)
	x.needLab()
	chart := x.earlier()
	t.Cleanup(bed.distrust)
	x.must(bed.uninstall(x.ctx))
	x.kubectl("delete", "crd", "singletonjobs.singletonjob.io")
	x.must(bed.installChart(x.ctx, chart, earlierImage))
	earlier := x.rules()
	f := jobsOf{trial: x}
	for i := range all {
		f.jobs = append(f.jobs, x.createNamed(fmt.Sprintf("job-%d", i), patient))
	}
	for _, j := range f.jobs {
		j.awaitSettled()
		j.awaitWriteAfter(0)
	}

	f.undisturbed("later-definition", func() error { return x.define(bed.chart) })
	f.jobs[all-1].crash()
	f.undisturbed("upgrade", func() error { return bed.installImage(x.ctx, *operatorImage) })
	for kind, text := range x.rules() {
		if text == earlier[kind] {
			x.Errorf("the upgrade has changed no %s: it is not tested", kind)
		}
	}
	for _, j := range f.jobs[:mixed] {
		j.changesAgent(*operatorImage)
	}
	rolled := f.jobs[mixed]
	rolled.update(func(o *v1alpha1.SingletonJob) {
		metav1.SetMetaDataAnnotation(&o.Spec.Template.ObjectMeta, "e2e/rollout", "yes")
	})
	rolled.awaitStatus("one handover", func(o *v1alpha1.SingletonJob) bool { return settled(o) && o.Status.Handovers == 1 })

	f.undisturbed("earlier-definition", func() error { return x.define(chart) })
	f.jobs[all-1].crash()
	f.undisturbed("rollback", func() error {
		helm, err := bed.Program(x.ctx, "helm")
		if err == nil {
			_, err = bed.Run(x.ctx, helm, "rollback", release, "--namespace="+systemNamespace, "--wait", "--timeout=10m")
		}
		return err
	})
	if diff := cmp.Diff(earlier, x.rules()); diff != "" {
		x.Errorf("helm rollback has not brought back the rules (-earlier +now):\n%s", diff)
	}
	f.jobs[0].changesAgent(earlierImage)
	rolled.crash()
	for _, j := range f.jobs {
		j.awaitSettled()
		j.check(false)
	}
}

// jobsOf is the jobs of a trial.
type jobsOf struct {
	*trial
	jobs []*job
}

// undisturbed changes something under all jobs. No tenure may end, and no Pod may be replaced.
func (f jobsOf) undisturbed(what string, change func() error) {
	f.Helper()
	var before []standing
	for _, j := range f.jobs {
		before = append(before, j.standing())
	}
	f.note("%s", what)
	f.must(change())
	f.kubectl("annotate", "singletonjobs", "--all", "--overwrite", "e2e/noticed="+what) // makes the operator look at them
	ended, replaced := 0, 0
	for i, j := range f.jobs {
		j.awaitSettled()
		j.awaitFurtherWrites()
		after := j.standing()
		if after.active != before[i].active || after.token != before[i].token {
			ended++
			f.Errorf("%s: the tenure of %s changed from %s (%d) to %s (%d)", what, j.name, before[i].active, before[i].token, after.active, after.token)
		}
		for uid := range before[i].pods {
			if !after.pods[uid] {
				replaced++
			}
		}
	}
	f.Logf("%s: of %d jobs, %d tenures ended and %d Pods were replaced", what, len(f.jobs), ended, replaced)
	if replaced > 0 {
		f.Errorf("%s: %d Pods were replaced", what, replaced)
	}
}

// earlier builds the earlier source, loads its image into the lab and returns its chart.
func (x *trial) earlier() (chart string) {
	x.Helper()
	from := os.Getenv("FROM")
	if from == "" {
		from = earlierCommit
	}
	dir := filepath.Join(x.TempDir(), "source")
	git := func(ctx context.Context, args ...string) {
		if out, err := exec.CommandContext(ctx, "git", append([]string{"worktree"}, args...)...).CombinedOutput(); err != nil {
			x.Fatalf("git worktree %v: %v\n%s", args, err, out)
		}
	}
	git(x.ctx, "add", "--detach", dir, from)
	x.Cleanup(func() { git(context.Background(), "remove", "--force", dir) })
	file := filepath.Join(x.TempDir(), "earlier.tar")
	build := gotool.Command(x.ctx, dir, "run", "./build/image", "-reference="+earlierImage, "-version=e2e-earlier",
		"-platforms=linux/"+runtime.GOARCH, "-output="+file)
	if out, err := build.CombinedOutput(); err != nil {
		x.Fatalf("build %s: %v\n%s", from, err, out)
	}
	x.must(bed.Lab.Image(x.ctx, file))
	return filepath.Join(dir, "charts", "singletonjob")
}

// define applies the definition of a chart alone, in the name of Helm, to which it belongs.
func (x *trial) define(chart string) error {
	helm, err := bed.Program(x.ctx, "helm")
	if err != nil {
		return err
	}
	text, err := bed.Run(x.ctx, helm, "template", release, chart, "--namespace="+systemNamespace, "--show-only=templates/crds.yaml")
	if err != nil {
		return err
	}
	file := filepath.Join(x.TempDir(), "crd.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	_, err = bed.Kubectl(x.ctx, "apply", "--server-side", "--field-manager=helm", "--force-conflicts", "--filename="+file)
	return err
}

// rules are what the API server demands of jobs and of Leases.
func (x *trial) rules() map[string]string {
	x.Helper()
	rules := map[string]string{}
	for kind, path := range map[string]string{
		"definition": "crd/singletonjobs.singletonjob.io", "guard": "validatingadmissionpolicies",
	} {
		var list struct {
			Spec  json.RawMessage
			Items []struct{ Spec json.RawMessage }
		}
		x.must(json.Unmarshal([]byte(x.kubectl("get", path, "--output=json")), &list))
		rules[kind] = string(list.Spec)
		for _, item := range list.Items {
			rules[kind] += string(item.Spec)
		}
	}
	return rules
}

// standing is what an upgrade may not change.
type standing struct {
	token  int64
	active string
	pods   map[types.UID]bool
}

func (j *job) standing() standing {
	j.Helper()
	status := j.get().Status
	s := standing{status.FencingToken, status.ActivePod, map[types.UID]bool{}}
	for _, p := range j.candidates() {
		if p.DeletionTimestamp == nil { // a rollout may not be over for a Pod that it has replaced
			s.pods[p.UID] = true
		}
	}
	return s
}

// changesAgent replaces the standby, which then has the agent of the installed release, and kills the active process until the standby has
// taken over.
func (j *job) changesAgent(image string) {
	j.Helper()
	before := j.get()
	j.kubectl("delete", "pod", j.standby(before.Status.ActivePod))
	j.await("a standby with the agent of "+image, func() (bool, any, error) {
		images := map[string]bool{}
		for _, p := range j.candidates() {
			images[p.Spec.InitContainers[0].Image] = p.DeletionTimestamp == nil && cluster.PodReady(p)
		}
		return images[image], images, nil
	})
	for range 3 { // an agent that gets no CPU for long is overtaken by the next one of the same Pod
		after := j.crash()
		if j.pod(after.Status.ActivePod).Spec.InitContainers[0].Image == image {
			return
		}
	}
	j.Errorf("the agent of %s has not taken over", image)
}
