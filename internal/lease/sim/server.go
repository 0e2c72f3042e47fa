package sim

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// mode is the state of the API server.
type mode uint8

const (
	up        mode = iota
	blackHole      // no answers, nothing is executed
	refusing       // no connection
	failing        // 5xx: the outcome is unknown
	throttled      // 429
	paused         // etcd is paused; requests that arrived in between may be executed when it resumes
)

// server is the API server and its store: one Lease, changed by compare-and-swap on its revision.
type server struct {
	w        *world
	lease    lease.Record
	absent   bool
	revision int64
	// unlabelled means that the Lease lacks our label, so that agents and operator treat it as somebody else's.
	unlabelled bool
	mode       mode
	// restoring counts the restores in progress. During a restore nothing gets through, whatever the mode.
	restoring int
	held      []func() // requests that arrived while paused
	// noWatches counts the reasons why no watch opens. slow bounds how long the server takes for a request.
	noWatches int
	slow      time.Duration
	conns     []*conn
	// older holds the last few states of the Lease, for answers from a cache that lags.
	older [8]stored
	turn  int
	uids  int64
	// before is the state that the last acquire has replaced.
	before *stored
	// dead marks the servers behind the Service that are silent.
	dead [servers]bool
	// lags marks the servers whose reads show old states.
	lags [servers]bool
	// dates is how wrong the servers' clocks are, datesSet since when. dateless means that no answer has a Date.
	dates    [servers]time.Duration
	datesSet time.Duration
	dateless bool
	// saved is the state that a restore goes back to, savedRuns the checker's knowledge of runs at that time.
	saved     stored
	savedRuns runsSeen
}

// servers is the number of API servers in front of the store.
const servers = 3

type stored struct {
	lease      lease.Record
	absent     bool
	revision   int64
	unlabelled bool
}

func newServer(w *world) *server {
	s := &server{w: w, absent: true, revision: 1000}
	s.create(lease.Record{Duration: w.p.longest(), Release: lease.Release{Reason: lease.ReasonCreated}, Runs: w.firstRuns()})
	s.save()
	return s
}

func (s *server) state() stored { return stored{s.lease, s.absent, s.revision, s.unlabelled} }

// reply is an answer to any request. failed is set for a read, watch for a watch.
type reply struct {
	outcome lease.Outcome
	watch   bool
	failed  bool
	absent  bool
	record  *lease.Record
	// date is the time of the answer by the server's clock, in seconds since 1970; 0 for none.
	date int64
	// unlabelled means that the record is a Lease without our label.
	unlabelled bool
}

// ours returns the answer to a read as an agent sees it: the read fails if the Lease is somebody else's.
func (r reply) ours() reply {
	if r.unlabelled {
		return refused
	}
	return r
}

// unanswered is the result for a client that received no answer.
var unanswered = reply{outcome: lease.Unknown, failed: true}

// refused is the result for a client whose request was refused before anything was executed.
var refused = reply{outcome: lease.Refused, failed: true}

// put is an update, by an agent, the operator or a client-go elector.
func (s *server) put(by string, r lease.Record) reply {
	switch {
	case s.absent && s.w.chance(0.5): // a precondition on the UID makes it a conflict
		return reply{outcome: lease.Conflict}
	case s.absent:
		return reply{outcome: lease.Gone}
	case r.UID != s.lease.UID, r.Revision != s.lease.Revision:
		return reply{outcome: lease.Conflict}
	}
	s.w.check.stores(by, s.lease, r)
	s.w.check.writesOurs(by, s.unlabelled)
	if r.Holder != "" && r.Token != s.lease.Token {
		was := s.state()
		s.before = &was
	}
	s.store(r)
	if a := s.w.byID[by]; a != nil {
		a.revision = s.revision
	}
	if claim := s.w.check.newest(by); claim != nil {
		claim.revision = s.revision
	}
	now := s.lease
	return reply{outcome: lease.Confirmed, record: &now}
}

// create creates the Lease; there must be none.
func (s *server) create(r lease.Record) {
	s.uids++
	r.UID = "uid" + strconv.FormatInt(s.uids, 10)
	s.absent, s.unlabelled = false, false
	s.store(r)
}

