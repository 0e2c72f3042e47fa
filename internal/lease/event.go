package lease

import (
	"time"

	"github.com/singletonjob/operator/internal/schedule"
)

// Event is something that happened. The caller feeds events to Step one at a time, in the order in which it learned of
// them.
type Event interface{ event() }

// Ticked says that time has passed: State.Wake is reached, or an event without a meaning of its own came in. It is
// always safe.
type Ticked struct{}

// WatchOpened says that changes of the Lease are being watched from now on.
type WatchOpened struct{}

// WatchClosed says that changes may be missed until the next WatchOpened.
type WatchClosed struct{}

// Watched is a Lease as a watch delivered it, perhaps late and perhaps out of order.
type Watched struct {
	Record Record
	// Deleted says that Record was the last state of a Lease that is gone; its Revision is that of the deletion.
	Deleted bool
}

// ReadDone answers SendRead.
type ReadDone struct {
	// ID is that of the SendRead. The answer to one that is not waited for any more counts too, if it is news.
	ID int64
	// Found is the answer, Absent says that there is no such Lease. With neither, the read failed.
	Found  *Record
	Absent bool
	// Date is the time by the API server's clock that came with the answer, in seconds since 1970; 0 where none did.
	Date int64
}

// WriteDone answers SendWrite.
type WriteDone struct {
	// Nonce is that of the attempt. Several may be under way, and the answers may come in any order.
	Nonce   int64
	Outcome Outcome
	// Record is what was stored; set with Confirmed.
	Record *Record
}

// Outcome is what is known of a write.
type Outcome uint8

// What may become of a write.
const (
	// Unknown: no answer in time, a broken connection, a server error. It may have been stored, or be stored later.
	Unknown Outcome = iota
	// Confirmed: it was stored.
	Confirmed
	// Conflict: it was not stored, because the Lease is no longer at that revision.
	Conflict
	// Gone: it was not stored, because there is no such Lease.
	Gone
	// Refused: it was certainly not stored, for any other reason (not authorised, throttled, never sent).
	Refused
)

// ChildExited says that the user's process has ended by itself or by a signal. Descendants may live on.
type ChildExited struct {
	// Code is its exit status, 128+n for signal n.
	Code int
	// Crashed is true unless it exited by itself and in order: with status 0, or with the one that stands for the signal
	// by which it was asked to.
	Crashed bool
	// Reason is why, where it was the caller who ended it; empty for ReasonProcessExited.
	Reason Reason
}

// Unhealthy says that the process is of no use any more, by a probe or its postStart hook. It counts for a process that is not being
// stopped already.
type Unhealthy struct {
	// Reason is the one of the tenure's end.
	Reason Reason
	// Grace is the time from SIGTERM to SIGKILL.
	Grace time.Duration
}

// TreeGone says that every process of the tenure is dead and reaped. It follows every StartChild once, also where
// starting failed.
type TreeGone struct{}

// Starved says how late what is due gets a CPU here: an estimate, which replaces the last one. Zero is a machine without
// such trouble.
type Starved struct{ Late time.Duration }

// DeathSought answers SeekDeath.
type DeathSought struct {
	Holder string
	// Dead says that it is proven: neither that agent process nor its leash lives. Otherwise nothing is known.
	Dead bool
}

// Terminated says that the agent was asked to stop for good.
type Terminated struct {
	// Signal is forwarded to the process.
	Signal int
}

func (Ticked) event()      {}
func (WatchOpened) event() {}
func (WatchClosed) event() {}
func (Watched) event()     {}
func (ReadDone) event()    {}
func (WriteDone) event()   {}
func (ChildExited) event() {}
func (Unhealthy) event()   {}
func (TreeGone) event()    {}
func (Starved) event()     {}
func (DeathSought) event() {}
func (Terminated) event()  {}

// Action is something for the caller to do at once, in the order given. None of them may block Step's caller.
type Action interface{ action() }

// SendWrite replaces the Lease at Attempt.Record.Revision (and UID) by Attempt.Record, on condition that it is still at
// that revision. Exactly one WriteDone follows, by Attempt.Deadline. It goes out beside requests that are under way, none
// of which it may wait for; those that the state names no more (State.Awaits) are given up.
type SendWrite struct{ Attempt Attempt }

// SendRead reads the Lease, not from a cache, beside requests that are under way. One ReadDone follows, by Deadline.
type SendRead struct {
	ID       int64
	Deadline Instant
}

// RestartWatch asks for a fresh watch: a write met a revision that the present watch should have told of, and has not.
type RestartWatch struct{}

// SeekDeath asks for evidence that another agent process of this pod, and its leash, are dead. One DeathSought follows, or none.
// Nothing waits for it but a takeover before the lease has run out.
type SeekDeath struct{ Holder string }

// StartChild starts the user's process, unless Deadline has passed. The kernel must kill it at Deadline unless
// ExtendLeash moved that.
type StartChild struct {
	Token    int64
	Tenure   int32 // leaseTransitions
	Deadline Instant
	// Run is what is to be run; empty where the process is to run for ever. Previous is the tick of the last run that was completed.
	Run      Run
	Previous schedule.Stamp
}

// ExtendLeash moves the instant at which the kernel kills the process tree. Never means that the tree must only not
// outlive the agent.
type ExtendLeash struct{ Deadline Instant }

// SignalChild sends a signal to the main process, and to nobody else.
type SignalChild struct{ Signal int }

// KillTree sends SIGKILL to every process of the tenure until none is left; TreeGone follows.
type KillTree struct{}

// Exit ends the agent with Code.
type Exit struct{ Code int }

// TenureEnded reports, for logs and metrics, that a tenure is over: no process of it lives.
type TenureEnded struct {
	Token  int64
	Reason Reason
	// Released is false where the Lease could not be released, or was lost.
	Released bool
	// Run is how far the run has got, where the Lease was released; empty without one.
	Run RunState
}

func (SendWrite) action()    {}
func (SendRead) action()     {}
func (RestartWatch) action() {}
func (SeekDeath) action()    {}
func (StartChild) action()   {}
func (ExtendLeash) action()  {}
func (SignalChild) action()  {}
func (KillTree) action()     {}
func (Exit) action()         {}
func (TenureEnded) action()  {}
