package plan

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// toCompletion is a job that is run once: its run is in progress in pod 0, and pod 1 is a standby.
func toCompletion() *given {
	g := steady()
	g.Job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
	g.Job.Status = v1alpha1.SingletonJobStatus{}
	g.Job.CreationTimestamp = metav1.NewTime(ago(2 * time.Hour))
	v1alpha1.Default(g.Job)
	g.Server = now
	g.repod()
	return g
}

// repod creates the pods and the Lease again, for the current spec.
func (g *given) repod() {
	g.Pods, g.Children = nil, Children{}
	g.pod(0, "a")
	g.pod(1, "b")
	g.held(0, 100, ago(time.Hour))
	g.Lease.Claim = Claim{JobUID: "job-uid"}
	g.Lease.Record.History = []lease.PastTenure{{Token: 100, Pod: g.name(0), Node: "a", Acquired: ago(time.Hour).UnixMilli()}}
	g.Lease.Record.Runs.Now = lease.Run{
		ID: "job-uid", Attempt: 1, State: lease.RunRunning, Token: 100, Pod: g.name(0), Began: ago(time.Hour).UnixMilli(),
	}
	g.Lease.Record.Runs.Facts = schedule.Facts{Settled: stamp(ago(2 * time.Hour)), Running: true, Since: stamp(ago(time.Hour))}
	if g.Job.Spec.Schedule != nil {
		tick := stamp(ago(time.Hour))
		r := &g.Lease.Record.Runs
		r.Schedule, _ = scheduleOf(g.Job.Spec.Schedule)
		r.Now.Tick, r.Now.ID, r.Facts.Settled = tick, "job-uid/"+tick.String(), tick
	}
	g.settle()
}

// onSchedule is a job whose run of a tick is in progress.
func onSchedule(cron string, change func(*v1alpha1.Schedule)) *given {
	g := toCompletion()
	g.Job.Spec.Schedule = &v1alpha1.Schedule{Cron: cron}
	v1alpha1.Default(g.Job)
	if change != nil {
		change(g.Job.Spec.Schedule)
	}
	g.repod()
	return g
}

func stamp(t time.Time) schedule.Stamp {
	s, _ := schedule.StampOf(t)
	return s
}

// anothers makes the Lease and its runs those of an earlier job with this name.
func anothers(l *Lease) {
	l.Claim.JobUID = "earlier"
	l.Record.Runs.Now.ID = strings.Replace(l.Record.Runs.Now.ID, "job-uid", "earlier", 1)
}

// untilNow makes the pods those of an earlier job whose process runs indefinitely.
func untilNow() *given {
	g := steady()
	g.Job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
	v1alpha1.Default(g.Job)
	g.Server, g.Lease.Claim = now, Claim{JobUID: "job-uid"}
	return g
}

// over ends the current run.
func (g *given) over(state lease.RunState, why lease.Reason, code int) {
	g.released(why)
	r := &g.Lease.Record.Runs
	r.Now.State, r.Now.Reason, r.Now.Code, r.Now.Ended = state, why, code, ago(time.Second).UnixMilli()
	r.Facts.Running = r.Now.Open()
	r.Facts.Freed = stamp(ago(time.Second))
}

func (g *given) complete() { g.over(lease.RunComplete, lease.ReasonProcessExited, 0) }

// idle removes the pods and closes the run, as for a job on a schedule between two runs.
func (g *given) idle() *given {
	g.complete()
	g.Pods = nil
	g.settle()
	return g
}

// succeeded makes the agent of a pod exit with 0.
func (g *given) succeeded(pod int) {
	g.unready(pod)
	g.Pods[pod].Status.Phase = corev1.PodSucceeded
}

// left makes the agent of a pod exit with 0 while another container keeps running.
func (g *given) left(pod int) {
	g.ended(pod, ago(time.Hour), ago(time.Second))
	status := &g.Pods[pod].Status
	status.ContainerStatuses[0].State.Terminated.ExitCode = 0
	status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
		Name: "sidecar", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	})
}

func (g *given) says(p Plan, name string) string {
	c := meta.FindStatusCondition(g.told(p).Conditions, name)
	if c == nil {
		return "none"
	}
	return string(c.Status) + " " + c.Reason
}

