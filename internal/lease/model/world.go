package model

import (
	"fmt"
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// tick is the unit of time: everything happens at whole ticks. The model's settings are multiples of it. So are the durations
// that lease.Step adds, except for a few fractions of a patience, which are rounded up to the next tick.
const tick = 500 * time.Millisecond

// began is the initial reading of every clock. It is far from 0, as on a real machine.
const began = 1_000_000

// revisions is the distance between two revisions of the Lease: the store also holds other objects.
const revisions = 10

// slots is the greatest number of candidates.
const slots = 3

// world is one state of everything. It never changes once it was reached. Moves work on a copy, which shares the parts that they
// do not change.
type world struct {
	m *model
	// now is true time in ticks, used the number of faults so far, slips the number of them that were clock slips.
	now         int32
	used, slips int8
	api         *api
	agents      [slots]*agent
	// own says which of agents are this world's own copies, and ownAPI whether api is.
	own    [slots]bool
	ownAPI bool
	// wire holds the messages in flight, oldest first.
	wire []message
	sink sink
	// token is the highest token with which a process was started. ended is the last end of a process.
	token int64
	ended ending
	// begun is the newest attempt whose process has run. completed is the attempt whose process has ended with 0 without being
	// asked to.
	begun, completed int32
	// ignored is the newest attempt whose process has ended with a code that is ignored without being asked to.
	ignored int32
	// told is when an attempt's end was last stored, in true time.
	told int32
	// foreign is the number of ticks that a process started by a client-go elector still lives.
	foreign int8
	events  []delivery
	broken  *Violation
	// tell, unless nil, receives a description of everything that happens.
	tell func(who, what string)
}

// ending is the end of a process, for lockDelay.
type ending struct {
	at int32
	// delays means that requests of the process may be in flight, and that the Lease was its own when it ended.
	delays bool
}

// delivery is an event in transit to an agent's state machine, within one instant.
type delivery struct {
	slot  int
	event lease.Event
}

// Violation is a broken promise.
type Violation struct {
	// Kind names the promise. Text says what broke it.
	Kind, Text string
}

// The promises.
const (
	TwoAtOnce     = "two processes at once"
	TokenNotGrown = "token not grown"
	RunsOn        = "process runs on after another tenure was seen"
	StaleAccepted = "stale write accepted"
	FreshRefused  = "write of the present tenure refused"
	LockDelayCut  = "lockDelay cut short"
	StartedEarly  = "start while processes live"
	ReleasedEarly = "release while processes live"
	LostForNought = "tenure lost for nothing"
	NotOurs       = "somebody else's Lease written"
	RunTwice      = "run begun again after its last word"
	RunMistold    = "run not told as it was"
	RunTooSoon    = "attempt before its delay is over"
	NoHolder      = "no holder"
	Spinning      = "state machine spins"
)

func (w *world) violated(kind, format string, args ...any) {
	if w.broken == nil {
		w.broken = &Violation{kind, fmt.Sprintf(format, args...)}
		w.say("checker", "%s: %s", kind, w.broken.Text)
	}
}

func (w *world) say(who, format string, args ...any) {
	if w.tell != nil {
		w.tell(who, fmt.Sprintf(format, args...))
	}
}

// fork returns a copy that can be changed.
func (w *world) fork() *world {
	f := *w
	f.own, f.ownAPI, f.events = [slots]bool{}, false, nil
	f.wire = slices.Clip(f.wire)
	return &f
}

// agent returns an agent that can be changed.
func (w *world) agent(slot int) *agent {
	if !w.own[slot] {
		a := *w.agents[slot]
		w.agents[slot], w.own[slot] = &a, true
	}
	return w.agents[slot]
}

// store returns the API server, so that it can be changed.
func (w *world) store() *api {
	if !w.ownAPI {
		s := *w.api
		w.api, w.ownAPI = &s, true
	}
	return w.api
}

// first returns the initial world: a Lease that the operator has just created, and candidates that have just started.
func (m *model) first(tell func(who, what string)) *world {
	w := &world{m: m, tell: tell, api: &api{absent: true, revision: m.firstRevision()}, ownAPI: true}
	for slot := range m.candidates {
		w.agents[slot], w.own[slot] = &agent{slot: slot}, true
	}
	w.api.create(w, lease.Record{Duration: m.longest(), TokenBase: m.base, Release: lease.Release{Reason: lease.ReasonCreated}})
	for slot := range m.candidates {
		w.agents[slot].run(w)
	}
	w.settle()
	return w
}

// candidates counts the agents.
func (w *world) candidates() int { return w.m.candidates }

// deliver passes an event to an agent's process, now if the process has a CPU.
func (w *world) deliver(slot int, e lease.Event) {
	switch a := w.agents[slot]; {
	case !a.alive:
	case a.stopped:
		w.agent(slot).waits(e)
	default:
		w.events = append(w.events, delivery{slot, e})
	}
}

// settle handles all events of this instant.
func (w *world) settle() {
	for n := 0; len(w.events) > 0 && w.broken == nil; n++ {
		next := w.events[0]
		w.events = w.events[1:]
		if w.agents[next.slot].alive {
			w.agent(next.slot).handle(w, next.event)
		}
		if n > mostEvents {
			w.violated(Spinning, "%s asks for more and more within one instant", w.agents[next.slot].name())
		}
	}
	w.events = nil
}

// mostEvents bounds the events that a move causes.
const mostEvents = 200

// tick lets time pass until the next instant. Of everything due then, deaths come first, because the margin pays for less than
// the whole ticks by which the model counts deaths.
func (w *world) tick() {
	w.now++
	w.deaths()
	w.foreign = max(0, w.foreign-1)
	if w.api.downFor > 0 {
		if w.store().downFor--; w.api.downFor == 0 {
			w.api.down = false
		}
	}
	for slot := range w.candidates() {
		if a := w.agents[slot]; a.leashed(w) {
			w.agent(slot).kill(w, "the leash kills its processes")
		}
	}
	for slot := range w.candidates() {
		if a := w.agents[slot]; a.acts() {
			w.writes(a.tree.token)
		}
	}
	w.wakes()
	w.settle()
	w.forget()
}

// deaths ends processes that have lived for as long as they can after their kill.
func (w *world) deaths() {
	for slot := range w.candidates() {
		if t := w.agents[slot].tree; t.dying && t.left > 0 && !t.frozen {
			a := w.agent(slot)
			if a.tree.left--; a.tree.left == 0 {
				a.dies(w)
			}
		}
	}
	w.settle()
}

// wakes reopens watches, and calls the state machines that are due.
func (w *world) wakes() {
	for slot := range w.candidates() {
		a := w.agents[slot]
		if !a.alive {
			continue
		}
		if a.reopen && !w.unreachable(slot) {
			w.agent(slot).reopen = false
			w.deliver(slot, lease.WatchClosed{})
			w.opens(slot)
		}
		if !a.stopped && a.state.Wake <= a.now(w) {
			w.deliver(slot, lease.Ticked{})
		}
	}
}

// opens begins a watch. Its first event is the present Lease.
func (w *world) opens(slot int) {
	a := w.agent(slot)
	a.stalled, a.kept = false, nil
	if w.m.noWatch {
		w.deliver(slot, lease.Ticked{})
		return
	}
	w.deliver(slot, lease.WatchOpened{})
	if w.api.readable(w) && !w.api.absent {
		w.deliver(slot, lease.Watched{Record: w.api.lease})
	}
}

// unreachable reports whether nothing from the API server reaches an agent.
func (w *world) unreachable(slot int) bool {
	return w.api.down || w.agents[slot].cut || w.agents[slot].deaf
}

// forget drops messages in flight that no longer matter.
func (w *world) forget() {
	w.wire = without(w.wire, func(m message) bool {
		switch m.kind {
		case reply:
			return !w.awaited(m)
		case get:
			return !w.awaited(m)
		default:
			// No compare-and-swap on a past revision can succeed, unless the store goes back in time.
			past := m.write.Revision < w.api.revision && (m.write.Revision != w.api.lease.Revision || w.api.absent)
			return past && !m.forced && !w.m.faults.has(restore) && !w.awaited(m)
		}
	})
}

// awaited reports whether an agent waits for the answer to a message.
func (w *world) awaited(m message) bool {
	if m.from < 0 {
		return false
	}
	a := w.agents[m.from]
	if !a.alive || a.id != m.by {
		return false
	}
	if m.nonce != 0 {
		return a.state.Awaits(m.nonce)
	}
	return a.state.AwaitsRead(m.read)
}

// writes passes one write of a process to the sink.
func (w *world) writes(token int64) { w.sink.write(w, token) }

// alone judges a process that starts or resumes.
func (w *world) alone(slot int) {
	a := w.agents[slot]
	for other := range w.candidates() {
		o := w.agents[other]
		if other == slot || !o.acts() || o.tree.excused || a.tree.excused || o.config.KeepRunning || a.config.KeepRunning {
			continue
		}
		w.violated(TwoAtOnce, "token %d of %s runs while token %d of %s does", a.tree.token, a.name(), o.tree.token, o.name())
	}
	if w.foreign > 0 {
		w.violated(TwoAtOnce, "token %d of %s runs while a process of client-go's elector does", a.tree.token, a.name())
	}
}

func without[T any](s []T, drop func(T) bool) []T {
	if !slices.ContainsFunc(s, drop) {
		return s
	}
	return slices.DeleteFunc(slices.Clone(s), drop)
}
