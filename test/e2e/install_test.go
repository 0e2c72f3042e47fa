//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/cluster"
)

// TestInstall installs into a cluster that has no release, and asks for an active job soon after.
func TestInstall(t *testing.T) {
	x := begin(t)
	x.must(bed.uninstall(x.ctx))
	x.kubectl("delete", "leases", "--all", "--namespace="+systemNamespace) // a cluster's first operator waits for no other
	began := time.Now()
	x.must(bed.install(x.ctx))
	installed := time.Since(began)
	j := x.create(steady)
	j.awaitActiveAfter(0)
	j.awaitWriteAfter(0)
	x.Logf("installed after %v, first job active after %v", installed.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	j.awaitSettled()
	j.check(false)
}

// TestUpgrade replaces the operator under a running job, which must not notice.
func TestUpgrade(t *testing.T) {
	x := begin(t)
	j := x.start(steady)
	before := j.get()
	operators := x.operatorPods()

	x.note("helm upgrade")
	x.must(bed.install(x.ctx, "verbosity=1", "podAnnotations.e2e/upgraded=yes"))
	for _, p := range x.operatorPods() {
		for _, old := range operators {
			if p.UID == old.UID {
				x.Errorf("operator pod %s outlived the upgrade", p.Name)
			}
		}
	}
	x.kubectl("annotate", "singletonjob", j.name, "e2e/noticed=yes") // makes the new operator look at it
	j.awaitSettled()
	j.undisturbed(before)
	x.must(bed.install(x.ctx))
}

// TestVersionSkew upgrades to an image of another version and back, under a job whose pods then have agents of both.
func TestVersionSkew(t *testing.T) {
	x := begin(t)
	x.needLab()
	x.must(bed.loadOtherVersion(x.ctx, t.TempDir()))
	j := x.start(steady)
	before := j.get()

	x.note("helm upgrade to another version")
	x.must(bed.installImage(x.ctx, otherVersion))
	j.undisturbed(before)
	x.kubectl("delete", "pod", j.standby(before.Status.ActivePod))
	x.await("agents of both versions", func() (bool, any, error) {
		images := map[string]bool{}
		for _, p := range j.candidates() {
			images[p.Spec.InitContainers[0].Image] = p.DeletionTimestamp == nil && cluster.PodReady(p)
		}
		return images[*operatorImage] && images[otherVersion], images, nil
	})
	j.awaitSettled()
	newer := j.crash()
	agent := func() string { return j.pod(newer.Status.ActivePod).Spec.InitContainers[0].Image }
	for attempt := 1; agent() != otherVersion && attempt < 3; attempt++ { // who gets no CPU for long is overtaken by a new agent of the same pod
		newer = j.crash()
	}
	if agent() != otherVersion {
		x.Errorf("the active agent is of %s, want %s", agent(), otherVersion)
	}
	j.awaitSettled()

	x.note("helm upgrade back")
	x.must(bed.install(x.ctx))
	x.kubectl("annotate", "singletonjob", j.name, "e2e/noticed=yes") // makes the operator look at it
	if again := j.awaitSettled(); again.Status.FencingToken != newer.Status.FencingToken {
		x.Errorf("the tenure changed from %d to %d", newer.Status.FencingToken, again.Status.FencingToken)
	}
	j.crash()
	j.awaitSettled()
	j.check(false)
}

// standby names the one candidate that is not the active pod.
func (j *job) standby(active string) string {
	j.Helper()
	for _, p := range j.candidates() {
		if p.Name != active && p.DeletionTimestamp == nil {
			return p.Name
		}
	}
	j.Fatalf("%s has no standby", active)
	return ""
}

// undisturbed asks that the tenure is still the same and its process still writes.
func (j *job) undisturbed(before *v1alpha1.SingletonJob) {
	j.Helper()
	lives := j.lives()
	if len(lives) != 1 {
		j.Errorf("%d processes have written, want the same one throughout", len(lives))
	}
	written := lives[0].Accepted
	j.await("further writes", func() (bool, any, error) {
		now := j.lives()[0].Accepted
		return now > written+10, now, nil
	})
	after := j.get()
	if after.Status.FencingToken != before.Status.FencingToken || after.Status.ActivePod != before.Status.ActivePod {
		j.Errorf("the tenure changed from %s (%d) to %s (%d)", before.Status.ActivePod, before.Status.FencingToken, after.Status.ActivePod, after.Status.FencingToken)
	}
	j.check(false)
}

// TestUninstall takes the operator away: what runs continues and fails over, and the next operator tells what happened.
func TestUninstall(t *testing.T) {
	x := begin(t)
	x.needLab()
	j := x.start(steady)
	before := j.get()

	x.must(bed.uninstall(x.ctx))
	if out := x.kubectl("get", "crd", "singletonjobs.singletonjob.io", "--output=name"); !strings.Contains(out, "singletonjobs") {
		x.Error("the definition went with the release, and every job with it")
	}
	x.kubectl("get", "lease", j.name)
	time.Sleep(shows) // what the operator had to do for a tenure to live on
	j.undisturbed(before)

	signalProcess("KILL")(j, before.Status.ActivePod, "")
	next := j.awaitWriteAfter(before.Status.FencingToken)
	x.Logf("failed over without an operator, %v without a stored write", (next.FirstStored - j.lives()[0].LastStored).Round(time.Millisecond))

	x.must(bed.install(x.ctx))
	after := j.awaitActiveAfter(before.Status.FencingToken)
	if change := changeFrom(after, before.Status.FencingToken); change == nil || change.Reason != v1alpha1.ChangeProcessExited {
		x.Errorf("the new operator tells of the failover before its time: %+v", change)
	}
	j.awaitSettled()
	j.check(false)
}

// TestSamples applies what the documentation shows, in a namespace that enforces the Pod Security standard "restricted".
func TestSamples(t *testing.T) {
	t.Parallel()
	samples, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(samples) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, sample := range samples {
		t.Run(strings.TrimSuffix(filepath.Base(sample), ".yaml"), func(t *testing.T) {
			x := beginBeside(t)
			text, err := os.ReadFile(sample)
			x.must(err)
			x.Logf("%s", firstComment(string(text)))
			if out := x.kubectl("apply", "--filename", sample); strings.Contains(out, "Warning") {
				x.Errorf("kubectl apply warns: %s", out)
			}
			var jobs v1alpha1.SingletonJobList
			x.await("the sample's job to be active and protected", func() (bool, any, error) {
				err := bed.Client.List(x.ctx, &jobs, inNamespace(x.namespace))
				return err == nil && len(jobs.Items) == 1 && settled(&jobs.Items[0]), jobs.Items, err
			})
			x.checkColumns(jobs.Items[0].Name)
			if warnings := x.kubectl("get", "events", "--field-selector=type=Warning,reason!=Unhealthy", "--output=name"); warnings != "" {
				x.Logf("events of type Warning: %s", x.kubectl("get", "events", "--field-selector=type=Warning"))
			}
		})
	}
}

func firstComment(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimPrefix(line, "# ")
}

// checkColumns asks that kubectl get shows the columns of the API, with the values of the status.
func (x *trial) checkColumns(name string) {
	x.Helper()
	var lines []string
	x.await("kubectl get sj to show the status", func() (bool, any, error) { // which may change in between
		o := (&job{trial: x, key: types.NamespacedName{Namespace: x.namespace, Name: name}}).get()
		out, err := bed.Kubectl(x.ctx, "--namespace="+x.namespace, "get", "sj", "--output=wide")
		lines = strings.Split(strings.TrimSpace(out), "\n")
		active := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionActive)
		for _, value := range []string{name, o.Status.ActivePod, o.Status.ActiveNode, o.Status.Candidates.Summary, active.Reason} {
			if err != nil || len(lines) != 2 || value == "" || !strings.Contains(lines[1], value) {
				return false, []any{o.Status, out}, err
			}
		}
		return true, nil, nil
	})
	for _, column := range []string{"NAME", "ACTIVE", "TOKEN", "READY", "FAILOVERS", "LAST-FAILOVER", "STATUS", "AGE", "NODE", "SINCE", "LEASE", "HANDOVERS"} {
		if !strings.Contains(lines[0], column) {
			x.Errorf("kubectl get sj has no column %s: %s", column, lines[0])
		}
	}
}
