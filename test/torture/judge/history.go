// Package judge says what a torture run has shown. It sees a recorded history and nothing else: plain values in, a verdict
// out, so that what it says of a run can be said again, and each of its rules is seen to fail in a unit test.
//
// All times are CLOCK_BOOTTIME of the one machine that everything ran on: processes, sinks and judge share it.
package judge

import (
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

// History is all that a run has recorded.
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
	// Late is how much later than due threads with nothing else to do got a CPU, one series for each CPU.
	Late []Lateness
	// Judged is the time after which nothing is judged: all faults had ended, and what ran was being stopped. Zero: no end.
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
	// Subject is whom it befell; empty for all.
	Subject    string
	Begin, End time.Duration
	// Failed is why it could not be done; empty if it was.
	Failed string
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
	// Revision orders it among all that the API server stored, whichever watch showed it sooner.
	Revision int64
	Seen     time.Duration
	Deleted  bool
	// Foreign is true for a version that the run itself has written, as a person would.
	Foreign bool
	// Missing is true for no version, but where some before may not have been recorded.
	Missing bool
	Holder  string
	Token   int64
	// Acquired is when the holder acquired it, by its own wall clock.
	Acquired time.Time
}

// Told is what one version of a status tells.
type Told struct {
	Name, UID string
	Revision  int64
	Seen      time.Duration
	// Tokens of the history, newest first.
	Tokens []int64
}

// Lateness is a series of one CPU, in the order of time.
type Lateness []Late

// Late says how much lateness there had been in sum at a time.
type Late struct{ At, Sum time.Duration }

// within is how late the CPU served its thread in a span of time: the sum over all its waits that touch the span.
func (l Lateness) within(from, to time.Duration) time.Duration {
	var before, after time.Duration
	for _, sample := range l {
		if sample.At <= from {
			before = sample.Sum
		}
		after = sample.Sum
		if sample.At >= to {
			break
		}
	}
	return after - before
}
