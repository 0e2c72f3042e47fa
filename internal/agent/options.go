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

// API is the agent's interface to the API server. *kubelease.Client implements it.
type API interface {
	Get(ctx context.Context, floor int64) (kubelease.Answer, error)
	Update(ctx context.Context, base *kubelease.Object, r lease.Record) (lease.Outcome, *kubelease.Object, error)
	Watch(ctx context.Context, restart <-chan struct{}, emit func(kubelease.WatchEvent))
}

// Process is the process tree of one tenure. *supervise.Tree implements it.
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

// Clock returns the time and wakes the agent.
type Clock interface {
	Now() lease.Time
	// WakeAt makes C receive at an instant. Only the last call counts.
	WakeAt(lease.Instant)
	C() <-chan struct{}
}

// Options are the parameters of New.
type Options struct {
	Config    contract.AgentConfig
	Identity  lease.Identity
	Node      string
	Namespace string
	// EndProvesDeath: see lease.Config.
	EndProvesDeath bool
	// Dead reports whether it is proven that the agent of this Pod with the given nonce and its leash are dead. It can hang. It can be nil.
	Dead func(nonce string) bool

	// KnowsOutside is true if every signal of the runtime is a sender.Outside: this process is PID 1 of a PID namespace that does not
	// contain the runtime.
	KnowsOutside bool

	// Terminal is true if the agent has a controlling terminal, as with tty: true.
	Terminal bool

	// Argv is the user's command. Environ is the environment that the agent was started with.
	Argv, Environ []string
	// Socket is the path of the agent's socket, which the process gets in its environment. It is empty if there is none.
	Socket string

	API   API
	Clock Clock
	// Check makes any check of the process except an exec check, until the context ends.
	Check func(context.Context, contract.Check) probe.Result
	// Call makes a hook's request, until the context ends. Any response is a success.
	Call func(context.Context, *contract.HTTPGet) error
	// CPULimit returns the CPU limit of the agent's cgroup, as a share of one CPU, and its period. 0, or a nil function, means no limit.
	CPULimit func() (share float64, period time.Duration)
	// CannotExecute returns the reason why a file cannot be executed in an environment, if that is certain. It can hang. It can be nil.
	CannotExecute func(file string, env []string) error
	// Prepare prepares the next Start and does not wait. It can be nil.
	Prepare func()
	// Start starts a process tree and does not wait until it has started. A failed call leaves nothing behind.
	Start func(supervise.Spec) (Process, error)
	Log   *Log
	// Deletion asks whether the agent's Pod is being deleted. If it is nil, the Pod always has its template's grace period.
	Deletion func(context.Context) (kubelease.Deletion, error)
}
