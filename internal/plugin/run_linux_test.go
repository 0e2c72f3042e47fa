package plugin

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// runner creates a job that runs to completion. Its status contains only its runs.
func (w *world) runner(name string, s *v1alpha1.Schedule, runs ...v1alpha1.RunStatus) *v1alpha1.SingletonJob {
	w.Helper()
	job := &v1alpha1.SingletonJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.SingletonJobSpec{
			RunPolicy: v1alpha1.RunPolicyRunToCompletion, Schedule: s,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:1", Command: []string{"run"}}}}},
		},
	}
	w.must(w.api.Create(w.Context(), job))
	w.ran(job, runs...)
	return job
}

// ran sets the runs in the status, newest first. IDs are given without the job's UID.
func (w *world) ran(job *v1alpha1.SingletonJob, runs ...v1alpha1.RunStatus) {
	w.Helper()
	w.status(job, func(s *v1alpha1.SingletonJobStatus) {
		s.Runs = nil
		for _, r := range runs {
			if r.ID = strings.TrimSuffix(string(job.UID)+"/"+r.ID, "/"); r.StartTime == nil {
				r.StartTime = new(metav1.Now())
			}
			s.Runs = append(s.Runs, r)
		}
	})
}

// withdraw cancels a request.
func (w *world) withdraw(job *v1alpha1.SingletonJob) {
	w.Helper()
	w.must(w.api.Patch(w.Context(), job, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+contract.RunNowAnnotation+`":null}}}`))))
}

// TestRun: the requests have the format that the operator reads.
func TestRun(t *testing.T) {
	w := newWorld(t)
	complete := v1alpha1.RunStatus{ID: "2026-11-23T01:30:00Z", Tick: new(metav1.Date(2026, 11, 23, 1, 30, 0, 0, time.UTC)), State: "Complete", Attempts: 1, Token: 5, Pod: "report-0"}
	job := w.runner("report", &v1alpha1.Schedule{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"}, complete)

	w.says(ExitOK, "singletonjob.singletonjob.io/report asked to run, by the name ", "run", "sj/report")
	w.must(w.api.Get(t.Context(), client.ObjectKeyFromObject(job), job))
	name := job.Annotations[contract.RunNowAnnotation]
	if !strings.HasPrefix(name, "manual-") || strings.Trim(name, runNameLetters) != "" {
		t.Errorf("it asks for %q", name)
	}
	w.says(ExitError, "the run "+name+" is already requested and has not started: wait for it, or withdraw it", "run", "report")
	w.says(ExitOK, "requested and not started: "+name, "status", "report")
	w.withdraw(job)

	w.says(ExitOK, "by the name fix-7", "run", "report", "--name=fix-7", "--tick=2026-11-22T02:30:00+01:00")
	w.asks(job, contract.RunNowAnnotation, "fix-7@2026-11-22T01:30:00Z")
	w.ran(job, v1alpha1.RunStatus{ID: "fix-7", State: "Complete", Attempts: 1, Token: 7, Pod: "report-1"}, complete)
	w.says(ExitError, "--name=fix-7: this name was used before, and each name starts only one run", "run", "report", "--name=fix-7")
	w.says(ExitOK, "note: 2026-11-22T02:30:00Z is not a tick of 30 2 * * * in Europe/Berlin", "run", "report", "--tick=2026-11-22T02:30:00Z")
	w.withdraw(job)
	w.says(ExitOK, "note: this tick has already run: 2026-11-23T01:30:00Z is Complete", "run", "report", "--tick=2026-11-23T01:30:00Z")
	w.withdraw(job)
	if out := w.ok("runs", "report"); !strings.Contains(out, "fix-7") || !strings.Contains(out, "2026-11-23T01:30:00Z") || strings.Count(out, "\n") != 3 {
		t.Errorf("runs prints\n%s", out)
	}
	w.says(ExitOK, "state: Complete", "runs", "report", "-o", "yaml")
}

// TestRunRefused: an impossible request is refused at once, and nothing is written.
func TestRunRefused(t *testing.T) {
	w := newWorld(t)
	w.job("billing")
	w.says(ExitError, "billing runs continuously (spec.runPolicy is Continuous), so it has no runs", "run", "billing")
	w.says(ExitOK, "The status of billing has no run yet", "runs", "billing")
	once := w.runner("once", nil)
	w.says(ExitError, "the run of once has not started yet, and starts by itself", "run", "once")
	w.ran(once, v1alpha1.RunStatus{State: "GivenUp", Attempts: 7, Reason: "ProcessExited", ExitCode: new(int32(3))})
	w.says(ExitOK, "GivenUp (exit 3)  once", "runs", "once")
	w.says(ExitError, `--tick=2026-11-23T02:30: not a time with an offset from UTC`, "run", "once", "--tick=2026-11-23T02:30")
	w.says(ExitError, "--tick=2999-01-01T00:00:00Z: this tick is ", "run", "once", "--tick=2999-01-01T00:00:00Z")
	w.says(ExitError, "--tick=2026-01-01T00:00:00.5Z: a tick must be a whole second", "run", "once", "--tick=2026-01-01T00:00:00.5Z")
	w.says(ExitError, "--name=A_b: a run's name has at most 63 characters from a-z, 0-9, - and the dot", "run", "once", "--name=A_b")
	w.asks(once, contract.RunNowAnnotation, "")

	nightly := w.runner("nightly", &v1alpha1.Schedule{Cron: "0 0 * * *"}, v1alpha1.RunStatus{ID: "x", State: "Failed", Attempts: 2})
	w.says(ExitError, "a run is in progress (x, attempt 2), and another would be skipped", "run", "nightly")
	w.must(w.api.Patch(t.Context(), nightly, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"schedule":{"overlap":"Queue"}}}`))))
	w.says(ExitOK, "asked to run, by the name y", "run", "nightly", "--name=y")
	w.must(w.api.Patch(t.Context(), nightly, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":true}}`))))
	w.says(ExitError, "nightly is suspended: kubectl singleton resume nightly", "run", "nightly")
}

