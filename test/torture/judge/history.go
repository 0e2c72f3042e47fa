// Package judge judges a torture run by its recorded history alone. Plain values go in, and a verdict comes out. So a verdict can be
// repeated, and a unit test shows that each rule can fail.
//
// All times are CLOCK_BOOTTIME of the one machine that everything ran on: processes, sinks and judge share it.
package judge

import (
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/lease"
)

// History is the complete record of a run.
type History struct {
	Subjects []Subject
	Faults   []Fault
	// Fenced and Unfenced are the attempts that the two sinks recorded, each in the order of its own decisions.
	Fenced, Unfenced []fencetest.Attempt
	// Operations are the same writes as their clients' requests saw the fenced sink, in any order.
	Operations []Operation
	// Leases are the versions of each Lease, in the order of their revisions.
	Leases []LeaseVersion
	// Told are the histories in the versions of each job's status, in the order of their revisions.
	Told []Told
	// Forgeries are the writes of foreign writers to Leases that the API server accepted or refused.
	Forgeries []Forgery
	// Refusals are log lines of agents and operator about their own writes that the guard refused.
	Refusals []Refusal
	// Late is how long threads with nothing else to do waited for a CPU, one series for each CPU.
	Late []Lateness
	// Judged is the time after which nothing is judged, because all faults had ended and the processes were being stopped. Zero: no end.
	Judged time.Duration
	// Returned names the subjects that had a holder again after all faults.
	Returned map[string]bool
}

// A Subject is one singleton of the run.
type Subject struct {
	// Name is the job's, the Lease's, and the resource's that it writes to.
	Name string
	// Title is for people.
	Title string
	// Control is a singleton of another kind, under the same faults. It is measured, not judged.
	Control bool
	// Outlives is true where the process may outlive its lease (onRenewFailure: KeepRunning).
	Outlives bool
	// Margin is how long before another may acquire the Lease the process has to be dead.
	Margin time.Duration
}

// A Fault is one that was done, or tried.
type Fault struct {
	Kind, Detail string
	// Subject is the affected subject; empty for all.
	Subject    string
	Begin, End time.Duration
	// Failed is why it could not be done; empty if it was.
	Failed string
}

// A Forgery is a write by a client that may write Leases and is not a candidate.
type Forgery struct {
	Subject, What string
	At            time.Duration
	Stored        bool
}

// A Refusal is a line of a log.
type Refusal struct {
	Text string
	At   time.Duration
}

// An Operation is a write as a client sees it: it took effect between call and return.
type Operation struct {
	Resource     fence.Resource
	Token        fence.Token
	Call, Return time.Duration
	Accepted     bool
}

// A LeaseVersion is one version of a Lease.
type LeaseVersion struct {
	Name string
	// Revision orders it among everything that the API server stored, in whatever order watches showed it.
	Revision int64
	Seen     time.Duration
	Deleted  bool
	// Foreign is true for a version that the run itself has written, as a person would.
	Foreign bool
	// Missing marks a place where earlier versions may not have been recorded. It is not a version.
	Missing bool
	Holder  string
	Token   int64
	// Acquired is when the holder acquired it, by its own wall clock.
	Acquired time.Time
	// Ended is the latest tenure that has ended, by the Lease's own history.
	Ended Ended
}

// Ended is a tenure that has ended, and why. It is zero if there is none.
type Ended struct {
	Token  int64
	Reason lease.Reason
}

// Told is the report of one version of a status.
type Told struct {
	Name, UID string
	Revision  int64
	Seen      time.Duration
	// Tokens of the history, newest first.
	Tokens []int64
}

// Lateness is a series of one CPU, in the order of time.
type Lateness []Late

// Late is the longest single wait for the CPU since the sample before.
type Late struct{ At, Max time.Duration }

// within is the longest single wait in a span of time, of all waits that may touch the span. Many short waits do not add up: a busy
// CPU makes each step of a kill a little late, and the whole kill no later than a few of them.
func (l Lateness) within(from, to time.Duration) time.Duration {
	var longest, before time.Duration
	for _, sample := range l {
		if sample.At > from && before < to {
			longest = max(longest, sample.Max)
		}
		before = sample.At
	}
	return longest
}
