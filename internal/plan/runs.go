package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// runs are the runs of a job that runs to completion: what the Lease records of them, and what is requested. A job that runs indefinitely
// has nil. Only agents start and end runs. This package decides whether there are pods that can, so a mistake here costs a missed tick.
type runs struct {
	// job is the name of the job.
	job string
	// The record in the Lease; mine and ours say whether it belongs to this job.
	lease.Runs
	// mine: the record is this job's. ours: it also contains the schedule, if there is one. Until then no pod can exist.
	mine, ours bool
	// wanted is spec.schedule, nil for a job that is run once. It is the earlier schedule as long as the time of a change can't be
	// determined.
	wanted *schedule.Schedule
	// lead is how long before a tick its pods are created, unless they always exist (warm).
	lead time.Duration
	warm bool
	// suspend is spec.suspend.
	suspend bool
	// at is the time, see Observed.clock; stamp is the time of the API server, 0 if unknown.
	at    time.Time
	stamp schedule.Stamp
	// apart: the clocks of the operator and the API server disagree, and one of them may be a year ahead.
	apart bool
	// decision is what an agent would decide now.
	decision schedule.Decision
	// asked is the requested run that is not answered yet. badRequest is the text of an invalid request.
	asked      lease.Request
	badRequest string
	// again is the name in the annotation if it requests a run that is known to have begun.
	again string
	// next is the desired record in the Lease. The reason to write it is in why, which is empty if the record is up to date. If blind is
	// set, the time that the write needs is unknown.
	next  lease.Runs
	why   string
	blind bool
	// passedOver is the Event about the request that next answers without a run.
	passedOver *Event
}

func runsOf(j *job, t *tenure, o *Observed) *runs {
	if j.Spec.RunPolicy != v1alpha1.RunPolicyRunToCompletion {
		return nil
	}
	r := &runs{job: j.Name, Runs: t.Record.Runs, wanted: j.schedule, suspend: j.Spec.Suspend, at: o.clock()}
	if !o.Server.IsZero() {
		r.stamp, _ = schedule.StampOf(o.Server)
		r.apart = schedule.Clocks{Wall: o.Now, Server: o.Server}.Disagree()
	}
	if s := j.Spec.Schedule; s != nil {
		r.warm, r.lead = s.Standby == v1alpha1.StandbyWarm, s.LeadTime.Duration
	}
	r.mine = t.Presence == Ours && t.tellsOf(string(j.UID))
	if !r.mine {
		r.Runs = lease.Runs{Facts: schedule.Facts{Settled: r.Facts.Settled}}
	}
	r.ours = r.mine && (r.wanted == nil) == (r.Schedule == nil)
	if r.anotherCron() && !r.dated() { // the agents still use the earlier schedule, and so must their pods
		r.blind, r.wanted = true, r.Schedule
	}
	if r.wanted != nil {
		r.decision = r.wanted.Decide(r.Facts, schedule.Clocks{Wall: r.at, Server: r.at})
	}
	if text := j.Annotations[contract.RunNowAnnotation]; text != "" && contract.ParseRequest(text).Name == "" {
		r.badRequest = text
	}
	r.asked = r.request(j)
	r.next = r.due()
	return r
}

// anotherCron reports whether spec.schedule has other ticks than the schedule in the Lease.
func (r *runs) anotherCron() bool {
	if r.Schedule == nil || r.wanted == nil {
		return false
	}
	was, is := r.Schedule.Spec(), r.wanted.Spec()
	return was.Cron != is.Cron || was.TimeZone != is.TimeZone
}

// dated reports whether the time of a change is known well enough to settle ticks.
func (r *runs) dated() bool { return r.stamp != 0 && !r.apart }

// request returns the requested run that is not answered yet. A recorded run also answers a request: an old manifest may have restored its
// name, or someone may have edited the Lease.
func (r *runs) request(j *job) lease.Request {
	asked := contract.ParseRequest(j.Annotations[contract.RunNowAnnotation])
	id := string(j.UID) + "/" + asked.Name
	ran := r.Now.ID == id || slices.ContainsFunc(r.Past, func(p lease.Run) bool { return p.ID == id }) ||
		slices.ContainsFunc(j.Status.Runs, func(s v1alpha1.RunStatus) bool { return s.ID == id && s.Token < r.Now.Token }) // otherwise the Lease is stale
	switch {
	case asked.Name == "" || asked.Name == r.Answered:
		return lease.Request{}
	case ran:
		r.again = asked.Name
		return lease.Request{}
	}
	return asked
}

