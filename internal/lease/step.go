package lease

import (
	"slices"
	"time"
)

// Step is the state machine: a pure and total function. It absorbs the event into the state as a fact, then decides
// from the facts and the time alone, so that the order in which facts arrive cannot matter to the decision.
func Step(c Config, s State, t Time, e Event) (State, []Action) {
	m := &machine{c: c, s: s, t: t}
	m.s.Wake = Never
	m.losePatience()
	m.absorb(e)
	m.decide()
	m.awaitRequests()
	return m.s, m.out
}

// machine is one Step under way.
type machine struct {
	c   Config
	s   State
	t   Time
	out []Action
}

func (m *machine) do(a Action) { m.out = append(m.out, a) }

// due reports whether an instant is reached, and has Step called again when it will be.
func (m *machine) due(at Instant) bool {
	if m.t.Boot >= at {
		return true
	}
	m.s.Wake = min(m.s.Wake, at)
	return false
}

// losePatience stops waiting for answers that take too long. They count when they come.
func (m *machine) losePatience() {
	if w := m.s.Write; w != nil && m.t.Boot >= w.Patience {
		m.s.Write, m.s.WriteAfter = nil, w.Patience
		m.failed(w.SentAt, w.Patience)
		m.unsettled(w)
	}
	if r := m.s.Read; r != nil && m.t.Boot >= r.Patience {
		m.readFailed(r)
		m.setAside()
	}
	m.s.Overdue = without(m.s.Overdue, func(r Reading) bool { return m.t.Boot >= r.Deadline })
	for _, r := range m.s.Overdue {
		m.s.Disconnected = m.s.Disconnected || m.t.Boot >= max(r.SentAt, m.s.Answered).Add(m.c.requestTimeout())
	}
}

// awaitRequests has Step called again when a request has been waited for long enough.
func (m *machine) awaitRequests() {
	if w := m.s.Write; w != nil {
		m.due(w.Patience)
	}
	if r := m.s.Read; r != nil {
		m.due(r.Patience)
	}
}

// patience is how long the next request is waited for: a few round trips, twice as long after each failure. While there is
// time an API server in trouble is given more of it; when there is little left, less, so that several more fit in.
func (m *machine) patience() time.Duration {
	most := min(maxPatience, m.c.requestTimeout())
	left := m.s.Tenure.Confirmed.Add(m.s.renewBy(m.c)).Sub(m.t.Boot)
	if m.s.Phase == Stopping {
		left = m.s.ValidUntil(m.c).Sub(m.t.Boot)
	}
	switch {
	case !m.tenured():
		most = max(most, m.c.RetryPeriod)
	case left <= 0: // only KeepRunning, and processes that are hard to kill
		most = max(most, min(m.c.RetryPeriod, m.c.requestTimeout()))
	default:
		most = max(most, min(left/16, m.c.requestTimeout()))
		least := max(min(minPatience, m.c.requestTimeout()/3), roundTrips*m.s.RoundTrip)
		most = min(most, max(left/3, least)) // with little left none may take much of it
	}
	return min(max(minPatience, roundTrips*m.s.RoundTrip, m.s.Backoff), most)
}

// failed takes note of a request that was in vain.
func (m *machine) failed(sent, patience Instant) {
	m.s.Backoff = max(m.s.Backoff, 2*patience.Sub(sent))
}

// answered takes note that the API server can be reached, and how fast.
func (m *machine) answered(sent Instant) {
	took := min(m.t.Boot.Sub(sent), maxPatience)
	m.s.RoundTrip, m.s.Backoff = max(took, m.s.RoundTrip-m.s.RoundTrip/8), 0
	m.s.Answered = m.t.Boot
	if m.s.Disconnected {
		m.s.Disconnected, m.s.ReconnectedAt = false, m.t.Boot
	}
}

// without is s without what a condition holds for. States share s, so it is not changed in place.
func without[T any](s []T, drop func(T) bool) []T {
	if !slices.ContainsFunc(s, drop) {
		return s
	}
	return slices.DeleteFunc(slices.Clone(s), drop)
}

