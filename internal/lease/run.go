package lease

import (
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/schedule"
)

// Runs are what a Lease says of the runs of a job that runs to completion. The zero value is that of one that has not run yet, and of
// a job whose process is to run for ever.
//
// No write is added to a run that goes well: the acquire names it, and the release says how it ended. So of all who find that a run is
// due one starts it, and what was stored is all that there is to know of it.
type Runs struct {
	// Bad is what stands in the Lease in place of all this, cut short, if that can't be read. Then nobody starts a run, since what is
	// due may have been run; the operator says so.
	Bad string
	// Now is the newest run, Past are those before it, newest first, and final. Past is shared between records and never changed
	// in place.
	Now  Run
	Past []Run
	// Asked is a run that a person asks for; Answered names the last such that was started.
	Asked    Request
	Answered string
	// Schedule says when runs are due, nil where nothing does, and Facts what is known of its ticks. The operator writes the former.
	Schedule *schedule.Schedule
	Facts    schedule.Facts
	// Missed and Skipped count ticks that had no run. Previous is the tick of the last run that was completed.
	Missed, Skipped int64
	Previous        schedule.Stamp
}

// Run is one run: work that is to be done once, in as many attempts as it takes, one after another.
type Run struct {
	// ID is the run's idempotency key: the same for all its attempts, and no other run's. Empty before the first run.
	ID string
	// Tick is that of the schedule which the run is for; 0 for none.
	Tick schedule.Stamp
	// Attempt counts acquires, from 1: nobody can tell a process that never began from one that did.
	Attempt int32
	State   RunState
	// Token is that of the last attempt, Pod and PodUID its pod: names come again. Past runs have no PodUID.
	Token       int64
	Pod, PodUID string
	// Code and Reason say how the last attempt ended that has.
	Code   int
	Reason Reason
	// Began and Ended are the first attempt's begin and the last one's end, in milliseconds of the clocks of who wrote them, for people.
	Began, Ended int64
	// Until is when no attempt may run any more, 0 for none: when both clocks have reached it, of which the later one wrote it.
	Until schedule.Stamp
}

// RunState is how far a run has got.
type RunState string

// The states of a run. The last three are final.
const (
	// RunRunning: an attempt is under way, or its holder vanished.
	RunRunning RunState = "Running"
	// RunFailed: an attempt failed, and another follows.
	RunFailed RunState = "Failed"
	// RunComplete: an attempt has ended with 0, and all its processes are gone.
	RunComplete RunState = "Complete"
	// RunGivenUp: no attempt follows.
	RunGivenUp RunState = "GivenUp"
	// RunReplaced: the next run came due, and the overlap policy ended this one for it.
	RunReplaced RunState = "Replaced"
)

// IsOf reports whether a run is one of the job of that UID: no two jobs share one.
func (r Run) IsOf(uid string) bool {
	of, _, _ := strings.Cut(r.ID, "/")
	return r.ID != "" && of == uid
}

// Open reports whether a run was started and its last word is not said.
func (r Run) Open() bool { return r.State == RunRunning || r.State == RunFailed }

// Request asks for a run beside the schedule.
type Request struct {
	// Name tells one request from another. It is followed once.
	Name string
	// Tick is what the run is for; 0 for none. The schedule goes on as if there had been no such run.
	Tick schedule.Stamp
}

// RunPolicy makes an agent run its process to completion, once for each run.
type RunPolicy struct {
	// UID is the job's, with which the IDs of its runs begin.
	UID string
	// BackoffLimit is how many attempts a run has after the first.
	BackoffLimit int32
	// ActiveDeadline is how long after its first attempt began a run may last; 0 for ever.
	ActiveDeadline time.Duration
	// FailCodes are exit codes after which no attempt follows.
	FailCodes []int32
	// Leaves has the agent end when the run that its pod ran last is over, and nothing is asked for.
	Leaves bool
}

// Reasons of runs' ends that are not those of tenures.
const (
	ReasonDeadlineExceeded Reason = "DeadlineExceeded" // activeDeadlineSeconds are over
	ReasonReplaced         Reason = "Replaced"         // the next run came due, under overlap Replace
	ReasonNotBegun         Reason = "NotBegun"         // the Lease was given back before the process was started: the attempt is made again
)

// PastRunsLimit bounds Runs.Past.
const PastRunsLimit = 5

// The delays between attempts, as a Job's.
const (
	firstBackoff = 10 * time.Second
	maxBackoff   = 6 * time.Minute
)

// backoff is how long after its end an attempt is followed by the next. One that was ended by others is followed at once.
func (r Run) backoff() time.Duration {
	if r.State == RunFailed && !slices.Contains(ownFaults, r.Reason) {
		return 0
	}
	const enough = 10 // doublings
	return min(maxBackoff, firstBackoff<<min(max(0, r.Attempt-1), enough))
}

// ownFaults are the process's own.
var ownFaults = []Reason{ReasonProcessExited, ReasonPreActivateFailed, ReasonStartupFailed, ReasonLivenessFailed, ReasonPostStartFailed}

// OfSchedule reports whether it was the schedule that asked for the run. One by hand may be for a tick, too.
func (r Run) OfSchedule() bool { return r.Tick != 0 && strings.HasSuffix(r.ID, "/"+r.Tick.String()) }

// asked is the request that is to be followed, if one is. One of which there is a run was.
func (r Runs) asked(uid string) (Request, bool) {
	id := uid + "/" + r.Asked.Name
	followed := r.Asked.Name == r.Answered || r.Now.ID == id || slices.ContainsFunc(r.Past, func(p Run) bool { return p.ID == id })
	return r.Asked, r.Asked.Name != "" && !followed
}

// facts are those of the schedule. That a run is under way is what the run says.
func (r Runs) facts() schedule.Facts {
	r.Facts.Running = r.Now.Open()
	return r.Facts
}

// started are the runs with a new one. The one before it is over.
func (r Runs) started(run Run, c RunPolicy, t Time, later time.Time) Runs {
	if r.Now.ID != "" {
		r.Now.PodUID = "" // of which only the newest run's matters
		r.Past = append([]Run{r.Now}, r.Past[:min(len(r.Past), PastRunsLimit-1)]...)
	}
	run.Attempt, run.State, run.Began = 1, RunRunning, t.Wall/1000
	if d := c.ActiveDeadline; d > 0 {
		run.Until, _ = schedule.StampOf(later.Add(d + time.Second - 1))
	}
	r.Now = run
	return r
}

// ended are the runs after the last word on the present one: its state, and what became of the ticks that it settles.
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
