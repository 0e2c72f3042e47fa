//go:build linux

// Package agent joins the tenure state machine to the world: one goroutine owns the lease.State, feeds it what happens
// and carries out what it decides. That goroutine never blocks: requests, the start of the process, logging and
// whoever asks for the status run beside it.
package agent

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

// API is what the agent asks of the API server; *kubelease.Client is one.
type API interface {
	Get(ctx context.Context) (kubelease.Answer, error)
	Update(ctx context.Context, base *kubelease.Object, r lease.Record) (lease.Outcome, *kubelease.Object, error)
	Watch(ctx context.Context, restart <-chan struct{}, report func(kubelease.WatchEvent))
}

// Process is the process tree of one tenure; *supervise.Tree is one.
type Process interface {
	Extend(deadline int64) error
	Signal(syscall.Signal) error
	Kill()
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
	// RestartProvesDeath: see lease.Config.
	RestartProvesDeath bool

	// Terminal says that the agent has a controlling terminal, as with tty: true.
	Terminal bool

	// Argv is the user's command, Environ the environment that the agent itself was started with.
	Argv, Environ []string
	// Socket is the path of the agent's socket, told to the process; empty for none.
	Socket string

	API   API
	Clock Clock
	// CPULimit tells what the agent's cgroup may use of one CPU, and in which periods; 0 or nil for any.
	CPULimit func() (share float64, period time.Duration)
	// Start starts a process tree, without waiting until it has started; nothing is left of an attempt that fails.
	Start func(supervise.Spec) (Process, error)
	Log   *Log
}

// Agent is one candidate. Make it with New.
type Agent struct {
	o      Options
	config lease.Config
	log    *Log

	// All below but the snapshot and the metrics belongs to the goroutine of Run.
	state lease.State
	// met is the newest object that came in, base the one that state.Seen was read from: writes replace it.
	met, base *kubelease.Object
	child     child
	// writes by nonce, and reads by ID, that are under way, each with what gives it up.
	writes, reads map[int64]context.CancelFunc
	restartWatch  chan struct{}
	journal       journal
	starvation    starvation
	code          int // the exit code, once state.Done

	// inbox carries what happened elsewhere. Each function runs in Run's goroutine and returns the event to step with.
	inbox chan func() lease.Event
	ctx   context.Context

	snapshot atomic.Pointer[Snapshot]
	metrics  metrics
}

// New makes an agent that does nothing until Run.
func New(o Options) *Agent {
	a := &Agent{
		o:            o,
		config:       o.Config.Lease(o.Identity, o.Node, o.RestartProvesDeath),
		log:          o.Log,
		writes:       map[int64]context.CancelFunc{},
		reads:        map[int64]context.CancelFunc{},
		restartWatch: make(chan struct{}, 1),
		inbox:        make(chan func() lease.Event),
	}
	a.journal.log = o.Log
	a.starvation.limit = o.CPULimit
	a.state.Wake = lease.Never // nothing is late before Run
	a.publish()
	return a
}

// Run contends for the Lease and runs the process whenever it holds it, until a signal or the process's end ends the
// agent. It returns the exit code.
func (a *Agent) Run(ctx context.Context, signals <-chan os.Signal) int {
	var cancel context.CancelFunc
	a.ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	go a.o.API.Watch(a.ctx, a.restartWatch, a.watched)
	a.woke(lease.Never)
	for !a.state.Done {
		select {
		case <-a.o.Clock.C():
			a.woke(a.state.Wake)
		case happened := <-a.inbox:
			if event := happened(); event != nil {
				a.step(event)
			}
		case sig := <-signals:
			a.signalled(sig)
		}
	}
	return a.code
}

// woke steps because of a timer that was due at an instant. How late it is tells how late the leash may be.
func (a *Agent) woke(due lease.Instant) {
	now := a.o.Clock.Now().Boot
	late := min(max(0, now.Sub(due)), a.config.Duration) // a machine that slept for an hour is not that late
	if due == lease.Never {
		late = 0
	}
	estimate, changed := a.starvation.woke(late, now)
	if !changed {
		a.step(lease.Ticked{})
		return
	}
	a.step(lease.Starved{Late: estimate})
	a.journal.starved(estimate, a.state.Late)
}

