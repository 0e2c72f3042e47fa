// Package tenure reports the state of a tenure to a process: whether the agent of its container holds the Lease, with which fencing token,
// and until when.
//
// A process that the agent started is safe without this package. It is killed before another holder's process can start, and sinks check
// the token in its environment. Use this package to plan ahead: to finish a step in time, or to start no step that takes too long. A
// shell in the container can also query the agent.
//
// A query is not a fence. The process can pause for an hour between the answer and the next write. Only a sink that checks the token
// (package fence) rejects a late write.
//
// The package needs only the standard library. It works on Linux. On other systems there is no agent, and calls return an error that says
// so.
package tenure

import (
	"errors"
	"time"
)

// Location of the agent's socket.
const (
	// EnvSocket is the environment variable that holds the socket's path in processes that the agent started. A path that begins with @
	// names an abstract socket of Linux.
	EnvSocket = "SINGLETONJOB_SOCKET"
	// DefaultSocket is the path for all other processes of the container, unless the agent cannot write there.
	DefaultSocket = "/singletonjob/run/agent.sock"
)

// Version is the protocol version of this package. An answer with another version is an error: ErrNoAgent.
const Version = 1

// Status is the answer of an agent: one JSON object with the field names in the tags.
type Status struct {
	// Version of the protocol. A new field does not change it. A field whose meaning changes does.
	Version int `json:"version"`
	// Namespace and Name identify the SingletonJob and its Lease. Pod is the name of the agent's Pod.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pod       string `json:"pod"`
	// Phase is the agent's phase: Waiting, Acquiring, Holding or Stopping. The process may act only in phase Holding.
	Phase string `json:"phase"`
	// Holder is the Lease's holder as the agent last saw it: pod/UID/nonce, truncated to 400 bytes.
	Holder string `json:"holder"`
	// Token is the fencing token and Tenure the number of tenures so far. They are the agent's own while it has a tenure, otherwise the
	// Lease's.
	Token  int64 `json:"token"`
	Tenure int32 `json:"tenure"`
	// Run is the idempotency key of the process's run, Tick the tick of that run if it has one, and Attempt counts its attempts from 1.
	// They are omitted if there is no process, or if the process runs indefinitely.
	Run     string `json:"run,omitempty"`
	Tick    string `json:"tick,omitempty"`
	Attempt int32  `json:"attempt,omitempty"`
	// Valid is true if the process was allowed to act at the time of the answer.
	Valid bool `json:"valid"`
	// Reason says, for a human reader, why the process may not act. It is empty if Valid is true.
	Reason string `json:"reason"`
	// LeftMilliseconds is how long the process may act, counted from the answer, unless the tenure is renewed. It is 0 if the process may
	// not act. Count from before you connected. A clock that stops while the machine sleeps, or that NTP slows down, counts too little: use
	// ValidUntil if you can.
	LeftMilliseconds int64 `json:"leftMilliseconds"`
	// ValidUntil is the end of that time, in nanoseconds of CLOCK_MONOTONIC_RAW + CLOCK_BOOTTIME - CLOCK_MONOTONIC. This is the time since
	// the machine booted, including sleep. Nothing sets this clock or slows it down. ValidUntil is 0 if the process may not act.
	ValidUntil int64 `json:"validUntilNanoseconds"`
	// ValidUntilBoot is the same instant for clients that can read only CLOCK_BOOTTIME (/proc/uptime). NTP can slow that clock down, so
	// ValidUntilBoot is earlier than ValidUntil by a quarter of the time that was left when the agent answered.
	ValidUntilBoot int64 `json:"validUntilBootNanoseconds"`
}

// Left returns how long the process may act, counted from now. It is 0 or less if the process may not act.
func (s Status) Left() time.Duration {
	if !s.Valid {
		return 0
	}
	return time.Duration(s.ValidUntil - now())
}

// The errors of this package wrap one of these.
var (
	// ErrNoAgent: the state of the tenure is unknown because no agent answered. Treat it as "no tenure".
	ErrNoAgent = errors.New("no agent answers")
	// ErrNoTenure: the agent reports that there is no tenure, that it is over, or that too little time is left.
	ErrNoTenure = errors.New("no valid tenure")
)
