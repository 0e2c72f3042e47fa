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

// child is the process of the present tenure, from before it runs.
type child struct {
	of      *contender // whose tenure it is; nil without one
	log     *Log
	process Process // nil without a tenure, and where none could be started
	started bool
	// prepares: it runs before the main process, and is not what its container's stop signal is meant for.
	prepares bool

	killed   bool
	killedAt lease.Instant
	recorded time.Duration  // how long after killedAt it was last recorded that it lives
	delayed  syscall.Signal // put off until the preStop hook is over; 0 if none is
	asked    syscall.Signal // the signal by which it was asked to end; 0 if it was not

	run    lease.Run // that the process is an attempt of; none where it is to run for ever
	env    []string  // of the process
	prober *prober   // nil where nothing is asked of it, or not yet
	health health
}

// isReady reports whether a candidate can do its work as far as its process says: one without a process has nothing to say.
func (c *child) isReady() bool { return c.of == nil || c.health.ready }

// crashed reports whether an end was not of the process's own making. One that was asked to end by a signal, and says by its
// code that this is why it did, as Java's do, has ended in order.
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

// dying takes note that all of it is killed from now on.
func (c *child) dying(now lease.Instant) {
	if !c.killed {
		c.killed, c.killedAt = true, now
	}
}

// attend sees to what its tenure does not ask for by an action of its own.
func (c *child) attend(now lease.Instant) {
	if c.of == nil {
		return
	}
	tenure := c.of.state
	if c.of.config.KeepRunning && c.process != nil && !c.started && !c.killed {
		// What never ends once it has started is still not to start after its tenure.
		c.extend(tenure.ValidUntil(c.of.config))
	}
	if tenure.Phase == lease.Stopping {
		c.prober.stop()
	}
	if since, record := c.outlives(now); record {
		c.of.journal.outlives(tenure, since)
	}
}

// outlives asks for a record, after 5 s, 10 s, 20 s and so on, that the process or what it started still lives though it was killed.
func (c *child) outlives(now lease.Instant) (since time.Duration, record bool) {
	const first = 5 * time.Second
	since = now.Sub(c.killedAt)
	if !c.killed || since < max(first, 2*c.recorded) {
		return 0, false
	}
	c.recorded = since
	return since, true
}

// Instants of package lease are package supervise's deadlines as they are: both mean the same by never, or this overflows.
const _ = uint64(int64(lease.Never)-supervise.Never) + uint64(supervise.Never-int64(lease.Never))

// StartCode is the exit code for a process that could not be started.
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

// promised is what the process finds in its environment, by name.
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

// expandAll is a command that no kubelet has seen, with $(NAME) replaced as one does it in a container's command.
func expandAll(command, env []string) []string {
	value := func(name string) (string, bool) {
		for _, kv := range slices.Backward(env) { // of equal names the last one counts
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

// expand is text that a kubelet has expanded, with the values of what is promised in place of the marks that the operator has made.
func (o *Options) expand(text string, promised map[string]string) string {
	return contract.Expand(text, o.Config.Marks, func(name string) (string, bool) {
		value, ok := promised[name]
		return value, ok
	})
}

// expandArgv is the command with that done.
func (o *Options) expandArgv(promised map[string]string) []string {
	argv := make([]string, len(o.Argv))
	for i, arg := range o.Argv {
		argv[i] = o.expand(arg, promised)
	}
	return argv
}

// childEnv is the process's environment: the agent's own without what is meant for the agent alone, and what the
// process is promised.
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