// due returns the desired record in the Lease. Each change is stored by a compare-and-swap on the record that it was computed from, so that
// no count is added twice. Times come from the API server's clock. A change that settles ticks waits until this process's clock agrees with
// that clock, because a settled tick never becomes unsettled. Other changes do not wait.
func (r *runs) due() lease.Runs {
	next := r.Runs
	note := func(why string) {
		if r.why != "" {
			why = r.why + "; " + why
		}
		r.why = why
	}
	if strings.HasPrefix(next.Bad, contract.ScheduleAnnotation) { // the rest of the record is valid
		next.Bad = ""
	}
	if next.Bad != "" {
		return r.Runs
	}
	if !r.mine {
		note("the Lease recorded the runs of another job")
	}
	r.setSchedule(&next, note)
	r.setSuspension(&next, note)
	r.setRequest(&next, note)
	if r.blind && !r.ours {
		r.why = ""
		return r.Runs
	}
	return next
}

// setSchedule sets spec.schedule in the record. Earlier ticks do not count for another cron or time zone.
func (r *runs) setSchedule(next *lease.Runs, note func(string)) {
	switch was, is := r.Schedule, r.wanted; {
	case is == nil && was == nil && r.Bad == "":
		return
	case is == nil && was == nil:
		note("the job has no schedule, and the schedule in the Lease can't be read")
	case is == nil:
		note("the job no longer has a schedule")
	case was == nil && !r.dated(): // as with another cron: it must not take effect without a date
		r.blind = true
		return
	case was == nil || r.anotherCron():
		next.Facts = next.Facts.ChangedAt(r.stamp)
		note("the schedule is " + is.Spec().Cron + " in " + is.Spec().TimeZone)
	case was.Spec() != is.Spec():
		note("the policies of the schedule have changed")
	default:
		return
	}
	next.Schedule = r.wanted
}

func (r *runs) setSuspension(next *lease.Runs, note func(string)) {
	switch suspended := next.Facts.Suspended != 0; {
	case r.wanted == nil && suspended:
		next.Facts.Suspended = 0 // otherwise no requested run would start any more
		note("without a schedule nothing is suspended")
	case r.wanted == nil || suspended == r.suspend:
	case r.stamp == 0:
		r.blind = true
	case r.suspend:
		next.Facts = next.Facts.SuspendedAt(r.stamp)
		note("the schedule is suspended")
	case !r.dated():
		r.blind = true
	default:
		facts, tally := next.Facts.Resumed(r.wanted, r.stamp)
		next.Facts = facts
		next.Missed += tally.Missed()
		next.Skipped += tally.Skipped()
		note("the schedule is resumed")
	}
}

// setRequest puts the requested run into the record. If a run is in progress, the overlap policy applies as it does to a tick: the request
// waits, or is skipped. Skipping is a final answer.
func (r *runs) setRequest(next *lease.Runs, note func(string)) {
	pending := next.Asked.Name != "" && next.Asked.Name != next.Answered
	switch {
	case r.asked == lease.Request{}:
		if pending {
			next.Asked = lease.Request{}
			note("the request for a run is withdrawn")
		}
		if r.again != "" { // otherwise it would be run again once no record of it is left
			next.Answered = r.again
			note("the run that is asked for by the name " + r.again + " was run before")
		}
	case r.suspend || next.Asked == r.asked:
	case r.Now.Open() && !r.queues():
		next.Asked, next.Answered = lease.Request{}, r.asked.Name
		r.passedOver = requestPassedOver(r.job, r.asked.Name)
		note("the run that is asked for by the name " + r.asked.Name + " is passed over, since one is under way")
	default:
		next.Asked = r.asked
		note("a run is asked for by the name " + r.asked.Name)
	}
}

// told returns the Event to emit once the write of next is stored.
func (r *runs) told() *Event {
	if r == nil || r.why == "" {
		return nil
	}
	return r.passedOver
}

// queues reports whether a run that is requested during another run waits for its end.
func (r *runs) queues() bool {
	return r.wanted != nil && r.wanted.Spec().Overlap != schedule.OverlapSkip
}

// asks reports whether there is a requested run that agents can start.
func (r *runs) asks() bool { return !r.suspend && r.asked != lease.Request{} }

// final reports whether a job without a schedule has been run, and no other run is requested.
func (r *runs) final() bool {
	return r != nil && r.ours && r.Bad == "" && r.wanted == nil && r.Now.ID != "" && !r.Now.Open() && !r.asks()
}

// outlasts reports whether a run continues although the job is suspended: with a schedule, only future runs are suspended.
func (r *runs) outlasts() bool {
	return r != nil && r.ours && r.wanted != nil && r.Now.Open()
}

// needed reports whether pods must exist.
func (r *runs) needed() bool {
	switch {
	case r == nil:
		return true
	case !r.ours || r.Bad != "":
		return false
	case r.Now.Open(), r.asks():
		return true
	case r.wanted == nil:
		return r.Now.ID == ""
	case r.suspend || r.Facts.Suspended != 0:
		return false
	case r.warm || r.decision.Verdict == schedule.Start:
		return true
	}
	return r.decision.Next != 0 && r.untilLead() <= 0
}

// untilLead returns the time until the pods of the next tick must be created.
func (r *runs) untilLead() time.Duration { return r.decision.Next.Time().Sub(r.at) - r.lead }

