package lease

import (
	"slices"
	"time"
)

// Step is the state machine: a pure and total function. It first absorbs the event into the state as a fact. It then decides from
// the facts and the time alone, so the order in which facts arrive cannot affect the decision.
func Step(c Config, s State, t Time, e Event) (State, []Action) {
	m := &machine{c: c, s: s, t: t}
	m.s.Wake = Never
	m.losePatience()
	m.absorb(e)
	m.decide()
	m.awaitRequests()
	return m.s, m.out
}

// machine is one call of Step in progress.
type machine struct {
	c   Config
	s   State
	t   Time
	out []Action
}

func (m *machine) do(a Action) { m.out = append(m.out, a) }

// due reports whether an instant is reached. If not, it makes sure that Step is called again at that instant.
func (m *machine) due(at Instant) bool {
	if m.t.Boot >= at {
		return true
	}
	m.s.Wake = min(m.s.Wake, at)
	return false
}

// losePatience stops waiting for answers that take too long. They still count when they arrive.
func (m *machine) losePatience() {
	if w := m.s.Write; w != nil && m.t.Boot >= w.Patience {
		m.writeFailed(w)
		m.unsettled(w)
	}
	if r := m.s.Read; r != nil {
		m.overdue(*r)
		if m.t.Boot >= r.Patience {
			m.readFailed(r)
			m.setAside()
		}
	}
	m.s.Overdue = without(m.s.Overdue, func(r Reading) bool { return m.t.Boot >= r.Deadline })
	for _, r := range m.s.Overdue {
		m.overdue(r)
	}
}

// overdue notices that a read has had no answer for so long that the API server is unreachable.
func (m *machine) overdue(r Reading) {
	m.s.Disconnected = m.s.Disconnected || m.t.Boot >= max(r.SentAt, m.s.Answered).Add(m.c.requestTimeout())
}

// awaitRequests makes sure that Step is called again when the patience of a request ends.
func (m *machine) awaitRequests() {
	if w := m.s.Write; w != nil {
		m.due(w.Patience)
	}
	if r := m.s.Read; r != nil {
		m.due(r.Patience)
	}
}

// patience returns how long to wait for the next request's answer: a few round trips, doubled after each failure. While much time
// is left, an API server in trouble gets more of it. When little is left, each request gets less, so that several more fit in.
func (m *machine) patience() time.Duration {
	most := min(maxPatience, m.c.requestTimeout())
	left := m.s.Tenure.Confirmed.Add(m.s.renewBy(m.c)).Sub(m.t.Boot)
	if m.s.Phase == Stopping {
		left = m.s.ValidUntil(m.c).Sub(m.t.Boot)
	}
	switch {
	case !m.tenured():
		most = max(most, m.c.RetryPeriod)
	case left <= 0: // only with KeepRunning, or while processes are hard to kill
		most = max(most, min(m.c.RetryPeriod, m.c.requestTimeout()))
	default:
		most = max(most, min(left/16, m.c.requestTimeout()))
		least := max(min(minPatience, m.c.requestTimeout()/3), roundTrips*m.s.RoundTrip)
		most = min(most, max(left/3, least)) // with little left none may take much of it
	}
	return min(max(minPatience, roundTrips*m.s.RoundTrip, m.s.Backoff), most)
}

// unhurried returns the patience of a request that can be repeated after a time.
//
// The agents of many jobs share an API server. If each agent soon repeats what is refused or not answered, an API server in trouble gets
// several times as many requests, and does not recover. So an agent with a long retryPeriod waits longer, but for no more than a part of the
// remaining time, and not for longer than the answer is useful.
func (m *machine) unhurried(again, ample time.Duration) time.Duration {
	return max(again, min((m.c.RetryPeriod-usualRetry)/unhurriedShare, ample, m.c.ofUse()))
}

// ample returns the part of the remaining time that the agent can wait for an answer.
func (m *machine) ample() time.Duration { return max(0, m.remaining()/unhurriedShare) }

// ampleForRead returns the same for a read. If it is for the API server's time, there is none: a tick may be due.
func (m *machine) ampleForRead() time.Duration {
	if m.s.MustRead && m.s.Server.Asked > m.s.Server.At {
		return 0
	}
	return m.ample()
}

