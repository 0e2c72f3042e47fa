package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// starts records an attempt, and fails if its run is over.
func (w *world) starts(run lease.Run) {
	w.t.Helper()
	if run.ID == "" {
		return
	}
	if w.finished[run.ID] {
		w.t.Fatalf("a run that is over begins again: %+v", run)
	}
	w.ran = append(w.ran, run)
}

// ends records the final result of a run.
func (w *world) ends(e lease.TenureEnded) {
	if e.Run != "" && e.Run != lease.RunRunning && e.Run != lease.RunFailed {
		w.finished[w.ran[len(w.ran)-1].ID] = true
	}
}

// attempts are the started attempts: the tick of each run, and its number.
func (w *world) attempts() string {
	var all []string
	for _, r := range w.ran {
		_, name, _ := strings.Cut(r.ID, "/")
		if r.Tick != 0 {
			name = r.Tick.Time().Format("15:04")
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %d", name, r.Attempt)))
	}
	return strings.Join(all, ", ")
}

const runTime = 2 * time.Second

// toCompletion creates a job that runs to completion. A process ends after runTime.
func (w *world) toCompletion(change func(*v1alpha1.SingletonJobSpec)) {
	w.t.Helper()
	w.short["v1"], w.short["v2"] = runTime, runTime
	w.job(func(spec *v1alpha1.SingletonJobSpec) {
		spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
		if change != nil {
			change(spec)
		}
	})
}

func (w *world) askRun(text string) {
	w.t.Helper()
	w.edit(func(job *v1alpha1.SingletonJob) { job.Annotations = map[string]string{contract.RunNowAnnotation: text} })
}

// says reports whether a condition has a reason.
func (w *world) says(name, reason string) func() bool {
	return func() bool { return condition(w.status(), name).Reason == reason }
}

// rested reports whether only the Pods of the last run are left.
func (w *world) rested() bool {
	pods := w.pods()
	return len(pods) == 0 || len(pods) == 1 && pods[0].Status.Phase == corev1.PodSucceeded
}

func (w *world) eventsOf(reasons ...string) (n int) {
	for _, e := range w.events() {
		if slices.Contains(reasons, e.Reason) {
			n++
		}
	}
	return n
}

// aRun is the life of a job that runs once. Its first attempt fails, its Lease is deleted, a user runs it again, and it is deleted when
// its TTL ends.
func aRun(w *world) {
	w.t.Helper()
	w.fails = 1
	w.toCompletion(func(spec *v1alpha1.SingletonJobSpec) { spec.Lease.LockDelay = metav1.Duration{} })
	w.until("complete", w.says(v1alpha1.ConditionComplete, v1alpha1.ReasonCompletionsReached))
	w.until("the job is idle", w.rested)
	w.deleteLease()
	w.until("another Lease", func() bool { return w.lease() != nil })
	for range 40 { // longer than candidates wait for its holder
		w.round()
	}
	w.askRun("again")
	w.until("asked for", func() bool { return len(w.status().Runs) == 2 })
	w.until("complete again", w.says(v1alpha1.ConditionComplete, v1alpha1.ReasonCompletionsReached))
	w.until("the job is idle again", w.rested)
	if got := w.attempts(); got != "1, 2, again 1" && got != " 1,  2, again 1" {
		w.t.Errorf("what ran: %q", got)
	}
	s := w.status()
	if s.Failovers+s.Handovers != 0 || len(s.Runs) != 2 || s.Runs[1].Attempts != 2 || s.Runs[0].State != string(lease.RunComplete) {
		w.t.Errorf("status %+v", s)
	}
	w.until("all is announced", func() bool { return w.eventsOf("RunStarted") == 2 && w.eventsOf("RunComplete") == 2 })
	if w.eventsOf("Failover", v1alpha1.ReasonRunFailed) != 0 {
		w.t.Errorf("events %+v", w.events())
	}
	job := w.read()
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.TTLSecondsAfterFinished = new(int32(5)) })
	w.until("deleted", func() bool {
		err := w.api.Get(w.t.Context(), w.key, &v1alpha1.SingletonJob{})
		return apierrors.IsNotFound(err)
	})
	w.until("collected", func() bool {
		w.collectGarbage(job.UID)
		return w.lease() == nil && len(w.pods()) == 0
	})
}

func TestARun(t *testing.T) {
	t.Parallel()
	aRun(newWorld(t))
}

