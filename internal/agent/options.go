//go:build linux

package agent

import (
	"context"
	"syscall"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/probe"
	"github.com/singletonjob/operator/internal/supervise"
)

// API is what the agent asks of the API server; *kubelease.Client is one.
type API interface {
	Get(ctx context.Context) (kubelease.Answer, error)
	Update(ctx context.Context, base *kubelease.Object, r lease.Record) (lease.Outcome, *kubelease.Object, error)
	Watch(ctx context.Context, restart <-chan struct{}, emit func(kubelease.WatchEvent))
}

// Process is the process tree of one tenure; *supervise.Tree is one.
type Process interface {
	Extend(deadline int64) error
	Signal(syscall.Signal) error
	Kill()
	// Exec runs a command beside the main process, without blocking: see supervise.Tree.
	Exec(supervise.ExecSpec) (<-chan supervise.ExecResult, error)
	Started() <-chan error
	Exited() <-chan supervise.Status
	Gone() <-chan struct{}
}

// Clock tells the time and wakes the agent.
type Clock interface {
	Now() lease.Time
	// WakeAt has C receive at an instant; only the last call counts.
	WakeAt(lease.Instant)
	C() <-chan struct{}
}

// Options are what an Agent is made of.
type Options struct {
	Config    contract.AgentConfig
	Identity  lease.Identity
	Node      string
	Namespace string
	// EndProvesDeath: see lease.Config.
	EndProvesDeath bool
	// Dead reports whether it is proven that the agent process of this pod with a nonce is dead, and its leash. It may hang. May be nil.
	Dead func(nonce string) bool

	// KnowsOutside says that each signal of the runtime is a sender.Outside: this is PID 1 of a PID namespace, which the runtime is not in.
	KnowsOutside bool

	// Terminal says that the agent has a controlling terminal, as with tty: true.
	Terminal bool

	// Argv is the user's command, Environ the environment that the agent itself was started with.
	Argv, Environ []string
	// Socket is the path of the agent's socket, which the process is given; empty for none.
	Socket string

	API   API
	Clock Clock
	// Check asks a process, by anything but a command, until the context ends.
	Check func(context.Context, contract.Check) probe.Result
	// Call makes a hook's request, until the context ends. Any answer is a success.
	Call func(context.Context, *contract.HTTPGet) error
	// CPULimit is what the agent's cgroup may use of one CPU, and in which periods; 0 or nil for any.
	CPULimit func() (share float64, period time.Duration)
	// CannotExecute is why a file can't be executed in an environment, where that is certain. It may hang. May be nil.
	CannotExecute func(file string, env []string) error
	// Start starts a process tree, without waiting until it has started; nothing is left of an attempt that fails.
	Start func(supervise.Spec) (Process, error)
	Log   *Log
}
