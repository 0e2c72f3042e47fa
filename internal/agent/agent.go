//go:build linux

// Package agent connects the tenure state machine to its environment. One goroutine owns the lease.State, feeds events to it and carries
// out its actions. That goroutine never blocks. Requests, the start of the process, logging and status queries run in other goroutines.
//
// The state for one Lease (contender) is separate from what exists once per agent: the loop, the process, the signals, the socket and the
// port.
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

// Agent is one candidate. Create it with New.
type Agent struct {
	o   Options
	log *Log

	// Only the goroutine of Run uses the fields below, except the snapshot and the metrics.
	contender  *contender
	child      child
	starvation starvation
	grace      grace
	prepared   bool // the start of the next process is prepared
	code       int  // the exit code, set when the contender is done

	// inbox receives events from other goroutines.
	inbox chan happening
	ctx   context.Context

	snapshot atomic.Pointer[Snapshot]
	metrics  metrics
}

// happening is an event for a contender. Its function runs in Run's goroutine and returns the event for the state machine, or nil.
type happening struct {
	to    *contender
	event func() lease.Event
}

// New returns an agent that does nothing until Run.
func New(o Options) *Agent {
	a := &Agent{o: o, log: o.Log, inbox: make(chan happening), starvation: starvation{limit: o.CPULimit}}
	c := newContender(o, &a.metrics)
	c.deliver = func(event func() lease.Event) { a.post(c, event) }
	a.contender = c
	a.publish(c)
	return a
}

// Run competes for the Lease and runs the process while it holds the Lease. It returns the exit code when a signal or the end of the
// process ends the agent.
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

// woke handles a timer that was due at an instant. Its delay is an estimate of how late the leash can be.
func (a *Agent) woke(c *contender, due lease.Instant) {
	now := a.o.Clock.Now().Boot
	late := min(max(0, now.Sub(due)), c.config.Duration) // limited, because the machine can have slept
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

// step passes an event to the contender and carries out the actions. The new state is published last, so that no client sees a right to act
// before the leash has its deadline.
func (a *Agent) step(c *contender, e lease.Event) {
	now := a.o.Clock.Now()
	for _, action := range c.step(now, e) {
		a.do(c, action, now)
	}
	a.child.attend(now.Boot)
	a.prepareStart(c)
	a.hurry(c, now.Boot)
	a.publish(c)
	a.o.Clock.WakeAt(min(c.state.Wake, a.signalBy(c)))
}

// publish publishes the current state.
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
		if !c.state.Tree.Exited { // otherwise only its leftovers are killed
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

// post passes an event to Run's goroutine.
func (a *Agent) post(to *contender, event func() lease.Event) {
	select {
	case a.inbox <- happening{to, event}:
	case <-a.ctx.Done():
	}
}

// signalled handles a signal that the agent received.
func (a *Agent) signalled(c *contender, sig os.Signal) {
	var s syscall.Signal
	stops, inside := true, false // only the runtime sends signals from outside the container, and only to stop it
	switch sig := sig.(type) {
	case sender.Outside:
		s = syscall.Signal(sig)
		a.stoppedFromOutside(c)
	case syscall.Signal:
		s, stops, inside = sig, a.stops(sig, c.state.Tree.Alive), a.o.KnowsOutside
	default:
		return
	}
	switch {
	case inside && a.o.Config.Hooks.PreStop != nil && c.state.Phase == lease.Stopping:
		// While the tenure is ending, a signal from inside comes from the preStop hook or after it has ended. Either way it is meant for
		// the process, and the agent forwards it at once.
		if stops {
			a.child.asked = s
		}
		a.child.signal(s)
		return
	case stops && c.state.Terminating && a.child.delayed != 0: // the process gets its signal when the preStop hook is over
		return
	case !stops || c.state.Terminating:
		a.child.signal(s)
		return
	}
	c.journal.terminated(s, c.state)
	a.step(c, lease.Terminated{Signal: int(s)})
}

// stops reports whether a signal asks the agent itself to end, if it was sent from inside the container or from an unknown sender.
//
// A runtime stops a container with the stop signal of its image, SIGTERM if the image sets none. The other common stop signals have another
// meaning for a running process. The agent forwards them to the process, unless the template sets the signal as its stop signal.
func (a *Agent) stops(s syscall.Signal, active bool) bool {
	active = active && int(s) != contract.SignalNumber(a.o.Config.StopSignal)
	switch s {
	case syscall.SIGTERM, syscall.SIGINT:
		return true
	case syscall.SIGQUIT, syscall.SIGUSR1, SIGRTMIN3:
		return !active
	case syscall.SIGHUP, syscall.SIGUSR2: // to a standby they mean nothing
		return int(s) == contract.SignalNumber(a.o.Config.StopSignal)
	case syscall.SIGWINCH: // from a terminal it means that the terminal was resized
		return !active && !a.o.Terminal
	default:
		return false
	}
}

// SIGRTMIN3 is the stop signal of systemd.
const SIGRTMIN3 = syscall.Signal(34 + 3)

// start starts the process of a tenure. exec can hang, so follow waits for it.
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

// launch starts a process tree for the current tenure.
func (a *Agent) launch(c *contender, s lease.StartChild, argv func(promised map[string]string) []string) (Process, error) {
	promised := a.o.promised(s)
	a.prepared = false
	a.child = child{of: c, log: a.log, run: s.Run, health: health{why: "the process is being started"}}
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

// follow waits for the start and the end of a tenure's process.
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

// reaped waits until no process of a tenure is left, and reports that.
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

// prepareStart prepares the start of the next process with Options.Prepare. An agent that is about to end prepares nothing,
// because its leash would hold its lock for a moment.
func (a *Agent) prepareStart(c *contender) {
	competes := c.state.Phase == lease.Waiting || c.state.Phase == lease.Acquiring
	if a.o.Prepare == nil || a.prepared || a.child.of != nil || !competes || c.state.Done || c.state.Terminating {
		return
	}
	a.prepared = true
	a.o.Prepare()
}