func ordinals(refs []PodRef, g *given) string {
	var out []string
	for _, ref := range refs {
		out = append(out, strings.TrimPrefix(ref.Name, inject.PodPrefix("job", inject.Hash(g.Job))))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestPodsOfRuns: at 03:04:05. made is the number of new pods, gone are the ordinals of removed ones.
func TestPodsOfRuns(t *testing.T) {
	at0305 := func() *given { return onSchedule("5 3 * * *", nil).idle() } // in 55 seconds, and the lead is a minute
	at0306 := func() *given { return onSchedule("6 3 * * *", nil).idle() }
	for name, c := range map[string]struct {
		given *given
		with  func(*given)
		made  int
		gone  string
		// Active, and Complete or Scheduled, with their reasons.
		active, says string
	}{
		"a run is under way":          {given: toCompletion(), active: "True Running", says: "False NotComplete"},
		"and a standby is lost":       {given: toCompletion(), with: func(g *given) { g.Pods = g.Pods[:1] }, made: 1, active: "True Running", says: "False NotComplete"},
		"it is complete":              {given: toCompletion(), with: (*given).complete, gone: "1", active: "False Completed", says: "True CompletionsReached"},
		"its pod has ended":           {given: toCompletion(), with: func(g *given) { g.complete(); g.succeeded(0) }, gone: "1", active: "False Completed", says: "True CompletionsReached"},
		"its pods are gone":           {given: toCompletion(), with: func(g *given) { g.complete(); g.Pods = nil }, active: "False Completed", says: "True CompletionsReached"},
		"it is suspended when it was": {given: toCompletion(), with: func(g *given) { g.complete(); g.Job.Spec.Suspend = true }, gone: "1", active: "False Completed", says: "True CompletionsReached"},
		"it is suspended before":      {given: toCompletion(), with: func(g *given) { g.Job.Spec.Suspend = true }, gone: "1", active: "False Suspending", says: "False NotComplete"},
		"an attempt has failed": {
			given: toCompletion(), with: func(g *given) { g.over(lease.RunFailed, lease.ReasonProcessExited, 3) }, active: "False Retrying", says: "False NotComplete",
		},
		"and a pod is lost": {given: toCompletion(), with: func(g *given) {
			g.over(lease.RunFailed, lease.ReasonProcessExited, 3)
			g.Pods = g.Pods[:1]
		}, made: 1, active: "False Retrying", says: "False NotComplete"},
		"it is given up": {given: toCompletion(), with: func(g *given) { g.over(lease.RunGivenUp, lease.ReasonProcessExited, 3) }, gone: "1", active: "False RunFailed", says: "False NotComplete"},
		"no run has begun": {given: toCompletion(), with: func(g *given) {
			g.released(lease.ReasonCreated)
			g.Pods, g.Lease.Record.Runs.Now = nil, lease.Run{}
		}, made: 2, active: "False NoCandidates", says: "False NotComplete"},
		"another is asked for": {given: toCompletion(), with: func(g *given) {
			g.complete()
			g.succeeded(0)
			g.Pods = g.Pods[:1]
			g.askRun("again")
		}, made: 2, gone: "0", active: "False NoCandidates", says: "False NotComplete"},
		"another is asked for, and a sidecar goes on": {given: toCompletion(), with: func(g *given) {
			g.complete()
			g.left(0)
			g.Pods = g.Pods[:1]
			g.askRun("again")
		}, made: 2, gone: "0", active: "False NoCandidates", says: "False NotComplete"},
		"another is asked for, and a sidecar goes on, behind a webhook's program": {given: toCompletion(), with: func(g *given) {
			g.wrapped(0)
			g.complete()
			g.left(0)
			g.Pods = g.Pods[:1]
			g.askRun("again")
		}, made: 2, gone: "0", active: "False NoCandidates", says: "False NotComplete"},
		"it is complete, and a sidecar goes on": {given: toCompletion(), with: func(g *given) { g.complete(); g.left(0) }, gone: "1", active: "False Completed", says: "True CompletionsReached"},
		"a tick is near, and a sidecar of the last goes on": {given: onSchedule("5 3 * * *", nil), with: func(g *given) {
			g.complete()
			g.left(0)
			g.Pods = g.Pods[:1]
		}, made: 2, gone: "0", active: "False NotDue", says: "True Scheduled"},
		"it was asked for and run": {given: toCompletion(), with: func(g *given) {
			g.complete()
			g.Lease.Record.Runs.Answered = "again"
			g.askRun("again")
		}, gone: "1", active: "False Completed", says: "True CompletionsReached"},
		"bad":                      {given: toCompletion(), with: func(g *given) { g.released("x"); g.Lease.Record.Runs = lease.Runs{Bad: "x"} }, gone: "0 1", active: "False BadRun", says: "False NotComplete"},
		"bad during a run":         {given: toCompletion(), with: func(g *given) { g.Lease.Record.Runs = lease.Runs{Bad: "x"} }, gone: "1", active: "True Running", says: "False NotComplete"},
		"long before a tick":       {given: at0306(), active: "False NotDue", says: "True Scheduled"},
		"shortly before it":        {given: at0305(), made: 2, active: "False NotDue", says: "True Scheduled"},
		"before it, by the server": {given: at0306(), with: func(g *given) { g.Server = now.Add(time.Minute) }, made: 2, active: "False NotDue", says: "True Scheduled"},
		"after it":                 {given: at0305(), with: func(g *given) { g.Server = now.Add(time.Minute) }, made: 2, active: "False NoCandidates", says: "True Scheduled"},
		"long after it":            {given: at0305(), with: func(g *given) { g.Server = now.Add(2 * time.Hour) }, active: "False NotDue", says: "True Scheduled"},
		"always":                   {given: onSchedule("0 9 * * *", func(s *v1alpha1.Schedule) { s.Standby = v1alpha1.StandbyWarm }).idle(), made: 2, active: "False NotDue", says: "True Scheduled"},
		"long before it, and pods that run for ever contend": {
			given: onSchedule("0 9 * * *", nil), with: func(g *given) { g.complete(); g.forEver() }, gone: "1", active: "False Electing", says: "True Scheduled",
		},
		"and they are nobody's": {
			given: onSchedule("0 9 * * *", nil), with: func(g *given) { g.complete(); g.forEver(); g.orphaned() }, active: "False Electing", says: "True Scheduled",
		},
		"suspended":                             {given: at0305(), with: func(g *given) { g.Job.Spec.Suspend = true }, active: "False Suspended", says: "False Suspended"},
		"suspended during a run":                {given: onSchedule("0 9 * * *", nil), with: func(g *given) { g.Job.Spec.Suspend = true }, active: "True Running", says: "False Suspended"},
		"after the run":                         {given: onSchedule("0 9 * * *", nil), with: (*given).complete, gone: "1", active: "False NotDue", says: "True Scheduled"},
		"settled in the future":                 {given: at0305(), with: func(g *given) { g.Lease.Record.Runs.Facts.Settled = stamp(now.Add(time.Hour)) }, active: "False NotDue", says: "False Ahead"},
		"another cron, and the clocks disagree": {given: at0305(), with: func(g *given) { g.Job.Spec.Schedule.Cron = "0 9 * * *"; g.Server = now.Add(40 * time.Second) }, made: 2, active: "False NotDue", says: "False ClocksDisagree"},
		"what ran for ever before":              {given: untilNow(), made: 1, active: "True Running", says: "False NotComplete"},
		"another job's Lease":                   {given: at0305(), with: func(g *given) { anothers(&g.Lease) }, active: "False NotDue", says: "True Scheduled"},
		"no schedule in the Lease":              {given: at0305(), with: func(g *given) { g.Lease.Record.Runs.Schedule = nil }, active: "False NotDue", says: "True Scheduled"},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			if gone := ordinals(p.Delete, g); len(p.Create) != c.made || gone != c.gone {
				t.Errorf("%v: makes %d and deletes %q, want %d and %q", p.State, len(p.Create), gone, c.made, c.gone)
			}
			other := v1alpha1.ConditionComplete
			if g.Job.Spec.Schedule != nil {
				other = v1alpha1.ConditionScheduled
			}
			if active, says := g.says(p, v1alpha1.ConditionActive), g.says(p, other); active != c.active || says != c.says {
				t.Errorf("%v: Active is %s, %s is %s; want %s and %s", p.State, active, other, says, c.active, c.says)
			}
			if len(p.Changes) > 0 || slices.ContainsFunc(p.Events, func(e Event) bool {
				return e.Type == corev1.EventTypeWarning && e.Reason != "RunFailed" && !strings.Contains(c.says+" "+c.active, " "+e.Reason)
			}) {
				t.Errorf("it alarms: %+v %+v", p.Changes, p.Events)
			}
		})
	}
}

// forEver makes the agents of the pods start their process without a due run.
func (g *given) forEver() {
	for _, pod := range g.Pods {
		g.configure(pod, func(c *contract.AgentConfig) { c.Run = nil })
	}
}

// askRun requests a run by hand.
func (g *given) askRun(text string) {
	g.Job.Annotations = map[string]string{contract.RunNowAnnotation: text}
}

