package model

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// agent is one candidate: its agent process and the surroundings of that process.
type agent struct {
	slot int
	// pods and processes count the pods and agent processes that were in this slot.
	pods, processes int
	id              string
	config          *lease.Config
	state           *lease.State
	alive           bool
	// stopped means that the process gets no CPU. Events then collect in inbox, and todo holds the actions that it was about to
	// carry out.
	stopped, frozen bool
	inbox           []lease.Event
	todo            []lease.Action
	// hiccup stops the process between deciding and acting, the next time that it decides something.
	hiccup bool
	// skew is how far its clock is ahead, in ticks.
	skew int32
	// cut means that neither requests nor answers get through, deaf that answers and events do not.
	cut, deaf bool
	// A stalled watch keeps its events. reopen means that the watch is broken.
	stalled, reopen bool
	kept            []lease.Watched
	// hangs means that the next start takes any length of time.
	hangs bool
	// revision is the revision of its last stored write, or a newer one at which it learned that the Lease is still its own.
	revision int64
	tree     tree
}

// tree holds the processes of one tenure, with the kernel's leash around them.
type tree struct {
	// alive is true while any process lives, starting while the program does not yet run. preparing means that the program is
	// preActivate, and not the main process.
	alive, starting, preparing bool
	token                      int64
	// attempt is the attempt of the run.
	attempt int32
	// process is the number of the agent process in its slot that started them.
	process  int
	deadline lease.Instant
	// dying processes were killed, and live for left more ticks.
	dying bool
	left  int8
	// frozen processes live and do nothing. excused ones were frozen past their deadline, and act once more.
	frozen, excused bool
	// exited means that the main process has ended, crashed that it did not end in order, signalled that it was asked to end.
	exited, crashed, signalled bool
	// killed means that its agent has asked for its kill.
	killed bool
	// lost means that the Lease has had another holder since the tree started.
	lost bool
	// stored is when the last write of its tenure was stored, in true time.
	stored int32
}

// run starts an agent process.
func (a *agent) run(w *world) {
	a.processes++
	c := w.m.config(a.slot)
	c.Identity = w.m.identity(a.slot, a.pods, a.processes)
	a.id, a.config, a.state = c.Identity.String(), &c, &lease.State{}
	if w.m.slow {
		a.state.RoundTrip = tick
	}
	a.alive, a.stopped, a.hiccup, a.inbox, a.todo = true, false, false, nil, nil
	a.reopen, a.stalled, a.kept, a.revision = true, false, nil, 0
	w.say(a.name(), "starts")
	if late := w.m.late; late > 0 {
		w.deliver(a.slot, lease.Starved{Late: time.Duration(late) * tick})
	}
	if !w.unreachable(a.slot) {
		a.reopen = false
		w.opens(a.slot)
	} else {
		w.deliver(a.slot, lease.Ticked{})
	}
}

// identity returns the identity of an agent process in a slot. Slots that share a pod number their processes in separate ranges.
func (m *model) identity(slot, pods, processes int) lease.Identity {
	if m.onePod {
		return lease.Identity{Pod: pod(0), PodUID: "u0", Nonce: fmt.Sprint(apart*slot + processes)}
	}
	return lease.Identity{Pod: pod(slot), PodUID: fmt.Sprintf("u%d", pods), Nonce: fmt.Sprint(processes)}
}

// apart is more than the number of processes in one slot.
const apart = 1000

// process returns the slot of a holder, and which of its present pod's agent processes it is.
func (w *world) process(holder string) (slot, process int, ok bool) {
	id, _ := lease.ParseIdentity(holder)
	n, err := strconv.Atoi(id.Nonce)
	for slot := range w.candidates() {
		mine := w.agents[slot].config.Identity
		if err == nil && mine.Pod == id.Pod && mine.PodUID == id.PodUID && (!w.m.onePod || n/apart == slot) {
			return slot, n % apart, true
		}
	}
	return 0, 0, false
}

// dead reports whether the lock of an agent process is free: neither the agent nor its leash lives. If the agent is not PID 1,
// processes may have left its leash.
func (w *world) dead(holder string) bool {
	slot, process, ok := w.process(holder)
	if !ok {
		return false
	}
	a := w.agents[slot]
	lives := a.alive && a.processes == process
	leashed := w.m.pid1 && (a.tree.alive || a.tree.starting) && a.tree.process == process
	return !lives && !leashed
}

func (a *agent) name() string { return fmt.Sprintf("%s%d", pod(a.slot), a.processes) }

// now returns the reading of its clock.
func (a *agent) now(w *world) lease.Instant {
	return lease.Instant(int64(began+w.now+a.skew) * int64(tick))
}