// waits reports whether nothing must act now: no run is due, or an attempt failed and the next one starts later.
func (r *runs) waits() bool {
	return r != nil && !(r.Now.State == lease.RunRunning || r.asks() || r.decision.Verdict == schedule.Start || r.wanted == nil && r.Now.ID == "")
}

// overdueAfter is the time by which a tick should have been started, even with the tolerated clock difference and on a busy machine.
const overdueAfter = schedule.Tolerance * 3 / 2

// overdue reports whether a tick has been due for a while and no candidate starts it, although a candidate existed and the Lease was free.
func (r *runs) overdue(t *tenure, m *members) bool {
	if r == nil || r.decision.Verdict != schedule.Start {
		return false
	}
	// A later tick may have replaced this one, and a missed tick stays unsettled.
	expired, _ := schedule.StampOf(r.at.Add(-r.wanted.Spec().StartingDeadline))
	first, _ := r.wanted.Next(max(r.Facts.Settled, expired))
	return r.at.Sub(first.Time()) >= overdueAfter && (t.Record.Free() || t.expired()) && t.Unchanged >= overdueAfter &&
		m.any(func(c candidate) bool { return c.available() && c.unready >= overdueAfter })
}

// rests reports whether no run is in progress or about to start.
func (r *runs) rests() bool { return r.waits() && r.Bad == "" && !r.Now.Open() }

// ranLast reports whether a pod's log is the log of the newest run.
func (r *runs) ranLast(pod *corev1.Pod) bool {
	return r.Now.ID != "" && r.Now.Pod == pod.Name && (r.Now.PodUID == "" || r.Now.PodUID == string(pod.UID))
}

// runsFor returns the UID of the job whose runs the agent of a pod starts, empty if it starts none.
func runsFor(pod *corev1.Pod) string {
	if c, _ := configuration(pod); c.Run != nil {
		return c.Run.JobUID
	}
	return ""
}

// isStranger reports whether a pod was created for runs of another job with this name.
func isStranger(pod *corev1.Pod, j *job) bool {
	uid := runsFor(pod)
	return uid != "" && uid != string(j.UID)
}

// credentialsOutlive is how long after a pod's grace period an API server still accepts its credentials, including the time for which it
// caches that. A pod whose kubelet is dead, and whose network works, can continue to run. (k8s.io/kubernetes, pkg/serviceaccount/claims.go:
// 60 s.)
const credentialsOutlive = 70 * time.Second

// mayStartRuns reports whether a pod's agent can still take the Lease. After its grace period the pod is dead, or its credentials are no
// longer accepted.
func mayStartRuns(pod *corev1.Pod, now time.Time) bool {
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || hasLeft(pod)
	return !over && strangerLeft(pod, now) != 0
}

// strangerLeft returns the time until no API server accepts a pod's credentials any more, negative if the pod is not being deleted.
func strangerLeft(pod *corev1.Pod, now time.Time) time.Duration {
	if pod.DeletionTimestamp == nil {
		return -1
	}
	return max(0, pod.DeletionTimestamp.Add(credentialsOutlive).Sub(now))
}

// dismissed returns the strangers that nothing else deletes. A stranger that holds the Lease can end its run first.
func dismissed(t *tenure, m *members) []PodRef {
	var refs []PodRef
	for _, pod := range m.strangers {
		holds := t.holder.Pod == pod.Name && t.holder.PodUID == string(pod.UID) && !t.expired()
		if pod.DeletionTimestamp == nil && !holds && metav1.GetControllerOf(pod) == nil {
			refs = append(refs, PodRef{Name: pod.Name, UID: pod.UID})
		}
	}
	return refs
}

// RunOf converts a run from its form in a status.
func RunOf(s *v1alpha1.RunStatus) lease.Run {
	run := lease.Run{
		ID: s.ID, Attempt: max(1, s.Attempts), Ignored: s.IgnoredAttempts, State: lease.RunState(s.State), Token: s.Token, Pod: s.Pod,
		Code: int(ptr.Deref(s.ExitCode, 0)), Reason: lease.Reason(s.Reason),
	}
	if s.Tick != nil {
		run.Tick, _ = schedule.StampOf(s.Tick.Time)
	}
	if s.StartTime != nil {
		run.Began = s.StartTime.UnixMilli()
	}
	if s.EndTime != nil {
		run.Ended = s.EndTime.UnixMilli()
	}
	return run
}

// runName describes a run for users.
func runName(r *v1alpha1.RunStatus) string {
	if r.Tick != nil {
		return "the run of tick " + r.Tick.UTC().Format(time.RFC3339)
	}
	if _, name, ok := strings.Cut(r.ID, "/"); ok {
		return "the run " + name
	}
	return "the run"
}

// endText says how a run ended.
func endText(r *lease.Run) string {
	reason := string(cmp.Or(r.Reason, lease.ReasonLeaseExpired))
	if r.Reason == lease.ReasonProcessExited {
		reason = fmt.Sprintf("it exited with status %d", r.Code)
	}
	return fmt.Sprintf("%s in attempt %d", reason, r.Attempt)
}