// remaining returns the time until the agent must act on an answer: a holder stops if it has none, and a standby acquires the Lease. It is not
// positive if the agent must act now, or does not know.
func (m *machine) remaining() time.Duration {
	switch {
	case m.s.Phase == Holding:
		return m.s.Tenure.Confirmed.Add(m.s.renewBy(m.c)).Sub(m.t.Boot)
	case m.s.Phase == Waiting && m.s.Observed.Known && !m.s.Observed.Absent:
		return m.c.FreeAt(m.s).Sub(m.t.Boot)
	default:
		return 0
	}
}

// hurryWrite shortens the wait for a renewal, or after one that failed, if it began when more time remained. When a holder begins to stop, none
// remains: the next holder waits for the release.
func (m *machine) hurryWrite() {
	limit := m.t.Boot.Add(m.ample())
	m.s.WriteAfter = min(m.s.WriteAfter, max(m.s.WriteSoon, limit))
	if m.s.Write != nil {
		w := *m.s.Write // states share it
		w.Patience = min(w.Patience, max(w.Again, limit))
		m.s.Write = &w
	}
	m.losePatience()
}

// hurryRead shortens the wait for a read, or after one that failed, if it began when more time remained.
func (m *machine) hurryRead() {
	limit := m.t.Boot.Add(m.ampleForRead())
	if m.s.Read == nil {
		if m.s.MustRead {
			m.s.ReadAfter = min(m.s.ReadAfter, max(m.s.ReadSoon, limit))
		}
		return
	}
	r := *m.s.Read // states share it
	r.Patience = min(r.Patience, max(r.Again, limit))
	m.s.Read = &r
	m.losePatience()
}

// failed records that a request failed that an agent in a hurry can repeat at an instant.
func (m *machine) failed(sent, again Instant) {
	m.s.Backoff = max(m.s.Backoff, 2*again.Sub(sent))
}

// writeFailed records that the write under way is not waited for any more, and sets the time of the next one.
func (m *machine) writeFailed(w *Attempt) {
	m.s.Write, m.s.WriteAfter, m.s.WriteSoon = nil, w.Patience, w.Again
	m.failed(w.SentAt, w.Again)
}

// answered records that the API server is reachable, and how fast it answers.
func (m *machine) answered(sent Instant) {
	took := min(m.t.Boot.Sub(sent), maxPatience)
	m.s.RoundTrip, m.s.Backoff = max(took, m.s.RoundTrip-m.s.RoundTrip/8), 0
	m.s.Answered = m.t.Boot
	if m.s.Disconnected {
		m.s.Disconnected, m.s.ReconnectedAt = false, m.t.Boot
	}
}

// without returns s without the elements for which drop is true. States share s, so it is not changed in place.
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
			m.reread() // A holder's next renewal shows the same.
		}
	case WatchClosed:
		m.watchClosed()
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
	case GraceEnds:
		m.graceEnds(e)
	}
}

func (m *machine) watchClosed() {
	if !m.s.WatchUp { // a repeated event must not delay the reads that replace the watch
		return
	}
	m.s.WatchUp, m.s.WatchBy = false, 0
	if !m.s.MustRead { // a write that waits for a read waits no longer for a watch that broke
		m.s.ReadAfter, m.s.ReadSoon = m.t.Boot.Add(m.c.RetryPeriod), m.t.Boot
	}
}

func (m *machine) childExited(e ChildExited) {
	if t := &m.s.Tree; t.Alive {
		t.Exited, t.Code, t.Crashed, t.Reason = true, e.Code, e.Crashed, e.Reason
	}
}

// unhealthy records the result of a probe. The first one counts.
func (m *machine) unhealthy(e Unhealthy) {
	if t := &m.s.Tree; t.Alive && t.Unhealthy == "" {
		t.Unhealthy, t.Grace = e.Reason, max(0, e.Grace)
	}
}

// treeGone records that no process lives. If the end of the main process is not known by then, it counts as a crash.
func (m *machine) treeGone() {
	t := &m.s.Tree
	if t.Alive && !t.Exited {
		t.Exited, t.Crashed, t.Code = true, true, 1
	}
	t.Alive = false
}