// acts reports whether any of its processes run.
func (a *agent) acts() bool { return a.tree.alive && !a.tree.frozen }

// leashed reports whether the kernel must kill its processes now.
func (a *agent) leashed(w *world) bool {
	t := a.tree
	deadline := t.deadline
	if w.m.broken == mistake.LeashArmedOnce {
		deadline = deadline.Add(slewed * tick)
	}
	if t.starting && w.m.broken == mistake.StartBlocks {
		return false
	}
	return (t.alive || t.starting) && !t.dying && !t.frozen && a.now(w) >= deadline
}

// handle calls the state machine and carries out its decisions.
func (a *agent) handle(w *world, e lease.Event) {
	was := *a.state
	shown := a.shows(e)
	next, actions := w.m.step(*a.config, was, lease.Time{Boot: a.now(w), Wall: a.wall(w)}, e)
	if next.Wake <= a.now(w) && !next.Done {
		w.violated(Spinning, "%s wants to be called again at once", a.name())
	}
	a.state = &next
	if shown && a.runsOn(actions) {
		w.violated(RunsOn, "token %d of %s", a.tree.token, a.name())
	}
	a.loses(w, was, next)
	if a.hiccup && len(actions) > 0 {
		a.hiccup, a.stopped, a.todo = false, true, actions
		w.say(a.name(), "is paused between deciding and doing")
		return
	}
	a.carryOut(w, actions)
}

// runsOn reports whether processes live on after a decision.
func (a *agent) runsOn(actions []lease.Action) bool {
	kills := func(x lease.Action) bool { _, ok := x.(lease.KillTree); return ok }
	return a.tree.alive && !a.tree.dying && !a.tree.excused && !slices.ContainsFunc(actions, kills)
}

// loses judges the end of a tenure.
func (a *agent) loses(w *world, was, next lease.State) {
	if next.Stop.Lost && !was.Stop.Lost && !a.tree.lost && a.tree.alive {
		w.violated(LostForNought, "%s gives up token %d, and the Lease was its own all the time", a.name(), a.tree.token)
	}
	if w.m.lossless && next.Phase == lease.Stopping && was.Phase != lease.Stopping {
		w.violated(LostForNought, "%s ends token %d: %s", a.name(), a.tree.token, next.Stop.Reason)
	}
}

// shows reports whether an event shows for certain that a tenure whose processes run has been replaced. A record shows this if it
// is later than this agent's last write and than anything that showed the tenure still in place.
func (a *agent) shows(e lease.Event) bool {
	if !a.tree.alive || a.tree.process != a.processes || a.tree.dying || a.tree.killed || a.state.Stop.Killed {
		return false
	}
	var r *lease.Record
	gone := false
	switch e := e.(type) {
	case lease.Watched:
		r, gone = &e.Record, e.Deleted
	case lease.ReadDone:
		if a.state.LastRead == e.ID && a.state.AwaitsRead(e.ID) {
			r = e.Found
		}
	}
	switch {
	case r == nil || r.Revision <= a.revision:
		return false
	case !gone && r.Holder == a.id && r.Token == a.tree.token:
		a.revision = r.Revision
		return false
	}
	return true
}

// wall returns its wall clock, in microseconds. No two clocks ever show the same. With standing, each shows the same all the time,
// as one does that somebody sets back again and again.
func (a *agent) wall(w *world) int64 {
	at := began*tick.Microseconds() + int64(a.slot)*tick.Microseconds()/slots
	if w.m.standing {
		return at
	}
	return at + int64(w.now)*tick.Microseconds()
}

func (a *agent) carryOut(w *world, actions []lease.Action) {
	for _, action := range actions {
		a.do(w, action)
	}
}

func (a *agent) do(w *world, action lease.Action) {
	switch action := action.(type) {
	case lease.SendWrite:
		r := action.Attempt.Record
		w.say(a.name(), "sends %v on revision %d, token %d", action.Attempt.Kind, r.Revision, r.Token)
		if r.Holder == "" && a.tree.alive && !a.tree.excused {
			w.violated(ReleasedEarly, "%s releases token %d while its processes live", a.name(), a.tree.token)
		}
		a.sends(w, message{kind: put, from: a.slot, by: a.id, write: &r, nonce: action.Attempt.Nonce})
	case lease.SendRead:
		w.say(a.name(), "reads")
		a.sends(w, message{kind: get, from: a.slot, by: a.id, read: action.ID})
	case lease.RestartWatch:
		w.say(a.name(), "asks for a fresh watch")
		a.reopen = true
	case lease.SeekDeath:
		w.deliver(a.slot, lease.DeathSought{Holder: action.Holder, Dead: w.dead(action.Holder)})
	case lease.StartChild:
		a.starts(w, action)
	case lease.ExtendLeash:
		a.extends(w, action.Deadline)
	case lease.SignalChild:
		w.say(a.name(), "asks its process to end")
		a.tree.signalled = true
	case lease.KillTree:
		a.tree.killed = true
		a.kill(w, "kills its processes")
	case lease.TenureEnded:
		w.say(a.name(), "tenure %d ended: %s, released: %v", action.Token, action.Reason, action.Released)
	case lease.Exit:
		w.say(a.name(), "exits")
		if a.tree.alive {
			w.violated(ReleasedEarly, "%s exits while processes of token %d live", a.name(), a.tree.token)
		}
		a.alive = false
	}
}