// step has the state machine decide on an event, and does what it decided.
func (a *Agent) step(e lease.Event) {
	now := a.o.Clock.Now()
	before := a.state
	next, actions := lease.Step(a.config, before, now, e)
	a.state = next
	if seen := next.Seen; a.met != nil && a.met.Record.UID == seen.Record.UID && a.met.Record.Revision == seen.Record.Revision {
		a.base = a.met
	}
	a.journal.seen(before.Seen, next.Seen, a.config.Identity)
	a.journal.barred(before.Seen, next.Seen)
	if w := before.Write; w != nil && before.Backoff > 0 && setAside(w.Nonce, next, e) {
		a.journal.unanswered(w.Kind, w.Patience.Sub(w.SentAt)) // a single one is soon made good
	}
	giveUp(a.writes, next.Awaits)
	giveUp(a.reads, next.AwaitsRead)
	for _, action := range actions {
		a.do(action, now)
	}
	if a.config.KeepRunning && a.child.process != nil && !a.child.started && !a.child.killed {
		// What never ends once it has started is still not to start after its tenure.
		a.child.extend(int64(next.ValidUntil(a.config)), a.journal.leash)
	}
	if since, tell := a.child.outlives(now.Boot); tell {
		a.journal.outlives(a.state, since)
	}
	a.publish()
	a.o.Clock.WakeAt(next.Wake)
}

// setAside tells whether a write is waited for no longer, though its answer may come still.
func setAside(nonce int64, now lease.State, e lease.Event) bool {
	done, answered := e.(lease.WriteDone)
	return now.Awaits(nonce) && (now.Write == nil || now.Write.Nonce != nonce) && !(answered && done.Nonce == nonce)
}

// giveUp cancels the requests whose answers are of no more use.
func giveUp(underWay map[int64]context.CancelFunc, awaited func(int64) bool) {
	for id, cancel := range underWay {
		if !awaited(id) {
			cancel()
			delete(underWay, id)
		}
	}
}

// do carries out one action without blocking.
func (a *Agent) do(action lease.Action, now lease.Time) {
	switch action := action.(type) {
	case lease.SendWrite:
		a.write(action.Attempt, now)
	case lease.SendRead:
		a.read(action, now)
	case lease.RestartWatch:
		select {
		case a.restartWatch <- struct{}{}:
		default: // one is asked for already
		}
	case lease.StartChild:
		a.start(action)
	case lease.ExtendLeash:
		a.child.extend(int64(action.Deadline), a.journal.leash)
	case lease.SignalChild:
		a.journal.stopping(a.state, a.state.Stop.KillAt.Sub(now.Boot), a.state.Deadline(a.config).Sub(now.Boot))
		a.metrics.stops.add(unix.SignalName(syscall.Signal(action.Signal)))
		a.child.asked = syscall.Signal(action.Signal)
		a.child.signal(a.child.asked, a.journal.signal)
	case lease.KillTree:
		if !a.state.Tree.Exited { // else only what it has left behind
			a.journal.killing(a.state, a.state.Deadline(a.config).Sub(now.Boot))
			a.metrics.stops.add("SIGKILL")
		}
		a.child.kill(now.Boot)
	case lease.TenureEnded:
		a.journal.ended(action)
		a.metrics.ends.add(string(action.Reason), releasedLabel(action.Released))
	case lease.Exit:
		a.code = action.Code
	}
}

// post hands something over to Run's goroutine.
func (a *Agent) post(happened func() lease.Event) {
	select {
	case a.inbox <- happened:
	case <-a.ctx.Done():
	}
}

// until bounds a request. Instants are of another clock than a context's, which stands still during suspend; there the
// state machine forgets the request after others in vain, and giveUp cancels it.
func (a *Agent) until(deadline lease.Instant, now lease.Time) (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.ctx, deadline.Sub(now.Boot))
}

func (a *Agent) write(attempt lease.Attempt, now lease.Time) {
	ctx, cancel := a.until(attempt.Deadline, now)
	a.writes[attempt.Nonce] = cancel
	base := a.base
	go func() {
		outcome, stored, err := a.o.API.Update(ctx, base, attempt.Record)
		cancel()
		a.post(func() lease.Event {
			delete(a.writes, attempt.Nonce)
			now := a.o.Clock.Now().Boot
			a.metrics.wrote(attempt.Kind, outcome, now.Sub(attempt.SentAt))
			if w := a.state.Write; w != nil && w.Nonce == attempt.Nonce || outcome != lease.Unknown && a.state.Awaits(attempt.Nonce) {
				a.journal.wrote(attempt.Kind, outcome, err) // of interest, and not merely overtaken
			}
			done := lease.WriteDone{Nonce: attempt.Nonce, Outcome: outcome}
			if stored != nil {
				a.met, done.Record = stored, &stored.Record
			}
			return done
		})
	}()
}

