package plan

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// describeRuns sets the runs in the status from the Lease. Runs that the Lease no longer has stay in the status, up to the limit. The
// newest run always stays: it is the only record of the run if the Lease is lost, and clients that requested a run wait for it.
func describeRuns(status *v1alpha1.SingletonJobStatus, r *runs, limit int) {
	if r == nil || !r.ours || r.Bad != "" {
		return
	}
	all := toldRuns(status.Runs, r)
	for i := range all {
		if run := &all[i]; run.State == string(lease.RunComplete) && run.EndTime != nil &&
			(status.LastCompletionTime == nil || status.LastCompletionTime.Before(run.EndTime)) {
			status.LastCompletionTime = run.EndTime
		}
	}
	if len(all) > 0 {
		status.LastRunTime = all[0].StartTime
	}
	status.Runs = all[:min(len(all), max(1, limit))]
	status.RunSummary = v1alpha1.RunSummary{}
	if r.wanted == nil && len(all) > 0 {
		status.RunSummary = summary(&all[0])
	}
	describeTicks(status, r)
}

// summary describes a run in the fields of a Job's status.
func summary(run *v1alpha1.RunStatus) v1alpha1.RunSummary {
	s := v1alpha1.RunSummary{Completions: "0/1", StartTime: run.StartTime}
	failed := run.Attempts - run.IgnoredAttempts
	switch lease.RunState(run.State) {
	case lease.RunComplete:
		failed--
		s.Completions, s.CompletionTime, s.Succeeded = "1/1", run.EndTime, 1
	case lease.RunRunning:
		failed--
	case lease.RunFailed, lease.RunGivenUp, lease.RunReplaced:
	}
	s.Failed = max(0, failed) // of a Lease that was deleted it is unknown whether its attempt still ran
	return s
}

// toldRuns returns the runs in the Lease and those already in the status, newest first.
func toldRuns(before []v1alpha1.RunStatus, r *runs) []v1alpha1.RunStatus {
	told := slices.Concat([]lease.Run{r.Now}, r.Past)
	told = slices.DeleteFunc(told, func(run lease.Run) bool { return run.ID == "" })
	var all []v1alpha1.RunStatus
	for i := range told {
		all = append(all, runStatus(&told[i]))
	}
	for _, was := range before {
		switch i := slices.IndexFunc(all, func(is v1alpha1.RunStatus) bool { return is.ID == was.ID }); {
		case i < 0:
			all = append(all, dropped(was, &r.Now))
		case was.Token > all[i].Token, was.Token == all[i].Token && was.EndTime != nil && all[i].EndTime == nil:
			all[i] = was // the Lease comes from a stale cache
		}
	}
	// Each attempt has a greater token than all earlier ones, so this is the order of time.
	slices.SortStableFunc(all, func(a, b v1alpha1.RunStatus) int { return cmp.Compare(b.Token, a.Token) })
	return all
}

// dropped returns the status of a run that the Lease no longer has, or does not have yet if it comes from a stale cache. A run that came
// before the newest one has ended.
func dropped(was v1alpha1.RunStatus, newest *lease.Run) v1alpha1.RunStatus {
	if RunOf(&was).Open() && was.Token < newest.Token {
		was.State, was.ExitCode, was.Reason = v1alpha1.RunUnknown, nil, ""
	}
	return was
}

// ended reports whether a run is known to be over.
func ended(r *v1alpha1.RunStatus) bool {
	return !RunOf(r).Open()
}

func describeTicks(status *v1alpha1.SingletonJobStatus, r *runs) {
	status.NextTick = nil
	if r.decision.Next != 0 && !r.suspend {
		status.NextTick = &metav1.Time{Time: r.decision.Next.Time()}
	}
	status.Missed, status.Skipped = r.Missed+r.decision.Tally.Missed(), r.Skipped+r.decision.Tally.Skipped()
}

func runStatus(r *lease.Run) v1alpha1.RunStatus {
	s := v1alpha1.RunStatus{
		ID: r.ID, State: string(r.State), Attempts: r.Attempt, IgnoredAttempts: r.Ignored, Token: r.Token, Pod: r.Pod, Reason: Shorten(string(r.Reason), maxReason),
		StartTime: secondOf(r.Began),
	}
	if r.Tick != 0 {
		s.Tick = &metav1.Time{Time: r.Tick.Time()}
	}
	if r.Reason == lease.ReasonProcessExited || r.Code != 0 {
		s.ExitCode = new(int32(r.Code))
	}
	if !r.Open() {
		s.EndTime = secondOf(r.Ended)
	}
	return s
}

func secondOf(millis int64) *metav1.Time {
	if millis <= 0 {
		return nil
	}
	return &metav1.Time{Time: microTime(millis).Truncate(time.Second)}
}

