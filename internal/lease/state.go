package lease

import (
	"slices"
	"time"
)

// Phase is the phase of an agent.
type Phase uint8

// The phases. A tenure spans Holding and Stopping.
const (
	// Waiting: another agent holds the Lease, or its state is not known.
	Waiting Phase = iota
	// Acquiring: an acquire is in flight, or its outcome is unknown. This is not a tenure yet.
	Acquiring
	// Holding: the process runs.
	Holding
	// Stopping: the agent stops the process, then releases the Lease. No other process may start yet.
	Stopping
)

func (p Phase) String() string {
	return [...]string{"Waiting", "Acquiring", "Holding", "Stopping"}[p]
}

// Observation is the newest known state of the Lease.
type Observation struct {
	// Known is false until the first read.
	Known bool
	// Absent means that the Lease does not exist. Record.Revision is then the newest known revision.
	Absent bool
	Record Record
	// At is the instant after the answer that first showed this UID and revision. Waiting counts from At.
	At Instant
	// Fresh is when an answer or an event last showed the Lease in this state.
	Fresh Instant
	// Longest is the longest duration seen during this tenure, that is, with this UID and token. It carries over when the Lease
	// is recreated.
	Longest time.Duration
}

// Kind is the purpose of a write.
type Kind uint8

// The kinds of writes.
const (
	// Acquire begins a tenure.
	Acquire Kind = iota
	// Confirm repeats an acquire whose answer was lost, after a read has shown that the acquire is stored.
	Confirm
	// Renew extends a tenure.
	Renew
	// ReleaseLease releases the Lease.
	ReleaseLease
	// Close ends a run whose last attempt's holder vanished, and clears the holder. A candidate sends it.
	Close
)

func (k Kind) String() string {
	return [...]string{"Acquire", "Confirm", "Renew", "Release", "Close"}[k]
}

// Attempt is one write.
type Attempt struct {
	Kind Kind
	// Record is the record to store. Its UID and Revision are those that the write replaces.
	Record Record
	// Nonce is Record.RenewTime; no two attempts of one agent share it.
	Nonce int64
	// SentAt is an instant before the first byte was sent. Validity counts from SentAt.
	SentAt Instant
	// Patience is when the agent stops waiting for the answer and may send other requests. Deadline is when the answer stops
	// being useful: until then the request stays in flight, and its answer counts whenever it arrives.
	Patience, Deadline Instant
	// Again is when an agent in a hurry stops waiting, for example a holder that begins to stop. It is no later than Patience.
	Again Instant
}

// Tenure is the present tenure.
type Tenure struct {
	UID         string
	Token       int64
	Transitions int32
	// AcquireTime is the Lease's acquireTime. Any other acquire writes a different one. This includes a client-go elector's,
	// which keeps the token.
	AcquireTime int64
	// Confirmed is the SentAt of the newest write that is known to be stored.
	Confirmed Instant
	// RunUntil is when the run must end; 0 for never.
	RunUntil Instant
}

// Stop describes how the present tenure ends.
type Stop struct {
	Reason Reason
	// Lost means that another holder has the Lease or that it was deleted. There is nothing to release.
	Lost bool
	// KillAt is when the agent follows SIGTERM with SIGKILL.
	KillAt Instant
	// Signalled and Killed mean that SIGTERM and SIGKILL were sent.
	Signalled bool
	Killed    bool
	// Exits means that the agent exits when the tenure ends.
	Exits bool
	// Ending is the end of the attempt. It is set when no process lives.
	Ending Ending
}

// Tree is the known state of the tenure's processes.
type Tree struct {
	// Alive is true from StartChild until TreeGone.
	Alive bool
	// Exited is set when the user's process has ended. Code, Crashed and Reason describe that end.
	Exited  bool
	Code    int
	Crashed bool
	Reason  Reason
	// Unhealthy is the reason why the running process must end, empty if there is none. Grace is the time that it gets to stop.
	Unhealthy Reason
	Grace     time.Duration
}

// Past is the last tenure of this agent process. All processes of that tenure are dead.
type Past struct {
	Tenure Tenure
	At     Instant
	Clean  bool
	Reason Reason
}

// Death is what is known about the end of the agent process that the Lease names as its holder, if that is another agent process
// of this pod.
type Death struct {
	// Holder is the holder in question; empty for none.
	Holder string
	// Asked means that an answer is pending. Again is when the next question is due.
	Asked bool
	Again Instant
	// Proven means that the holder is dead. From is the instant from which that counts.
	Proven bool
	From   Instant
	// Seen means that an earlier answer did not prove the death: the process may have been killed only now.
	Seen bool
}

// of reports whether a holder is proven to be dead.
func (d Death) of(holder string) bool { return d.Proven && d.Holder == holder }