// TestTheOperatorEndsAtEveryWriteOfARun: each process of the operator makes only one write, and the reported result is the same.
func TestTheOperatorEndsAtEveryWriteOfARun(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after %v", after), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.operators[0].always, w.operators[0].after = true, after
			aRun(w)
		})
	}
}

// TestTwoOperatorsOfARun: both operators see old states.
func TestTwoOperatorsOfARun(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.twoThatLag(seed)
			aRun(w)
		})
	}
}

// TestARunIsSuspended: a job that was created suspended runs nothing until it is resumed. Suspended in the middle, its attempt ends and
// counts, and the next one follows when it is resumed.
func TestARunIsSuspended(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.toCompletion(func(spec *v1alpha1.SingletonJobSpec) { spec.Suspend = true })
	w.short["v1"] = 10 * time.Second
	w.until("suspended", w.says(v1alpha1.ConditionReady, v1alpha1.ReasonSuspended))
	for range 40 {
		w.round()
	}
	if len(w.pods()) != 0 || len(w.ran) != 0 {
		t.Fatalf("it ran: %s\n%s", w.attempts(), w.describe())
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = false })
	w.until("begun", func() bool { return w.status().ActivePod != "" })
	if c := condition(w.status(), v1alpha1.ConditionReady); c.Reason != v1alpha1.ReasonRunUnderWay {
		t.Errorf("during the run, Ready says %+v", c)
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	w.until("suspended again", func() bool { return len(w.pods()) == 0 && w.says(v1alpha1.ConditionReady, v1alpha1.ReasonSuspended)() })
	if s := w.status(); s.Runs[0].State != string(lease.RunFailed) || s.Failed != 1 {
		t.Errorf("status %+v", s)
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = false })
	w.until("complete", w.says(v1alpha1.ConditionReady, v1alpha1.ReasonCompleted))
	if got := strings.ReplaceAll(w.attempts(), " ", ""); got != "1,2" {
		t.Errorf("what ran: %q", w.attempts())
	}
	if s := w.status(); s.Completions != "1/1" || s.Succeeded != 1 || s.Failed != 1 || s.CompletionTime == nil {
		t.Errorf("status %+v", s.RunSummary)
	}
}

// TestARunOnALostNode: the next attempt starts when the lease has run out, and is reported as a failover.
func TestARunOnALostNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.toCompletion(nil)
	w.short["v1"] = 10 * time.Second
	w.until("begun", func() bool { return w.holder() != nil && w.status().ActivePod != "" })
	lost := w.holder()
	w.cutOffNode(lost.node)
	w.until("complete", w.says(v1alpha1.ConditionComplete, v1alpha1.ReasonCompletionsReached))
	if s := w.status(); s.Failovers != 1 || s.Runs[0].Attempts != 2 || s.Runs[0].Pod == lost.name {
		t.Errorf("status %+v", s)
	}
}

// TestARunOfARecreatedJob: a job is deleted during its run, and recreated before the garbage collector deletes its Pods. Their
// agents never start a run of the new job under the old run's ID, because the new job's work would then count as done.
func TestARunOfARecreatedJob(t *testing.T) {
	for _, orphaned := range []bool{false, true} {
		t.Run(fmt.Sprintf("orphaned %v", orphaned), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.toCompletion(nil)
			w.short["v1"] = 10 * time.Second
			w.until("begun", func() bool { return w.status().ActivePod != "" && w.status().Candidates.Ready == 2 })
			old := w.read()
			w.must(w.api.Delete(t.Context(), old))
			if orphaned {
				for _, pod := range w.pods() {
					pod.OwnerReferences = nil
					w.must(w.api.Update(t.Context(), &pod))
				}
			}
			w.toCompletion(func(spec *v1alpha1.SingletonJobSpec) { spec.Template.Spec.Containers[0].Image = "v2" })
			for range 100 { // the old run ends, and no agent starts another
				w.round()
			}
			w.collectGarbage(old.UID)
			w.until("complete", w.says(v1alpha1.ConditionComplete, v1alpha1.ReasonCompletionsReached))
			job := w.read()
			if last := w.ran[len(w.ran)-1]; len(w.ran) != 2 || w.ran[0].ID != string(old.UID) || last.ID != string(job.UID) || last.Attempt != 1 {
				t.Errorf("what ran: %+v\n%s", w.ran, w.describe())
			}
		})
	}
}