func (m *machine) absorb(e Event) {
	switch e := e.(type) {
	case WatchOpened:
		m.s.WatchUp = true
		if !m.tenured() {
			m.reread() // A holder's next renewal tells it as much.
		}
	case WatchClosed:
		if m.s.WatchUp { // said again it must not put off the reads that stand in for the watch
			m.s.WatchUp, m.s.WatchBy = false, 0
			if !m.s.MustRead { // a write that waits for a read waits no longer for a watch that broke
				m.s.ReadAfter = m.t.Boot.Add(m.c.RetryPeriod)
			}
		}
	case Watched:
		m.watched(e)
	case ReadDone:
		m.readDone(e)
	case WriteDone:
		m.writeDone(e)
	case ChildExited:
		m.childExited(e)
	case Unhealthy:
		m.unhealthy(e)
	case TreeGone:
		m.treeGone()
	case Starved:
		m.s.Late = min(max(0, e.Late), m.c.MaxLate())
	case DeathSought:
		m.deathSought(e)
	case Terminated:
		m.terminated(e)
	}
}

func (m *machine) childExited(e ChildExited) {
	if t := &m.s.Tree; t.Alive {
		t.Exited, t.Code, t.Crashed, t.Reason = true, e.Code, e.Crashed, e.Reason
	}
}

// unhealthy takes note of what a probe says. The first word counts.
func (m *machine) unhealthy(e Unhealthy) {
	if t := &m.s.Tree; t.Alive && t.Unhealthy == "" {
		t.Unhealthy, t.Grace = e.Reason, max(0, e.Grace)
	}
}

// treeGone takes note that no process lives. How the main one ended is then known; if not, it ended badly.
func (m *machine) treeGone() {
	t := &m.s.Tree
	if t.Alive && !t.Exited {
		t.Exited, t.Crashed, t.Code = true, true, 1
	}
	t.Alive = false
}

// terminated takes note that the agent is to end. The first call counts.
func (m *machine) terminated(e Terminated) {
	if !m.s.Terminating {
		m.s.Terminating, m.s.Signal = true, e.Signal
	}
}

// deathSought takes note of what is known of the end of another agent of this pod. One that is proven to be dead remains it.
func (m *machine) deathSought(e DeathSought) {
	d := &m.s.Death
	if !d.Asked || d.Holder != e.Holder {
		return
	}
	d.Asked = false
	if !e.Dead {
		d.Seen, d.Again = true, m.t.Boot.Add(m.c.RetryPeriod)
		return
	}
	d.Proven, d.From = true, m.t.Boot
	if d.Seen {
		d.From = d.From.Add(dying)
	}
}

// dying is what SIGKILL is given to take effect on those who were seen alive before.
const dying = time.Second

// suspectWatch has the watch opened anew that has not told in time of a change that a write has met.
func (m *machine) suspectWatch() {
	if m.s.WatchBy != 0 && m.due(m.s.WatchBy) {
		m.s.WatchBy = 0
		m.do(RestartWatch{})
	}
}

func (m *machine) watched(e Watched) {
	if e.Record.Revision > m.s.WatchFrom {
		m.s.WatchBy = 0
	}
	switch newer := !m.s.Observed.Known || e.Record.Revision > m.s.Observed.Record.Revision; {
	case !newer: // watches repeat and lag
	case e.Deleted:
		m.observeAbsent(e.Record.Revision)
	default:
		m.observe(e.Record)
	}
}

// same reports whether two records show the same. A revision is given out once, unless the server's data is restored.
func (r Record) same(o Record) bool {
	return r.UID == o.UID && r.Revision == o.Revision && r.Holder == o.Holder && r.Token == o.Token && r.RenewTime == o.RenewTime
}

// before reports whether a record cannot have followed o: revisions and tokens grow, and what is released is not held
// again by the same tenure.
func (r Record) before(o Record) bool {
	return r.Revision <= o.Revision || r.UID == o.UID && (r.Token < o.Token || r.Token == o.Token && o.Free() && !r.Free())
}