// extends moves the leash's deadline. A deadline that has passed is final.
func (a *agent) extends(w *world, deadline lease.Instant) {
	w.say(a.name(), "leash until %s", w.local(a, deadline))
	if t := &a.tree; (t.alive || t.starting) && !t.dying && a.now(w) < t.deadline {
		t.deadline = max(t.deadline, deadline)
	}
}

// sends puts a request on the wire. Connections end where nothing gets through.
func (a *agent) sends(w *world, m message) {
	if !a.cut {
		m.mute = a.deaf
		w.wire = append(w.wire, m)
	}
}

// starts runs the program, unless its deadline has passed.
func (a *agent) starts(w *world, s lease.StartChild) {
	w.say(a.name(), "starts token %d until %s", s.Token, w.local(a, s.Deadline))
	if a.tree.alive {
		w.violated(StartedEarly, "%s starts token %d while %d lives", a.name(), s.Token, a.tree.token)
		return
	}
	r := w.api.lease
	a.tree = tree{token: s.Token, attempt: s.Run.Attempt, process: a.processes, deadline: s.Deadline, stored: w.now, starting: true, lost: w.api.absent || r.Holder != a.id || r.Token != s.Token}
	if a.hangs {
		a.hangs = false
		return
	}
	a.runs(w)
}

// runs is called when the program begins to run.
func (a *agent) runs(w *world) {
	t := &a.tree
	t.starting = false
	if a.now(w) >= t.deadline && w.m.broken != mistake.StartBlocks || t.killed && w.m.broken != mistake.StartBlocks || !a.alive {
		w.say(a.name(), "its program does not start: it is too late")
		t.crashed = true
		a.reaped(w)
		return
	}
	t.alive, t.preparing = true, w.m.prepares
	if t.killed {
		w.violated(RunsOn, "the program of token %d of %s begins to run after it was killed", t.token, a.name())
	}
	w.say(a.name(), "%s of token %d runs", t.what(), t.token)
	w.alone(a.slot)
	if t.token <= w.token {
		w.violated(TokenNotGrown, "%s starts token %d after token %d", a.name(), t.token, w.token)
	}
	w.token = t.token
	if !t.preparing {
		w.begins(t.attempt)
	}
	if e := w.ended; e.delays && w.m.lockDelay > 0 && w.now < e.at+w.m.lockDelay-int32(w.slips) {
		w.violated(LockDelayCut, "%s starts token %d %v after the unclean end of the last one", a.name(), t.token, time.Duration(w.now-e.at)*tick)
	}
	w.writes(t.token)
}

// what names the program.
func (t *tree) what() string {
	if t.preparing {
		return "preActivate"
	}
	return "process"
}

// prepared is called when preActivate has ended in order. The main process follows if the tenure is still held.
func (a *agent) prepared(w *world) {
	t := &a.tree
	w.say(a.name(), "preActivate of token %d has ended", t.token)
	if a.state.Phase != lease.Holding {
		t.exited = true
		w.deliver(a.slot, lease.ChildExited{Reason: lease.ReasonNotBegun})
		a.dies(w)
		return
	}
	t.preparing = false
	w.begins(t.attempt)
	w.say(a.name(), "process of token %d runs", t.token)
	w.deliver(a.slot, lease.Ticked{})
}

// obeys ends the program as it was asked to.
func (a *agent) obeys(w *world, crashed bool) {
	if a.tree.preparing && !crashed {
		a.prepared(w)
		return
	}
	a.exits(w, crashed, false)
}

// end is the event for the end of the program.
func (t *tree) end(code int, crashed bool) lease.ChildExited {
	e := lease.ChildExited{Code: code, Crashed: crashed}
	if t.preparing {
		e.Reason = lease.ReasonPreActivateFailed
	}
	return e
}

