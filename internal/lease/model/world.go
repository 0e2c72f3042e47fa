package model

import (
	"fmt"
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// tick is the grain of time: all that happens, happens at whole ticks. The settings of the model are multiples of it, and so
// is what lease.Step itself adds to them but for a few parts of a patience, which then count up to the next tick.
const tick = 500 * time.Millisecond

// began is what every clock shows at first. It is far from 0, as a machine's is.
const began = 1_000_000

// revisions is how far apart the store's revisions are: others are written too.
const revisions = 10

// slots is the greatest number of candidates.
const slots = 3

// world is one state of everything. It is never changed once it was reached: moves work on a copy, which shares what they
// leave alone.
type world struct {
	m *model
	// now is true time, in ticks, used how many faults there have been, slips how many of them were clocks that slipped.
	now         int32
	used, slips int8
	api         *api
	agents      [slots]*agent
	// own says which of agents, and whether api, are this world's own copies.
	own    [slots]bool
	ownAPI bool
	// wire is what is under way, oldest first.
	wire []message
	sink sink
	// token is the highest that a process was started with, ended the last end of one.
	token int64
	ended ending
	// begun is the newest attempt of which a process has run, completed that of which it has ended with 0 unasked.
	begun, completed int32
	// foreign is for how many ticks a process lives that a client-go elector started.
	foreign int8
	events  []delivery
	broken  *Violation
	// tell, unless nil, is told what happens.
	tell func(who, what string)
}

// ending is that of a process, for lockDelay.
type ending struct {
	at int32
	// delays says that requests of it may be on the wire, and that it ended while the Lease was its own.
	delays bool
}

// delivery is an event on its way to an agent's state machine, within one instant.
type delivery struct {
	slot  int
	event lease.Event
}

// Violation is a broken promise.
type Violation struct {
	// Kind is which, Text what broke it.
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

// fork is a copy to work on.
func (w *world) fork() *world {
	f := *w
	f.own, f.ownAPI, f.events = [slots]bool{}, false, nil
	f.wire = slices.Clip(f.wire)
	return &f
}

// agent is one to change.
func (w *world) agent(slot int) *agent {
	if !w.own[slot] {
		a := *w.agents[slot]
		w.agents[slot], w.own[slot] = &a, true
	}
	return w.agents[slot]
}

// store is the API server to change.
func (w *world) store() *api {
	if !w.ownAPI {
		s := *w.api
		w.api, w.ownAPI = &s, true
	}
	return w.api
}

// first is how the world begins: a Lease that the operator has just made, and candidates that have just started.
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

// deliver has an event reach an agent's process, now if it has a CPU.
func (w *world) deliver(slot int, e lease.Event) {
	switch a := w.agents[slot]; {
	case !a.alive:
	case a.stopped:
		w.agent(slot).waits(e)
	default:
		w.events = append(w.events, delivery{slot, e})
	}
}

// settle has all events of this instant handled.
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

// mostEvents bounds what a move makes happen.
const mostEvents = 200

// tick lets time pass until the next instant. Of what is due then, deaths come first: what the margin pays for is less than
// the whole ticks by which the model counts it.
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

// deaths are those of processes that have lived for as long as they may after their kill.
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

// wakes opens watches anew, and calls the state machines whose time has come.
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

// opens has a watch opened. It begins with the Lease as it is.
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

// unreachable reports whether nothing of the API server's reaches an agent.
func (w *world) unreachable(slot int) bool {
	return w.api.down || w.agents[slot].cut || w.agents[slot].deaf
}

// forget drops what is under way and of no use to anybody any more.
func (w *world) forget() {
	w.wire = without(w.wire, func(m message) bool {
		switch m.kind {
		case reply:
			return !w.awaited(m)
		case get:
			return !w.awaited(m)
		default:
			// No compare-and-swap on a revision that is past can succeed, unless the store goes back in time.
			past := m.write.Revision < w.api.revision && (m.write.Revision != w.api.lease.Revision || w.api.absent)
			return past && !m.forced && !w.m.faults.has(restore) && !w.awaited(m)
		}
	})
}

// awaited reports whether anybody waits for the answer to a message.
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

// writes is one write of a process, which arrives at the sink.
func (w *world) writes(token int64) { w.sink.write(w, token) }

// alone judges a process that begins to run, or goes on.
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
