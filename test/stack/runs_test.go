//go:build linux

package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/tier"
)

// toCompletion is a job whose process writes the variables of its run into a file, and succeeds in its second attempt.
func (w *world) toCompletion(file string, change func(*v1alpha1.SingletonJobSpec)) *v1alpha1.SingletonJob {
	return w.job(long, func(job *v1alpha1.SingletonJob) {
		job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
		c := &job.Spec.Template.Spec.Containers[0]
		c.Command = []string{"sh", "-c", `echo "run=$SINGLETONJOB_RUN_ID tick=$SINGLETONJOB_TICK previous=$SINGLETONJOB_PREVIOUS_TICK attempt=$SINGLETONJOB_ATTEMPT token=$FENCING_TOKEN" >> "$FILE"; test -n "$SINGLETONJOB_TICK" || test "$SINGLETONJOB_ATTEMPT" -gt 1`}
		c.Env = append(c.Env, corev1.EnvVar{Name: "FILE", Value: file})
		change(&job.Spec)
	})
}

// noted are the attempts, by the variables that their processes got.
func noted(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (w *world) awaitJob(what string, holds func(*v1alpha1.SingletonJob) bool) *v1alpha1.SingletonJob {
	w.t.Helper()
	job, err := w.p.AwaitJob(w.context(), w.ns, jobName, what, holds)
	w.must(err)
	return job
}

// atRest reports whether nothing is left but the pod that ran last, which has ended for good.
func (w *world) atRest(job *v1alpha1.SingletonJob) func() (bool, any, error) {
	return func() (bool, any, error) {
		var pods corev1.PodList
		err := w.p.Client.List(w.t.Context(), &pods, client.InNamespace(w.ns))
		var left []string
		for _, pod := range pods.Items {
			left = append(left, fmt.Sprint(pod.Name, " ", pod.Status.Phase))
		}
		return len(left) == 1 && left[0] == job.Status.Runs[0].Pod+" "+string(corev1.PodSucceeded), left, err
	}
}

// TestARun: its first attempt fails with an exit code that does not count, its second is another of the same run. The Pod stays for its log. The run is not repeated when its
// Lease is deleted. The job is deleted when its time is over.
func TestARun(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "noted")
	job := w.toCompletion(file, func(spec *v1alpha1.SingletonJobSpec) {
		spec.BackoffLimit, spec.IgnoreOnExitCodes = new(int32(0)), []int32{1}
	})
	w.must(w.p.Client.Create(t.Context(), job))
	job = w.awaitJob("complete", func(job *v1alpha1.SingletonJob) bool {
		return meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionComplete)
	})
	w.await("at rest", w.atRest(job))
	want := regexp.MustCompile(fmt.Sprintf(`^run=%[1]s tick= previous= attempt=1 token=\d+\nrun=%[1]s tick= previous= attempt=2 token=\d+$`, job.UID))
	if got := strings.Join(noted(t, file), "\n"); !want.MatchString(got) {
		t.Errorf("what ran:\n%s", got)
	}
	s := job.Status
	if run := s.Runs[0]; len(s.Runs) != 1 || run.State != string(lease.RunComplete) || run.Attempts != 2 || run.IgnoredAttempts != 1 || s.Failed != 0 || *run.ExitCode != 0 || s.Failovers+s.Handovers != 0 {
		t.Errorf("status %+v", s)
	}
	w.must(w.p.Client.Patch(t.Context(), job, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ttlSecondsAfterFinished":0}}`))))
	w.await("gone", func() (bool, any, error) {
		err := w.p.Client.Get(t.Context(), client.ObjectKeyFromObject(job), &v1alpha1.SingletonJob{})
		return client.IgnoreNotFound(err) == nil && err != nil, nil, client.IgnoreNotFound(err)
	})
}

// TestARunThatIsDisturbed: its Lease is deleted between two attempts, and no operator runs when its process exits with 0. The run has the
// two attempts that it had to have, and is complete when an operator runs again.
func TestARunThatIsDisturbed(t *testing.T) {
	tier.Deep(t, "waits for the delay after a failed attempt, and for what must not happen")
	t.Parallel()
	p := newProduct(t)
	w := worldOn(t, p)
	file := filepath.Join(t.TempDir(), "noted")
	job := w.toCompletion(file, func(spec *v1alpha1.SingletonJobSpec) {
		command := spec.Template.Spec.Containers[0].Command
		command[2] += ` && until test -e "$FILE.go"; do sleep 0.1; done`
		// After its Lease was deleted, a run continues when an unknown holder would be dead.
		spec.Lease.LeaseDuration.Duration, spec.Lease.RenewDeadline.Duration = 30*time.Second, 20*time.Second
	})
	w.must(p.Client.Create(t.Context(), job))
	w.awaitJob("one attempt has failed", func(job *v1alpha1.SingletonJob) bool {
		return len(job.Status.Runs) == 1 && job.Status.Runs[0].State == string(lease.RunFailed)
	})
	n := &ticking{w: w, job: job, file: file}
	n.loseLease()
	w.await("the second attempt", func() (bool, any, error) {
		lines := noted(t, file)
		return len(lines) == 2, lines, nil
	})

	p.KillOperator()
	n.letEnd()
	w.await("the Lease records the end", func() (bool, any, error) {
		l := n.lease()
		return l != nil && ptr.Deref(l.Spec.HolderIdentity, "") == "", l, nil
	})
	time.Sleep(15 * time.Second) // longer than the delay after a failed attempt: the standby must not begin another one
	w.must(p.StartOperator())
	job = w.awaitJob("complete", func(job *v1alpha1.SingletonJob) bool {
		return meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionComplete)
	})
	w.await("at rest", w.atRest(job))
	want := regexp.MustCompile(fmt.Sprintf(`^run=%[1]s tick= previous= attempt=1 token=\d+\nrun=%[1]s tick= previous= attempt=2 token=\d+$`, job.UID))
	if got := strings.Join(noted(t, file), "\n"); !want.MatchString(got) {
		t.Errorf("what ran:\n%s", got)
	}
	if run := job.Status.Runs[0]; len(job.Status.Runs) != 1 || run.Attempts != 2 {
		t.Errorf("runs %+v", job.Status.Runs)
	}
}