// State is everything that an agent remembers. The zero value is the state of an agent that has just started. Only Step changes
// it.
type State struct {
	Phase    Phase
	Observed Observation
	WatchUp  bool

	// Write and Read are the requests whose answers the agent waits for; at most one of each.
	Write *Attempt
	Read  *Reading
	// Unsettled and Pending are other writes, whose outcomes are unknown. Unsettled holds renewals and releases, oldest first;
	// Pending is an acquire or its confirmation. They can still be in flight. They and the writes sent after them all replace the
	// same revision, so at most one is stored.
	Unsettled []Attempt
	Pending   *Attempt
	// Overdue holds reads that can still be in flight, oldest first.
	Overdue []Reading

	// MustRead requires a read with an ID of at least Since, to find out the outcome of a write. A candidate sends no write
	// before the answer arrives. A holder does, unless Stale is set. Stale means that the known state certainly differs from the
	// server's, so no write can succeed without the read.
	MustRead, Stale bool
	Since           int64
	// ReadAfter is when the next read may be sent. WriteAfter is when the next write may be sent after one that failed. ReadSoon and WriteSoon
	// are the same for an agent in a hurry.
	ReadAfter, WriteAfter Instant
	ReadSoon, WriteSoon   Instant
	// RetryOnChange ends the wait for WriteAfter as soon as the agent sees the Lease at another revision.
	RetryOnChange bool
	// RenewAt is when the next renewal is due.
	RenewAt Instant
	// RoundTrip is the longest recent round trip of a request. It decays slowly. Backoff is the patience that a series of
	// failures calls for.
	RoundTrip, Backoff time.Duration
	// Answered is when a request was last answered. Disconnected means that requests since then have failed. ReconnectedAt is
	// when a request was answered again after that.
	Answered      Instant
	Disconnected  bool
	ReconnectedAt Instant
	// NotBefore is set when the API server's data goes back in time. At that instant every holder that the server may have
	// forgotten is dead.
	NotBefore Instant

	// WatchFrom is a revision that a write found outdated before the watch reported a newer one. WatchBy is when the watch must
	// have reported it; 0 if the watch is not in doubt.
	WatchFrom int64
	WatchBy   Instant

	// Server is the API server's time, for schedules.
	Server ServerClock

	// Late is the time that a kill gets in addition to the margin, because due work gets a CPU late.
	Late time.Duration

	Tenure Tenure
	Stop   Stop
	Tree   Tree
	Past   *Past
	Death  Death

	// Terminating means that the agent received Signal and must exit.
	Terminating bool
	Signal      int

	// Done means that Step has returned Exit. Nothing is done after that.
	Done bool

	// LastNonce is the newest nonce used, LastRead the ID of the newest read.
	LastNonce, LastRead int64

	// Wake is when Step must be called next if no event arrives before.
	Wake Instant
}

// Reading is a read in flight. Its instants mean the same as an Attempt's.
type Reading struct {
	ID                         int64
	SentAt, Patience, Deadline Instant
	Again                      Instant
	// Floor is the newest revision known when the read was sent. An answer below Floor is stale, or the server's data was
	// restored from a backup.
	Floor int64
}

// Awaits reports whether the answer to a write is still useful.
func (s State) Awaits(nonce int64) bool {
	mine := func(a Attempt) bool { return a.Nonce == nonce }
	return s.Write != nil && mine(*s.Write) || s.Pending != nil && mine(*s.Pending) || slices.ContainsFunc(s.Unsettled, mine)
}

// AwaitsRead reports whether the answer to a read is still useful.
func (s State) AwaitsRead(id int64) bool {
	mine := func(r Reading) bool { return r.ID == id }
	return s.Read != nil && mine(*s.Read) || slices.ContainsFunc(s.Overdue, mine)
}

// Deadline returns the instant by which the tenure's processes must be dead.
func (s State) Deadline(c Config) Instant {
	if c.KeepRunning {
		return Never
	}
	return s.ValidUntil(c)
}

// ValidUntil returns when the right to act ends unless it is renewed: Deadline without KeepRunning.
func (s State) ValidUntil(c Config) Instant { return s.Tenure.Confirmed.Add(s.lasts(c)) }

// lasts returns how long a confirmed write gives the right to act.
func (s State) lasts(c Config) time.Duration { return c.Duration - Margin(c.Duration) - s.Late }

// RenewBy returns when the agent asks the process to stop if no further write is confirmed.
func (s State) RenewBy(c Config) Instant { return s.Tenure.Confirmed.Add(s.renewBy(c)) }

// renewBy returns the time from a confirmed write to RenewBy.
func (s State) renewBy(c Config) time.Duration { return min(c.RenewDeadline, s.lasts(c)) }

// MayActUntil returns the instant before which this agent may act, as far as is known now. If the agent may not act at all, ok is
// false: it has no tenure, or it is ending its tenure.
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

// Synced reports whether a candidate is ready to take over: it knows the Lease, and its watch is open.
func (s State) Synced() bool { return s.Observed.Known && !s.Observed.Absent && s.WatchUp }

// owns reports whether a record belongs to the present tenure.
func (s State) owns(c Config, r Record) bool {
	return r.UID == s.Tenure.UID && r.Holder == c.Identity.String() && r.Token == s.Tenure.Token
}