// runConditions returns the conditions that only a job that runs to completion has.
func runConditions(state State, j *job, t *tenure, m *members, r *runs) []metav1.Condition {
	switch {
	case r == nil || state == Deleting:
		return nil
	case j.Spec.Schedule != nil:
		return []metav1.Condition{scheduled(state, j, t, m, r).condition(v1alpha1.ConditionScheduled)}
	case !r.ours || r.Bad != "":
		return nil // the existing conditions stay
	}
	return []metav1.Condition{
		complete(r).condition(v1alpha1.ConditionComplete), givenUp(j, r).condition(v1alpha1.ConditionFailed),
	}
}

// otherConditions returns the conditions that no longer apply because a schedule was set or removed.
func otherConditions(j *job) []string {
	if j.Spec.Schedule != nil {
		return []string{v1alpha1.ConditionComplete, v1alpha1.ConditionFailed}
	}
	return []string{v1alpha1.ConditionScheduled}
}

// scheduled is the verdict on whether ticks start runs.
func scheduled(state State, j *job, t *tenure, m *members, r *runs) verdict {
	switch {
	case state == InvalidSpec, state == LeaseConflict:
		return idle(state, j, t)
	case r.Bad != "":
		return badRun(r)
	case j.Spec.Suspend:
		return verdict{v1alpha1.ReasonSuspended, "spec.suspend is set; times that come due do not count as ticks"}
	case r.blind && r.apart:
		return verdict{v1alpha1.ReasonClocksDisagree, "the clocks of the operator and the API server differ by more than " + schedule.Tolerance.String() + ", so the " +
			"operator can't date a change of the schedule or the end of its suspension: until they agree, the Lease keeps its earlier state"}
	case r.stamp == 0:
		return verdict{v1alpha1.ReasonNoServerTime, "no recent response of the API server had a Date header, and ticks come due by its clock, so candidates " +
			"start none: check that no proxy in front of it removes the header"}
	case r.decision.Verdict == schedule.Ahead:
		return verdict{v1alpha1.ReasonAhead, fmt.Sprintf("the Lease records all ticks up to %s, which is in the future, because a clock was wrong; "+
			"no tick is due before then", r.Facts.Settled)}
	case r.overdue(t, m):
		return verdict{v1alpha1.ReasonOverdue, overdueText(r)}
	case r.decision.Next == 0 && r.ours:
		return verdict{v1alpha1.ReasonScheduled, "there is no further tick"}
	}
	return verdict{v1alpha1.ReasonScheduled, "runs start at the ticks; status.nextTick is the next one"}
}

func overdueText(r *runs) string {
	text := "a tick is due, and the candidates do not start it, for example because the clocks of a node and the API server differ by more than 30s; " +
		"their logs say why (kubectl singleton logs)"
	if r.apart {
		text += "; the clocks of the operator and the API server do"
	}
	return text
}

func badRequest(r *runs) verdict {
	return verdict{v1alpha1.ReasonRunRequestInvalid, fmt.Sprintf("the annotation %s is %q, which is not a valid request for a run: write NAME, or NAME@TICK for the run of a "+
		"tick; a name has at most 63 characters of a-z, 0-9, - and dots, and a tick has the form 2026-11-23T01:30:00Z",
		contract.RunNowAnnotation, bounded(r.badRequest, maxIdentity))}
}

func badRun(r *runs) verdict {
	return verdict{v1alpha1.ReasonBadRun, fmt.Sprintf("the record of runs in the Lease can't be read: %s; no run is started until it is repaired, or removed, which "+
		"deletes the record of all earlier runs", bounded(r.Bad, maxDetail))}
}

// complete and givenUp are the verdicts on the run of a job without a schedule, as for a Kubernetes Job.
func complete(r *runs) verdict {
	if r.final() && r.Now.State == lease.RunComplete {
		return verdict{v1alpha1.ReasonCompletionsReached, completeText(r)}
	}
	return verdict{v1alpha1.ReasonNotComplete, "the run is not complete"}
}

func givenUp(j *job, r *runs) verdict {
	switch {
	case !r.final() || r.Now.State != lease.RunGivenUp:
		return verdict{v1alpha1.ReasonNotFailed, "the run has not failed"}
	case r.Now.Reason == lease.ReasonDeadlineExceeded:
		return verdict{v1alpha1.ReasonDeadlineExceeded, failedText(r)}
	case r.Now.Reason == lease.ReasonProcessExited && slices.Contains(j.Spec.FailOnExitCodes, int32(r.Now.Code)):
		return verdict{v1alpha1.ReasonPodFailurePolicy, failedText(r)}
	}
	return verdict{v1alpha1.ReasonBackoffLimitExceeded, failedText(r)}
}

func completeText(r *runs) string {
	return fmt.Sprintf("the run was completed by %s in attempt %d", cmp.Or(r.Now.Pod, unknownPod), r.Now.Attempt)
}

func failedText(r *runs) string {
	return "the run failed, and no further attempt follows: " + endText(&r.Now)
}

