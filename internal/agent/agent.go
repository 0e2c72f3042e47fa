//go:build linux

// Package agent joins the tenure state machine to the world: one goroutine owns the lease.State, feeds it what happens
// and carries out what it decides. That goroutine never blocks: requests, the start of the process, logging and
// those who ask for the status run beside it.
//
// What belongs to one Lease (contender) stands apart from what an agent has one of: the loop, the process, the signals, the
// socket and the port.
package agent

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/sender"
	"github.com/singletonjob/operator/internal/supervise"
)

// Agent is one candidate. Make it with New.
type Agent struct {
	o   Options
	log *Log

	// All below but the snapshot and the metrics belongs to the goroutine of Run.
	contender  *contender
	child      child
	starvation starvation
	code       int // the exit code, once the contender is done

	// inbox carries what happened elsewhere.
	inbox chan happening
	ctx   context.Context

	snapshot atomic.Pointer[Snapshot]
	metrics  metrics
}

// happening is what happened to a contender. Its function runs in Run's goroutine and returns the event to step with, if any.
type happening struct {
	to    *contender
	event func() lease.Event
}

// New makes an agent that does nothing until Run.
func New(o Options) *Agent {
	a := &Agent{o: o, log: o.Log, inbox: make(chan happening), starvation: starvation{limit: o.CPULimit}}
	c := newContender(o, &a.metrics)
	c.deliver = func(event func() lease.Event) { a.post(c, event) }
	a.contender = c
	a.publish(c)
	return a
}

// Run contends for the Lease and runs the process whenever it holds it, until a signal or the process's end ends the
// agent. It returns the exit code.
func (a *Agent) Run(ctx context.Context, signals <-chan os.Signal) int {
	var cancel context.CancelFunc
	a.ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	c := a.contender
	c.run(a.ctx)
	a.woke(c, lease.Never)
	for !c.state.Done {
		select {
		case <-a.o.Clock.C():
			a.woke(c, c.state.Wake)
		case h := <-a.inbox:
			if event := h.event(); event != nil {
				a.step(h.to, event)
			}
		case sig := <-signals:
			a.signalled(c, sig)
		}
	}
	return a.code
}

// woke steps because of a timer that was due at an instant. How late it is tells how late the leash may be.
func (a *Agent) woke(c *contender, due lease.Instant) {
	now := a.o.Clock.Now().Boot
	late := min(max(0, now.Sub(due)), c.config.Duration) // a machine that slept for an hour is not that late
	if due == lease.Never {
		late = 0
	}
	estimate, changed := a.starvation.woke(late, now)
	if !changed {
		a.step(c, lease.Ticked{})
		return
	}
	a.step(c, lease.Starved{Late: estimate})
	a.starvation.log(a.log, estimate, c.state.Late)
}

// step has a contender decide on an event, and does what it decided. Only then is it published: a right to act is shown to
// nobody before the leash has it.
func (a *Agent) step(c *contender, e lease.Event) {
	now := a.o.Clock.Now()
	for _, action := range c.step(now, e) {
		a.do(c, action, now)
	}
	a.child.attend(now.Boot)
	a.hurry(c, now.Boot)
	a.publish(c)
	a.o.Clock.WakeAt(c.state.Wake)
}

// publish makes the present state known.
func (a *Agent) publish(c *contender) {
	shot := snapshotOf(a.o, c.config, c.state)
	shot.ready = shot.ready && a.child.isReady() && c.state.Tree.Unhealthy == ""
	shot.unready = a.child.health.why
	shot.run = a.child.run
	a.snapshot.Store(shot)
}

// do carries out one action without blocking.
func (a *Agent) do(c *contender, action lease.Action, now lease.Time) {
	switch action := action.(type) {
	case lease.SendWrite:
		c.write(action.Attempt, now)
	case lease.SendRead:
		c.read(action, now)
	case lease.RestartWatch:
		c.watchAnew()
	case lease.SeekDeath:
		go c.seekDeath(a.o.Dead, action.Holder)
	case lease.StartChild:
		a.start(c, action, now)
	case lease.ExtendLeash:
		a.child.extend(action.Deadline)
	case lease.SignalChild:
		c.journal.stopping(c.state, c.state.Stop.KillAt.Sub(now.Boot), c.state.Deadline(c.config).Sub(now.Boot))
		a.askToEnd(c, syscall.Signal(action.Signal), now.Boot)
	case lease.KillTree:
		if !c.state.Tree.Exited { // else only what it has left behind
			c.journal.killing(c.state, c.state.Deadline(c.config).Sub(now.Boot))
			a.metrics.stops.add("SIGKILL")
		}
		a.child.kill(now.Boot)
	case lease.TenureEnded:
		c.journal.ended(action, c.underWay)
		a.metrics.ends.add(string(action.Reason), releasedLabel(action.Released))
		a.metrics.runEnded(c.underWay, action)
		c.underWay = lease.Run{}
	case lease.Exit:
		a.code = action.Code
	}
}

