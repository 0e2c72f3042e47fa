//go:build linux

package agent

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
	"github.com/singletonjob/operator/internal/supervise"
)

// child is the process of the current tenure, including the time before it runs.
type child struct {
	of      *contender // the owner of the tenure; nil without a tenure
	log     *Log
	process Process // nil without a tenure, or if it could not be started
	started bool
	// prepares: this is preActivate, which runs before the main process. The container's stop signal is not meant for it.
	prepares bool

	killed   bool
	killedAt lease.Instant
	recorded time.Duration  // the time after killedAt of the latest log message that it still lives
	delayed  syscall.Signal // a signal that waits for the end of the preStop hook; 0 if none does
	stopped  lease.Instant  // when the preStop hook began
	asked    syscall.Signal // the signal that asked it to end; 0 if there was none

	run    lease.Run // the run that the process is an attempt of; empty if the process runs indefinitely
	env    []string  // of the process
	prober *prober   // nil without probes, or before they begin
	health health
}

// isReady reports whether the process is ready. A candidate without a process counts as ready here.
func (c *child) isReady() bool { return c.of == nil || c.health.ready }

// crashed reports whether the process ended with a failure. If a signal asked it to end and its exit code is 128 plus that signal, as for
// Java, it ended in order.
func (c *child) crashed(s supervise.Status) bool {
	orderly := s.ExitCode == 0 || c.asked != 0 && s.ExitCode == 128+int(c.asked)
	return s.Signal != 0 || !orderly
}

func (c *child) notStarted(err error) { c.log.Print("not started", "error", err) }

func (c *child) exited(s supervise.Status) { c.log.Print("exited", "status", s) }

func (c *child) extend(deadline lease.Instant) {
	if c.process == nil {
		return
	}
	if err := c.process.Extend(int64(deadline)); err != nil {
		c.log.Print("leash not extended", "error", err)
	}
}

func (c *child) signal(sig syscall.Signal) {
	if c.process == nil {
		return
	}
	if err := c.process.Signal(sig); err != nil {
		c.log.Print("signal not sent", "error", err)
	}
}

func (c *child) kill(now lease.Instant) {
	c.dying(now)
	if c.process != nil {
		c.process.Kill()
	}
}

// dying records that the whole tree is being killed from now on.
func (c *child) dying(now lease.Instant) {
	if !c.killed {
		c.killed, c.killedAt = true, now
	}
}

// attend does the work for which the state machine has no action.
func (c *child) attend(now lease.Instant) {
	if c.of == nil {
		return
	}
	tenure := c.of.state
	if c.of.config.KeepRunning && c.process != nil && !c.started && !c.killed {
		// A process with keepRunning has no deadline once it has started, but it must not start after its tenure.
		c.extend(tenure.ValidUntil(c.of.config))
	}
	if tenure.Phase == lease.Stopping {
		c.prober.stop()
	}
	if since, record := c.outlives(now); record {
		c.of.journal.outlives(tenure, since)
	}
}

// outlives returns record after 5 s, 10 s, 20 s and so on if a process of the tree is still alive after SIGKILL.
func (c *child) outlives(now lease.Instant) (since time.Duration, record bool) {
	const first = 5 * time.Second
	since = now.Sub(c.killedAt)
	if !c.killed || since < max(first, 2*c.recorded) {
		return 0, false
	}
	c.recorded = since
	return since, true
}

// Instants of package lease are used as deadlines of package supervise. This does not compile (it overflows) unless both have the same
// Never.
const _ = uint64(int64(lease.Never)-supervise.Never) + uint64(supervise.Never-int64(lease.Never))

// StartCode returns the exit code for a process that could not be started.
func StartCode(err error) int {
	var notRun *supervise.StartError
	switch {
	case errors.As(err, &notRun):
		return notRun.Code()
	case errors.Is(err, supervise.ErrDeadlinePassed), errors.Is(err, supervise.ErrLeashKilled), errors.Is(err, supervise.ErrStopped):
		return 128 + int(syscall.SIGKILL)
	default:
		return contract.ExitInternal
	}
}

// promised returns the variables that the agent sets for the process, by name.
func (o *Options) promised(s lease.StartChild) map[string]string {
	promised := map[string]string{
		o.Config.TokenEnv:         strconv.FormatInt(s.Token, 10),
		contract.NameEnv:          o.Config.Name,
		contract.NamespaceEnv:     o.Namespace,
		contract.PodEnv:           o.Identity.Pod,
		contract.TenureEnv:        strconv.FormatInt(int64(s.Tenure), 10),
		contract.LeaseDurationEnv: time.Duration(o.Config.LeaseDuration).String(),
		contract.RunIDEnv:         o.Config.RunID,
		contract.SocketEnv:        o.Socket,
	}
	if s.Run.ID == "" {
		return promised
	}
	promised[contract.RunIDEnv] = s.Run.ID
	promised[contract.AttemptEnv] = strconv.FormatInt(int64(s.Run.Attempt), 10)
	for name, tick := range map[string]schedule.Stamp{contract.TickEnv: s.Run.Tick, contract.PreviousTickEnv: s.Previous} {
		if tick != 0 {
			promised[name] = tick.String()
		}
	}
	return promised
}

// expandAll expands $(NAME) in a command that the kubelet has not expanded, as the kubelet does in a container's command.
func expandAll(command, env []string) []string {
	value := func(name string) (string, bool) {
		for _, kv := range slices.Backward(env) { // the last of several entries with one name counts
			if known, value, _ := strings.Cut(kv, "="); known == name {
				return value, true
			}
		}
		return "", false
	}
	argv := make([]string, len(command))
	for i, arg := range command {
		argv[i] = contract.ExpandAll(arg, value)
	}
	return argv
}

// expand replaces the operator's marks by the promised values, in text that a kubelet has already expanded.
func (o *Options) expand(text string, promised map[string]string) string {
	return contract.Expand(text, o.Config.Marks, func(name string) (string, bool) {
		value, ok := promised[name]
		return value, ok
	})
}

// expandArgv returns the command with its marks expanded.
func (o *Options) expandArgv(promised map[string]string) []string {
	argv := make([]string, len(o.Argv))
	for i, arg := range o.Argv {
		argv[i] = o.expand(arg, promised)
	}
	return argv
}

// childEnv returns the process's environment: the agent's own, without the variables that are only for the agent, and with the promised
// ones.
func (o *Options) childEnv(promised map[string]string) []string {
	agents := slices.Concat(contract.Promised(), contract.AgentsEnv())
	env := slices.DeleteFunc(slices.Clone(o.Environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == o.Config.TokenEnv || slices.Contains(agents, name)
	})
	for i, kv := range env {
		env[i] = o.expand(kv, promised)
	}
	for name, value := range promised {
		env = append(env, name+"="+value)
	}
	slices.Sort(env[len(env)-len(promised):])
	return env
}