func (a *Agent) read(r lease.SendRead, now lease.Time) {
	ctx, cancel := a.until(r.Deadline, now)
	a.reads[r.ID] = cancel
	go func() {
		answer, err := a.o.API.Get(ctx)
		cancel()
		a.post(func() lease.Event {
			delete(a.reads, r.ID)
			a.metrics.read(answer, err)
			if a.state.AwaitsRead(r.ID) || a.o.Clock.Now().Boot >= r.Deadline {
				a.journal.read(err) // of interest, and not merely overtaken
			}
			done := lease.ReadDone{ID: r.ID, Absent: answer.Absent}
			if answer.Object != nil {
				a.met, done.Found = answer.Object, &answer.Object.Record
			}
			return done
		})
	}()
}

// watched is called by the watch's goroutine.
func (a *Agent) watched(e kubelease.WatchEvent) {
	a.post(func() lease.Event {
		a.journal.watch(e)
		switch e.Kind {
		case kubelease.Opened:
			return lease.WatchOpened{}
		case kubelease.Closed:
			return lease.WatchClosed{}
		case kubelease.Changed, kubelease.Deleted:
			a.met = e.Object
			return lease.Watched{Record: e.Object.Record, Deleted: e.Kind == kubelease.Deleted}
		default: // a failed attempt changes nothing; WatchClosed again would put off the reads that stand in for it
			return nil
		}
	})
}

// signalled handles a signal to the agent.
func (a *Agent) signalled(sig os.Signal) {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return
	}
	if !a.stops(s) || a.state.Leaving {
		a.child.signal(s, a.journal.signal)
		return
	}
	a.journal.terminated(s, a.state)
	a.step(lease.Terminated{Signal: int(s)})
}

// stops tells whether a signal asks the agent itself to end. A runtime stops a container by the signal that its image
// names, SIGTERM if none. The others that are in use mean something else to a process that lives, and are left to it.
func (a *Agent) stops(s syscall.Signal) bool {
	switch s {
	case syscall.SIGTERM, syscall.SIGINT:
		return true
	case syscall.SIGQUIT, syscall.SIGUSR1, SIGRTMIN3:
		return !a.state.Tree.Alive
	case syscall.SIGWINCH: // of a terminal, that it was resized
		return !a.state.Tree.Alive && !a.o.Terminal
	default:
		return false
	}
}

// SIGRTMIN3 is what systemd is stopped by.
const SIGRTMIN3 = syscall.Signal(34 + 3)

// start starts the tenure's process. exec may hang; follow waits for it.
func (a *Agent) start(s lease.StartChild) {
	a.journal.acquired(s)
	a.metrics.tenures.Add(1)
	promised := a.o.promised(s)
	a.child = child{}
	process, err := a.o.Start(supervise.Spec{
		Argv:     a.o.childArgv(promised),
		Env:      a.o.childEnv(promised),
		Deadline: int64(s.Deadline),
	})
	if err == nil {
		a.child.process = process
	}
	go a.follow(process, err)
}

// follow tells what becomes of the tenure's process.
func (a *Agent) follow(process Process, err error) {
	if err == nil {
		err = <-process.Started()
	}
	if err != nil {
		a.post(func() lease.Event {
			a.journal.notStarted(err)
			return lease.ChildExited{Code: startCode(err), Crashed: true}
		})
	} else {
		a.post(func() lease.Event {
			a.child.started = true
			return lease.Ticked{}
		})
		if status, ok := <-process.Exited(); ok {
			a.post(func() lease.Event {
				a.journal.exited(status)
				return lease.ChildExited{Code: status.Code(), Crashed: a.child.crashed(status)}
			})
		}
	}
	if process != nil {
		<-process.Gone()
	}
	a.post(func() lease.Event {
		a.child = child{}
		return lease.TreeGone{}
	})
}

// Instants of package lease are package supervise's deadlines as they are: both mean the same by never, or this overflows.
const _ = uint64(int64(lease.Never)-supervise.Never) + uint64(supervise.Never-int64(lease.Never))