// terminated records that the agent must exit. The first call counts.
func (m *machine) terminated(e Terminated) {
	if !m.s.Terminating {
		m.s.Terminating, m.s.Signal = true, e.Signal
	}
}

// graceEnds moves the kill to the end of the container's time. Without a tenure that is ending, no process lives.
func (m *machine) graceEnds(e GraceEnds) {
	if m.s.Terminating && m.s.Phase == Stopping {
		m.s.Stop.KillAt = min(m.s.Stop.KillAt, e.At)
	}
}

// deathSought records what is known about the end of another agent of this pod. A proven death stays proven.
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

// dying is the time that SIGKILL gets to take effect on processes that were not proven dead before.
const dying = time.Second

// suspectWatch restarts the watch if it has not reported in time a change that a write has met.
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

// same reports whether two records show the same state. A revision is assigned once, unless the server's data is restored, so the
// other fields are compared too.
func (r Record) same(o Record) bool {
	return r.UID == o.UID && r.Revision == o.Revision && r.Holder == o.Holder && r.Token == o.Token && r.RenewTime == o.RenewTime
}

// before reports whether a record cannot have followed o: revisions and tokens grow, and a tenure that was released does not hold
// the Lease again.
func (r Record) before(o Record) bool {
	return r.Revision <= o.Revision || r.UID == o.UID && (r.Token < o.Token || r.Token == o.Token && o.Free() && !r.Free())
}

// observe records an observed Lease.
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
			m.s.RetryOnChange, m.s.WriteAfter, m.s.WriteSoon = false, m.t.Boot, m.t.Boot
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

// settle extends the tenure when a record carries one of the tenure's writes whose answer was lost or is still pending. Validity
// counts from when that write was sent, never from when the record was seen.
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
	// A write that replaces an earlier revision was stored before this one and shows in it, or will never be stored.
	m.s.Unsettled = without(m.s.Unsettled, func(a Attempt) bool { return a.Record.Revision < r.Revision })
}

// overtaken reports whether the outcome of a tenure's write no longer matters: the Lease is known at a later revision.
func (m *machine) overtaken(w *Attempt) bool {
	return m.tenured() && m.s.Observed.Record.Revision > w.Record.Revision && m.s.Observed.Record.UID == w.Record.UID
}

func (m *machine) tenured() bool { return m.s.Phase == Holding || m.s.Phase == Stopping }

// extend moves the deadline to the one that a confirmed write, sent at that instant, gives.
func (m *machine) extend(sent Instant) {
	if sent <= m.s.Tenure.Confirmed {
		return
	}
	m.s.Tenure.Confirmed = sent
	if m.s.Tree.Alive && !m.c.KeepRunning && !m.s.Stop.Killed {
		m.do(ExtendLeash{Deadline: m.s.Deadline(m.c)})
	}
}

// reread requires a read that is sent from now on: one in flight may answer with an earlier state.
func (m *machine) reread() {
	m.s.MustRead, m.s.ReadAfter, m.s.ReadSoon, m.s.Since = true, m.t.Boot, m.t.Boot, m.s.LastRead+1
	m.setAside()
}

// setAside stops waiting for the read in flight, if there is one. Its answer counts when it arrives.
func (m *machine) setAside() {
	if r := m.s.Read; r != nil {
		recent := m.s.Overdue[max(0, len(m.s.Overdue)+1-maxUnsettled):]
		m.s.Read, m.s.Overdue = nil, append(slices.Clip(recent), *r)
		m.overdue(*r)
	}
}

// takeRead finds the read with an ID and removes it.
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

