package lease

import (
	"slices"
	"time"
)

// Phase is where an agent stands.
type Phase uint8

// The phases. A tenure spans Holding and Stopping.
const (
	// Waiting: somebody else holds the Lease, or its state is not known.
	Waiting Phase = iota
	// Acquiring: an acquire is under way or its outcome is not known. It is not a tenure yet.
	Acquiring
	// Holding: the process runs.
	Holding
	// Stopping: the process is being stopped, or the Lease released after it. No other may start yet.
	Stopping
)

func (p Phase) String() string {
	return [...]string{"Waiting", "Acquiring", "Holding", "Stopping"}[p]
}

// Observation is the newest that is known of the Lease.
type Observation struct {
	// Known is false until the first read.
	Known bool
	// Absent says that there is no Lease; Record.Revision is then the newest revision known.
	Absent bool
	Record Record
	// At is the instant after the answer that first showed this UID and revision: waiting counts from here.
	At Instant
	// Fresh is when an answer or an event last showed it to be so.
	Fresh Instant
	// Longest is the longest duration seen of this tenure: of this UID and token, and of what was before a Lease was recreated.
	Longest time.Duration
}

// Kind is what a write is for.
type Kind uint8

// The kinds of writes.
const (
	// Acquire begins a tenure.
	Acquire Kind = iota
	// Confirm repeats an acquire whose answer was lost, now that a read has shown it stored.
	Confirm
	// Renew extends a tenure.
	Renew
	// ReleaseLease releases the Lease.
	ReleaseLease
	// Close ends a run whose last attempt's holder vanished, and frees the Lease of it. It is a candidate's.
	Close
)

func (k Kind) String() string {
	return [...]string{"Acquire", "Confirm", "Renew", "Release", "Close"}[k]
}

// Attempt is one write.
type Attempt struct {
	Kind Kind
	// Record is what to store; its UID and Revision are those to be replaced.
	Record Record
	// Nonce is Record.RenewTime; no two attempts of one agent share it.
	Nonce int64
	// SentAt is an instant before the first byte was sent. Validity counts from here.
	SentAt Instant
	// Patience is until when the answer is waited for; then others go out beside it. Deadline is until when it is of use:
	// until then the request stays under way, and its answer counts whenever it comes.
	Patience, Deadline Instant
}

// Tenure is the present tenure.
type Tenure struct {
	UID         string
	Token       int64
	Transitions int32
	// AcquireTime is the Lease's: others that acquire it write another, also a client-go elector, which keeps the token.
	AcquireTime int64
	// Confirmed is the SentAt of the newest write known to be stored.
	Confirmed Instant
	// RunUntil is when the run must end; 0 for never.
	RunUntil Instant
}

// Stop says how the present tenure is coming to its end.
type Stop struct {
	Reason Reason
	// Lost: the Lease is somebody else's or gone; there is nothing to release.
	Lost bool
	// KillAt is when SIGTERM becomes SIGKILL.
	KillAt Instant
	// Signalled and Killed say that SIGTERM, and SIGKILL, were sent.
	Signalled bool
	Killed    bool
	// Exits says that the agent ends with the tenure.
	Exits bool
	// Ending is set when no process lives, for a run.
	Ending Ending
}

// Tree is what is known of the tenure's processes.
type Tree struct {
	// Alive is true from StartChild until TreeGone.
	Alive bool
	// Exited is set when the user's process has ended; Code, Crashed and Reason are its.
	Exited  bool
	Code    int
	Crashed bool
	Reason  Reason
	// Unhealthy is why the process must end though it runs, empty if it need not, and Grace the time that it is given to.
	Unhealthy Reason
	Grace     time.Duration
}

// Past is the last tenure of this agent process: all its processes are dead.
type Past struct {
	Tenure Tenure
	At     Instant
	Clean  bool
	Reason Reason
}

// Death is what is known of the end of another agent process of this pod, which the Lease names as its holder.
type Death struct {
	// Holder is the one that it is about; empty for none.
	Holder string
	// Asked says that an answer is awaited, Again when the next question is due.
	Asked bool
	Again Instant
	// Proven says that it is dead, and From since when that counts.
	Proven bool
	From   Instant
	// Seen says that it was not proven before: it may have been killed only now.
	Seen bool
}

// of reports whether a holder is proven to be dead.
func (d Death) of(holder string) bool { return d.Proven && d.Holder == holder }

