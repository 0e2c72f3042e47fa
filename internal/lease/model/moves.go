package model

import (
	"fmt"
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// fault is a kind of fault, or an action of a user. Each occurrence counts against the number of faults in a run. The end of a
// fault, such as a network that recovers, comes at any time and does not count.
type fault uint8

// The faults.
const (
	none fault = iota
	// Of one message.
	lose       // a request is lost
	fail       // it fails and was not executed
	failStored // it fails and was executed
	refuse     // it is refused
	delay      // it arrives at any time later
	loseReply  // it is executed, and its answer is lost
	delayReply // it is executed, and its answer arrives at any later time
	twice      // it arrives once more at any later time
	stale      // a read is answered from an older state
	oldEvent   // a watch delivers an older state again
	// Of an agent's surroundings.
	stall     // its watch keeps its events until it resumes or breaks
	breaks    // its watch breaks
	cut       // it is cut off
	deaf      // its requests arrive, and nothing comes back
	crash     // its agent dies; it is started again at any time
	stop      // its agent gets no CPU
	hiccup    // its agent gets none after its next decision
	freeze    // its container is frozen
	exit      // its process ends
	leave     // its main process ends, and others of its tree live on
	unfit     // its process fails a probe
	terminate // its pod is told to stop
	hang      // its next start takes any length of time
	slip      // its clock gains or loses a tick
	// Of the API server and the operator.
	apiDown  // no request is answered
	handover // a handover is asked for
	late     // the operator releases the Lease of a dead holder, from an older read, at any later time
	remove   // the Lease is deleted
	restore  // its data goes back to an older state
	// Of somebody who edits the Lease, or a sink.
	blank      // the holder is cleared
	lower      // its duration is lowered
	marker     // a release marker is set beside a holder, as a part of a release
	elector    // a client-go elector takes it where it is free
	lowerToken // token and token base are lowered
	forge      // its history contains an impossible token
	unlabel    // its label is removed
	sinkDown   // the sink restarts
	absence    // a pod's object is deleted by force
	faultKinds
)

var faultNames = [faultKinds]string{
	"", "a request is lost", "a request fails and is not done", "a request fails and is done", "a request is refused", "a request is delayed",
	"an answer is lost", "an answer is delayed", "a request arrives twice", "a read is answered from an older state", "an old event comes again",
	"a watch stalls", "a watch breaks", "cut off", "answers and events do not get through", "the agent is killed", "the agent is stopped",
	"the agent is to pause", "the container is frozen", "the process exits", "the main process exits, its children do not", "the process fails a probe",
	"the pod is told to stop",
	"the next start hangs", "the clock slips", "the API server is out of reach for all", "a handover is asked for", "the operator's release is delayed",
	"the Lease is deleted", "the data is restored", "the holder is blanked", "the duration is lowered", "a part of a release is written",
	"client-go's elector takes the Lease", "token and base are lowered", "the history is forged", "the label is removed", "the sink restarts",
	"the pod's object is deleted by force",
}

func (f fault) String() string { return faultNames[f] }

// faults is a set of them.
type faults uint64

func (s faults) has(f fault) bool { return s&(1<<f) != 0 }

func setOf(fs ...fault) (s faults) {
	for _, f := range fs {
		s |= 1 << f
	}
	return s
}

// op is the action of a move that is not a fault.
type op uint8

const (
	// passes: a tick passes.
	passes op = iota
	// arrive: a message in flight, or a delayed one, arrives.
	arrive
	die     // a killed process is dead
	obey    // it ends as it was asked to; flagged: with a failure
	restart // its agent starts again, flagged: in another pod
	goOn    // its agent gets a CPU again, flagged: the timer first
	thaw
	heal   // its network recovers
	flush  // its watch resumes; flagged: it breaks
	execs  // its program runs after a start that hung
	ready  // its preActivate has ended in order
	apiUp  // the API server answers again
	create // the operator recreates the Lease
	free   // the operator releases the Lease of a dead holder
	relabel
	landAtSink
	calm // all faults end at once
)

// move is one step of the world: a fault or an op, with its arguments.
type move struct {
	fault fault
	op    op
	slot  int8 // or the index of a message, or of a late write
	arg   int8
}

// moves returns everything that can happen next. The first move is the one that happens if nothing goes wrong.
func (w *world) moves() []move {
	out := make([]move, 0, 64)
	if w.broken != nil {
		return nil
	}
	quiet := true
	for i, m := range w.wire {
		if !m.parked {
			quiet = false
			out = append(out, move{op: arrive, slot: int8(i)})
		}
	}
	if !quiet {
		return w.messageFaults(out)
	}
	out = append(out, move{op: passes})
	if w.troubled() {
		out = append(out, move{op: calm})
	}
	for i, m := range w.wire {
		if m.parked && (m.kind != reply || !w.unreachable(m.from)) && !w.api.down {
			out = append(out, move{op: arrive, slot: int8(i)})
		}
	}
	for slot := range w.candidates() {
		out = w.treeMoves(out, int8(slot))
		out = w.agentMoves(out, int8(slot))
		out = w.watchFaults(out, int8(slot))
		out = w.processFaults(out, int8(slot))
		out = w.agentFaults(out, int8(slot))
	}
	out = w.apiMoves(out)
	out = w.can(out, sinkDown, 0, 0)
	if w.api.down {
		return out
	}
	out = w.operatorFaults(out)
	out = w.editFaults(out)
	return w.can(out, apiDown, 0, 0)
}

// these adds a fault with each of its arguments, if it is possible and the run may have another fault.
func (w *world) these(out []move, possible bool, f fault, slot int8, args ...int8) []move {
	if possible {
		for _, arg := range args {
			out = w.can(out, f, slot, arg)
		}
	}
	return out
}

// can adds a fault if the run may have another.
func (w *world) can(out []move, f fault, slot, arg int8) []move {
	if w.m.faults.has(f) && int(w.used) < w.m.budget {
		out = append(out, move{fault: f, slot: slot, arg: arg})
	}
	return out
}

func (w *world) messageFaults(out []move) []move {
	if w.api.lease.Holder == "" && !w.api.absent && w.foreign == 0 {
		out = w.can(out, elector, 0, 0)
	}
	for slot := range w.candidates() {
		if w.m.between && !w.agents[slot].cut {
			out = w.can(out, cut, int8(slot), 0)
		}
	}
	for i, m := range w.wire {
		if m.parked || w.api.down {
			continue
		}
		for _, f := range []fault{lose, fail, failStored, refuse, delay, loseReply, delayReply} {
			out = w.can(out, f, int8(i), 0)
		}
		if m.kind == put {
			out = w.can(out, twice, int8(i), 0)
		}
		for age := int8(1); m.kind == get && age <= remembered; age++ {
			if w.api.older[age-1].known {
				out = w.can(out, stale, int8(i), age)
			}
		}
	}
	return out
}

func (w *world) agentMoves(out []move, slot int8) []move {
	a := w.agents[slot]
	add := func(o op, args ...int8) {
		for _, arg := range args {
			out = append(out, move{op: o, slot: slot, arg: arg})
		}
	}
	if t := a.tree; !a.alive && (!t.alive || !w.m.pid1) {
		if a.restartable() {
			add(restart, 0)
		}
		if !t.alive {
			add(restart, 1)
		}
	}
	if a.frozen {
		add(thaw, 0, 1)
	} else if a.stopped {
		add(goOn, 0, 1)
	}
	if a.cut || a.deaf {
		add(heal, 0)
	}
	if a.stalled {
		add(flush, 0, 1)
	}
	return out
}

// treeMoves returns the moves that the processes of an agent can make at any time.
func (w *world) treeMoves(out []move, slot int8) []move {
	t := w.agents[slot].tree
	if t.frozen {
		return out
	}
	if t.dying && t.left > 0 {
		out = append(out, move{op: die, slot: slot})
	}
	if t.alive && t.signalled && !t.exited && !t.dying {
		out = append(out, move{op: obey, slot: slot}, move{op: obey, slot: slot, arg: 1})
	}
	if t.starting {
		out = append(out, move{op: execs, slot: slot})
	}
	if w.agents[slot].mayPrepare() {
		out = append(out, move{op: ready, slot: slot})
	}
	return out
}

// mayPrepare reports whether preActivate can end in order, and the agent notice it.
func (a *agent) mayPrepare() bool {
	t := &a.tree
	return t.alive && t.preparing && !t.exited && !t.signalled && !t.dying && !t.frozen && a.alive && !a.stopped
}

// restartable reports whether the kubelet restarts the container: not in a pod that is terminating.
func (a *agent) restartable() bool { return !a.state.Terminating }

func (w *world) watchFaults(out []move, slot int8) []move {
	a := w.agents[slot]
	if !a.alive || a.stalled || a.reopen || w.unreachable(int(slot)) || w.m.noWatch {
		return out
	}
	out = w.can(out, stall, slot, 0)
	out = w.can(out, breaks, slot, 0)
	for age := range remembered {
		out = w.these(out, w.api.older[age].tells(), oldEvent, slot, int8(age+1))
	}
	return out
}

func (w *world) processFaults(out []move, slot int8) []move {
	t := w.agents[slot].tree
	switch {
	case !t.alive || t.exited || t.frozen || t.dying:
		return out
	case t.preparing:
		return w.these(out, true, exit, slot, 1)
	}
	out = w.these(out, true, exit, slot, 0, 1)
	out = w.these(out, true, leave, slot, 0, 1)
	return w.these(out, w.agents[slot].alive && w.agents[slot].state.Tree.Unhealthy == "", unfit, slot, 0, 2)
}

func (w *world) agentFaults(out []move, slot int8) []move {
	a := w.agents[slot]
	out = w.these(out, a.alive && int(w.slips) < w.m.slips, slip, slot, -1, 1)
	out = w.these(out, w.m.broken == mistake.OperatorBelievesAbsence && w.api.lease.Holder == a.id, absence, slot, 0)
	if !a.alive || a.frozen {
		return out
	}
	out = w.these(out, !a.cut && !a.deaf, cut, slot, 0)
	out = w.these(out, !a.cut && !a.deaf, deaf, slot, 0)
	out = w.can(out, crash, slot, 0)
	out = w.these(out, !a.stopped, stop, slot, 0)
	out = w.these(out, !a.stopped && !a.hiccup, hiccup, slot, 0)
	out = w.these(out, !a.stopped, freeze, slot, 0)
	out = w.these(out, !a.state.Terminating, terminate, slot, 0)
	return w.these(out, !a.hangs && !a.tree.alive && !a.tree.starting, hang, slot, 0)
}

func (w *world) apiMoves(out []move) []move {
	s := w.api
	switch {
	case s.down && s.downFor == 0:
		out = append(out, move{op: apiUp})
	case s.down:
	case s.absent:
		out = append(out, move{op: create})
	case w.operates() && w.provenDead(s.lease.Holder):
		out = append(out, move{op: free})
	}
	if s.unlabelled {
		out = append(out, move{op: relabel})
	}
	for i := range w.sink.late {
		out = append(out, move{op: landAtSink, slot: int8(i)})
	}
	return out
}

// operates reports whether the operator touches the Lease.
func (w *world) operates() bool {
	return !w.api.absent && !w.api.down && (!w.api.unlabelled || w.m.broken == mistake.OperatorHeedsNoLabel)
}

// provenDead reports whether the kubelet has reported that this container is dead, with all its processes.
func (w *world) provenDead(holder string) bool {
	if !w.m.pid1 {
		return false
	}
	for slot := range w.candidates() {
		if a := w.agents[slot]; a.id == holder {
			return !a.alive && !a.tree.alive
		}
	}
	return false
}

func (w *world) operatorFaults(out []move) []move {
	s := w.api
	if w.operates() {
		asks := s.lease.Handover.To == ""
		out = w.these(out, asks, handover, 0, -1)
		for to := range w.candidates() {
			out = w.these(out, asks && pod(to) != lastPod(s.lease.Holder), handover, 0, int8(to))
		}
		out = w.these(out, w.provenDead(s.lease.Holder), late, 0, 0)
	}
	for age := range remembered {
		out = w.these(out, s.older[age].tells() && w.mayRestore(), restore, 0, int8(age))
	}
	return w.these(out, !s.absent, remove, 0, 0)
}

func (w *world) editFaults(out []move) []move {
	s, r := w.api, w.api.lease
	if s.absent {
		return out
	}
	_, ours := lease.ParseIdentity(r.Holder)
	out = w.these(out, r.Holder != "" && !s.parts, blank, 0, 0)
	out = w.these(out, ours && r.Duration > tick, lower, 0, 0)
	out = w.these(out, ours && r.Release.Reason == "", marker, 0, 0)
	out = w.these(out, r.Holder == "" && w.foreign == 0, elector, 0, 0)
	out = w.these(out, ours && r.Token > 0, lowerToken, 0, 0)
	out = w.these(out, len(r.History) > 0 && r.History[0].Token < lease.MaxTokenBase*4, forge, 0, 0)
	return w.these(out, !s.unlabelled, unlabel, 0, 0)
}

func lastPod(holder string) string {
	id, _ := lease.ParseIdentity(holder)
	return id.Pod
}

// mayRestore reports whether the API servers can start from a snapshot. The runbook allows it when no tenure since the snapshot
// can last, or when every candidate has seen all of that time.
func (w *world) mayRestore() bool {
	if w.m.quickRestore || w.m.broken == mistake.RestoreTooSoon {
		return true
	}
	for slot := range w.candidates() {
		if w.agents[slot].tree.alive {
			return false
		}
	}
	return true
}

// troubled reports whether any fault is in progress that calm would end.
func (w *world) troubled() bool {
	if w.api.down || w.api.absent || w.api.unlabelled || len(w.wire) > 0 || len(w.sink.late) > 0 {
		return true
	}
	for slot := range w.candidates() {
		if w.agents[slot].troubled() {
			return true
		}
	}
	return false
}

func (a *agent) troubled() bool {
	trouble := []bool{!a.alive && !a.tree.alive, a.stopped, a.frozen, a.cut, a.deaf, a.stalled, a.tree.starting, a.mayPrepare(), a.hiccup, a.hangs}
	return slices.Contains(trouble, true)
}

// after returns the world after a move.
func (w *world) after(m move) *world {
	f := w.fork()
	f.move(m)
	return f
}

func (w *world) move(m move) {
	if m.fault != none {
		w.used++
		w.sayFault(m)
		w.strike(m)
	} else {
		w.do(m)
	}
	w.settle()
	w.forget()
}

func (w *world) sayFault(m move) {
	if w.tell == nil {
		return
	}
	switch {
	case m.fault < oldEvent:
		w.say("fault", "%s: %v", m.fault, w.wire[m.slot])
	case m.fault < apiDown:
		w.say("fault", "%s: %s", pod(int(m.slot)), m.fault)
	default:
		w.say("fault", "%s", m.fault)
	}
}

// do carries out a move that is not a fault.
func (w *world) do(m move) {
	switch m.op {
	case passes:
		w.tick()
	case arrive:
		w.arrives(int(m.slot), none, 0)
	case apiUp:
		w.say("API server", "answers again")
		w.store().down = false
	case create:
		w.creates()
	case free:
		w.frees(false)
	case relabel:
		w.labels(true)
	case landAtSink:
		w.sink.lands(w, int(m.slot))
	case calm:
		w.calm()
	default:
		w.agentDoes(w.agent(int(m.slot)), m)
	}
}

func (w *world) agentDoes(a *agent, m move) {
	flag := m.arg == 1
	switch m.op {
	case die:
		a.dies(w)
	case obey:
		a.obeys(w, flag)
	case restart:
		if flag {
			a.pods++
		}
		a.run(w)
	case goOn:
		a.resume(w, flag)
	case thaw:
		a.thaws(w)
		a.resume(w, flag)
	case heal:
		w.say(a.name(), "its network is well again")
		a.cut, a.deaf, a.reopen = false, false, a.alive
	case flush:
		w.goesOn(a, flag)
	case execs:
		a.runs(w)
	case ready:
		a.prepared(w)
	default:
		panic(fmt.Sprint("no such move: ", m))
	}
}

// goesOn ends a watch's stall: its kept events arrive late, or it breaks.
func (w *world) goesOn(a *agent, broken bool) {
	kept := a.kept
	a.stalled, a.kept = false, nil
	if broken {
		w.say(a.name(), "its watch breaks")
		a.reopen = true
		return
	}
	w.say(a.name(), "its watch goes on")
	for _, e := range kept {
		w.deliver(a.slot, e)
	}
}

// creates lets the operator recreate a deleted Lease.
func (w *world) creates() {
	r := lease.Record{Holder: lease.UnknownHolder, Duration: w.m.longest(), TokenBase: w.m.base, AcquireTime: 1}
	if w.m.broken == mistake.OperatorCreatesFree {
		r = lease.Record{Duration: w.m.longest(), TokenBase: w.m.base, Release: lease.Release{Reason: lease.ReasonCreated}}
	}
	w.say("operator", "makes the Lease anew")
	w.store().create(w, r)
}

// frees lets the operator release the Lease of a dead holder, now or at any later time.
func (w *world) frees(later bool) {
	was := w.api.lease
	r := was.Released(lease.Release{Reason: lease.ReasonHolderTerminated, Unclean: true}, 1, was.RenewTime+1)
	m := message{kind: put, from: theOperator, write: &r, parked: true, forced: w.m.broken == mistake.OperatorOverwrites}
	w.say("operator", "releases the Lease of %s", holder(was.Holder))
	w.wire = append(w.wire, m)
	if !later {
		w.arrives(len(w.wire)-1, none, 0)
	}
}

// labels removes our label from the Lease, or puts it back.
func (w *world) labels(ours bool) {
	s := w.store()
	s.unlabelled = false
	if ours {
		w.change(somebody, s.lease)
		return
	}
	s.unlabelled = true
	w.change(somebody, s.lease)
}

// edit changes the stored Lease.
func (w *world) edit(change func(*lease.Record)) {
	r := w.api.lease
	change(&r)
	w.change(somebody, r)
}

// strike carries out a fault.
func (w *world) strike(m move) {
	switch f := m.fault; {
	case f < oldEvent:
		w.arrives(int(m.slot), f, int(m.arg))
	case f < apiDown:
		w.strikeAgent(w.agent(int(m.slot)), m)
	case f < blank || f == absence:
		w.strikeAPI(m)
	default:
		w.strikeLease(m)
	}
}

func (w *world) strikeAgent(a *agent, m move) {
	switch m.fault {
	case oldEvent:
		w.deliver(a.slot, lease.Watched{Record: w.api.older[m.arg-1].lease})
	case cut:
		a.cut = true
		w.wire = without(w.wire, func(m message) bool { return m.from == a.slot && !m.parked })
	case crash:
		a.crashes(w)
	case freeze:
		a.freezes(w)
	case exit, leave:
		a.exits(w, m.arg == 1, m.fault == leave)
	case unfit:
		w.deliver(a.slot, lease.Unhealthy{Reason: lease.ReasonLivenessFailed, Grace: time.Duration(m.arg) * tick})
	case terminate:
		w.deliver(a.slot, lease.Terminated{Signal: 15})
	case slip:
		a.skew += int32(m.arg)
		if w.m.broken == mistake.SlewedClock {
			a.skew += int32(m.arg)
		}
		w.slips++
	default:
		a.isStruck(m.fault)
	}
}

// isStruck carries out a fault that shows later.
func (a *agent) isStruck(f fault) {
	a.stalled = a.stalled || f == stall
	a.reopen = a.reopen || f == breaks
	a.deaf = a.deaf || f == deaf
	a.stopped = a.stopped || f == stop
	a.hiccup = a.hiccup || f == hiccup
	a.hangs = a.hangs || f == hang
}

func (w *world) strikeAPI(m move) {
	switch m.fault {
	case apiDown:
		w.store().down = true
		w.store().downFor = w.m.outage
		for slot := range w.candidates() {
			w.agent(slot).reopen = true
		}
	case handover:
		r := w.api.lease
		r.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonSwitchover}
		if m.arg >= 0 {
			r.Handover.To = pod(int(m.arg))
		}
		w.say("operator", "asks for a handover to %q", r.Handover.To)
		w.store().put(w, message{kind: put, from: theOperator, write: &r})
	case late:
		w.frees(true)
	case remove:
		w.remove()
	case restore:
		w.goBack(int(m.arg))
	case absence:
		w.frees(false)
	default:
	}
}