// post hands something over to Run's goroutine.
func (a *Agent) post(to *contender, event func() lease.Event) {
	select {
	case a.inbox <- happening{to, event}:
	case <-a.ctx.Done():
	}
}

// signalled handles a signal to the agent.
func (a *Agent) signalled(c *contender, sig os.Signal) {
	var s syscall.Signal
	stops, inside := true, false // what comes from outside of the container is the runtime's, which has nothing else to say
	switch sig := sig.(type) {
	case sender.Outside:
		s = syscall.Signal(sig)
	case syscall.Signal:
		s, stops, inside = sig, a.stops(sig, c.state.Tree.Alive), a.o.KnowsOutside
	default:
		return
	}
	switch {
	case inside && a.o.Config.Hooks.PreStop != nil && c.state.Phase == lease.Stopping: // the hook tells the process to end
		if stops {
			a.child.asked = s
		}
		a.child.signal(s)
		return
	case stops && c.state.Terminating && a.child.delayed != 0: // it comes when the preStop hook is over
		return
	case !stops || c.state.Terminating:
		a.child.signal(s)
		return
	}
	c.journal.terminated(s, c.state)
	a.step(c, lease.Terminated{Signal: int(s)})
	a.endInTime(c)
}

// stops reports whether a signal of somebody in the container, or of nobody known, asks the agent itself to end. A runtime stops a
// container by the signal that its image names, SIGTERM if none. The others that are in use mean something else to a process that lives, and are left to it unless the template
// says that they stop it.
func (a *Agent) stops(s syscall.Signal, active bool) bool {
	active = active && int(s) != contract.SignalNumber(a.o.Config.StopSignal)
	switch s {
	case syscall.SIGTERM, syscall.SIGINT:
		return true
	case syscall.SIGQUIT, syscall.SIGUSR1, SIGRTMIN3:
		return !active
	case syscall.SIGHUP, syscall.SIGUSR2: // of a standby they say nothing
		return int(s) == contract.SignalNumber(a.o.Config.StopSignal)
	case syscall.SIGWINCH: // of a terminal, that it was resized
		return !active && !a.o.Terminal
	default:
		return false
	}
}

// SIGRTMIN3 is what systemd is stopped by.
const SIGRTMIN3 = syscall.Signal(34 + 3)

// start starts the process of a tenure. exec may hang; follow waits for it.
func (a *Agent) start(c *contender, s lease.StartChild, now lease.Time) {
	c.underWay = s.Run
	c.journal.acquired(s)
	a.metrics.tenures.Add(1)
	a.metrics.runBegan(s.Run, now.Wall)
	if pre := a.o.Config.PreActivate; pre != nil {
		process, err := a.launch(c, s, func(map[string]string) []string { return expandAll(pre.Exec, a.child.env) })
		a.child.prepares, a.child.health = true, health{why: "preActivate runs"}
		go a.prepare(c, s, process, err)
		return
	}
	a.startMain(c, s)
}

func (a *Agent) startMain(c *contender, s lease.StartChild) {
	process, err := a.launch(c, s, a.o.expandArgv)
	go a.follow(c, process, err)
}

// launch starts a process tree for a tenure: the present one is its.
func (a *Agent) launch(c *contender, s lease.StartChild, argv func(promised map[string]string) []string) (Process, error) {
	promised := a.o.promised(s)
	a.child = child{of: c, log: a.log, run: s.Run, health: firstHealth(a.o.Config.Probes)}
	a.child.env = a.o.childEnv(promised)
	process, err := a.o.Start(supervise.Spec{
		Argv:     argv(promised),
		Env:      a.child.env,
		Deadline: int64(s.Deadline),
	})
	if err == nil {
		a.child.process = process
	}
	return process, err
}

// follow waits for what becomes of a tenure's process.
func (a *Agent) follow(c *contender, process Process, err error) {
	if err == nil {
		err = <-process.Started()
	}
	if err != nil {
		a.post(c, func() lease.Event {
			a.child.notStarted(err)
			return lease.ChildExited{Code: StartCode(err), Crashed: true}
		})
	} else {
		a.post(c, func() lease.Event {
			a.started(c)
			return lease.Ticked{}
		})
		if status, ok := <-process.Exited(); ok {
			a.post(c, func() lease.Event {
				a.child.exited(status)
				return lease.ChildExited{Code: status.Code(), Crashed: a.child.crashed(status)}
			})
		}
	}
	a.reaped(c, process)
}

// reaped waits until nothing of a tenure lives, and says so.
func (a *Agent) reaped(c *contender, process Process) {
	if process != nil {
		<-process.Gone()
	}
	a.post(c, func() lease.Event {
		a.child.prober.end()
		a.child = child{}
		return lease.TreeGone{}
	})
}