func (s *server) remove() {
	if s.absent {
		return
	}
	s.w.check.ends(s.lease)
	s.advance()
	s.absent = true
	s.lease.Revision = s.revision
	s.tell(s.event(lease.Watched{Record: s.lease, Deleted: true}))
}

func (s *server) store(r lease.Record) {
	if s.lease.Holder != r.Holder || s.lease.Token != r.Token {
		s.w.check.ends(s.lease)
	}
	s.advance()
	r.Revision = s.revision
	s.lease = r
	if r.Handover.To != "" {
		s.w.handover = s.w.now
	}
	s.tell(s.event(lease.Watched{Record: r}))
}

// unreadable is an event about a Lease that is somebody else's. Agents close a watch that delivers one.
type unreadable struct{ lease.Event }

func (s *server) event(e lease.Watched) lease.Event {
	if s.unlabelled && s.w.o.Broken != mistake.AgentsHeedNoLabel {
		return unreadable{e}
	}
	return e
}

// relabel removes our label from the Lease, or puts it back.
func (s *server) relabel(ours bool) {
	if !s.absent && s.unlabelled == ours {
		s.unlabelled = !ours
		s.store(s.lease)
	}
}

// advance assigns the next revision. Other objects are written too. Where revisions are assigned again, there are so many other
// writes that this object never gets a revision that a client still knows. If it did, that client's next write would replace a
// state that it has not seen. Only a store that raises its revisions when it is restored could prevent that.
func (s *server) advance() {
	s.older[s.turn%len(s.older)] = s.state()
	s.turn++
	others := int64(20)
	if p := s.w.p.profile; p == Restore || p == FastRestore || p == Runs {
		others = million
	}
	s.revision += 1 + s.w.rng.Int64N(others)
}

func (s *server) tell(e lease.Event) {
	for _, c := range s.conns {
		c.send(e)
	}
}

// get is a read. A cache can answer it, or a server that lags.
func (s *server) get(l *link) reply {
	state := s.state()
	if s.turn > 0 && (s.lags[l.server] || s.w.chance(l.lag)) {
		state = s.older[s.w.rng.IntN(min(s.turn, len(s.older)))]
	}
	if l.outdated && s.before != nil {
		state = *s.before
	}
	if state.absent {
		return reply{absent: true, date: s.date()}
	}
	return reply{record: &state.lease, date: s.date(), unlabelled: state.unlabelled && s.w.o.Broken != mistake.AgentsHeedNoLabel}
}

// edit is a user's or the operator's change of the stored Lease.
func (s *server) edit(change func(*lease.Record)) {
	if s.absent {
		return
	}
	was := s.lease
	r := was
	change(&r)
	s.store(r)
	s.w.check.edited(was, s.lease)
}

// save takes a snapshot. restore goes back to it, raises the token base above every token assigned since, as the runbook says,
// and breaks every connection.
func (s *server) save() { s.saved, s.savedRuns = s.state(), s.w.check.runs.clone() }

func (s *server) restore() {
	since := s.revision - s.saved.revision
	s.w.check.ends(s.lease)
	for _, c := range s.w.check.claims {
		c.forgotten = c.forgotten || c.revision > s.saved.revision
	}
	s.absent, s.lease, s.revision, s.unlabelled = s.saved.absent, s.saved.lease, s.saved.revision, s.saved.unlabelled
	s.turn = 0
	for _, a := range s.w.agents { // from now on a higher revision proves nothing
		a.revision = math.MaxInt64
	}
	for _, c := range slices.Clone(s.conns) {
		c.breaks()
	}
	s.w.base += since + 1000
	s.edit(func(r *lease.Record) { r.TokenBase = s.w.base })
	s.w.check.forgets(s.savedRuns)
	s.save()
}

// now returns the state of the server.
func (s *server) now() mode {
	if s.restoring > 0 {
		return blackHole
	}
	return s.mode
}

// set changes the state of the server.
func (s *server) set(m mode) {
	s.mode = m
	switch m {
	case up:
		held := s.held
		s.held = nil
		if s.restoring > 0 { // they ended with the servers
			return
		}
		for _, request := range held {
			request()
		}
	case refusing:
		for _, c := range slices.Clone(s.conns) {
			c.breaks()
		}
	default: // connections stay open and silent
	}
}