// TestOrphansOfARunWithoutALease: the operator deletes the Pods of a previous job before it creates a Lease again.
func TestOrphansOfARunWithoutALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.toCompletion(nil)
	w.until("begun", func() bool { return w.status().ActivePod != "" && w.status().Candidates.Ready == 2 })
	old := w.read()
	w.must(w.api.Delete(t.Context(), old))
	for _, pod := range w.pods() {
		pod.OwnerReferences = nil
		w.must(w.api.Update(t.Context(), &pod))
	}
	w.deleteLease()
	w.toCompletion(nil)
	w.until("the orphans are gone", func() bool { return len(w.pods()) == 0 })
	w.collectGarbage(old.UID)
	w.until("complete", w.says(v1alpha1.ConditionComplete, v1alpha1.ReasonCompletionsReached))
	if job, last := w.read(), w.ran[len(w.ran)-1]; last.ID != string(job.UID) {
		t.Errorf("what ran: %+v\n%s", w.ran, w.describe())
	}
}

// TestARunThatFails: after the allowed attempts there is no further attempt, and the operator creates no more Pods.
func TestARunThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fails = 100
	w.toCompletion(func(spec *v1alpha1.SingletonJobSpec) { spec.BackoffLimit = new(int32(1)) })
	w.until("it tries again", w.says(v1alpha1.ConditionActive, v1alpha1.ReasonRetrying))
	w.until("given up", w.says(v1alpha1.ConditionFailed, v1alpha1.ReasonBackoffLimitExceeded))
	w.until("the job is idle", w.rested)
	for range 30 {
		w.round()
	}
	s := w.status()
	if len(w.ran) != 2 || !w.rested() || s.Failovers != 0 || s.Runs[0].ExitCode == nil || *s.Runs[0].ExitCode != 1 || w.eventsOf(v1alpha1.ReasonRunFailed) != 1 {
		t.Errorf("%d attempts, status %+v", len(w.ran), s)
	}
}

// onSchedule creates a job with a tick every ten minutes.
func (w *world) onSchedule(change func(*v1alpha1.Schedule)) {
	w.t.Helper()
	w.tick = time.Second
	// The API server dates the Lease by its own clock, and no tick counts from before that time. No tick may come while candidates
	// are created either.
	const period, near = 10 * time.Minute, 20 * time.Second
	if left := period - time.Since(time.Now().Truncate(period)); left < near {
		time.Sleep(left + time.Second)
	}
	w.clock.SetTime(time.Now().Truncate(time.Second))
	w.toCompletion(func(spec *v1alpha1.SingletonJobSpec) {
		spec.Schedule = &v1alpha1.Schedule{Cron: "*/10 * * * *", LeadTime: &metav1.Duration{Duration: 10 * time.Second}}
		spec.HistoryLimit = new(int32(100))
		if change != nil {
			change(spec.Schedule)
		}
	})
}

// restUntil advances time as the operator asks for it: while nothing is in progress, the next reconcile is when the operator wants
// it, or at last at an instant.
func (w *world) restUntil(at time.Time) {
	w.t.Helper()
	for w.now().Before(at) {
		w.round()
		if o := w.operators[0]; w.holder() == nil && w.rested() && o.wake > w.tick {
			w.clock.SetTime(w.now().Add(min(o.wake-w.tick, at.Sub(w.now()))))
		}
	}
}

// next is the n-th next multiple of ten minutes.
func (w *world) next(n int) time.Time {
	const period = 10 * time.Minute
	return w.now().Truncate(period).Add(time.Duration(n) * period)
}

// due are the ticks from one instant to another, each with its first attempt.
func due(from, to time.Time, step time.Duration) string {
	var all []string
	for at := from.Truncate(step).Add(step); !at.After(to); at = at.Add(step) {
		all = append(all, at.UTC().Format("15:04")+" 1")
	}
	return strings.Join(all, ", ")
}