// readFailed sets the time of the next read. A read that only replaces the watch can wait longer.
func (m *machine) readFailed(r *Reading) {
	m.failed(r.SentAt, r.Again)
	m.s.ReadAfter, m.s.ReadSoon = r.Patience, r.Again
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
	case r.ID < m.s.Since: // sent before the state that must be found out; it counts like a watch event
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
	m.s.MustRead, m.s.ReadAfter, m.s.ReadSoon = false, r.SentAt.Add(m.c.RetryPeriod), m.t.Boot
	m.setAside()
	m.s.Since = max(m.s.Since, r.ID) // earlier ones show no more than this one
	switch {
	case e.Found == nil:
		// A Lease seen after this read was sent is newer than the answer.
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

// older handles an answer that is older than the state known when the read was sent. A holder ignores it unless it belongs to its
// own tenure: the holder then fails to renew and stops in time. It does not even try to renew, because a restored server can
// assign revisions again, and the write could then replace a record that the holder has never seen.
func (m *machine) older(r Record) {
	if m.tenured() && !m.s.owns(m.c, r) && m.t.Boot < m.othersMayAcquire() {
		m.s.MustRead, m.s.Stale, m.s.ReadSoon = true, true, m.s.ReadAfter
		return
	}
	m.observe(r)
}

// wentBack records that the server lags behind its earlier answers, or that its data was restored from a backup. A candidate then
// accepts no record as proof that the Lease is free. A holder that the server forgot can live for as long as its last renewal
// allows, and the server forgot that renewal too.
func (m *machine) wentBack(r Record) {
	longest := max(m.c.Duration, m.s.Observed.Longest, r.Duration)
	m.s.NotBefore = max(m.s.NotBefore, m.t.Boot.Add(min(longest, MaxDuration)).Add(m.c.LockDelay))
}

// maxUnsettled bounds the requests that are remembered beside those that the agent waits for, and so the requests in flight.
// Forgetting one only shortens the tenure.
const maxUnsettled = 8

func (m *machine) writeDone(e WriteDone) {
	w := m.s.Write
	if w == nil || w.Nonce != e.Nonce {
		m.lateWrite(e)
		return
	}
	m.s.Write, m.s.WriteAfter, m.s.WriteSoon = nil, w.Again, w.Again
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
		m.writeFailed(w)
		m.s.Disconnected = true
		if m.s.Phase == Acquiring && m.s.Pending == nil {
			m.s.Phase = Waiting
		}
	default: // Unknown
		m.writeFailed(w)
		m.s.Disconnected = true
		m.unsettled(w)
	}
}

// of returns the outcome of w. It is Unknown if the answer is not the record that was written.
func (e WriteDone) of(w *Attempt) Outcome {
	if e.Outcome == Confirmed && (e.Record == nil || !e.Record.results(w.Record)) {
		return Unknown
	}
	return e.Outcome
}

// lateWrite handles the answer to a write for which the agent no longer waits.
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
	case Conflict: // the write may have met itself, delivered twice, so its outcome stays in doubt
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

// stored handles the answer that a write was stored, on time or late.
func (m *machine) stored(w *Attempt, r Record) {
	m.answered(w.SentAt)
	m.s.WriteAfter, m.s.WriteSoon, m.s.RenewAt = m.t.Boot, m.t.Boot, max(m.s.RenewAt, w.SentAt.Add(m.c.RetryPeriod))
	m.confirmed(*w, r)
}

// gone records that there was no Lease to replace. There may be a new one since.
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

// conflict records that the Lease is at another revision. A conflict is normal on a released Lease, because candidates race for
// it. They can race for a Lease that has run out, too. But if such a Lease changed long ago, the watch should have reported it.
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

// unsettled requires a read to find out the outcome of a write. This includes a write that met a conflict: it may have met
// itself, delivered twice.
func (m *machine) unsettled(w *Attempt) {
	if m.overtaken(w) {
		m.s.WriteAfter, m.s.WriteSoon = m.t.Boot, m.t.Boot
		return
	}
	m.reread()
	m.s.RetryOnChange = true
	switch w.Kind {
	case Acquire, Confirm:
		m.s.Pending = w
		return
	case Close: // decided again from the read's answer
		return
	default:
	}
	recent := m.s.Unsettled[max(0, len(m.s.Unsettled)+1-maxUnsettled):]
	m.s.Unsettled = append(slices.Clip(recent), *w)
}

// results reports whether r is the record that the API server stored for a write of w.
func (r Record) results(w Record) bool {
	return r.UID == w.UID && r.Revision > w.Revision && r.Holder == w.Holder && r.Token == w.Token && r.RenewTime == w.RenewTime
}

// confirmed records that a write was stored.
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