// TestReportsOfRuns: the reports at 03:04:05 about an idle job, about ticks that no candidate starts, and about requests that can't be
// followed.
func TestReportsOfRuns(t *testing.T) {
	atRest := func() *given { return onSchedule("0 9 * * *", nil).idle() }
	// due has candidates that existed before a tick at 03:03, and a Lease that has been free for as long.
	due := func() *given {
		g := onSchedule("3 3 * * *", nil)
		g.complete()
		g.Lease.Unchanged, g.Server = 10*time.Minute, now.Add(-25*time.Second)
		return g
	}
	late := func(g *given) { g.Server = now }
	// hourly missed its tick at 02:04, and the tick at 03:04 is due.
	hourly := func() *given {
		g := onSchedule("4 * * * *", func(s *v1alpha1.Schedule) { s.StartingDeadline.Duration = time.Minute })
		g.complete()
		g.Lease.Unchanged = 2 * time.Hour
		return g
	}
	for name, c := range map[string]struct {
		given *given
		with  func(*given)
		want  string // Protected, Progressing, and Scheduled or Complete; the column Ready; warning Events
	}{
		"at rest":                   {given: atRest(), want: "Resting, UpToDate, Scheduled, 0/0"},
		"complete":                  {given: toCompletion(), with: func(g *given) { g.complete(); g.Pods = nil }, want: "Resting, UpToDate, CompletionsReached, 0/0"},
		"complete, of one":          {given: toCompletion(), with: func(g *given) { g.Job.Spec.Candidates = 1; g.complete(); g.Pods = nil }, want: "SingleCandidate, UpToDate, CompletionsReached, 0/0"},
		"standing by always":        {given: onSchedule("0 9 * * *", func(s *v1alpha1.Schedule) { s.Standby = v1alpha1.StandbyWarm }), with: (*given).complete, want: "Resting, UpToDate, Scheduled, 2/2"},
		"under way":                 {given: toCompletion(), want: "StandbyReady, UpToDate, NotComplete, 2/2"},
		"between two attempts":      {given: toCompletion(), with: func(g *given) { g.over(lease.RunFailed, lease.ReasonProcessExited, 3) }, want: "NoHolder, UpToDate, NotComplete, 2/2"},
		"bad":                       {given: atRest(), with: func(g *given) { g.Lease.Record.Runs = lease.Runs{Bad: "x"} }, want: "NoHolder, UpToDate, BadRun, 0/0, BadRun"},
		"no time":                   {given: atRest(), with: func(g *given) { g.Server = time.Time{} }, want: "Resting, UpToDate, NoServerTime, 0/0, NoServerTime"},
		"overdue":                   {given: due(), with: late, want: "NoHolder, UpToDate, Overdue, 2/2, Overdue"},
		"due, and one was missed":   {given: hourly(), want: "NoHolder, UpToDate, Scheduled, 2/2"},
		"due just now":              {given: due(), want: "NoHolder, UpToDate, Scheduled, 2/2"},
		"due, and no candidate":     {given: due(), with: func(g *given) { late(g); g.Pods = nil }, want: "NoHolder, ReplacingCandidates, Scheduled, 0/2"},
		"due, and one just made":    {given: due(), with: func(g *given) { late(g); g.readySince(ago(10 * time.Second)) }, want: "NoHolder, UpToDate, Scheduled, 2/2"},
		"due, and just released":    {given: due(), with: func(g *given) { late(g); g.Lease.Unchanged = time.Second }, want: "NoHolder, UpToDate, Scheduled, 2/2"},
		"asked for by a bad name":   {given: atRest(), with: func(g *given) { g.askRun("Now!") }, want: "Resting, RunRequestInvalid, Scheduled, 0/0, RunRequestInvalid"},
		"for a bad tick, in a run":  {given: toCompletion(), with: func(g *given) { g.askRun("x@today") }, want: "StandbyReady, RunRequestInvalid, NotComplete, 2/2, RunRequestInvalid"},
		"asked to withdraw nothing": {given: atRest(), with: func(g *given) { g.askRun("") }, want: "Resting, UpToDate, Scheduled, 0/0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			g.settle()
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			var got []string
			for _, name := range []string{v1alpha1.ConditionProtected, v1alpha1.ConditionProgressing, v1alpha1.ConditionScheduled, v1alpha1.ConditionComplete} {
				if says := g.says(p, name); says != "none" {
					got = append(got, strings.Fields(says)[1])
				}
			}
			got = append(got, g.told(p).Candidates.Summary)
			for _, e := range p.Events {
				if e.Type == corev1.EventTypeWarning {
					got = append(got, e.Reason)
				}
			}
			if got := strings.Join(got, ", "); got != c.want {
				t.Errorf("%v: %s, want %s", p.State, got, c.want)
			}
		})
	}
}

// readySince makes the pods ready since then.
func (g *given) readySince(at time.Time) {
	for _, pod := range g.Pods {
		for i := range pod.Status.Conditions {
			pod.Status.Conditions[i].LastTransitionTime = metav1.NewTime(at)
		}
	}
}

// TestOverdueTickIsNoticed: an operator without any other event notices that a tick is not started.
func TestOverdueTickIsNoticed(t *testing.T) {
	g := onSchedule("4 3 * * *", nil)
	g.complete()
	g.Lease.Unchanged = 10 * time.Minute
	p := Decide(g.Observed)
	if says := g.says(p, v1alpha1.ConditionScheduled); says != "True Scheduled" || p.Wake <= 0 || p.Wake > time.Minute {
		t.Fatalf("5 s after a tick it is %s, and looks again in %v", says, p.Wake)
	}
	g.Now, g.Server = g.Now.Add(p.Wake), g.Server.Add(p.Wake)
	if says := g.says(Decide(g.Observed), v1alpha1.ConditionScheduled); says != "False Overdue" {
		t.Errorf("%v later it is %s", p.Wake, says)
	}
}

// TestAScheduleIsRemoved: the job then is one that is run once: now if it was never run, else never again.
func TestAScheduleIsRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		ran  bool
		made int
		says string
	}{
		"it has run": {ran: true, says: "True CompletionsReached"},
		"it has not": {made: 2, says: "False NotComplete"},
	} {
		t.Run(name, func(t *testing.T) {
			g := onSchedule("0 9 * * *", nil).idle()
			if !c.ran {
				g.Lease.Record.Runs.Now, g.Job.Status.Runs = lease.Run{}, nil
			}
			g.Job.Spec.Schedule = nil
			p := Decide(g.Observed)
			if p.Lease == nil || p.Lease.Record.Runs.Schedule != nil {
				t.Fatalf("%v: the Lease keeps its schedule: %+v", p.State, p.Lease)
			}
			g.Lease.Record.Runs = p.Lease.Record.Runs
			p = Decide(g.Observed)
			if says := g.says(p, v1alpha1.ConditionComplete); len(p.Create) != c.made || says != c.says || g.says(p, v1alpha1.ConditionScheduled) != "none" {
				t.Errorf("%v: makes %d pods, Complete is %s", p.State, len(p.Create), says)
			}
		})
	}
}

// TestAPreviousJobsPods: some agents would start this job's runs as those of a previous job. The operator waits for them before it writes
// this job's runs into the Lease. It deletes those pods that nothing else deletes, but not the holder of the Lease.
func TestAPreviousJobsPods(t *testing.T) {
	owned := func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = "earlier" }
	orphan := func(pod *corev1.Pod) { pod.OwnerReferences = nil }
	for name, c := range map[string]struct {
		pod    func(*corev1.Pod) // the change to each pod that the previous job left
		free   bool              // the Lease has no holder
		absent bool              // there is no Lease
		gone   string
		writes bool
		wake   time.Duration
	}{
		"to be collected":       {pod: owned},
		"and the Lease is free": {pod: owned, free: true},
		"and there is none":     {pod: owned, absent: true},
		"orphans":               {pod: orphan, gone: "-1"},
		"and nobody holds":      {pod: orphan, free: true, gone: "-0 -1"},
		"behind a webhook's program": {pod: func(p *corev1.Pod) {
			orphan(p)
			(&given{Observed{Pods: []*corev1.Pod{p}}}).wrapped(0)
		}, gone: "-1"},
		"orphans, and no Lease":   {pod: orphan, absent: true, gone: "-0 -1"},
		"they have ended":         {pod: func(p *corev1.Pod) { owned(p); p.Status.Phase = corev1.PodSucceeded }, free: true, writes: true},
		"ended, and no Lease":     {pod: func(p *corev1.Pod) { owned(p); p.Status.Phase = corev1.PodSucceeded }, absent: true, writes: true},
		"they are on their way":   {pod: func(p *corev1.Pod) { owned(p); p.DeletionTimestamp = new(metav1.NewTime(now.Add(time.Second))) }, free: true, wake: credentialsOutlive + time.Second},
		"their grace is over":     {pod: func(p *corev1.Pod) { owned(p); p.DeletionTimestamp = new(metav1.NewTime(ago(credentialsOutlive))) }, free: true, writes: true},
		"over, and no Lease":      {pod: func(p *corev1.Pod) { owned(p); p.DeletionTimestamp = new(metav1.NewTime(ago(credentialsOutlive))) }, absent: true, writes: true},
		"their agents have ended": {pod: func(p *corev1.Pod) { owned(p); p.Status.ContainerStatuses[0].State = ended0 }, free: true, writes: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := toCompletion()
			g.Job.UID, g.Job.Status = "job-uid-2", v1alpha1.SingletonJobStatus{}
			for _, pod := range g.Pods {
				c.pod(pod)
			}
			if c.free {
				g.released(lease.ReasonPodTerminating)
			}
			if c.absent {
				g.Lease = Lease{}
			}
			p := Decide(g.Observed)
			var gone []string
			for _, ref := range p.Delete {
				gone = append(gone, ref.Name[len(ref.Name)-2:])
			}
			if got := strings.Join(gone, " "); got != c.gone || (p.Lease != nil) != c.writes || len(p.Adopt) > 0 || c.wake != 0 && p.Wake != c.wake {
				t.Errorf("%v: deletes %q, adopts %v, wakes after %v, writes %+v", p.State, got, p.Adopt, p.Wake, p.Lease)
			}
			if p.Lease != nil && p.Lease.Record.Runs.Now.ID != "" {
				t.Errorf("a run is presumed that nothing speaks for: %+v", p.Lease.Record.Runs)
			}
			if says := meta.FindStatusCondition(g.told(p).Conditions, v1alpha1.ConditionActive).Message; !c.writes && !strings.Contains(says, "previous job") {
				t.Errorf("the message does not say what the job waits for: %s", says)
			}
		})
	}
}