// observe takes note of a record.
func (m *machine) observe(r Record) {
	seen := &m.s.Observed
	if was := seen.Record; !seen.Known || seen.Absent || !r.same(was) {
		if seen.Known && r.before(was) {
			m.wentBack(r)
		}
		longest := r.Duration
		if next := r.UID == was.UID && r.Token > was.Token && r.Holder != was.Holder; !next { // else the token was edited
			longest = max(longest, seen.Longest)
		}
		*seen = Observation{Known: true, Record: r, At: m.t.Boot, Longest: longest}
		if m.s.RetryOnChange {
			m.s.RetryOnChange, m.s.WriteAfter = false, m.t.Boot
		}
	}
	seen.Fresh, m.s.Stale = m.t.Boot, false
	m.settle(r)
}

func (m *machine) observeAbsent(revision int64) {
	gone := Record{Revision: max(revision, m.s.Observed.Record.Revision)}
	m.s.Observed = Observation{Known: true, Absent: true, Record: gone, At: m.t.Boot, Longest: m.s.Observed.Longest}
	m.s.Stale = false
}

// settle extends the tenure when a record carries one of its own writes whose answer was lost or is still awaited: from
// when that write was sent, never from when it was seen.
func (m *machine) settle(r Record) {
	if !m.tenured() || !m.s.owns(m.c, r) {
		return
	}
	if w := m.s.Write; w != nil && w.Nonce == r.RenewTime {
		m.extend(w.SentAt)
	}
	for _, a := range m.s.Unsettled {
		if a.Nonce == r.RenewTime {
			m.extend(a.SentAt)
		}
	}
	// What rests on an earlier revision was stored before this one, and is seen in it, or never will be.
	m.s.Unsettled = without(m.s.Unsettled, func(a Attempt) bool { return a.Record.Revision < r.Revision })
}

// overtaken reports whether a tenure's write need not be asked after: the Lease is known at a later revision.
func (m *machine) overtaken(w *Attempt) bool {
	return m.tenured() && m.s.Observed.Record.Revision > w.Record.Revision && m.s.Observed.Record.UID == w.Record.UID
}

func (m *machine) tenured() bool { return m.s.Phase == Holding || m.s.Phase == Stopping }

// extend moves the deadline to what a confirmed write sent at an instant gives.
func (m *machine) extend(sent Instant) {
	if sent <= m.s.Tenure.Confirmed {
		return
	}
	m.s.Tenure.Confirmed = sent
	if m.s.Tree.Alive && !m.c.KeepRunning && !m.s.Stop.Killed {
		m.do(ExtendLeash{Deadline: m.s.Deadline(m.c)})
	}
}

// reread wants a read that is sent from now on: one under way may answer with what was before.
func (m *machine) reread() {
	m.s.MustRead, m.s.ReadAfter, m.s.Since = true, m.t.Boot, m.s.LastRead+1
	m.setAside()
}

// setAside stops waiting for the read under way, if there is one. Its answer counts when it comes.
func (m *machine) setAside() {
	if r := m.s.Read; r != nil {
		recent := m.s.Overdue[max(0, len(m.s.Overdue)+1-maxUnsettled):]
		m.s.Read, m.s.Overdue = nil, append(slices.Clip(recent), *r)
	}
}

// takeRead finds the read of an ID, and forgets it.
func (m *machine) takeRead(id int64) (r Reading, found bool) {
	if m.s.Read != nil && m.s.Read.ID == id {
		r, m.s.Read = *m.s.Read, nil
		return r, true
	}
	mine := func(r Reading) bool { return r.ID == id }
	i := slices.IndexFunc(m.s.Overdue, mine)
	if i < 0 {
		return Reading{}, false
	}
	r, m.s.Overdue = m.s.Overdue[i], without(m.s.Overdue, mine)
	return r, true
}

// readFailed paces the next read. One that only stands in for the watch may wait.
func (m *machine) readFailed(r *Reading) {
	m.failed(r.SentAt, r.Patience)
	m.s.ReadAfter = r.Patience
	if !m.s.MustRead && m.s.Observed.Known {
		m.s.ReadAfter = max(r.Patience, r.SentAt.Add(m.c.RetryPeriod))
	}
}