// aSchedule is some hours in the life of a job with a schedule: ticks, a suspension over ticks, another cron, a run by hand, and
// one during a run.
func aSchedule(w *world) {
	w.t.Helper()
	w.onSchedule(nil)
	from := w.now()
	w.restUntil(w.next(3).Add(5 * time.Minute))
	want := due(from, w.now(), 10*time.Minute)
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	w.until("suspended", func() bool {
		return len(w.pods()) == 0 && w.says(v1alpha1.ConditionScheduled, v1alpha1.ReasonSuspended)() && suspendedInLease(w)
	})
	w.restUntil(w.next(3).Add(5 * time.Minute))
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = false })
	w.until("resumed", func() bool { return !suspendedInLease(w) })
	from = w.now()
	w.restUntil(w.next(2).Add(5 * time.Minute))
	want += ", " + due(from, w.now(), 10*time.Minute)
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Schedule.Cron = "*/20 * * * *" })
	from = w.now()
	w.restUntil(w.now().Add(40 * time.Minute))
	want += ", " + due(from, w.now(), 20*time.Minute)
	w.askRun("by-hand")
	w.until("asked for", func() bool { return w.holder() != nil })
	if !w.operators[0].always { // otherwise it may see that only after the run is over
		w.askRun("too-late")
	}
	w.until("it is over", func() bool { return w.holder() == nil && w.rested() })
	want += ", by-hand 1"
	if got := w.attempts(); got != want {
		w.t.Errorf("what ran:  %s\nwhat is due: %s\n%s", got, want, w.describe())
	}
	s := w.status()
	if s.Missed != 0 || s.Skipped != 0 || s.Failovers+s.Handovers != 0 || len(s.Runs) != len(w.ran) || s.NextTick == nil {
		w.t.Errorf("%d runs, status %+v", len(w.ran), s)
	}
	w.until("all is announced", func() bool {
		return w.eventsOf("RunStarted") == len(w.ran) && w.eventsOf("RunComplete") == len(w.ran)
	})
}

func suspendedInLease(w *world) bool {
	w.t.Helper()
	read, err := decode(w.lease())
	w.must(err)
	return read.Record.Runs.Facts.Suspended != 0
}

func TestASchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	aSchedule(w)
	if w.eventsOf("RunPassedOver") != 1 {
		t.Error("nobody says that a run was asked for during another")
	}
}

func TestTheOperatorEndsAtEveryWriteOfASchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.operators[0].always, w.operators[0].after = true, true
	aSchedule(w)
}

// TestOperatorDownDuringTicks: permanent standbys need no operator to run ticks. Without standbys, ticks are missed and
// reported as missed.
func TestOperatorDownDuringTicks(t *testing.T) {
	for standby, missed := range map[string]int64{v1alpha1.StandbyWarm: 0, v1alpha1.StandbyOnDemand: 2} {
		t.Run(standby, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.onSchedule(func(s *v1alpha1.Schedule) {
				s.Standby, s.StartingDeadline = standby, metav1.Duration{Duration: time.Minute}
			})
			w.until("the Lease is there", func() bool { return w.lease() != nil && w.says(v1alpha1.ConditionActive, v1alpha1.ReasonNotDue)() })
			if standby == v1alpha1.StandbyWarm {
				w.until("standing by", func() bool { return w.status().Candidates.Ready == 2 })
			}
			if left := w.next(1).Sub(w.now()); left < time.Minute { // a tick is near
				w.restUntil(w.next(1).Add(5 * time.Minute))
			}
			before, down := len(w.ran), w.operators
			w.operators = nil
			for range 2 {
				at := w.next(1)
				w.clock.SetTime(at.Add(-2 * time.Second))
				for w.now().Before(at.Add(20 * time.Second)) {
					w.round()
				}
			}
			w.clock.SetTime(w.now().Add(2 * time.Minute))
			w.operators = down
			w.round()
			w.round()
			if s := w.status(); s.Missed != missed || int64(len(w.ran)-before) != 2-missed || int64(len(s.Runs)) != int64(len(w.ran)) {
				t.Errorf("%d runs, %d of them before, status %+v", len(w.ran), before, s)
			}
		})
	}
}