func (w *world) strikeLease(m move) {
	switch m.fault {
	case blank:
		w.edit(func(r *lease.Record) { r.Holder = "" })
	case lower:
		w.edit(func(r *lease.Record) { r.Duration = tick })
	case marker:
		w.edit(func(r *lease.Record) { r.Release.Reason, r.AcquireTime = lease.ReasonSwitchover, 0 })
		w.store().parts = true
	case elector:
		w.edit(func(r *lease.Record) {
			r.Holder, r.Duration, r.AcquireTime, r.RenewTime = "client-go", w.m.longest(), 7, 7
			r.Transitions++
		})
		w.foreign = int8((w.m.longest()-lease.Margin(w.m.longest()))/tick) - 1
	case lowerToken:
		w.edit(func(r *lease.Record) { r.Token, r.TokenBase = 0, 0 })
	case forge:
		w.edit(func(r *lease.Record) {
			r.History = append([]lease.PastTenure{{Token: 1<<63 - 1, Reason: lease.ReasonSwitchover}}, r.History...)
		})
	case unlabel:
		w.labels(false)
	case sinkDown:
		w.sink.restart(w)
	default:
	}
}

// calm ends all faults.
func (w *world) calm() {
	w.say("world", "all faults end")
	w.drain()
	w.store().down, w.api.downFor = false, 0
	for slot := range w.candidates() {
		w.agent(slot).heals(w)
		w.settle()
	}
	if w.api.unlabelled {
		w.labels(true)
	}
	if w.api.absent {
		w.creates()
	}
	w.settle()
	for slot := range w.candidates() {
		if a := w.agents[slot]; !a.alive && !a.tree.alive {
			m := move{op: restart, slot: int8(slot)}
			if !a.restartable() {
				m.arg = 1
			}
			w.agentDoes(w.agent(slot), m)
		}
	}
}

// drain delivers the messages in flight, or drops those whose answers nobody waits for.
func (w *world) drain() {
	for len(w.wire) > 0 && w.broken == nil {
		if m := w.wire[0]; m.kind == put && m.from >= 0 && m.parked && !w.awaited(m) {
			w.wire = w.wire[1:]
			continue
		}
		w.arrives(0, none, 0)
		w.settle()
	}
	for len(w.sink.late) > 0 {
		w.sink.lands(w, 0)
	}
}

// heals ends all faults of a living agent.
func (a *agent) heals(w *world) {
	a.hiccup, a.hangs = false, false
	if a.cut || a.deaf {
		a.cut, a.deaf, a.reopen = false, false, a.alive
	}
	if a.stalled {
		w.goesOn(a, true)
	}
	if a.frozen {
		a.thaws(w)
	}
	if a.tree.starting {
		a.runs(w)
	}
	if a.stopped {
		a.resume(w, false)
	}
	if a.mayPrepare() {
		a.prepared(w)
	}
}

// ticksOf returns a duration in ticks.
func ticksOf(d time.Duration) int32 { return int32(d / tick) }