// ended0 is the state of an agent that has nothing left to do.
var ended0 = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}

// TestAnIdleScheduleCostsNothing: if no tick is near, the only decision is when to look again, which is before pods are needed.
func TestAnIdleScheduleCostsNothing(t *testing.T) {
	g := onSchedule("0 9 * * *", nil).idle()
	random := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		at := now.Add(time.Duration(random.Int64N(int64(5 * time.Hour)))) // 03:04:05 to 08:04:05
		g.Now, g.Server, g.Lease.Unchanged = at, at, at.Sub(now)
		p := Decide(g.Observed)
		if p.State != Resting || p.Lease != nil || p.Service != nil || p.Status != nil || p.Expired ||
			len(p.Apply)+len(p.Also)+len(p.Create)+len(p.Delete)+len(p.Relabel)+len(p.Events)+len(p.Adopt) > 0 {
			t.Fatalf("at %v there is something to do: %+v", at, p)
		}
		left := time.Date(2030, 1, 2, 8, 59, 0, 0, time.UTC).Sub(at)
		if p.Wake <= 0 || p.Wake > left || p.Wake < min(left, time.Hour) {
			t.Fatalf("at %v it looks again in %v, and pods are needed in %v", at, p.Wake, left)
		}
	}
}

// TestLeaseWritesOfRuns: the operator's writes, and when it postpones them.
func TestLeaseWritesOfRuns(t *testing.T) {
	suspended := func(g *given) { g.Lease.Record.Runs.Facts.Suspended = stamp(ago(30 * time.Minute)) }
	for name, c := range map[string]struct {
		given func() *given
		with  func(*given)
		want  func(*lease.Runs) // a change of the observed record; nil for no write
	}{
		"nothing": {},
		"another cron": {
			with: func(g *given) { g.Job.Spec.Schedule.Cron = "0 * * * *" },
			want: func(r *lease.Runs) {
				r.Schedule = parsed("0 * * * *")
				r.Facts.Settled = stamp(now)
			},
		},
		"another policy": {
			with: func(g *given) { g.Job.Spec.Schedule.Overlap = "Queue" },
			want: func(r *lease.Runs) {
				r.Schedule, _ = schedule.Parse(schedule.Spec{Cron: "*/10 * * * *", Overlap: "Queue"})
			},
		},
		"another, and no time":     {with: func(g *given) { g.Job.Spec.Schedule.Cron = "0 * * * *"; g.Server = time.Time{} }},
		"suspended":                {with: func(g *given) { g.Job.Spec.Suspend = true }, want: func(r *lease.Runs) { r.Facts.Suspended = stamp(now) }},
		"suspended already":        {with: func(g *given) { g.Job.Spec.Suspend = true; suspended(g) }},
		"suspended, and no time":   {with: func(g *given) { g.Job.Spec.Suspend = true; g.Server = time.Time{} }},
		"suspended during its run": {given: func() *given { return onSchedule("*/10 * * * *", nil) }, with: func(g *given) { g.Job.Spec.Suspend = true }, want: func(r *lease.Runs) { r.Facts.Suspended = stamp(now) }},
		"resumed": { // settled at 02:04, suspended at 02:34: three ticks were due before
			with: suspended,
			want: func(r *lease.Runs) { r.Facts.Suspended, r.Facts.Settled, r.Missed = 0, stamp(now), 3 },
		},
		"another, and the clocks disagree": {with: func(g *given) { g.Job.Spec.Schedule.Cron = "0 * * * *"; g.Server = now.AddDate(1, 0, 0) }},
		"another, and the clocks nearly disagree": {
			with: func(g *given) { g.Job.Spec.Schedule.Cron = "0 * * * *"; g.Server = now.Add(schedule.Tolerance) },
			want: func(r *lease.Runs) {
				r.Schedule = parsed("0 * * * *")
				r.Facts.Settled = stamp(now.Add(schedule.Tolerance))
			},
		},
		"resumed, and the clocks disagree": {with: func(g *given) { suspended(g); g.Server = now.AddDate(-1, 0, 0) }},
		"suspended, and the clocks disagree": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.Server = now.Add(time.Hour) },
			want: func(r *lease.Runs) { r.Facts.Suspended = stamp(now.Add(time.Hour)) },
		},
		"another and a run, and the clocks are apart": {
			with: func(g *given) { g.Job.Spec.Schedule.Cron = "0 * * * *"; g.askRun("x"); g.Server = now.Add(time.Minute) },
			want: func(r *lease.Runs) { r.Asked.Name = "x" },
		},
		"another and suspended, and the clocks are apart": {
			with: func(g *given) {
				g.Job.Spec.Schedule.Cron, g.Job.Spec.Suspend, g.Server = "0 * * * *", true, now.Add(time.Minute)
			},
			want: func(r *lease.Runs) { r.Facts.Suspended = stamp(now.Add(time.Minute)) },
		},
		"suspended, and without a schedule since": {
			given: func() *given { g := toCompletion(); g.complete(); return g },
			with:  suspended,
			want:  func(r *lease.Runs) { r.Facts.Suspended = 0 },
		},
		"a previous job's pod ran it after the claim": {
			with: func(g *given) { anothers(&g.Lease); g.Lease.Claim.JobUID = "job-uid" },
			want: func(r *lease.Runs) {
				*r = lease.Runs{Schedule: r.Schedule, Facts: schedule.Facts{Settled: stamp(now)}}
			},
		},
		"resumed, and no time": {with: func(g *given) { suspended(g); g.Server = time.Time{} }},
		"a run is asked for":   {with: func(g *given) { g.askRun("x") }, want: func(r *lease.Runs) { r.Asked.Name = "x" }},
		"one of a tick": {with: func(g *given) { g.askRun("x@2030-01-01T00:00:00Z") }, want: func(r *lease.Runs) {
			r.Asked = lease.Request{Name: "x", Tick: stamp(now.Truncate(24 * time.Hour).Add(-24 * time.Hour))}
		}},
		"one that was answered": {with: func(g *given) { g.askRun("x"); g.Lease.Record.Runs.Answered = "x" }},
		"one that has come back": {
			with: func(g *given) {
				g.askRun("x")
				g.Lease.Record.Runs.Now.ID = "job-uid/x"
				g.Lease.Record.Runs.Answered = "y"
			},
			want: func(r *lease.Runs) { r.Answered = "x" },
		},
		"one that an old Lease does not tell": {
			with: func(g *given) {
				g.askRun("x")
				g.Job.Status.Runs = append(g.Job.Status.Runs, v1alpha1.RunStatus{ID: "job-uid/x", State: "Running", Token: 101})
			},
			want: func(r *lease.Runs) { r.Asked.Name = "x" },
		},
		"one that only the status tells": {
			with: func(g *given) {
				g.askRun("x")
				g.Job.Status.Runs = append(g.Job.Status.Runs, v1alpha1.RunStatus{ID: "job-uid/x", State: "Complete", Token: 1})
			},
			want: func(r *lease.Runs) { r.Answered = "x" },
		},
		"one that stands there":      {with: func(g *given) { g.askRun("x"); g.Lease.Record.Runs.Asked.Name = "x" }},
		"one that can't be":          {with: func(g *given) { g.askRun("X y") }},
		"one that is withdrawn":      {with: func(g *given) { g.Lease.Record.Runs.Asked.Name = "x" }, want: func(r *lease.Runs) { r.Asked = lease.Request{} }},
		"asked for while suspended":  {with: func(g *given) { g.Job.Spec.Suspend = true; suspended(g); g.askRun("x") }},
		"asked for during a run":     {given: func() *given { return onSchedule("*/10 * * * *", nil) }, with: func(g *given) { g.askRun("x") }, want: func(r *lease.Runs) { r.Answered = "x" }},
		"asked for, and it may wait": {given: func() *given { return onSchedule("*/10 * * * *", func(s *v1alpha1.Schedule) { s.Overlap = "Queue" }) }, with: func(g *given) { g.askRun("x") }, want: func(r *lease.Runs) { r.Asked.Name = "x" }},
		"a holder that is late": {given: func() *given { return onSchedule("*/10 * * * *", nil) }, with: func(g *given) {
			g.Job.Spec.Suspend = true
			g.Lease.SinceRenewal = 4 * time.Second
		}},
		"a bad schedule": {
			with: func(g *given) {
				g.Lease.Record.Runs.Schedule, g.Lease.Record.Runs.Bad = nil, contract.ScheduleAnnotation+"=x"
			},
			want: func(r *lease.Runs) { r.Bad, r.Schedule, r.Facts.Settled = "", parsed("*/10 * * * *"), stamp(now) },
		},
		"a bad schedule of a job without one": {
			given: func() *given { g := toCompletion(); g.complete(); return g },
			with:  func(g *given) { g.Lease.Record.Runs.Bad = contract.ScheduleAnnotation + "=x" },
			want:  func(r *lease.Runs) { r.Bad = "" },
		},
		"bad": {with: func(g *given) { g.Lease.Record.Runs.Bad = contract.RunAnnotation + "=x"; g.Job.Spec.Suspend = true }},
		"another job's": {
			with: func(g *given) { anothers(&g.Lease); g.Lease.Record.Runs.Missed = 7 },
			want: func(r *lease.Runs) {
				*r = lease.Runs{Schedule: r.Schedule, Facts: schedule.Facts{Settled: stamp(now)}}
			},
		},
		"another job's, and no time": {with: func(g *given) { anothers(&g.Lease); g.Server = time.Time{} }},
	} {
		t.Run(name, func(t *testing.T) {
			g := onSchedule("*/10 * * * *", nil).idle()
			if c.given != nil {
				g = c.given()
			}
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			if waits := regexp.MustCompile(`^another and a run|^[^s].*the clocks disagree$`).MatchString(name); waits != (g.says(p, v1alpha1.ConditionScheduled) == "False ClocksDisagree") {
				t.Errorf("Scheduled is %s", g.says(p, v1alpha1.ConditionScheduled))
			}
			if c.want == nil {
				if p.Lease != nil {
					t.Errorf("%v: the Lease is written: %+v, because %s", p.State, p.Lease.Record.Runs, p.Reasons.Of("Lease", "job"))
				}
				return
			}
			want := g.Lease.Record.Runs
			c.want(&want)
			if p.Lease == nil || p.Lease.Verb != Update || p.Lease.Record.Revision != g.Lease.Record.Revision {
				t.Fatalf("%v: the write is %+v", p.State, p.Lease)
			}
			if told := p.Lease.Event != nil; told != (name == "asked for during a run") {
				t.Errorf("the write tells %+v", p.Lease.Event)
			}
			if slices.ContainsFunc(p.Events, func(e Event) bool { return e.Reason == "RunPassedOver" }) {
				t.Error("the effect of the write is announced even if the write is not stored")
			}
			got := p.Lease.Record.Runs
			if diff := cmp.Diff(text(want), text(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			g.Lease.Record.Runs, g.Lease.Claim = got, p.Lease.Claim
			if again := Decide(g.Observed); again.Lease != nil {
				t.Errorf("it is written again: %s", again.Reasons.Of("Lease", "job"))
			}
		})
	}
}

func parsed(cron string) *schedule.Schedule {
	s, err := schedule.Parse(schedule.Spec{Cron: cron})
	if err != nil {
		panic(err)
	}
	return s
}

// text is the text of runs, without the internals of a schedule.
func text(r lease.Runs) string {
	spec := schedule.Spec{}
	if r.Schedule != nil {
		spec = r.Schedule.Spec()
	}
	r.Schedule = nil
	return fmt.Sprintf("%+v\n%+v", spec, r)
}

// TestALeaseThatWasDeletedUnderARun: a completed run is not run again, and a run in progress counts as an attempt.
func TestALeaseThatWasDeletedUnderARun(t *testing.T) {
	forget := func(g *given) { g.Lease.Last = nil }
	for name, c := range map[string]struct {
		before, after func(*given)
		state         lease.RunState
		ignored       int32
	}{
		"failed, and does not count, by the status": {before: func(g *given) {
			g.over(lease.RunFailed, lease.ReasonProcessExited, 4)
			g.Lease.Record.Runs.Now.Ignored = 1
		}, after: forget, state: lease.RunRunning, ignored: 1},
		"failed, and does not count, and the status is of the attempt": {after: func(g *given) {
			g.Lease.Last.Record.Runs.Now.State, g.Lease.Last.Record.Runs.Now.Ignored = lease.RunFailed, 1
		}, state: lease.RunRunning, ignored: 1},
		"under way":                        {state: lease.RunRunning},
		"under way, by the status":         {after: forget, state: lease.RunRunning},
		"failed":                           {before: func(g *given) { g.over(lease.RunFailed, lease.ReasonProcessExited, 1) }, state: lease.RunRunning},
		"complete":                         {before: (*given).complete, state: lease.RunComplete},
		"complete, by the status":          {before: (*given).complete, after: forget, state: lease.RunComplete},
		"given up, by the status":          {before: func(g *given) { g.over(lease.RunGivenUp, lease.ReasonProcessExited, 1) }, after: forget, state: lease.RunGivenUp},
		"complete, and no history is kept": {before: func(g *given) { g.complete(); g.Job.Spec.HistoryLimit = new(int32(0)) }, after: forget, state: lease.RunComplete},
		"complete, by its condition": {before: (*given).complete, after: func(g *given) {
			forget(g)
			g.Job.Status.Runs = nil
		}, state: lease.RunComplete},
		"given up, by its condition": {before: func(g *given) { g.over(lease.RunGivenUp, lease.ReasonProcessExited, 1) }, after: func(g *given) {
			forget(g)
			g.Job.Status.Runs = nil
		}, state: lease.RunGivenUp},
		"complete, by its condition, and the memory is old": {before: (*given).complete, after: func(g *given) {
			g.Lease.Last.Record.Runs.Now.State, g.Job.Status.Runs = lease.RunRunning, nil
		}, state: lease.RunComplete},
		"under way, and the condition is of the run before": {before: (*given).complete, after: func(g *given) {
			r := &g.Lease.Last.Record.Runs.Now
			r.State, r.Token, g.Job.Status.Runs = lease.RunRunning, 101, nil
		}, state: lease.RunRunning},
		"nobody knows, and pods are": {after: func(g *given) { forget(g); g.Job.Status = v1alpha1.SingletonJobStatus{} }, state: lease.RunRunning},
		"the memory is of the attempt": {before: (*given).complete, after: func(g *given) {
			g.Lease.Last.Record.Runs.Now.State = lease.RunRunning
		}, state: lease.RunComplete},
		"the status is of the attempt": {after: func(g *given) {
			g.Lease.Last.Record.Runs.Now.State = lease.RunComplete
		}, state: lease.RunComplete},
		"the memory is old": {before: (*given).complete, after: func(g *given) {
			g.Lease.Last.Record.Token, g.Lease.Last.Record.Runs = 0, lease.Runs{}
		}, state: lease.RunComplete},
	} {
		t.Run(name, func(t *testing.T) {
			g := toCompletion()
			if c.before != nil {
				c.before(g)
			}
			g.settle()
			g.absent()
			if c.after != nil {
				c.after(g)
			}
			p := Decide(g.Observed)
			if p.Lease == nil || p.Lease.Verb != Create || len(p.Create) > 0 {
				t.Fatalf("%v: %+v", p.State, p)
			}
			if r := p.Lease.Record.Runs.Now; r.ID != "job-uid" || r.State != c.state || r.Attempt != 1 || r.Ignored != c.ignored || p.Lease.Record.Holder != lease.UnknownHolder {
				t.Errorf("the run is %+v, held by %q", r, p.Lease.Record.Holder)
			}
		})
	}
}

// TestDeadlineOfARunWhoseLeaseWasDeleted: the new Lease has the deadline that the old one had, or one from the start of the run.
func TestDeadlineOfARunWhoseLeaseWasDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		after func(*given)
		want  schedule.Stamp
	}{
		"remembered":     {after: func(*given) {}, want: stamp(now.Add(time.Minute))},
		"by the status":  {after: func(g *given) { g.Lease.Last = nil }, want: stamp(now.Add(50 * time.Minute))},
		"without limits": {after: func(g *given) { g.Lease.Last, g.Job.Spec.ActiveDeadlineSeconds = nil, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			g := toCompletion()
			g.Job.Spec.ActiveDeadlineSeconds = new(int64(3600))
			g.Lease.Record.Runs.Now.Began = now.Add(-10 * time.Minute).UnixMilli()
			g.Lease.Record.Runs.Now.Until = stamp(now.Add(time.Minute))
			g.settle()
			g.absent()
			c.after(g)
			p := Decide(g.Observed)
			if p.Lease == nil || p.Lease.Record.Runs.Now.Until != c.want {
				t.Errorf("%v: %+v, want until %v", p.State, p.Lease, c.want)
			}
			if failed := g.told(p).Failed; failed != 0 {
				t.Errorf("%d attempts have failed", failed)
			}
		})
	}
}