// TestOverlaps: a tick comes due during a run that a user requested shortly before.
func TestOverlaps(t *testing.T) {
	for overlap, c := range map[string]struct {
		state   lease.RunState // of that run in the end
		skipped int64
	}{
		"Skip": {lease.RunComplete, 1}, "Queue": {lease.RunComplete, 0}, "Replace": {lease.RunReplaced, 0},
	} {
		t.Run(overlap, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.onSchedule(func(s *v1alpha1.Schedule) { s.Standby, s.Overlap = v1alpha1.StandbyWarm, overlap })
			w.short["v1"] = 20 * time.Second
			w.until("standing by", func() bool {
				return w.status().Candidates.Ready == 2 && w.says(v1alpha1.ConditionActive, v1alpha1.ReasonNotDue)()
			})
			w.restUntil(w.next(1).Add(time.Minute)) // a tick may be near
			w.until("quiet", w.says(v1alpha1.ConditionActive, v1alpha1.ReasonNotDue))
			before, tick := len(w.ran), w.next(1)
			w.clock.SetTime(tick.Add(-10 * time.Second))
			w.askRun("by-hand")
			w.until("begun", func() bool { return len(w.ran) > before })
			if now := w.now(); !now.Before(tick) {
				t.Fatalf("the run begins at %v, after the tick", now)
			}
			w.until("the tick is over", func() bool { return w.now().After(tick.Add(30 * time.Second)) })
			w.until("quiet again", w.says(v1alpha1.ConditionActive, v1alpha1.ReasonNotDue))
			want := "by-hand 1"
			if c.skipped == 0 {
				want += ", " + tick.UTC().Format("15:04") + " 1"
			}
			w.ran = w.ran[before:]
			s := w.status()
			byHand := slices.IndexFunc(s.Runs, func(r v1alpha1.RunStatus) bool { return strings.HasSuffix(r.ID, "/by-hand") })
			if got := w.attempts(); got != want || s.Missed != 0 || s.Skipped != c.skipped || s.Runs[byHand].State != string(c.state) {
				t.Errorf("what ran: %s, want %s; status %+v", got, want, s)
			}
		})
	}
}

// TestBacklogs: three ticks come due while no operator creates Pods.
func TestBacklogs(t *testing.T) {
	for catchUp, c := range map[string]struct {
		from, to int // of the three
		missed   int64
	}{
		"All": {0, 3, 0}, "Latest": {2, 3, 2}, "Skip": {0, 0, 3},
	} {
		t.Run(catchUp, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.onSchedule(func(s *v1alpha1.Schedule) { s.CatchUp = catchUp })
			w.until("the job is idle", func() bool { return w.lease() != nil && w.says(v1alpha1.ConditionActive, v1alpha1.ReasonNotDue)() })
			w.restUntil(w.next(1).Add(time.Minute))
			before, down, first := len(w.ran), w.operators, w.next(1)
			w.operators = nil
			w.clock.SetTime(first.Add(25 * time.Minute))
			w.round()
			w.operators = down
			w.until("made up for", func() bool {
				return len(w.ran) == before+c.to-c.from && w.says(v1alpha1.ConditionActive, v1alpha1.ReasonNotDue)()
			})
			for range 20 {
				w.round()
			}
			var want []string
			for i := c.from; i < c.to; i++ {
				want = append(want, first.Add(time.Duration(i)*10*time.Minute).UTC().Format("15:04")+" 1")
			}
			w.ran = w.ran[before:]
			if got, s := w.attempts(), w.status(); got != strings.Join(want, ", ") || s.Missed != c.missed || s.Skipped != 0 {
				t.Errorf("what ran: %s, want %v; status %+v", got, want, s)
			}
		})
	}
}

// TestIdleSchedulesSendFewRequests: half a day without a tick costs a few reconciles, each with one read from the API server.
func TestIdleSchedulesSendFewRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tick = time.Second
	later := w.now().UTC().Add(13 * time.Hour)
	w.toCompletion(func(spec *v1alpha1.SingletonJobSpec) {
		spec.Schedule = &v1alpha1.Schedule{Cron: fmt.Sprintf("%d %d * * *", later.Minute(), later.Hour())}
	})
	w.until("the job is idle", w.says(v1alpha1.ConditionActive, v1alpha1.ReasonNotDue))
	w.round()
	o := w.operators[0]
	writes, reads, looks := o.writes, 0, 0
	o.dies = func(call string) (bool, bool) {
		if strings.HasPrefix(call, "get") || strings.HasPrefix(call, "list") {
			reads++
		}
		return false, false
	}
	version := w.lease().ResourceVersion
	for end := w.now().Add(12 * time.Hour); w.now().Before(end); looks++ {
		w.round()
		if o.wake < time.Minute {
			t.Fatalf("it wants to look again in %v", o.wake)
		}
		w.clock.SetTime(w.now().Add(o.wake))
	}
	t.Logf("in 12 hours %d looks, %d reads and %d writes", looks, reads, o.writes-writes)
	if o.writes != writes || reads > looks || looks > 13 || len(w.pods()) > 0 || w.lease().ResourceVersion != version {
		t.Errorf("%d looks, %d reads, %d writes, %d pods", looks, reads, o.writes-writes, len(w.pods()))
	}
}
