// Package lease is the tenure state machine: who may act, from when, and until when.
//
// It is pure. [Step] takes a configuration, a state, the time and one event, and returns the next state and the
// actions that the caller must carry out. It reads no clock, sends nothing and starts nothing, so every interleaving
// can be replayed from a seed (internal/lease/sim).
//
// The whole of the safety argument is one inequality. A holder's right to act ends at
//
//	sent + leaseDuration − margin
//
// where sent is the instant before the bytes of a confirmed write left it; by then its process tree is dead, by the
// kernel's hand if need be. A candidate may take over no earlier than
//
//	seen + leaseDuration (+ lockDelay)
//
// where seen is the instant after the answer that first showed it the Lease's present revision. The holder's write
// caused that revision, so sent ≤ seen on any clock, and neither side compares its clock with another's; the margin pays
// for clocks that run at different rates and for the time that killing takes.
package lease

import (
	"strings"
	"time"
)

// Instant is a point on this machine's clock, in nanoseconds: time since boot, at the hardware's rate. Instants of two machines are never compared.
type Instant int64

// Never is later than every instant that is reached.
const Never = Instant(1<<63 - 1)

// Add returns the instant d after i. It saturates at Never.
func (i Instant) Add(d time.Duration) Instant {
	if sum := i + Instant(d); d < 0 || sum >= i {
		return sum
	}
	return Never
}

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Time is when an event is handled.
type Time struct {
	// Boot decides everything.
	Boot Instant
	// Wall is the wall clock in microseconds since the Unix epoch. It is written into the Lease for people to read, and
	// made unique it tells one attempt of this process from another. Nothing is ever decided by its order or distance but when a
	// tick comes due, together with the API server's clock; whether it is started the Lease decides.
	Wall int64
}

// Identity names one agent process.
type Identity struct {
	// Pod and PodUID say which pod the agent runs in.
	Pod, PodUID string
	// Nonce is fresh for every agent process.
	Nonce string
}

// String is the identity as it stands in spec.holderIdentity.
func (i Identity) String() string { return i.Pod + "/" + i.PodUID + "/" + i.Nonce }

// ParseIdentity is the inverse of String. ok is false for a holder that is not one of ours.
func ParseIdentity(holder string) (id Identity, ok bool) {
	parts := strings.Split(holder, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return Identity{}, false
	}
	return Identity{Pod: parts[0], PodUID: parts[1], Nonce: parts[2]}, true
}

// samePod reports whether holder is another agent process of the same pod.
func (i Identity) samePod(holder string) bool {
	other, ok := ParseIdentity(holder)
	return ok && other.Pod == i.Pod && other.PodUID == i.PodUID
}

// MaxDuration bounds how long a candidate waits for a holder, whatever the Lease says.
const MaxDuration = time.Hour

// Config is what one agent process is told. It does not change while the process lives.
type Config struct {
	Identity Identity
	// Node is the node's name, for the history.
	Node string

	// Duration is leaseDuration: how long others wait for this holder after the last change that they saw.
	Duration time.Duration
	// RenewDeadline is how long after the last confirmed renewal the process is told to stop. It is less than
	// Duration − Margin(Duration).
	RenewDeadline time.Duration
	// RetryPeriod is the time between renewals, and between reads while the watch is down.
	RetryPeriod time.Duration
	// LockDelay is waited in addition after a tenure that did not end cleanly.
	LockDelay time.Duration
	// KeepRunning lets the process run on when renewals merely fail, until another tenure is seen.
	KeepRunning bool

	// GracePeriod is the time from SIGTERM to SIGKILL when the tenure is given up of one's own accord.
	GracePeriod time.Duration
	// Jitter spreads candidates that would all take over at one instant.
	Jitter time.Duration
	// EndProvesDeath is true where every process of a tenure ends with the agent that had it and that one's leash, as where the agent is
	// PID 1 of the container's PID namespace. That an agent has started proves no end of another: see SeekDeath.
	EndProvesDeath bool

	// StopSignal is the signal by which the process is asked to end; 0 for SIGTERM, or the one that the agent got.
	StopSignal int
	// Runs is nil where the process is to run for ever.
	Runs *RunPolicy
}

// Margin is the part of leaseDuration d that the holder leaves unused: it pays for clocks that drift apart, for
// scheduling, and for the time that killing takes.
func Margin(d time.Duration) time.Duration {
	if d < 5*time.Second {
		return 500 * time.Millisecond
	}
	return max(time.Second, d/15)
}

// LateUnder is what a CPU limit alone takes from a kill, as measured (docs/timing.md): threads that use up the share of a
// period leave the group in debt, so that its next turn comes periods later, and the first of it need not be the leash's.
// The share is of one CPU; 0 is no limit.
func LateUnder(share float64, period time.Duration) time.Duration {
	if share <= 0 {
		return 0
	}
	return time.Duration(min(1.5*float64(period)/share, float64(MaxDuration)))
}

// MaxLate bounds what State.Late takes from a tenure: half of the time between a renewal's answer and the deadline without
// it, so that a tenure stays possible where nothing is ever in time.
func (c Config) MaxLate() time.Duration {
	return max(0, c.Duration-Margin(c.Duration)-c.RetryPeriod) / 2
}

// What the API accepts; its own functions say the same, and a test compares them.
const (
	MinDuration    = 3 * time.Second
	MinRetryPeriod = 200 * time.Millisecond
	// stopBudget is the least time between SIGTERM and SIGKILL of a tenure that can't be renewed.
	stopBudget = time.Second
)

// MaxRenewDeadline leaves the process time to stop.
func MaxRenewDeadline(duration time.Duration) time.Duration {
	return duration - Margin(duration) - stopBudget
}

// MaxRetryPeriod leaves a renewal that failed time to be repeated.
func MaxRetryPeriod(renewDeadline time.Duration) time.Duration { return renewDeadline * 2 / 3 }

// spare is the time from a renewal to the renew deadline. By what the API accepts it is half of retryPeriod at least.
func (c Config) spare() time.Duration {
	return max(c.RenewDeadline-c.RetryPeriod, c.RetryPeriod/3)
}

// requestTimeout is after what time without an answer the API server counts as out of reach.
func (c Config) requestTimeout() time.Duration { return c.spare() / 3 }

// ofUse is how long the answer to a request is of use, and the request left under way.
func (c Config) ofUse() time.Duration { return min(c.spare(), 30*time.Second) }

// Patience is a few round trips, but no less than minPatience, so that a busy moment costs no further request; and at the end of
// a tenure no more than maxPatience, nor than fits in three times.
const (
	roundTrips  = 4
	minPatience = 250 * time.Millisecond
	maxPatience = time.Second
)