// TestTicks: a run at each whole minute, by candidates that are made for it, and one by hand in between.
func TestTicks(t *testing.T) {
	tier.Deep(t, "waits for ticks, which are minutes apart")
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "noted")
	job := w.toCompletion(file, func(spec *v1alpha1.SingletonJobSpec) {
		spec.Schedule = &v1alpha1.Schedule{Cron: "* * * * *", CatchUp: "All", Overlap: "Queue"} // else what is asked for during a run is passed over
	})
	w.must(w.p.Client.Create(t.Context(), job))
	job = w.awaitJob("two ticks", func(job *v1alpha1.SingletonJob) bool {
		return len(job.Status.Runs) >= 2 && job.Status.LastCompletionTime != nil && job.Status.NextTick != nil
	})
	w.must(w.p.Client.Patch(t.Context(), job, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"by-hand@2020-01-01T00:00:00Z"}}}`, contract.RunNowAnnotation))))
	id := string(job.UID) + "/by-hand"
	w.awaitJob("run by hand", func(job *v1alpha1.SingletonJob) bool {
		for _, run := range job.Status.Runs {
			if run.ID == id && run.State == string(lease.RunComplete) {
				return true
			}
		}
		return false
	})
	tick := regexp.MustCompile(fmt.Sprintf(`^run=%[1]s/(\S+:00Z) tick=(\S+) previous=(\S*) attempt=(\d) token=\d+$`, job.UID))
	last, seen := "", 0
	for _, line := range noted(t, file) {
		m := tick.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "run="+id+" tick=2020-01-01T00:00:00Z "):
			last = "" // a backfill
		case len(m) != 5 || m[1] != m[2] || m[4] == "1" && last != "" && m[1] <= last:
			t.Errorf("what ran: %s", line)
		default:
			last = m[1]
			seen++
		}
	}
	if seen < 2 {
		t.Errorf("%d ticks: %q", seen, noted(t, file))
	}
}