// TestARequestIsNotFollowedTwice: a deleted Lease may have followed the request, and only a process that remembers that Lease knows.
func TestARequestIsNotFollowedTwice(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*given)
		want string
	}{
		"nobody remembers":        {with: func(g *given) { g.Lease.Last = nil }, want: "x"},
		"another job's Lease":     {with: func(g *given) { anothers(g.Lease.Last) }, want: "x"},
		"another's, claimed":      {with: func(g *given) { anothers(g.Lease.Last); g.Lease.Last.Claim.JobUID = "job-uid" }, want: "x"},
		"it was not followed yet": {with: func(*given) {}},
		"it was":                  {with: func(g *given) { g.Lease.Last.Record.Runs.Answered = "x" }, want: "x"},
		"it was, by the status": {with: func(g *given) {
			was := g.Job.Status.Runs[0]
			was.ID = "job-uid/x"
			g.Job.Status.Runs = append(g.Job.Status.Runs, was)
		}, want: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			g := toCompletion()
			g.complete()
			g.settle()
			g.askRun("x")
			g.absent()
			c.with(g)
			if p := Decide(g.Observed); p.Lease == nil || p.Lease.Record.Runs.Answered != c.want {
				t.Errorf("%v: answered is not %q: %+v", p.State, c.want, p.Lease)
			}
		})
	}
}