func (m *machine) readDone(e ReadDone) {
	waited := m.s.Read
	r, found := m.takeRead(e.ID)
	if !found {
		return
	}
	if e.Date != 0 {
		m.s.Server.Date, m.s.Server.At = e.Date, m.t.Boot
	}
	switch failed := e.Found == nil && !e.Absent; {
	case failed:
		m.s.Disconnected = true
		if waited != nil && waited.ID == r.ID {
			m.readFailed(&r)
		}
	case r.ID < m.s.Since: // from before what is to be found out; it counts as a watch's word does
		m.answered(r.SentAt)
		if e.Found != nil && (e.Found.Revision > m.s.Observed.Record.Revision || !m.s.Observed.Known) {
			m.observe(*e.Found)
		}
	default:
		m.answered(r.SentAt)
		m.foundOut(r, e)
	}
}

// foundOut handles the answer to a read that was sent late enough.
func (m *machine) foundOut(r Reading, e ReadDone) {
	known := m.s.Observed.Record.Revision
	m.s.MustRead, m.s.ReadAfter = false, r.SentAt.Add(m.c.RetryPeriod)
	m.setAside()
	m.s.Since = max(m.s.Since, r.ID) // earlier ones tell no more than this one
	switch {
	case e.Found == nil:
		// A Lease seen after this read was sent is newer than its answer.
		if known == r.Floor {
			m.observeAbsent(known)
		}
	case e.Found.Revision >= known || !m.s.Observed.Known:
		m.observe(*e.Found)
	case known == r.Floor:
		m.older(*e.Found)
	default: // overtaken by the watch
	}
}

// older takes note of an answer older than what was known when it was asked for. A holder learns nothing from it unless
// it is of its own tenure: it fails to renew and stops in time. It does not even try to renew: revisions that a restored
// server gives out again would let its write replace what it has never seen.
func (m *machine) older(r Record) {
	if m.tenured() && !m.s.owns(m.c, r) && m.t.Boot < m.othersMayAcquire() {
		m.s.MustRead, m.s.Stale = true, true
		return
	}
	m.observe(r)
}

// wentBack takes note that the server lags behind what it said before, or that its data was restored from a backup.
// To a candidate no record is proof then that the Lease is free: a holder that the server forgot may live for as long as
// its last renewal, forgotten too, allows.
func (m *machine) wentBack(r Record) {
	longest := max(m.c.Duration, m.s.Observed.Longest, r.Duration)
	m.s.NotBefore = max(m.s.NotBefore, m.t.Boot.Add(min(longest, MaxDuration)).Add(m.c.LockDelay))
}

// maxUnsettled bounds the requests that are remembered beside those that are waited for, and so those under way.
// Forgetting one only shortens the tenure.
const maxUnsettled = 8

func (m *machine) writeDone(e WriteDone) {
	w := m.s.Write
	if w == nil || w.Nonce != e.Nonce {
		m.lateWrite(e)
		return
	}
	m.s.Write, m.s.WriteAfter = nil, w.Patience
	switch e.of(w) {
	case Confirmed:
		m.stored(w, *e.Record)
	case Conflict:
		m.answered(w.SentAt)
		m.conflict(w)
	case Gone:
		m.answered(w.SentAt)
		m.gone(w)
	case Refused:
		m.failed(w.SentAt, w.Patience)
		m.s.Disconnected = true
		if m.s.Phase == Acquiring && m.s.Pending == nil {
			m.s.Phase = Waiting
		}
	default: // Unknown
		m.failed(w.SentAt, w.Patience)
		m.s.Disconnected = true
		m.unsettled(w)
	}
}

// of is the outcome of w, which is not known where the answer is not what was written.
func (e WriteDone) of(w *Attempt) Outcome {
	if e.Outcome == Confirmed && (e.Record == nil || !e.Record.results(w.Record)) {
		return Unknown
	}
	return e.Outcome
}

