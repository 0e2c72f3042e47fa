//go:build linux

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/cluster"
)

// toCompletion makes a job run a shell script to its end.
func toCompletion(script string) func(*v1alpha1.SingletonJob) {
	return func(o *v1alpha1.SingletonJob) {
		o.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
		app := &o.Spec.Template.Spec.Containers[0]
		app.Image, app.Command = "busybox:1.37", []string{"sh", "-c", script}
	}
}

// TestRun: on real kubelets the first attempt fails, the second one completes the run, and its pod stays for its log.
func TestRun(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	j := x.create(cluster.Fast, toCompletion(`echo "attempt $SINGLETONJOB_ATTEMPT"; test "$SINGLETONJOB_ATTEMPT" -gt 1 || exit 3`))
	x.kubectl("wait", "--for=condition=Complete", "singletonjob/"+j.name, "--timeout=3m")
	x.kubectl("wait", "--for=condition=Ready", "singletonjob/"+j.name, "--timeout=1m")
	done := j.awaitStatus("only the pod of the last attempt is left", func(*v1alpha1.SingletonJob) bool {
		pods := j.candidates()
		return len(pods) == 1 && pods[0].Status.Phase == corev1.PodSucceeded
	})
	run := done.Status.Runs[0]
	if run.State != "Complete" || run.Attempts != 2 || run.ExitCode == nil || *run.ExitCode != 0 || done.Status.Failed != 1 {
		x.Errorf("the run is told as %+v, and counted as %+v", run, done.Status.RunSummary)
	}
	if log := x.kubectl("logs", j.candidates()[0].Name, "-c", "app"); !containsLine(log, "attempt 2") {
		x.Errorf("the log of the last pod: %s", log)
	}
}

// TestTick: the node of a tick's run loses its power, and the next attempt of the same tick completes it on another one.
func TestTick(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	j := x.create(cluster.Fast, toCompletion(`test "$SINGLETONJOB_ATTEMPT" -gt 1 || sleep 600`), func(o *v1alpha1.SingletonJob) {
		o.Spec.Schedule = &v1alpha1.Schedule{Cron: "* * * * *", Standby: v1alpha1.StandbyWarm, Overlap: "Skip"}
	})
	began := j.awaitStatus("a tick's run is under way", func(o *v1alpha1.SingletonJob) bool {
		return len(o.Status.Runs) == 1 && o.Status.ActivePod != "" && time.Since(o.Status.ActiveSince.Time) > 3*time.Second
	})
	x.fault("crash", began.Status.ActiveNode)
	done := j.awaitStatus("the run is complete", func(o *v1alpha1.SingletonJob) bool {
		return len(o.Status.Runs) > 0 && o.Status.Runs[len(o.Status.Runs)-1].State == "Complete"
	})
	run := done.Status.Runs[len(done.Status.Runs)-1]
	if run.Attempts != 2 || !run.Tick.Equal(began.Status.Runs[0].Tick) || run.Pod == began.Status.ActivePod || run.Token <= began.Status.FencingToken {
		x.Errorf("of %+v the run has become %+v", began.Status.Runs[0], run)
	}
	if c := meta.FindStatusCondition(done.Status.Conditions, v1alpha1.ConditionScheduled); c == nil || c.Reason != v1alpha1.ReasonScheduled {
		x.Errorf("Scheduled says %+v", c)
	}
}

func containsLine(text, line string) bool {
	return slices.Contains(strings.Split(text, "\n"), line)
}