// TestTheStatusLosesNoRun: the Lease keeps a few runs, the status as many as historyLimit.
func TestTheStatusLosesNoRun(t *testing.T) {
	g := toCompletion()
	g.Job.Spec.HistoryLimit = new(int32(8))
	for i := range int64(12) {
		r := &g.Lease.Record.Runs
		if i > 0 {
			r.Past = append([]lease.Run{r.Now}, r.Past[:min(len(r.Past), 2)]...)
			r.Now = lease.Run{ID: fmt.Sprint("job-uid/", i), Attempt: 1, State: lease.RunRunning, Token: 100 + i, Pod: g.name(0), Began: ago(time.Hour - time.Duration(i)*time.Minute).UnixMilli()}
		}
		g.settle()
		r.Now.State, r.Now.Reason, r.Now.Ended = lease.RunComplete, lease.ReasonProcessExited, r.Now.Began+1000
	}
	g.settle()
	var got []string
	for _, run := range g.Job.Status.Runs {
		got = append(got, strings.TrimPrefix(run.ID, "job-uid/")+" "+run.State)
	}
	want := "11 Complete 10 Complete 9 Complete 8 Complete 7 Complete 6 Complete 5 Complete 4 Complete"
	if strings.Join(got, " ") != want {
		t.Errorf("runs are %v, want %s", got, want)
	}
	without := toCompletion()
	without.Job.Spec.HistoryLimit = new(int32(0))
	without.settle()
	if s := without.Job.Status; len(s.Runs) != 1 || len(s.History) != 0 {
		t.Errorf("of no history is left: %+v", s)
	}
	g.Lease.Record.Runs.Now, g.Lease.Record.Runs.Past = lease.Run{}, nil // the record was cleared by hand
	g.settle()
	if s := g.Job.Status; len(s.Runs) != 8 || s.LastRunTime == nil || s.LastCompletionTime.Sub(s.LastRunTime.Time) != time.Second {
		t.Errorf("status %+v", s)
	}
}

