//go:build linux

package agent

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/probe"
	"github.com/singletonjob/operator/internal/supervise"
)

// prober probes the process of one tenure. It runs beside the agent's goroutine, which receives each result and never waits for one. Once
// the prober is ended, the agent ignores late results.
type prober struct {
	probes contract.Probes
	began  time.Time // when the process started, which can be long ago
	ask    func(context.Context, probe.Kind, *contract.Probe) probe.Result
	// answered receives each result and the new state.
	answered func(probe.Kind, probe.Result, probe.State)
	stopping chan struct{} // closed when the process must end
	stopped  bool          // stopping is closed; used only by the agent's goroutine
	cancel   context.CancelFunc
}

// stop ends the checks that a process need not pass while it is being stopped. A repeated call has no effect.
func (p *prober) stop() {
	if p != nil && !p.stopped {
		p.stopped = true
		close(p.stopping)
	}
}

// end ends all checks.
func (p *prober) end() {
	if p != nil {
		p.cancel()
	}
}

func (p *prober) run(ctx context.Context) {
	type answer struct {
		probe.Kind
		probe.Result
	}
	answers := make(chan answer)
	of := map[probe.Kind]*contract.Probe{probe.Startup: p.probes.Startup, probe.Liveness: p.probes.Liveness, probe.Readiness: p.probes.Readiness}
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopping := p.stopping
	for s := probe.Begin(p.probes, p.began); ; {
		var due []probe.Kind
		s, due = s.Due(time.Now())
		for _, k := range due {
			go func() {
				result := p.ask(ctx, k, of[k])
				select {
				case answers <- answer{k, result}:
				case <-ctx.Done():
				}
			}()
		}
		timer.Stop()
		if at := s.Wake(); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			s, stopping = s.Stopping(), nil
		case <-timer.C:
		case a := <-answers:
			s = s.Answered(a.Kind, a.Outcome, time.Now())
			p.answered(a.Kind, a.Result, s)
		}
	}
}

// health is the health of a process according to its probes.
type health struct {
	ready bool
	// why it is not ready.
	why string
}

// firstHealth is the health of a process before its first check, when it executes and its postStart hook has succeeded.
func firstHealth(p contract.Probes) health {
	if p.Startup == nil && p.Readiness == nil {
		return health{ready: true}
	}
	return health{why: "the process has just started"}
}

// startProbes starts the probes of the process, which has run since began.
func (a *Agent) startProbes(c *contender, began time.Time) {
	probes := a.o.Config.Probes
	if probes == (contract.Probes{}) {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	commands := newCommands(a.child.process, a.child.env)
	ask := func(ctx context.Context, k probe.Kind, of *contract.Probe) probe.Result {
		if of.Exec != nil {
			return commands[k].execute(of)
		}
		return a.ask(ctx, of)
	}
	p := &prober{probes: probes, began: began, ask: ask, stopping: make(chan struct{}), cancel: cancel}
	p.answered = func(k probe.Kind, r probe.Result, s probe.State) {
		a.post(c, func() lease.Event {
			if a.child.prober != p {
				return nil // a result for an earlier process
			}
			return a.probed(c, k, r, s)
		})
	}
	a.child.prober = p
	go p.run(ctx)
}

// ask makes one check by a request. The timeout applies whatever the process does.
func (a *Agent) ask(ctx context.Context, of *contract.Probe) probe.Result {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(of.Timeout))
	defer cancel()
	return a.o.Check(ctx, of.Check)
}

// command makes the exec checks of one probe, one after the other.
type command struct {
	process Process
	env     []string
	name    string
	// ran: the program of the latest command executed.
	ran bool
}

func newCommands(process Process, env []string) map[probe.Kind]*command {
	commands := map[probe.Kind]*command{}
	for _, k := range []probe.Kind{probe.Startup, probe.Liveness, probe.Readiness} {
		commands[k] = &command{process: process, env: env, name: k.String()}
	}
	return commands
}

// execute makes an exec check. A command that did not execute says nothing about the process: its program cannot be started, or the agent
// got no time to start it. A command that executed and cannot be killed hangs, and the checks after it fail until it is gone.
func (c *command) execute(of *contract.Probe) probe.Result {
	result, err := c.process.Exec(supervise.ExecSpec{Argv: expandAll(of.Exec, c.env), Timeout: time.Duration(of.Timeout), Name: c.name})
	switch {
	case c.ran && errors.Is(err, supervise.ErrStillRuns):
		return probe.Failed("%s", err)
	case err != nil:
		return probe.Result{Text: err.Error()}
	}
	r := <-result
	c.ran = r.Err == nil
	switch {
	case r.Err != nil:
		return probe.Result{Text: r.Err.Error()}
	case r.TimedOut:
		return probe.Failed("command timed out: %q timed out after %v", of.Exec, time.Duration(of.Timeout))
	case r.Status.Code() != 0:
		return probe.Failed("%s", cmp.Or(strings.TrimSpace(string(r.Output)), r.Status.String()))
	}
	return probe.Passed()
}

// probed records a result.
func (a *Agent) probed(c *contender, k probe.Kind, r probe.Result, s probe.State) lease.Event {
	a.metrics.probes.add(k.String(), r.Outcome.String())
	c.journal.probed(k, r, s.Row(k))
	was := a.child.health
	a.child.health = healthOf(was, k, r, s)
	if is := a.child.health; is.ready != was.ready {
		c.journal.readiness(is.ready)
	}
	if failed, is := s.Failed(); is && failed == k {
		return unhealthy(a.o.Config.Probes, time.Duration(a.o.Config.GracePeriod), k)
	}
	return lease.Ticked{} // publish the change
}

func healthOf(was health, k probe.Kind, r probe.Result, s probe.State) health {
	is := health{ready: s.Ready()}
	if is.ready {
		return is
	}
	if is.why = was.why; r.Outcome != probe.Success && k != probe.Liveness {
		is.why = k.String() + " probe: " + contract.Cut(r.Text, maxProbeText)
	}
	return is
}

// maxProbeText is the maximum number of bytes of a result's text in logs and status.
const maxProbeText = 400

// unhealthy returns the event that ends a tenure because a probe has failed. The probe's own grace period has precedence over the Pod's. The
// process has all of either, because no kubelet stops the Pod then.
func unhealthy(p contract.Probes, grace time.Duration, k probe.Kind) lease.Unhealthy {
	failed, reason := p.Liveness, lease.ReasonLivenessFailed
	if k == probe.Startup {
		failed, reason = p.Startup, lease.ReasonStartupFailed
	}
	if own := time.Duration(failed.GracePeriod); own > 0 {
		grace = own
	}
	return lease.Unhealthy{Reason: reason, Grace: grace}
}
