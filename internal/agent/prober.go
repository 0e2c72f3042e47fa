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

// prober asks the process of one tenure whether it is well. It runs beside the agent's goroutine, which hears of each answer and
// waits for none; once the prober is forgotten, its last words are not heard.
type prober struct {
	probes contract.Probes
	began  time.Time // when the process started, which may be long ago
	ask    func(context.Context, probe.Kind, *contract.Probe) probe.Result
	// answered is given each result and what follows from it.
	answered func(probe.Kind, probe.Result, probe.State)
	stopping chan struct{} // closed when the process is asked to end
	stopped  bool          // it is closed; of the agent's goroutine
	cancel   context.CancelFunc
}

// stop asks no more for what a process that is to end need not be. It may be called again.
func (p *prober) stop() {
	if p != nil && !p.stopped {
		p.stopped = true
		close(p.stopping)
	}
}

// end ends all of it.
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

// health is what the probes of a process say of it.
type health struct {
	ready bool
	// why it is not ready.
	why string
}

// firstHealth is that of a process that was not asked yet.
func firstHealth(p contract.Probes) health {
	if p.Startup == nil && p.Readiness == nil {
		return health{ready: true}
	}
	return health{why: "the process has just started"}
}

// startProbes has the process that runs since began asked for its health.
func (a *Agent) startProbes(c *contender, began time.Time) {
	probes := a.o.Config.Probes
	if probes == (contract.Probes{}) {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	process, env := a.child.process, a.child.env
	ask := func(ctx context.Context, k probe.Kind, of *contract.Probe) probe.Result {
		if of.Exec != nil {
			return execute(process, env, k, of)
		}
		return a.ask(ctx, of)
	}
	p := &prober{probes: probes, began: began, ask: ask, stopping: make(chan struct{}), cancel: cancel}
	p.answered = func(k probe.Kind, r probe.Result, s probe.State) {
		a.post(c, func() lease.Event {
			if a.child.prober != p {
				return nil // of a process that is gone
			}
			return a.probed(c, k, r, s)
		})
	}
	a.child.prober = p
	go p.run(ctx)
}

// ask makes one check by a request. It ends in time whatever the process does.
func (a *Agent) ask(ctx context.Context, of *contract.Probe) probe.Result {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(of.Timeout))
	defer cancel()
	return a.o.Check(ctx, of.Check)
}

// execute makes a check by a command. What does not even start says nothing about the process, as for a kubelet.
func execute(process Process, env []string, k probe.Kind, of *contract.Probe) probe.Result {
	result, err := process.Exec(supervise.ExecSpec{Argv: expandAll(of.Exec, env), Timeout: time.Duration(of.Timeout), Name: k.String()})
	if errors.Is(err, supervise.ErrStillRuns) || errors.Is(err, supervise.ErrTooManyExecs) {
		return probe.Failed("%s", err) // those before it hang
	}
	if err != nil {
		return probe.Result{Text: err.Error()}
	}
	switch r := <-result; {
	case r.TimedOut:
		return probe.Failed("command timed out: %q timed out after %v", of.Exec, time.Duration(of.Timeout))
	case r.Err != nil:
		return probe.Result{Text: r.Err.Error()}
	case r.Status.Code() != 0:
		return probe.Failed("%s", cmp.Or(strings.TrimSpace(string(r.Output)), r.Status.String()))
	}
	return probe.Passed()
}

// probed takes note of an answer.
func (a *Agent) probed(c *contender, k probe.Kind, r probe.Result, s probe.State) lease.Event {
	a.metrics.probes.add(k.String(), r.Outcome.String())
	c.journal.probed(k, r, s.Row(k))
	was := a.child.health
	a.child.health = healthOf(was, k, r, s)
	if is := a.child.health; is.ready != was.ready {
		c.journal.readiness(is.ready)
	}
	if failed, is := s.Failed(); is && failed == k {
		return unhealthy(a.o.Config.Probes, c.config.GracePeriod, k)
	}
	return lease.Ticked{} // to show it
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

// maxProbeText bounds what is repeated of an answer, in bytes.
const maxProbeText = 400

// unhealthy ends a tenure for a probe that has failed. The probe's own grace period goes before the pod's.
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