// TestARunThatTheLeaseHasForgotten: the run ended while no operator was watching, and is not reported as in progress forever. The newest
// run is not reported as over because of a stale Lease either.
func TestARunThatTheLeaseHasForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		state lease.RunState // in the status
		token int64          // of the newest run in the Lease
		want  string
		event string
	}{
		"under way":       {lease.RunRunning, 108, "8 Running, 0 Unknown", "RunEndUnknown RunStarted"},
		"between two":     {lease.RunFailed, 108, "8 Running, 0 Unknown", "RunEndUnknown RunStarted"},
		"complete":        {lease.RunComplete, 108, "8 Running, 0 Complete", "RunStarted"},
		"an old Lease":    {lease.RunRunning, 99, "0 Running, 8 Running", "RunStarted"},
		"no run in there": {lease.RunRunning, 0, "0 Running", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := onSchedule("*/10 * * * *", nil)
			g.Job.Status.Runs = nil
			g.Lease.Record.Runs.Now.ID, g.Lease.Record.Runs.Now.Tick = "job-uid/0", 0
			g.settle()
			g.Job.Status.Runs[0].State = string(c.state)
			if c.state == lease.RunComplete {
				g.Job.Status.Runs[0].EndTime = new(metav1.NewTime(ago(time.Minute)))
			}
			g.Lease.Record.Runs.Now = lease.Run{}
			if c.token != 0 {
				g.Lease.Record.Runs.Now = lease.Run{ID: "job-uid/8", Attempt: 1, State: lease.RunRunning, Token: c.token, Pod: g.name(0)}
			}
			p := Decide(g.Observed)
			var runs, events []string
			for _, run := range g.told(p).Runs {
				runs = append(runs, strings.TrimPrefix(run.ID, "job-uid/")+" "+run.State)
			}
			for _, e := range p.Events {
				events = append(events, e.Reason)
			}
			if got := strings.Join(runs, ", "); got != c.want {
				t.Errorf("runs are %s, want %s", got, c.want)
			}
			if got := strings.Join(events, " "); got != c.event {
				t.Errorf("events are %s, want %s", got, c.event)
			}
		})
	}
}

// told returns the status that a plan leads to.
func (g *given) told(p Plan) *v1alpha1.SingletonJobStatus {
	if p.Status != nil {
		return p.Status
	}
	return &g.Job.Status
}

// TestStaleLeaseDoesNotReopenARun: a Lease from a stale cache does not undo the end in a new status.
func TestStaleLeaseDoesNotReopenARun(t *testing.T) {
	for name, old := range map[string]func(*lease.Run){
		"the attempt that was completed": func(r *lease.Run) { r.State = lease.RunRunning },
		"the one before, under way":      func(r *lease.Run) { r.State, r.Token = lease.RunRunning, 99 },
		"the one before, failed":         func(r *lease.Run) { r.State, r.Token = lease.RunFailed, 99 },
	} {
		t.Run(name, func(t *testing.T) {
			g := toCompletion()
			g.complete()
			g.settle()
			want := g.Job.Status.Runs[0]
			old(&g.Lease.Record.Runs.Now)
			g.settle()
			if got := g.Job.Status.Runs; len(got) != 1 || cmp.Diff(want, got[0]) != "" {
				t.Errorf("the status has %+v, want %+v", got, want)
			}
		})
	}
}

// TestRunsDoNotCountAsChangesOfHolder: a pod that begins a run, or tries again after a process ended, does not take over from another one.
func TestRunsDoNotCountAsChangesOfHolder(t *testing.T) {
	for name, c := range map[string]struct {
		why  lease.Reason
		over lease.RunState // of the run that the tenure was of
		want v1alpha1.TenureChangeType
	}{
		"a run after one that is complete": {why: lease.ReasonProcessExited, over: lease.RunComplete},
		"a run after one that vanished":    {why: lease.ReasonLeaseExpired, over: lease.RunGivenUp},
		"a run after one that was drained": {why: lease.ReasonPodTerminating, over: lease.RunGivenUp},
		"an attempt after a failed one":    {why: lease.ReasonProcessExited},
		"after a probe":                    {why: lease.ReasonLivenessFailed},
		"after one that vanished":          {why: lease.ReasonLeaseExpired, want: v1alpha1.Failover},
		"after one on a lost node":         {why: lease.ReasonNodeLost, want: v1alpha1.Failover},
		"after a drain":                    {why: lease.ReasonPodTerminating, want: v1alpha1.Handover},
		"after one that was asked to":      {why: lease.ReasonSwitchover, want: v1alpha1.Handover},
	} {
		t.Run(name, func(t *testing.T) {
			g := onSchedule("0 9 * * *", nil)
			r := &g.Lease.Record.Runs
			if c.over != "" {
				r.Past = []lease.Run{r.Now}
				r.Past[0].State = c.over
				r.Now.ID = "job-uid/x"
			} else {
				r.Now.Attempt = 2
			}
			runs := *r
			was := g.Lease.Record.History[0]
			was.Reason, was.Ended = c.why, ago(time.Minute).UnixMilli()
			g.held(1, 105, ago(10*time.Second))
			g.Lease.Record.Transitions, g.Lease.Record.Runs = 2, runs
			g.Lease.Record.Runs.Now.Token, g.Lease.Record.Runs.Now.Pod = 105, g.name(1)
			g.Lease.Record.History = []lease.PastTenure{{Token: 105, Pod: g.name(1), Node: "b", Acquired: ago(10 * time.Second).UnixMilli()}, was}
			p := Decide(g.Observed)
			var got v1alpha1.TenureChangeType
			if len(p.Changes) > 0 {
				got = p.Changes[0].Type
			}
			if got != c.want || p.Status.FencingToken != 105 || p.Status.Runs[0].Token != 105 {
				t.Errorf("the status has %q, want %q: %+v", got, c.want, p.Status)
			}
		})
	}
}

// TestLostClaimOfALease: the runs are still this job's, and none is run again.
func TestLostClaimOfALease(t *testing.T) {
	for name, given := range map[string]func() *given{
		"run once":      func() *given { g := toCompletion(); g.complete(); return g },
		"on a schedule": func() *given { return onSchedule("0 9 * * *", nil).idle() },
	} {
		t.Run(name, func(t *testing.T) {
			g := given()
			was := g.Lease.Record.Runs
			g.Lease.Claim = Claim{}
			p := Decide(g.Observed)
			if p.Lease == nil || p.Lease.Claim.JobUID != "job-uid" {
				t.Fatalf("%v: the claim is not written again: %+v", p.State, p.Lease)
			}
			if diff := cmp.Diff(text(was), text(p.Lease.Record.Runs)); diff != "" {
				t.Errorf("what is known of runs, -before +after:\n%s", diff)
			}
			g.Lease.Claim = p.Lease.Claim
			if p := Decide(g.Observed); p.Lease != nil || len(p.Create) > 0 {
				t.Errorf("%v: after it %+v, and %d pods", p.State, p.Lease, len(p.Create))
			}
			g.Lease = Lease{Presence: Absent, Last: &Lease{Presence: Ours, Record: g.Lease.Record}}
			if p := Decide(g.Observed); p.Lease == nil || p.Lease.Record.Runs.Now.ID != was.Now.ID || p.Lease.Record.Runs.Now.State != was.Now.State {
				t.Errorf("%v: a new Lease says %+v", p.State, p.Lease)
			}
		})
	}
}

// TestEventsOfRuns: each run has one Event for its start and one for its end. A process that may have failed to write them writes them
// again under the same names.
func TestEventsOfRuns(t *testing.T) {
	g := toCompletion()
	g.Lease.Record.Runs.Now.Began = ago(time.Minute).UnixMilli()
	g.settle()
	says := func(what, want string) (events []string) {
		t.Helper()
		var reasons []string
		for _, e := range Decide(g.Observed).Events {
			reasons, events = append(reasons, e.Reason), append(events, e.Name)
		}
		if got := strings.Join(reasons, " "); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		return events
	}
	says("nothing is new", "")
	g.complete()
	first := says("it is complete", "RunComplete")
	g.settle()
	says("it is told", "")
	g.Unannounced = 1
	if again := says("it may not have been", "RunStarted RunComplete Elected"); len(again) != 3 || again[1] != first[0] {
		t.Errorf("the names are %v, and were %v", again, first)
	}
	now := g.Now
	g.Now = now.Add(recent)
	says("a process that failed to tell it tries for longer than a new one", "RunStarted RunComplete Elected")
	g.Unannounced, g.EventsUnknown = 0, true
	says("a new one knows nothing, and this is old", "")
	g.Now, g.EventsUnknown = now, false
	g.Lease.Record.Runs.Now.ID, g.Lease.Record.Runs.Now.Token = "job-uid/x", 101
	g.over(lease.RunGivenUp, lease.ReasonProcessExited, 3)
	says("another has come and failed", "RunStarted RunFailed")
}