// kill sends SIGKILL to all of the processes. They die now, or at any time until the margin for the kill is used up.
func (a *agent) kill(w *world, how string) {
	t := &a.tree
	switch {
	case t.starting && w.m.broken != mistake.StartBlocks:
		t.killed = true
		return
	case !t.alive || t.dying:
		return
	}
	w.say(a.name(), "%s", how)
	t.dying, t.left = true, w.m.killTakes
	if t.left == 0 && !t.frozen {
		a.dies(w)
	}
}

// dies is called when the last process ends.
func (a *agent) dies(w *world) {
	t := &a.tree
	t.crashed = t.crashed || !t.exited
	w.say(a.name(), "process of token %d dead", t.token)
	inTime := w.now <= t.stored+int32(a.config.Duration/tick)-int32(w.slips) && !t.excused
	w.ended = ending{at: w.now, delays: t.crashed && inTime && !a.config.KeepRunning}
	a.reaped(w)
}

// reaped reports to the agent that all processes are dead.
func (a *agent) reaped(w *world) {
	t := a.tree
	a.tree = tree{}
	switch by := t.exited && !t.signalled && !t.preparing && w.m.runs; {
	case by && !t.crashed:
		w.completed = t.attempt
	case by && w.m.ignores:
		w.ignored = t.attempt
	}
	if !t.exited {
		code := 0
		if t.crashed {
			code = 137
		}
		w.deliver(a.slot, t.end(code, t.crashed))
	}
	w.deliver(a.slot, lease.TreeGone{})
}

// exits ends the main process by itself. With leaves, others of its tree live on until they are killed.
func (a *agent) exits(w *world, crashed, leaves bool) {
	t := &a.tree
	t.exited, t.crashed = true, crashed
	w.say(a.name(), "%s of token %d exits; crashed: %v", t.what(), t.token, crashed)
	code := 0
	if crashed {
		code = 1
	}
	w.deliver(a.slot, t.end(code, crashed))
	if !leaves {
		a.dies(w)
	}
}

// crashes ends the agent process and everything that depends on it.
func (a *agent) crashes(w *world) {
	w.say(a.name(), "agent killed")
	a.alive, a.stopped, a.hiccup, a.inbox, a.todo, a.kept = false, false, false, nil, nil, nil
	if a.tree.starting {
		a.tree = tree{}
	}
	if w.m.pid1 {
		a.kill(w, "its processes are killed with it")
	}
}

// waits keeps an event for an agent that gets no CPU. Of its watch events, the newest are enough.
func (a *agent) waits(e lease.Event) {
	told := func(e lease.Event) bool { _, ok := e.(lease.Watched); return ok }
	inbox := append(slices.Clone(a.inbox), e)
	n := 0
	for _, e := range inbox {
		if told(e) {
			n++
		}
	}
	if i := slices.IndexFunc(inbox, told); n > mostKept {
		inbox = slices.Delete(inbox, i, i+1)
	}
	a.inbox = inbox
}

// resume gives the CPU back. The timer and the events that arrived in between are ready at once. Either can be handled first.
func (a *agent) resume(w *world, timerFirst bool) {
	w.say(a.name(), "goes on")
	a.stopped = false
	todo, inbox := a.todo, a.inbox
	a.todo, a.inbox = nil, nil
	a.carryOut(w, todo)
	if timerFirst {
		w.deliver(a.slot, lease.Ticked{})
	}
	for _, e := range inbox {
		w.deliver(a.slot, e)
	}
	w.deliver(a.slot, lease.Ticked{})
}

// freezes stops the whole container: agent, leash and processes.
func (a *agent) freezes(w *world) {
	w.say(a.name(), "container frozen")
	a.stopped, a.frozen, a.tree.frozen = true, true, a.tree.alive
}

// thaws unfreezes the container. Processes whose deadline has passed act once more before the kernel kills them.
func (a *agent) thaws(w *world) {
	w.say(a.name(), "container thawed")
	t := &a.tree
	a.frozen = false
	if t.frozen {
		t.frozen = false
		t.excused = t.dying || a.now(w) >= t.deadline
		w.alone(a.slot)
		w.writes(t.token)
		if t.excused && !t.dying {
			a.kill(w, "the leash kills its processes")
		}
		t.left = max(t.left, 1)
		if !t.dying {
			t.left = 0
		}
	}
}

func (w *world) local(a *agent, i lease.Instant) string {
	if i == lease.Never {
		return "forever"
	}
	return clock(int32(int64(i)/int64(tick)) - began - a.skew)
}

// clock formats a time.
func clock(ticks int32) string { return (time.Duration(ticks) * tick).String() }