// lateWrite handles the answer to a write that is not waited for any more.
func (m *machine) lateWrite(e WriteDone) {
	w := m.s.Pending
	if i := slices.IndexFunc(m.s.Unsettled, func(a Attempt) bool { return a.Nonce == e.Nonce }); i >= 0 {
		w = &m.s.Unsettled[i]
	} else if w == nil || w.Nonce != e.Nonce {
		return
	}
	switch e.of(w) {
	case Confirmed:
		m.stored(w, *e.Record)
	case Conflict: // it may be itself that it met, delivered twice, so it stays in doubt
		if m.answered(w.SentAt); m.s.Observed.Record.Revision <= w.Record.Revision {
			m.reread()
			m.s.Stale = true
		}
	case Gone:
		m.answered(w.SentAt)
		m.gone(w)
	case Refused:
		m.s.Unsettled = without(m.s.Unsettled, func(a Attempt) bool { return a.Nonce == e.Nonce })
	default: // Unknown, as it was
	}
}

// stored handles the answer that a write was stored, early or late.
func (m *machine) stored(w *Attempt, r Record) {
	m.answered(w.SentAt)
	m.s.WriteAfter, m.s.RenewAt = m.t.Boot, max(m.s.RenewAt, w.SentAt.Add(m.c.RetryPeriod))
	m.confirmed(*w, r)
}

// gone takes note that there was no Lease to replace. There may be another one since.
func (m *machine) gone(w *Attempt) {
	if m.s.Phase == Acquiring {
		m.s.Phase, m.s.Pending = Waiting, nil
	}
	if m.s.Observed.Record.Revision > w.Record.Revision {
		m.reread()
		return
	}
	m.observeAbsent(w.Record.Revision)
}

// conflict takes note that the Lease is at another revision. A released Lease is raced for; one that had run out may be
// too, but should not have changed long ago without the watch's telling.
func (m *machine) conflict(w *Attempt) {
	m.unsettled(w)
	if m.overtaken(w) {
		return
	}
	m.s.Stale = true
	if seen := m.s.Observed.Record; w.Kind == Acquire && seen.Revision == w.Record.Revision && !seen.Free() && m.s.WatchUp {
		m.s.WatchFrom, m.s.WatchBy = seen.Revision, m.t.Boot.Add(m.c.RetryPeriod)
	}
}

// unsettled has a read find out what became of a write. Also of one that met a conflict: what it met may be itself,
// delivered twice.
func (m *machine) unsettled(w *Attempt) {
	if m.overtaken(w) {
		m.s.WriteAfter = m.t.Boot
		return
	}
	m.reread()
	m.s.RetryOnChange = true
	switch w.Kind {
	case Acquire, Confirm:
		m.s.Pending = w
		return
	case Close: // decided anew from what the read shows
		return
	default:
	}
	recent := m.s.Unsettled[max(0, len(m.s.Unsettled)+1-maxUnsettled):]
	m.s.Unsettled = append(slices.Clip(recent), *w)
}

// results reports whether r is what the API server stored for a write of w.
func (r Record) results(w Record) bool {
	return r.UID == w.UID && r.Revision > w.Revision && r.Holder == w.Holder && r.Token == w.Token && r.RenewTime == w.RenewTime
}

// confirmed takes note of what was stored.
func (m *machine) confirmed(w Attempt, stored Record) {
	if !m.s.Observed.Known || m.s.Observed.Record.Revision <= stored.Revision {
		m.observe(stored)
	}
	switch w.Kind {
	case Acquire, Confirm:
		m.s.Pending = nil
		m.s.Phase = Waiting
		if m.s.Observed.Record.Holder != stored.Holder || m.s.Observed.Record.Token != stored.Token || m.s.Observed.Absent {
			return // already replaced
		}
		m.begin(w, stored)
	case Renew:
		if m.tenured() && m.s.owns(m.c, stored) {
			m.extend(w.SentAt)
			m.s.MustRead = m.s.MustRead && m.s.Observed.Record.Revision > stored.Revision
		}
	case ReleaseLease, Close: // stop() and contend() see it in the record
	}
}
