package lease

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/schedule"
)

// Runs are the part of a Lease that describes the runs of a job that runs to completion. The zero value belongs to a job without
// a run so far, and to a job whose process runs indefinitely.
//
// A run that goes well adds no writes: the acquire names the run, and the release says how it ended. So of all candidates that
// find a run due, one starts it, and the stored Lease is the complete knowledge about it.
type Runs struct {
	// Bad is the text found in the Lease, shortened, if these fields cannot be parsed. Then nobody starts a run, since the due
	// run may already have been executed. The operator reports it.
	Bad string
	// Now is the newest run. Past holds the runs before it, newest first; they are final. Past is shared between records and
	// never changed in place.
	Now  Run
	Past []Run
	// Asked is a run that a user requests. Answered names the last request for which a run was started.
	Asked    Request
	Answered string
	// Schedule says when runs are due; nil if there is no schedule. Facts is the known state of its ticks. The operator writes
	// Schedule.
	Schedule *schedule.Schedule
	Facts    schedule.Facts
	// Missed and Skipped count ticks without a run. Previous is the tick of the last completed run.
	Missed, Skipped int64
	Previous        schedule.Stamp
}

// Run is one run: work to do once, in as many attempts as it takes, one after another.
type Run struct {
	// ID is the run's idempotency key. All attempts of the run share it, and no other run has it. It is empty before the first
	// run.
	ID string
	// Tick is the tick of the schedule for which the run was started; 0 for none.
	Tick schedule.Stamp
	// Attempt counts acquires, from 1. It does not count started processes, because nobody can tell a process that never began
	// from one that did.
	Attempt int32
	// Ignored is how many of the attempts do not count towards RunPolicy.BackoffLimit, because they ended with an exit code of
	// RunPolicy.IgnoreCodes. Only the release of such an attempt increases it.
	Ignored int32
	State   RunState
	// Token is the last attempt's token, Pod and PodUID its pod. PodUID is needed because pod names are reused. Past runs have no
	// PodUID.
	Token       int64
	Pod, PodUID string
	// Code and Reason describe the end of the newest attempt that has ended.
	Code   int
	Reason Reason
	// Began and Ended are the start of the first attempt and the end of the last one, in milliseconds of the clocks of the
	// machines that wrote them, for people.
	Began, Ended int64
	// Until is the time after which no attempt may run; 0 for none. It is written from the later of the two clocks, and is
	// reached when both clocks have reached it.
	Until schedule.Stamp
}

// RunState is the state of a run.
type RunState string

// The states of a run. The last three are final.
const (
	// RunRunning: an attempt is in progress, or its holder has vanished.
	RunRunning RunState = "Running"
	// RunFailed: an attempt failed, and another follows.
	RunFailed RunState = "Failed"
	// RunComplete: an attempt has ended with exit code 0, and none of its processes lives.
	RunComplete RunState = "Complete"
	// RunGivenUp: no attempt follows.
	RunGivenUp RunState = "GivenUp"
	// RunReplaced: the next run came due, and the overlap policy ended this one for it.
	RunReplaced RunState = "Replaced"
)

// spent reports whether no other attempt may follow. So many attempts that they can no longer be counted are too many, even if
// they are ignored.
func (r Run) spent(limit int32) bool {
	return r.Attempt-r.Ignored > limit || r.Attempt == math.MaxInt32
}

// IsOf reports whether a run belongs to the job with that UID. No two jobs share a UID.
func (r Run) IsOf(uid string) bool {
	of, _, _ := strings.Cut(r.ID, "/")
	return r.ID != "" && of == uid
}

// Open reports whether a run was started and has no final state.
func (r Run) Open() bool { return r.State == RunRunning || r.State == RunFailed }

// Request asks for a run in addition to the schedule.
type Request struct {
	// Name tells one request from another. A request starts one run only.
	Name string
	// Tick is the tick for which the run is started; 0 for none. The schedule continues as if the run had not happened.
	Tick schedule.Stamp
}