// State is all that an agent remembers. The zero value is the state of an agent that has just started. Only Step changes
// it.
type State struct {
	Phase    Phase
	Observed Observation
	WatchUp  bool

	// Write and Read are the requests whose answers are waited for; at most one of each.
	Write *Attempt
	Read  *Reading
	// Of others the outcome is not known: renewals and releases, oldest first, and an acquire or its confirmation. They
	// may be under way still. All rest on the same revision as what is sent after them, so that one at most is stored.
	Unsettled []Attempt
	Pending   *Attempt
	// Overdue are reads that may be under way still, oldest first.
	Overdue []Reading

	// MustRead asks for a read, of an ID from Since on, to find out what became of a write. A candidate's next write waits for
	// the answer; a tenure's does not, unless Stale says that what is known is certainly not what the server has: then no
	// write can succeed without it.
	MustRead, Stale bool
	Since           int64
	// ReadAfter is when the next read may go out, WriteAfter when the next write may, after one that failed.
	ReadAfter, WriteAfter Instant
	// RetryOnChange says that WriteAfter ends at once when the Lease is seen at another revision.
	RetryOnChange bool
	// RenewAt is when the next renewal is due.
	RenewAt Instant
	// RoundTrip is the longest that requests took of late, Backoff how much patience failures in a row ask for.
	RoundTrip, Backoff time.Duration
	// Answered is when a request was answered last, Disconnected says that those since were in vain, ReconnectedAt when one
	// was answered again after that.
	Answered      Instant
	Disconnected  bool
	ReconnectedAt Instant
	// NotBefore is when every holder is dead that the API server may have forgotten, after its data went back in time.
	NotBefore Instant

	// WatchFrom is a revision that a write found outdated before the watch had told so, WatchBy until when the watch has time
	// to tell; 0 if it is not doubted.
	WatchFrom int64
	WatchBy   Instant

	// Server is the API server's time, for what is due by a schedule.
	Server ServerClock

	// Late is how much more than the margin the kill is given, because what is due gets a CPU late.
	Late time.Duration

	Tenure Tenure
	Stop   Stop
	Tree   Tree
	Past   *Past
	Death  Death

	// Terminating says that the agent was told to stop, by Signal.
	Terminating bool
	Signal      int

	// Done says that Exit was asked for; nothing is done after it.
	Done bool

	// LastNonce is the newest nonce given out, LastRead the newest read.
	LastNonce, LastRead int64

	// Wake is when Step wants to be called next, if no event comes before.
	Wake Instant
}

// Reading is a read under way. Its instants are as an Attempt's.
type Reading struct {
	ID                         int64
	SentAt, Patience, Deadline Instant
	// Floor is the newest revision that was known when it was sent: an answer below it is stale, or the server's data
	// was restored from a backup.
	Floor int64
}

// Awaits reports whether the answer to a write is of use still.
func (s State) Awaits(nonce int64) bool {
	mine := func(a Attempt) bool { return a.Nonce == nonce }
	return s.Write != nil && mine(*s.Write) || s.Pending != nil && mine(*s.Pending) || slices.ContainsFunc(s.Unsettled, mine)
}

// AwaitsRead reports whether the answer to a read is of use still.
func (s State) AwaitsRead(id int64) bool {
	mine := func(r Reading) bool { return r.ID == id }
	return s.Read != nil && mine(*s.Read) || slices.ContainsFunc(s.Overdue, mine)
}

// Deadline is the instant at which the tenure's processes are dead.
func (s State) Deadline(c Config) Instant {
	if c.KeepRunning {
		return Never
	}
	return s.ValidUntil(c)
}

// ValidUntil is when the right to act ends unless it is renewed: Deadline without KeepRunning.
func (s State) ValidUntil(c Config) Instant { return s.Tenure.Confirmed.Add(s.lasts(c)) }

// lasts is for how long a confirmed write gives the right to act.
func (s State) lasts(c Config) time.Duration { return c.Duration - Margin(c.Duration) - s.Late }

// RenewBy is when the process of this tenure is told to stop if nothing is confirmed until then.
func (s State) RenewBy(c Config) Instant { return s.Tenure.Confirmed.Add(s.renewBy(c)) }

// renewBy is for how long after a confirmed write the process is not told to stop.
func (s State) renewBy(c Config) time.Duration { return min(c.RenewDeadline, s.lasts(c)) }

// MayActUntil is the instant before which this agent may act, for all that is known now. ok is false where it may not at
// all: it has no tenure, or one that it is ending.
func (s State) MayActUntil(c Config) (until Instant, ok bool) {
	if s.Phase != Holding {
		return 0, false
	}
	return s.ValidUntil(c), true
}

// Valid reports whether this agent may act at an instant.
func (s State) Valid(c Config, at Instant) bool {
	until, ok := s.MayActUntil(c)
	return ok && at < until
}

// Synced reports whether a candidate is fit to take over: it knows the Lease and hears of its changes.
func (s State) Synced() bool { return s.Observed.Known && !s.Observed.Absent && s.WatchUp }

// owns reports whether a record is that of the present tenure.
func (s State) owns(c Config, r Record) bool {
	return r.UID == s.Tenure.UID && r.Holder == c.Identity.String() && r.Token == s.Tenure.Token
}
