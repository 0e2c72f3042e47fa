package model

import (
	"fmt"
	"slices"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// api is the API server and its store: one Lease, changed by compare-and-swap on its revision.
type api struct {
	lease  lease.Record
	absent bool
	// unlabelled means that the Lease lacks our label, so that agents and operator treat it as somebody else's.
	unlabelled bool
	// parts means that somebody has written a part of a release since the holder's last write.
	parts    bool
	revision int64
	uids     int
	// restores counts how often the data went back. down means that no request is answered, and downFor for how long.
	restores int64
	down     bool
	downFor  int8
	// older holds the last states, newest first, for answers from a cache that lags, and for restores.
	older [remembered]stored
}

// remembered is the number of states of the Lease that the store's caches remember.
const remembered = 2

type stored struct {
	known, absent, unlabelled bool
	lease                     lease.Record
}

// tells reports whether there was a Lease.
func (s stored) tells() bool { return s.known && !s.absent }

// message is in flight between an agent, or the operator, and the API server.
type message struct {
	kind kind
	// from is the sender's slot, or the slot of the recipient. by is its identity.
	from int
	by   string
	// write and nonce belong to a put, read is the ID of a get, event belongs to a reply.
	write *lease.Record
	nonce int64
	read  int64
	event lease.Event
	// parked messages arrive at any later time, others now.
	parked bool
	// The answers to mute messages are lost.
	mute bool
	// forced writes have no condition, as a mistake has it.
	forced bool
}

type kind uint8

const (
	put kind = iota
	get
	reply
)

// theOperator and somebody are senders that are not candidates.
const (
	theOperator = -1
	somebody    = -2
)

func (m message) String() string {
	switch m.kind {
	case put:
		if m.from == theOperator {
			return fmt.Sprintf("the operator's write on revision %d", m.write.Revision)
		}
		return fmt.Sprintf("%s's write on revision %d", pod(m.from), m.write.Revision)
	case get:
		return pod(m.from) + "'s read"
	default:
		return "the answer to " + pod(m.from)
	}
}

// readable reports whether agents can read the Lease. They cannot if it is somebody else's.
func (s *api) readable(w *world) bool {
	return !s.unlabelled || w.m.broken == mistake.AgentsHeedNoLabel
}

// advance remembers the present state and assigns the next revision.
func (s *api) advance(w *world) {
	if w.m.faults.has(stale) || w.m.faults.has(oldEvent) || w.m.faults.has(restore) {
		copy(s.older[1:], s.older[:])
		s.older[0] = stored{known: true, absent: s.absent, lease: s.lease, unlabelled: s.unlabelled}
	}
	s.revision += revisions
}

// put is an update.
func (s *api) put(w *world, m message) lease.WriteDone {
	r := *m.write
	switch {
	case s.absent:
		return lease.WriteDone{Nonce: m.nonce, Outcome: lease.Gone}
	case m.forced:
	case r.UID != s.lease.UID, r.Revision != s.lease.Revision:
		return lease.WriteDone{Nonce: m.nonce, Outcome: lease.Conflict}
	}
	if s.unlabelled {
		w.violated(NotOurs, "%v is stored", m)
	}
	if m.from == theOperator {
		w.released(s.lease, r)
	}
	r.UID = s.lease.UID
	w.change(m.from, r)
	now := w.api.lease
	return lease.WriteDone{Nonce: m.nonce, Outcome: lease.Confirmed, Record: &now}
}

// released judges the operator's release.
func (w *world) released(was, is lease.Record) {
	if was.Holder == "" || is.Holder != "" {
		return
	}
	for slot := range w.candidates() {
		if a := w.agents[slot]; a.tree.alive && a.id == was.Holder && !a.tree.excused {
			w.violated(ReleasedEarly, "the operator releases token %d of %s while its processes live", a.tree.token, a.name())
		}
	}
}

// change stores a record for a candidate, the operator or somebody else.
func (w *world) change(by int, r lease.Record) {
	s := w.store()
	was := s.lease
	s.advance(w)
	r.Revision, s.absent = s.revision, false
	r.History = r.History[:min(len(r.History), w.m.history):min(len(r.History), w.m.history)]
	s.lease = r
	if by != somebody {
		s.parts = false
	}
	if was.Holder != r.Holder || was.Token != r.Token {
		w.say("store", "%s makes %s, token %d, of %s, token %d: revision %d", author(by), holder(r.Holder), r.Token, holder(was.Holder), was.Token, r.Revision)
	}
	if by >= 0 {
		a := w.agent(by)
		a.revision = r.Revision
		if r.Holder == a.id && a.tree.token == r.Token {
			a.tree.stored = w.now
		}
	}
	w.runIs(by, was, r)
	w.lostTo(r, false)
	w.tells(lease.Watched{Record: r})
}

// lostTo makes every process remember whether the Lease was ever not its own.
func (w *world) lostTo(r lease.Record, absent bool) {
	for slot := range w.candidates() {
		if a := w.agents[slot]; (a.tree.alive || a.tree.starting) && !a.tree.lost && (absent || r.Holder != a.id || r.Token != a.tree.token) {
			w.agent(slot).tree.lost = true
		}
	}
}

// create creates the Lease; there must be none.
func (s *api) create(w *world, r lease.Record) {
	s.uids++
	r.UID = fmt.Sprintf("uid%d", s.uids)
	w.change(theOperator, r)
	s.unlabelled = false
}

// remove deletes the Lease.
func (w *world) remove() {
	s := w.store()
	s.advance(w)
	s.absent = true
	gone := s.lease
	gone.Revision = s.revision
	w.lostTo(gone, true)
	w.tells(lease.Watched{Record: gone, Deleted: true})
}

// tells sends an event to all watches.
func (w *world) tells(e lease.Watched) {
	for slot := range w.candidates() {
		a := w.agents[slot]
		switch {
		case !a.alive || a.reopen || w.m.noWatch:
		case w.unreachable(slot): // the watch breaks when the network recovers
			w.agent(slot).reopen = true
		case a.stalled:
			kept := slices.Concat(a.kept, []lease.Watched{e})
			w.agent(slot).kept = kept[max(0, len(kept)-mostKept):]
		case !w.api.readable(w):
			w.agent(slot).reopen = true
		default:
			w.deliver(slot, e)
		}
	}
}

// mostKept is how many events a watch that has stalled keeps; the older ones are skipped, as by a watch that opened later.
const mostKept = 2

// get is a read, of the store or of an older state.
func (s *api) get(w *world, id int64, age int) lease.ReadDone {
	at := stored{known: true, absent: s.absent, lease: s.lease, unlabelled: s.unlabelled}
	if age > 0 {
		at = s.older[age-1]
	}
	switch {
	case at.absent:
		if age > 0 { // the agent accepts that there is no Lease, and ends its tenure: nothing better is possible
			w.lostTo(at.lease, true)
		}
		return lease.ReadDone{ID: id, Absent: true}
	case at.unlabelled && w.m.broken != mistake.AgentsHeedNoLabel:
		return lease.ReadDone{ID: id}
	}
	return lease.ReadDone{ID: id, Found: &at.lease}
}

// goBack restores the data of an older state, quickly, with the token base raised above all tokens assigned since.
func (w *world) goBack(age int) {
	s := w.store()
	at, since := s.older[age], s.revision
	s.lease, s.absent, s.unlabelled = at.lease, at.absent, at.unlabelled
	s.restores++
	s.revision = at.lease.Revision/revisions*revisions - revisions + s.restores // no revision is assigned twice
	s.older = [remembered]stored{}
	if r := s.lease; !s.absent {
		r.TokenBase += since
		w.change(theOperator, r)
	}
	for slot := range w.candidates() {
		a := w.agent(slot)
		a.reopen, a.revision = a.alive, 1<<62
	}
}

// arrives delivers a request to the API server, and its answer to the sender, unless a fault prevents it.
func (w *world) arrives(i int, wrong fault, age int) {
	m := w.wire[i]
	w.wire = append(w.wire[:i:i], w.wire[i+1:]...)
	if m.kind == reply {
		w.answers(m, m.event)
		return
	}
	switch wrong {
	case lose:
	case delay:
		m.parked = true
		w.wire = append(w.wire, m)
	case fail:
		w.answers(m, m.failed(lease.Unknown))
	case refuse:
		w.answers(m, m.failed(lease.Refused))
	default:
		if !w.api.down {
			w.serves(m, wrong, age)
		}
	}
}

// failed is the result of a failed request as the agent sees it.
func (m message) failed(outcome lease.Outcome) lease.Event {
	if m.kind == get {
		return lease.ReadDone{ID: m.read}
	}
	return lease.WriteDone{Nonce: m.nonce, Outcome: outcome}
}

// serves handles a request in the API server and sends the answer.
func (w *world) serves(m message, wrong fault, age int) {
	var answer lease.Event
	if m.kind == put {
		answer = w.api.put(w, m)
	} else {
		answer = w.api.get(w, m.read, age)
	}
	switch wrong {
	case loseReply:
	case failStored:
		w.answers(m, m.failed(lease.Unknown))
	case delayReply:
		m.kind, m.event, m.parked = reply, answer, true
		w.wire = append(w.wire, m)
	case twice:
		w.answers(m, answer)
		m.parked, m.mute = true, true
		w.wire = append(w.wire, m)
	default:
		w.answers(m, answer)
	}
}

// answers delivers an answer to its requester.
func (w *world) answers(m message, e lease.Event) {
	if !m.mute && w.awaited(m) && !w.unreachable(m.from) {
		w.deliver(m.from, e)
	}
}

func pod(slot int) string { return string(rune('a' + slot)) }

func author(by int) string {
	switch by {
	case theOperator:
		return "the operator"
	case somebody:
		return "somebody"
	}
	return pod(by)
}

func holder(name string) string {
	if name == "" {
		return "nobody"
	}
	if id, ok := lease.ParseIdentity(name); ok {
		return id.Pod + id.Nonce
	}
	return name
}