// RunPolicy makes an agent run its process to completion, once per run.
type RunPolicy struct {
	// UID is the job's UID. The IDs of its runs begin with it.
	UID string
	// BackoffLimit is the number of attempts of a run after the first.
	BackoffLimit int32
	// ActiveDeadline is the longest time that a run may take from the start of its first attempt; 0 for no limit.
	ActiveDeadline time.Duration
	// FailCodes are exit codes after which no other attempt follows.
	FailCodes []int32
	// IgnoreCodes are exit codes of attempts that do not count towards BackoffLimit. The delay before the next attempt grows with
	// these attempts as with all others.
	IgnoreCodes []int32
	// Leaves makes the agent exit when the last run, whose last attempt ran in its pod, is over and no run is requested.
	Leaves bool
}

// Reasons for the end of a run that are not reasons for the end of a tenure.
const (
	ReasonDeadlineExceeded Reason = "DeadlineExceeded" // activeDeadlineSeconds have passed
	ReasonReplaced         Reason = "Replaced"         // the next run came due, under overlap Replace
	ReasonNotBegun         Reason = "NotBegun"         // the Lease was released before the process was started: the attempt is repeated
)

// PastRunsLimit bounds Runs.Past.
const PastRunsLimit = 5

// The delays between attempts are the same as a Kubernetes Job's.
const (
	firstBackoff = 10 * time.Second
	maxBackoff   = 6 * time.Minute
)

// backoff returns the time between the end of an attempt and the next attempt. It is 0 if something other than the process itself
// ended the attempt.
func (r Run) backoff() time.Duration {
	if r.State == RunFailed && !slices.Contains(ownFaults, r.Reason) {
		return 0
	}
	const enough = 10 // doublings
	return min(maxBackoff, firstBackoff<<min(max(0, r.Attempt-1), enough))
}

// ownFaults are the reasons for which the process itself is responsible.
var ownFaults = []Reason{ReasonProcessExited, ReasonPreActivateFailed, ReasonStartupFailed, ReasonLivenessFailed, ReasonPostStartFailed}

// OfSchedule reports whether the schedule started the run. A run requested by hand can also have a tick.
func (r Run) OfSchedule() bool { return r.Tick != 0 && strings.HasSuffix(r.ID, "/"+r.Tick.String()) }

// asked returns the request that a run must be started for, if there is one. A request for which a run exists has been answered.
func (r Runs) asked(uid string) (Request, bool) {
	id := uid + "/" + r.Asked.Name
	followed := r.Asked.Name == r.Answered || r.Now.ID == id || slices.ContainsFunc(r.Past, func(p Run) bool { return p.ID == id })
	return r.Asked, r.Asked.Name != "" && !followed
}

// facts returns the facts about the schedule. Whether a run is in progress comes from the run itself.
func (r Runs) facts() schedule.Facts {
	r.Facts.Running = r.Now.Open()
	return r.Facts
}

// started returns the runs with a new one. The run before it is over.
func (r Runs) started(run Run, c RunPolicy, t Time, later time.Time) Runs {
	if r.Now.ID != "" {
		r.Now.PodUID = "" // only the newest run's is needed
		r.Past = append([]Run{r.Now}, r.Past[:min(len(r.Past), PastRunsLimit-1)]...)
	}
	run.Attempt, run.State, run.Began = 1, RunRunning, t.Wall/1000
	if d := c.ActiveDeadline; d > 0 {
		run.Until, _ = schedule.StampOf(later.Add(d + time.Second - 1))
	}
	r.Now = run
	return r
}

// ended returns the runs after the present one has reached a final state, with the ticks that this settles.
func (r Runs) ended(state RunState, why Reason, at schedule.Stamp, wall int64) Runs {
	facts := r.facts()
	r.Now.State, r.Now.Reason, r.Now.Ended = state, why, wall
	if state == RunComplete && r.Now.OfSchedule() {
		r.Previous = max(r.Previous, r.Now.Tick)
	}
	if r.Schedule == nil {
		r.Facts = facts.Unscheduled(at)
		return r
	}
	var tally schedule.Tally
	r.Facts, tally = facts.Ended(r.Schedule, at)
	r.Missed += tally.Missed()
	r.Skipped += tally.Skipped()
	return r
}