// resting is the verdict on a job without an acting pod, because nothing must run now.
func resting(r *runs) verdict {
	switch {
	case r.Bad != "":
		return badRun(r)
	case r.Now.State == lease.RunFailed:
		return verdict{v1alpha1.ReasonRetrying, endText(&r.Now) + "; the next attempt starts after its delay"}
	case r.final() && r.Now.State == lease.RunGivenUp:
		return verdict{v1alpha1.ReasonRunFailed, failedText(r)}
	case r.final():
		return verdict{v1alpha1.ReasonCompleted, completeText(r)}
	}
	return verdict{v1alpha1.ReasonNotDue, "no run is due; status.nextTick is the next tick"}
}

// eventsOfRuns announces the start and the end of each run once. A process that may have failed to write these Events writes them again.
func eventsOfRuns(j *job, r *runs, status *v1alpha1.SingletonJobStatus, o *Observed) []Event {
	if r == nil {
		return nil
	}
	now := j.Status.Runs
	if status != nil {
		now = status.Runs
	}
	var events []Event
	for i := range slices.Backward(now) {
		is := &now[i]
		was := slices.IndexFunc(j.Status.Runs, func(old v1alpha1.RunStatus) bool { return old.ID == is.ID })
		again := o.EventsUnknown && happened(is, o.Now, recent) || o.Unannounced != 0 && happened(is, o.Now, retried)
		if was < 0 || again {
			events = append(events, runStarted(j.Name, is))
		}
		if ended(is) && (was < 0 || !ended(&j.Status.Runs[was]) || again) {
			events = append(events, runEnded(j.Name, is))
		}
	}
	return events
}

// requestPassedOver returns the Event about a request that was skipped.
func requestPassedOver(job, request string) *Event {
	return &Event{
		Name: runEvent(job, "passed-over", request), Type: corev1.EventTypeWarning, Reason: "RunPassedOver",
		Message: fmt.Sprintf("a run is asked for by the name %s, and one is under way: it is not followed; ask again by another name", request),
	}
}

// happened reports whether the last recorded change of a run is younger than some time.
func happened(r *v1alpha1.RunStatus, now time.Time, than time.Duration) bool {
	at := cmp.Or(r.EndTime, r.StartTime)
	return at != nil && now.Sub(at.Time) < than
}

func runStarted(job string, r *v1alpha1.RunStatus) Event {
	return Event{
		Name: runEvent(job, "run-started", r.ID), Type: corev1.EventTypeNormal, Reason: "RunStarted", Message: runName(r) + " has begun",
	}
}

func runEnded(job string, r *v1alpha1.RunStatus) Event {
	e := Event{Name: runEvent(job, "run-ended", r.ID), Type: corev1.EventTypeNormal}
	run := RunOf(r)
	switch run.State {
	case lease.RunComplete:
		e.Reason, e.Message = "RunComplete", fmt.Sprintf("%s was completed by %s in attempt %d", runName(r), cmp.Or(r.Pod, unknownPod), r.Attempts)
	case lease.RunReplaced:
		e.Reason, e.Message = "RunReplaced", runName(r)+" was stopped for the next tick"
	case v1alpha1.RunUnknown:
		e.Type, e.Reason = corev1.EventTypeWarning, "RunEndUnknown"
		e.Message = runName(r) + " ended while no operator was watching, and the Lease no longer records how"
	default:
		e.Type, e.Reason = corev1.EventTypeWarning, v1alpha1.ReasonRunFailed
		e.Message = fmt.Sprintf("%s failed, and no further attempt follows: %s", runName(r), endText(&run))
	}
	return e
}

func runEvent(job, what, id string) string {
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%s.%s-%x", job, what, sum[:8])
}

// Idle reports whether nothing must act, according to a status: no run is due, or an attempt failed and the next one follows.
func Idle(status *v1alpha1.SingletonJobStatus) bool {
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionActive)
	return c != nil && slices.Contains(
		[]string{v1alpha1.ReasonCompleted, v1alpha1.ReasonRunFailed, v1alpha1.ReasonNotDue, v1alpha1.ReasonRetrying}, c.Reason)
}

// expiresIn returns the remaining time to keep a finished job, nil for no limit. It counts from when the end was recorded, by this
// process's clock.
func expiresIn(j *job, r *runs, now time.Time) *time.Duration {
	ttl := j.Spec.TTLSecondsAfterFinished
	if ttl == nil || !r.final() {
		return nil
	}
	for i := range j.Status.Conditions {
		c := &j.Status.Conditions[i]
		if (c.Type == v1alpha1.ConditionComplete || c.Type == v1alpha1.ConditionFailed) && c.Status == "True" {
			return new(time.Duration(*ttl)*time.Second - max(0, now.Sub(c.LastTransitionTime.Time)))
		}
	}
	return new(time.Duration(*ttl) * time.Second) // it is being recorded
}