// TestRunWait checks that --wait returns when the requested run has ended, with that run's result.
func TestRunWait(t *testing.T) {
	w := newWorld(t)
	job := w.runner("report", &v1alpha1.Schedule{Cron: "0 0 * * *"})
	for i, c := range []struct {
		name, state string
		status      int
		says        string
	}{
		{"good", "Complete", ExitOK, "by the name good"},
		{"bad", "GivenUp", ExitError, "the run bad ended as GivenUp, not as Complete: ProcessExited in attempt 3 on report-1, exit status 9; see kubectl logs report-1"},
	} {
		before := job.Status.Runs
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			status, out, errOut := w.run("run", "report", "--name="+c.name, "--wait", "--timeout=0")
			if status != c.status || !strings.Contains(out+errOut, c.says) {
				t.Errorf("%s ended with %d:\n%s%s", c.name, status, out, errOut)
			}
		}()
		w.until(job, func() bool { return job.Annotations[contract.RunNowAnnotation] == c.name })
		run := v1alpha1.RunStatus{
			ID: string(job.UID) + "/" + c.name, State: "Running", Attempts: 3, Token: int64(i + 1), Pod: "report-1", Reason: "ProcessExited", ExitCode: new(int32(9)),
		}
		w.status(job, func(s *v1alpha1.SingletonJobStatus) { s.Runs = append([]v1alpha1.RunStatus{run}, before...) })
		select {
		case <-ended:
			t.Errorf("%s: it ended before its run", c.name)
		case <-time.After(50 * time.Millisecond):
		}
		w.status(job, func(s *v1alpha1.SingletonJobStatus) { s.Runs[0].State = c.state })
		<-ended
	}
}
