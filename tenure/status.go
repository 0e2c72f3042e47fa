// Package tenure tells a process of its tenure: whether the agent of its container holds the Lease, with which fencing token,
// and until when.
//
// A process that the agent started needs none of this to be safe: it is killed before anyone else may start, and the token
// in its environment is what sinks check. It is for those who want to know beforehand: to finish a step in time, to begin none
// that is too long, or to ask from a shell in the container.
//
// Asking is no fence. Between the answer and the write that follows, a process can stand still for an hour. Only a sink that
// checks the token (package fence) keeps a late write out.
//
// It needs the standard library only, and works on Linux; elsewhere there is no agent to ask, and it says so.
package tenure

import (
	"errors"
	"time"
)

// Where the agent's socket is.
const (
	// EnvSocket names the variable in which a process that the agent started finds the socket's path. One that begins with @
	// is in Linux's name space of abstract sockets.
	EnvSocket = "SINGLETONJOB_SOCKET"
	// DefaultSocket is where all others of the container find it, unless the agent could not write there.
	DefaultSocket = "/singletonjob/bin/agent.sock"
)

// Version is that of the protocol that this package speaks. An answer of another version is not understood: ErrNoAgent.
const Version = 1

// Status is the answer of an agent: one JSON object, by the names that the tags give.
type Status struct {
	// Version of the protocol. New fields do not change it, a field that means something else does.
	Version int `json:"version"`
	// Namespace and Name are those of the SingletonJob, and of its Lease. Pod is the pod that the agent runs in.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pod       string `json:"pod"`
	// Phase is where the agent stands: Waiting, Acquiring, Holding or Stopping. Only Holding comes with a right to act.
	Phase string `json:"phase"`
	// Holder is whom the Lease names, as the agent last saw it: pod/UID/nonce, cut off after 400 bytes.
	Holder string `json:"holder"`
	// Token and Tenure (how many there were) are the agent's own where it has a tenure, else those that the Lease names.
	Token  int64 `json:"token"`
	Tenure int32 `json:"tenure"`
	// Run is the idempotency key of the run that the process is for, Tick its tick if it has one, and Attempt counts from 1. They are
	// left out where there is no process, or one that is to run for ever.
	Run     string `json:"run,omitempty"`
	Tick    string `json:"tick,omitempty"`
	Attempt int32  `json:"attempt,omitempty"`
	// Valid says that the process may act, as of when the agent answered.
	Valid bool `json:"valid"`
	// Reason is why it may not, for people; empty if it may.
	Reason string `json:"reason"`
	// LeftMilliseconds is for how long it may act from when the agent answered, unless the tenure is renewed; 0 where it may not.
	// Count it from before you connected. A clock that stands still while the machine sleeps, or that NTP slows down, counts
	// too little: those who can read ValidUntil should.
	LeftMilliseconds int64 `json:"leftMilliseconds"`
	// ValidUntil is when that right ends, in nanoseconds of CLOCK_MONOTONIC_RAW + CLOCK_BOOTTIME - CLOCK_MONOTONIC: the time since
	// the machine was started, sleep included, which nobody sets or slows down. 0 where there is none.
	ValidUntil int64 `json:"validUntilNanoseconds"`
	// ValidUntilBoot is the same for readers of CLOCK_BOOTTIME (/proc/uptime) alone. NTP may have that run slow, so it is earlier
	// than ValidUntil by a quarter of the time that was left when the agent answered.
	ValidUntilBoot int64 `json:"validUntilBootNanoseconds"`
}

// Left is for how long the process may act, by a look at the clock now: 0 or less if it may not.
func (s Status) Left() time.Duration {
	if !s.Valid {
		return 0
	}
	return time.Duration(s.ValidUntil - now())
}

// What errors of this package are.
var (
	// ErrNoAgent: nothing is known of a tenure, because nobody could be asked. It is no reason to go on.
	ErrNoAgent = errors.New("no agent answers")
	// ErrNoTenure: the agent says that there is no tenure, or no more, or too little of it.
	ErrNoTenure = errors.New("no valid tenure")
)
