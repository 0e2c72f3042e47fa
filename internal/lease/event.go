package lease

import (
	"time"

	"github.com/singletonjob/operator/internal/schedule"
)

// Event is something that happened. The caller passes events to Step one at a time, in the order in which it learned of them.
type Event interface{ event() }

// Ticked means that time has passed: State.Wake is reached, or something without an event of its own happened. It is always safe.
type Ticked struct{}

// WatchOpened means that changes of the Lease are watched from now on.
type WatchOpened struct{}

// WatchClosed means that changes can be missed until the next WatchOpened.
type WatchClosed struct{}

// Watched is a Lease as a watch delivered it, possibly late or out of order.
type Watched struct {
	Record Record
	// Deleted means that the Lease was deleted and Record is its last state. Its Revision is the revision of the deletion.
	Deleted bool
}

// ReadDone answers SendRead.
type ReadDone struct {
	// ID is the ID of the SendRead. A late answer, for which the agent no longer waits, also counts if it brings something new.
	ID int64
	// Found is the Lease. Absent means that the Lease does not exist. If neither is set, the read failed.
	Found  *Record
	Absent bool
	// Date is the API server's time that came with the answer, in seconds since 1970; 0 if there was none.
	Date int64
}

// WriteDone answers SendWrite.
type WriteDone struct {
	// Nonce is the attempt's nonce. Several writes can be in flight, and their answers can arrive in any order.
	Nonce   int64
	Outcome Outcome
	// Record is the stored record; set with Confirmed.
	Record *Record
}

// Outcome is what is known about a write.
type Outcome uint8

// The outcomes of a write.
const (
	// Unknown: no answer in time, a broken connection, or a server error. The write may have been stored, or may still be stored
	// later.
	Unknown Outcome = iota
	// Confirmed: it was stored.
	Confirmed
	// Conflict: it was not stored, because the Lease is no longer at that revision.
	Conflict
	// Gone: it was not stored, because the Lease does not exist.
	Gone
	// Refused: it was certainly not stored, for any other reason (not authorized, throttled, never sent).
	Refused
)

// ChildExited means that the user's process has ended by itself or by a signal. Its descendants can live on.
type ChildExited struct {
	// Code is its exit status, 128+n for signal n.
	Code int
	// Crashed is true unless the process exited by itself and in order: with status 0, or with the status that stands for the
	// signal that asked it to end.
	Crashed bool
	// Reason is the reason if the caller ended the process; empty for ReasonProcessExited.
	Reason Reason
}

// Unhealthy means that a probe or the postStart hook has failed, and the process must end. It has no effect on a process that is
// already being stopped.
type Unhealthy struct {
	// Reason becomes the reason for the end of the tenure.
	Reason Reason
	// Grace is the time from SIGTERM to SIGKILL.
	Grace time.Duration
}

// TreeGone means that every process of the tenure is dead and reaped. It follows every StartChild once, even if the start failed.
type TreeGone struct{}

// Starved reports how late due work gets a CPU on this machine. It is an estimate that replaces the previous one. Zero means no
// delay.
type Starved struct{ Late time.Duration }

// DeathSought answers SeekDeath.
type DeathSought struct {
	Holder string
	// Dead means proof that neither that agent process nor its leash lives. Otherwise nothing is known.
	Dead bool
}

// Terminated means that the agent was asked to exit.
type Terminated struct {
	// Signal is forwarded to the process.
	Signal int
}

// GraceEnds means that the agent's container will be killed shortly after At, so that no process of the tenure may live at At. It
// counts from Terminated on. Of several, the earliest counts.
type GraceEnds struct{ At Instant }

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
func (GraceEnds) event()   {}

// Action is something that the caller must do at once, in the order given. No action may block Step's caller.
type Action interface{ action() }

// SendWrite replaces the Lease at Attempt.Record.Revision (and UID) with Attempt.Record, on condition that the Lease is still at
// that revision. Exactly one WriteDone follows, by Attempt.Deadline. The write goes out beside requests that are in flight and
// must not wait for any of them. The caller gives up writes that the state no longer names (State.Awaits).
type SendWrite struct{ Attempt Attempt }

// SendRead reads the Lease, not from a cache, beside requests that are in flight. One ReadDone follows, by Deadline.
type SendRead struct {
	ID       int64
	Deadline Instant
	// Floor is the newest revision at which the Lease is known to exist; 0 if it is not known to exist. The caller confirms an
	// answer that contradicts it: one API server of several can lag, or have lost its data.
	Floor int64
}

// RestartWatch asks for a new watch: a write met a revision that the present watch should have reported and has not.
type RestartWatch struct{}

// SeekDeath asks for evidence that another agent process of this pod, and its leash, are dead. One DeathSought follows, or none.
// Only a takeover before the lease has run out waits for it.
type SeekDeath struct{ Holder string }

// StartChild starts the user's process, unless Deadline has passed. The kernel must kill the process at Deadline unless
// ExtendLeash has moved it.
type StartChild struct {
	Token    int64
	Tenure   int32 // leaseTransitions
	Deadline Instant
	// Run is the run to execute; empty if the process runs indefinitely. Previous is the tick of the last completed run.
	Run      Run
	Previous schedule.Stamp
}

// ExtendLeash moves the instant at which the kernel kills the process tree. With Never, the tree only must not outlive the agent.
type ExtendLeash struct{ Deadline Instant }

// SignalChild sends a signal to the main process only.
type SignalChild struct{ Signal int }

// KillTree sends SIGKILL to every process of the tenure until none is left; TreeGone follows.
type KillTree struct{}

// Exit ends the agent with Code.
type Exit struct{ Code int }

// TenureEnded reports, for logs and metrics, that a tenure is over: no process of it lives.
type TenureEnded struct {
	Token  int64
	Reason Reason
	// Released is false if the Lease could not be released, or was lost.
	Released bool
	// Run is the state of the run if the Lease was released; empty without a run.
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
