// Package lease is the tenure state machine. It decides who may act, from when, and until when.
//
// It is pure. [Step] takes a configuration, a state, the time and one event. It returns the next state and the actions that the
// caller must carry out. It reads no clock, sends nothing and starts nothing, so every interleaving can be replayed from a seed
// (internal/lease/sim).
//
// The whole safety argument is one inequality. A holder's right to act ends at
//
//	sent + leaseDuration − margin
//
// where sent is an instant before the first byte of a confirmed write left the holder. By that deadline its process tree is dead;
// if necessary, the kernel kills it. A candidate can take over no earlier than
//
//	seen + leaseDuration (+ lockDelay)
//
// where seen is the instant after the answer that first showed the candidate the Lease's present revision. The holder's write
// caused that revision, so sent ≤ seen on any clock, and neither side compares its clock with the other's. The margin pays for
// clocks that run at different rates and for the time that killing takes.
package lease

import (
	"strings"
	"time"
)

// Instant is a point on this machine's clock, in nanoseconds: time since boot, at the hardware's rate. Instants of two machines
// are never compared.
type Instant int64

// Never is later than every instant that the clock reaches.
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

// Time is the time at which an event is handled.
type Time struct {
	// Boot is the clock that all decisions use, but for the due time of ticks.
	Boot Instant
	// Wall is the wall clock in microseconds since the Unix epoch. It is written into the Lease for people to read. Made unique,
	// it tells one attempt of this process from another. Its order and its distances decide one thing only: together with the API
	// server's clock, when a tick is due. Whether the tick's run is started depends on the Lease.
	Wall int64
}

// Identity names one agent process.
type Identity struct {
	// Pod and PodUID name the pod that the agent runs in.
	Pod, PodUID string
	// Nonce is fresh for every agent process.
	Nonce string
}

// String returns the identity as written in spec.holderIdentity.
func (i Identity) String() string { return i.Pod + "/" + i.PodUID + "/" + i.Nonce }

// ParseIdentity is the inverse of String. ok is false for a holder that is not an agent of this operator.
func ParseIdentity(holder string) (id Identity, ok bool) {
	parts := strings.Split(holder, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return Identity{}, false
	}
	return Identity{Pod: parts[0], PodUID: parts[1], Nonce: parts[2]}, true
}

// samePod reports whether holder is an agent process of the same pod.
func (i Identity) samePod(holder string) bool {
	other, ok := ParseIdentity(holder)
	return ok && other.Pod == i.Pod && other.PodUID == i.PodUID
}

// MaxDuration bounds how long a candidate waits for a holder, whatever duration the Lease shows.
const MaxDuration = time.Hour

// Config is the configuration of one agent process. It does not change while the process lives.
type Config struct {
	Identity Identity
	// Node is the node's name, for the tenure history.
	Node string

	// Duration is leaseDuration: how long other candidates wait for this holder after the last change that they saw.
	Duration time.Duration
	// RenewDeadline is the time from the last confirmed renewal until the agent asks the process to stop. It is less than
	// Duration − Margin(Duration).
	RenewDeadline time.Duration
	// RetryPeriod is the time between renewals, and between reads while the watch is down.
	RetryPeriod time.Duration
	// LockDelay is an additional wait after a tenure that did not end cleanly.
	LockDelay time.Duration
	// KeepRunning lets the process keep running when renewals merely fail, until the agent sees another tenure.
	KeepRunning bool

	// GracePeriod is the time from SIGTERM to SIGKILL when the agent ends the tenure itself.
	GracePeriod time.Duration
	// Jitter spreads candidates that would otherwise take over at the same instant.
	Jitter time.Duration
	// EndProvesDeath is true where every process of a tenure ends with the tenure's agent and that agent's leash, for example
	// where the agent is PID 1 of the container's PID namespace. The start of one agent does not prove the end of another: see
	// SeekDeath.
	EndProvesDeath bool

	// StopSignal is the signal that asks the process to end. 0 stands for the signal that the agent received, or else SIGTERM.
	StopSignal int
	// Runs is nil if the process runs indefinitely.
	Runs *RunPolicy
}

// Margin is the part of leaseDuration d that the holder leaves unused. It pays for clocks that drift apart, for scheduling, and
// for the time that killing takes.
func Margin(d time.Duration) time.Duration {
	if d < 5*time.Second {
		return 500 * time.Millisecond
	}
	return max(time.Second, d/15)
}

// LateUnder returns how much a CPU limit alone delays a kill, as measured (docs/timing.md). Threads that use up the quota of a
// period leave the cgroup in debt. The cgroup then runs again only periods later, and the leash need not run first. share is a
// share of one CPU; 0 means no limit.
func LateUnder(share float64, period time.Duration) time.Duration {
	if share <= 0 {
		return 0
	}
	return time.Duration(min(1.5*float64(period)/share, float64(MaxDuration)))
}

// MaxLate bounds how much State.Late shortens a tenure: half of the time between the answer to a renewal and the deadline without
// it. A tenure thus stays possible where nothing ever runs on time.
func (c Config) MaxLate() time.Duration {
	return max(0, c.Duration-Margin(c.Duration)-c.RetryPeriod) / 2
}

// Limits of the API. The API's own functions have the same limits, and a test compares them.
const (
	MinDuration    = 3 * time.Second
	MinRetryPeriod = 200 * time.Millisecond
	// stopBudget is the least time between SIGTERM and SIGKILL in a tenure that cannot be renewed.
	stopBudget = time.Second
)

// MaxRenewDeadline returns the longest renewDeadline that leaves the process time to stop.
func MaxRenewDeadline(duration time.Duration) time.Duration {
	return duration - Margin(duration) - stopBudget
}

// MaxRetryPeriod returns the longest retryPeriod that leaves time to repeat a failed renewal.
func MaxRetryPeriod(renewDeadline time.Duration) time.Duration { return renewDeadline * 2 / 3 }

// spare returns the time from a due renewal to the renew deadline. With values that the API accepts, it is at least half of
// retryPeriod.
func (c Config) spare() time.Duration {
	return max(c.RenewDeadline-c.RetryPeriod, c.RetryPeriod/3)
}

// requestTimeout returns the time without an answer after which the API server counts as unreachable.
func (c Config) requestTimeout() time.Duration { return c.spare() / 3 }

// ofUse returns how long the answer to a request is useful. The request stays in flight for that long.
func (c Config) ofUse() time.Duration { return min(c.spare(), 30*time.Second) }

// Limits of a request's patience, see machine.patience. Patience is a few round trips, but at least minPatience, so that a busy
// moment causes no further request. Near the end of a tenure it is at most maxPatience, and short enough to fit three times. As long as an
// agent need not act, its patience is also a part of what retryPeriod has beyond the default, and of the remaining time: see
// machine.unhurried.
const (
	roundTrips     = 4
	minPatience    = 250 * time.Millisecond
	maxPatience    = time.Second
	usualRetry     = 2 * time.Second
	unhurriedShare = 4
)