// TestFinishedJobIsDeleted: it is deleted after spec.ttlSecondsAfterFinished, counted from when its end was recorded.
func TestFinishedJobIsDeleted(t *testing.T) {
	for _, end := range []func(*given){(*given).complete, func(g *given) { g.over(lease.RunGivenUp, lease.ReasonProcessExited, 1) }} {
		g := toCompletion()
		g.Job.Spec.TTLSecondsAfterFinished = new(int32(100))
		if p := Decide(g.Observed); p.Expired {
			t.Error("it goes while it runs")
		}
		end(g)
		g.Pods = nil
		if p := Decide(g.Observed); p.Expired || p.Wake != 100*time.Second {
			t.Errorf("when its end is recorded: %v, wakes after %v", p.Expired, p.Wake)
		}
		g.settle()
		g.Now = now.Add(99 * time.Second)
		if p := Decide(g.Observed); p.Expired || p.Wake != time.Second {
			t.Errorf("a second before: %v, wakes after %v", p.Expired, p.Wake)
		}
		g.Now = now.Add(100 * time.Second)
		if p := Decide(g.Observed); !p.Expired {
			t.Error("it stays")
		}
		g.pod(0, "a")
		g.orphaned()
		g.settle()
		if p := Decide(g.Observed); p.Expired || len(p.Adopt) != 1 {
			t.Errorf("it goes without a pod that is to be its own: %v", p.Adopt)
		}
		g.Pods = nil
		g.settle()
		g.askRun("again")
		if p := Decide(g.Observed); p.Expired {
			t.Error("it goes though another run is asked for")
		}
	}
}

// TestARolloutWaitsForTheAttempt: a process that must run to its end is not stopped for another template.
func TestARolloutWaitsForTheAttempt(t *testing.T) {
	for _, candidates := range []int32{1, 2} {
		g := toCompletion()
		g.Job.Spec.Candidates = candidates
		g.Pods = g.Pods[:candidates]
		g.settle()
		g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
		p := Decide(g.Observed)
		if len(p.Create)+len(p.Delete) > 0 || p.Lease != nil || g.says(p, v1alpha1.ConditionProgressing) != "True RollingOut" {
			t.Errorf("of %d: %+v", candidates, p)
		}
		g.over(lease.RunFailed, lease.ReasonProcessExited, 1)
		if p = Decide(g.Observed); len(p.Create) == 0 {
			t.Errorf("of %d, between attempts, %v: %+v", candidates, p.State, p)
		}
	}
}

// TestARolloutBetweenRuns: the absence of an acting pod is no trial of the new version.
func TestARolloutBetweenRuns(t *testing.T) {
	g := onSchedule("0 9 * * *", func(s *v1alpha1.Schedule) { s.Standby = v1alpha1.StandbyWarm })
	g.complete()
	g.settle()
	g.newTemplate(0, 1)
	g.Pods = slices.Delete(g.Pods, 1, 2)
	if p := Decide(g.Observed); !slices.Equal(names(p.Delete), []string{g.Pods[0].Name}) {
		t.Errorf("deleted are %v of the old %s, of %d", names(p.Delete), g.Pods[0].Name, len(g.Pods))
	}
}

// distortRuns changes the record of runs.
func (g *given) distortRuns(r *rand.Rand) {
	for _, change := range []func(){
		func() { g.complete() }, func() { g.over(lease.RunFailed, lease.ReasonProcessExited, 1) },
		func() { g.over(lease.RunGivenUp, lease.ReasonLeaseExpired, 0) }, func() { g.succeeded(0) },
		func() { g.Lease.Record.Runs = lease.Runs{} }, func() { g.Lease.Record.Runs.Bad = "bad" },
		func() { g.Server = time.Time{} }, func() { g.Server = now.Add(time.Duration(r.Int64N(int64(3 * time.Hour)))) },
		func() { g.askRun("x") }, func() { g.Lease.Record.Runs.Facts.Suspended = stamp(now) },
		func() { g.Job.Spec.TTLSecondsAfterFinished = new(int32(0)) }, func() { g.Job.Spec.Schedule = nil },
		func() { g.Lease.Record.Runs.Facts.Settled = schedule.Stamp(r.Int64N(2 * now.Unix())) },
	} {
		if r.IntN(4) == 0 {
			change()
		}
	}
}

// TestLeaseOfRunsForAnEndlessJob: a previous job's runs are not kept. No settled tick becomes unsettled, which the guard would
// reject.
func TestLeaseOfRunsForAnEndlessJob(t *testing.T) {
	g := steady()
	g.released(lease.ReasonProcessExited)
	g.Lease.Claim.JobUID = "earlier"
	g.Lease.Record.Runs = onSchedule("0 * * * *", nil).Lease.Record.Runs
	want := lease.Runs{Facts: schedule.Facts{Settled: g.Lease.Record.Runs.Facts.Settled}}
	if p := Decide(g.Observed); p.Lease == nil || text(p.Lease.Record.Runs) != text(want) {
		t.Errorf("%v: %+v", p.State, p.Lease)
	}
}

// TestRunFieldsMatchAJob: the fields of a Job's status, of a job without a schedule alone.
func TestRunFieldsMatchAJob(t *testing.T) {
	for name, c := range map[string]struct {
		given *given
		with  func(*given)
		want  string
	}{
		"the first attempt":  {given: toCompletion(), with: func(*given) {}, want: "0/1 succeeded 0 failed 0, started"},
		"the third attempt":  {given: toCompletion(), with: func(g *given) { g.Lease.Record.Runs.Now.Attempt = 3 }, want: "0/1 succeeded 0 failed 2, started"},
		"between attempts":   {given: toCompletion(), with: func(g *given) { g.over(lease.RunFailed, lease.ReasonProcessExited, 3) }, want: "0/1 succeeded 0 failed 1, started"},
		"one is ignored":     {given: toCompletion(), with: func(g *given) { g.Lease.Record.Runs.Now.Attempt, g.Lease.Record.Runs.Now.Ignored = 3, 1 }, want: "0/1 succeeded 0 failed 1, started"},
		"complete":           {given: toCompletion(), with: (*given).complete, want: "1/1 succeeded 1 failed 0, started, completed"},
		"given up":           {given: toCompletion(), with: func(g *given) { g.complete(); g.Lease.Record.Runs.Now.State = lease.RunGivenUp }, want: "0/1 succeeded 0 failed 1, started"},
		"one on a schedule":  {given: onSchedule("0 9 * * *", nil).idle(), with: func(*given) {}, want: " succeeded 0 failed 0"},
		"one that goes on":   {given: steady(), with: func(*given) {}, want: " succeeded 0 failed 0"},
		"before its attempt": {given: toCompletion(), with: func(g *given) { g.Lease.Record.Runs.Now, g.Job.Status.Runs = lease.Run{}, nil }, want: " succeeded 0 failed 0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			c.with(g)
			s := g.told(Decide(g.Observed)).RunSummary
			got := fmt.Sprintf("%s succeeded %d failed %d", s.Completions, s.Succeeded, s.Failed)
			if s.StartTime != nil {
				got += ", started"
			}
			if s.CompletionTime != nil {
				got += ", completed"
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
