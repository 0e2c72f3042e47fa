//go:build linux

package agent

import (
	"context"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
)

// A kubelet can give a container less time than its Pod's template says. The signal does not say how much, but the API server knows the grace
// period of a deleted Pod. docs/decisions/039-a-shorter-grace-period.md has the cases.

const (
	// leastGrace is the time that a kubelet gives a container at least.
	leastGrace = 2 * time.Second
	// unknownGrace is the period by which a process gets its signal as long as no period is known. Shorter ones are seldom configured where no
	// Pod is deleted, as for the shutdown of a node.
	unknownGrace = 10 * time.Second
)

// grace is what is known about the time that the container has, since a stop signal from outside. The zero value means that there was none.
type grace struct {
	// signalled is when the signal arrived. The kubelet sent it earlier, and counts from then.
	signalled lease.Instant
	// period is the shortest known grace period, at least leastGrace. It is 0 while none is known.
	period time.Duration
	// since is an instant from which the kubelet counts the period, or an earlier one. shown is when the newest question was sent whose answer
	// showed this period.
	since, shown lease.Instant
}

// learned adds the answer to a question that was sent at an instant. A grace period only gets shorter, so an answer without a deletion, or
// with a longer period than an earlier answer, is outdated. A shorter period is that of another deletion, which the kubelet counts from then.
// That was after the last question that showed the longer one.
func (g grace) learned(d kubelease.Deletion, sent lease.Instant) grace {
	period := max(leastGrace, d.GracePeriod)
	switch {
	case g.signalled == 0 || !d.Requested && !d.Gone:
	case g.period == 0:
		g.period, g.since, g.shown = period, g.signalled, sent
	case period < g.period:
		g.period, g.since, g.shown = period, g.shown, sent
	case period == g.period:
		g.shown = sent
	}
	return g
}

// ends returns when no process may live, so that the Lease is released before the kubelet kills the container. It is Never while only the
// template's period is known, which the state machine knows.
func (g grace) ends() lease.Instant {
	if g.period == 0 {
		return lease.Never
	}
	return g.since.Add(contract.UsableGrace(g.period))
}

// signalBy returns when the process must have its signal because its time could be over soon, whatever still runs. It is Never if the period
// is known. template is the template's period.
func (g grace) signalBy(template time.Duration) lease.Instant {
	if g.signalled == 0 || g.period != 0 {
		return lease.Never
	}
	return lastPart(g.signalled, g.signalled.Add(contract.UsableGrace(min(template, unknownGrace))))
}

// lastPart returns when the last part of a stop begins. By then the process has its signal, even if a hook still runs.
func lastPart(began, killed lease.Instant) lease.Instant {
	return killed.Add(-min(leastGrace, max(0, killed.Sub(began))/4))
}

// stoppedFromOutside begins to ask how long the container has. Later signals change nothing.
func (a *Agent) stoppedFromOutside(c *contender) {
	if a.grace.signalled != 0 || a.o.Deletion == nil {
		return
	}
	a.grace.signalled = c.now().Boot
	if process := a.child.process; process != nil {
		go a.askForGrace(c, process)
	}
}

const (
	// graceEvery is the pause after an answer: the period can get shorter at any time.
	graceEvery = time.Second
	// graceRetry is the pause after the first question without an answer, and graceTimeout the time for that answer. Both double with each
	// further one, up to graceEvery and graceTimeoutMost.
	graceRetry, graceTimeout, graceTimeoutMost = 250 * time.Millisecond, time.Second, 4 * time.Second
)

// askForGrace asks until the process is gone, or the Pod is.
func (a *Agent) askForGrace(c *contender, process Process) {
	pause, timeout := graceRetry, graceTimeout
	for {
		sent := c.now().Boot
		ctx, cancel := context.WithTimeout(a.ctx, timeout)
		d, err := a.o.Deletion(ctx)
		cancel()
		a.post(c, func() lease.Event { return a.learned(c, d, sent, err) })
		if d.Gone {
			return
		}
		wait := graceEvery
		if err != nil {
			wait, pause, timeout = pause, min(2*pause, graceEvery), min(2*timeout, graceTimeoutMost)
		} else {
			pause, timeout = graceRetry, graceTimeout
		}
		select {
		case <-time.After(wait):
		case <-process.Gone():
			return
		case <-a.ctx.Done():
			return
		}
	}
}

// learned handles the answer to a question. It runs in Run's goroutine.
func (a *Agent) learned(c *contender, d kubelease.Deletion, sent lease.Instant, err error) lease.Event {
	c.journal.deletion(err)
	if err != nil {
		return nil
	}
	before := a.grace.period
	a.grace = a.grace.learned(d, sent)
	if a.grace.period == before {
		return nil
	}
	c.journal.grace(a.grace.period, time.Duration(a.o.Config.GracePeriod))
	return lease.GraceEnds{At: a.grace.ends()}
}

// signalBy returns when the process gets its signal although the preStop hook still runs. It is Never if no signal waits. A command that waits
// in the kernel outlives its time limit. A hook can have been given more time than is left now. If renewals fail, the tenure has no more time
// for a hook.
func (a *Agent) signalBy(c *contender) lease.Instant {
	if a.child.delayed == 0 {
		return lease.Never
	}
	at := min(lastPart(a.child.stopped, c.state.Stop.KillAt), a.grace.signalBy(time.Duration(a.o.Config.GracePeriod)))
	if !c.config.KeepRunning {
		at = min(at, c.state.RenewBy(c.config))
	}
	return at
}
