package lease

import "slices"

// Step is the state machine: a pure and total function. It absorbs the event into the state as a fact, then decides
// from the facts and the time alone, so that the order in which facts arrive cannot matter to the decision.
func Step(c Config, s State, t Time, e Event) (State, []Action) {
	m := &machine{c: c, s: s, t: t}
	m.s.Wake = Never
	m.expireRequests()
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

// due tells whether an instant is reached, and has Step called again when it will be.
func (m *machine) due(at Instant) bool {
	if m.t.Boot >= at {
		return true
	}
	m.s.Wake = min(m.s.Wake, at)
	return false
}

// expireRequests gives up requests whose deadline has passed, whether or not their sender says so.
func (m *machine) expireRequests() {
	if w := m.s.Write; w != nil && m.t.Boot >= w.Deadline {
		m.writeDone(WriteDone{Nonce: w.Nonce, Outcome: Unknown})
	}
	if r := m.s.Read; r != nil && m.t.Boot >= r.Deadline {
		m.readDone(ReadDone{ID: r.ID})
	}
}

// awaitRequests has Step called again when a request under way is to be given up.
func (m *machine) awaitRequests() {
	if w := m.s.Write; w != nil {
		m.due(w.Deadline)
	}
	if r := m.s.Read; r != nil {
		m.due(r.Deadline)
	}
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
			m.s.WatchUp = false
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
		if m.s.Tree.Alive {
			m.s.Tree.Exited, m.s.Tree.Code, m.s.Tree.Crashed = true, e.Code, e.Crashed
		}
	case TreeGone:
		m.treeGone()
	case Starved:
		m.s.Late = min(max(0, e.Late), m.c.maxLate())
	case Terminated:
		if !m.s.Leaving {
			m.s.Leaving, m.s.Signal = true, e.Signal
		}
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

func (m *machine) watched(e Watched) {
	switch newer := !m.s.Seen.Known || e.Record.Revision > m.s.Seen.Record.Revision; {
	case !newer: // watches repeat and lag
	case e.Deleted:
		m.seeAbsent(e.Record.Revision)
	default:
		m.see(e.Record)
	}
}

// same tells whether two sights show the same. A revision is given out once, unless the server's data is restored.
func (r Record) same(o Record) bool {
	return r.UID == o.UID && r.Revision == o.Revision && r.Holder == o.Holder && r.Token == o.Token && r.RenewTime == o.RenewTime
}

// before tells whether a record cannot have followed o: revisions and tokens grow, and what is released is not held
// again by the same tenure.
func (r Record) before(o Record) bool {
	return r.Revision <= o.Revision || r.UID == o.UID && (r.Token < o.Token || r.Token == o.Token && o.Free() && !r.Free())
}

// see takes note of a record.
func (m *machine) see(r Record) {
	seen := &m.s.Seen
	if was := seen.Record; !seen.Known || seen.Absent || !r.same(was) {
		if seen.Known && r.before(was) {
			m.wentBack(r)
		}
		*seen = Sight{Known: true, Record: r, At: m.t.Boot}
		if m.s.Redo {
			m.s.Redo, m.s.WriteAfter = false, m.t.Boot
		}
	}
	seen.Fresh, m.s.Behind = m.t.Boot, false
	m.settle(r)
}

func (m *machine) seeAbsent(revision int64) {
	m.s.Seen = Sight{Known: true, Absent: true, Record: Record{Revision: max(revision, m.s.Seen.Record.Revision)}, At: m.t.Boot}
	m.s.Behind = false
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
	for i, a := range m.s.Unsettled {
		if a.Nonce == r.RenewTime {
			m.extend(a.SentAt)
			m.s.Unsettled = m.s.Unsettled[i+1:] // earlier ones were replaced and can't be seen any more
			return
		}
	}
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

// reread has the next write wait for a read that is sent from now on: one under way may answer with what was before.
func (m *machine) reread() {
	m.s.MustRead, m.s.ReadAfter, m.s.Read = true, m.t.Boot, nil
}

func (m *machine) readDone(e ReadDone) {
	r := m.s.Read
	if r == nil || r.ID != e.ID {
		return
	}
	m.s.Read = nil
	m.s.ReadAfter = r.SentAt.Add(m.c.RetryPeriod)
	if e.Found == nil && !e.Absent {
		m.s.CutOff = true
		if m.tenured() {
			m.s.ReadAfter = r.SentAt.Add(m.c.retryAfter())
		}
		// A tenure is not lost because reads fail: the next write is conditional, and tells.
		m.s.MustRead = m.s.MustRead && (m.s.Behind || !m.tenured())
		return
	}
	m.answered()
	m.s.MustRead = false
	known := m.s.Seen.Record.Revision
	switch {
	case e.Found == nil:
		// A Lease seen after this read was sent is newer than its answer.
		if known == r.Floor {
			m.seeAbsent(known)
		}
	case e.Found.Revision >= known || !m.s.Seen.Known:
		m.see(*e.Found)
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
		m.s.MustRead, m.s.Behind = true, true
		return
	}
	m.see(r)
}

// answered takes note that the API server can be reached.
func (m *machine) answered() {
	if m.s.CutOff {
		m.s.CutOff, m.s.Contact = false, m.t.Boot
	}
}

// wentBack takes note that the server lags behind what it said before, or that its data was restored from a backup.
// To a candidate no record is proof then that the Lease is free: a holder that the server forgot may live for as long as
// its last renewal, forgotten too, allows.
func (m *machine) wentBack(r Record) {
	longest := max(m.c.Duration, m.s.Seen.Record.Duration, r.Duration)
	m.s.NotBefore = m.t.Boot.Add(min(longest, MaxDuration)).Add(m.c.LockDelay)
}

// maxUnsettled bounds the lost replies that are remembered; forgetting one only shortens the tenure.
const maxUnsettled = 8

func (m *machine) writeDone(e WriteDone) {
	w := m.s.Write
	if w == nil || w.Nonce != e.Nonce {
		return
	}
	m.s.Write = nil
	m.s.WriteAfter = w.SentAt.Add(m.c.retryAfter())
	if e.Outcome == Confirmed && (e.Record == nil || !e.Record.results(w.Record)) {
		e.Outcome = Unknown
	}
	switch e.Outcome {
	case Confirmed:
		m.answered()
		m.s.WriteAfter, m.s.RenewAt = m.t.Boot, w.SentAt.Add(m.c.RetryPeriod)
		m.confirmed(*w, *e.Record)
	case Conflict:
		m.conflict(w)
	case Gone:
		m.gone(w)
	case Refused:
		m.s.CutOff = true
		if m.s.Phase == Acquiring && m.s.Pending == nil {
			m.s.Phase = Waiting
		}
	default: // Unknown
		m.s.CutOff = true
		m.unsettled(w)
	}
}

// gone takes note that there was no Lease to replace. There may be another one since.
func (m *machine) gone(w *Attempt) {
	if m.s.Phase == Acquiring {
		m.s.Phase, m.s.Pending = Waiting, nil
	}
	if m.s.Seen.Record.Revision > w.Record.Revision {
		m.reread()
		return
	}
	m.seeAbsent(w.Record.Revision)
}

// conflict takes note that the Lease is at another revision. A released Lease is raced for; one that had run out should
// not have changed without the watch's telling.
func (m *machine) conflict(w *Attempt) {
	m.unsettled(w)
	m.s.Behind = true
	if seen := m.s.Seen.Record; w.Kind == Acquire && seen.Revision == w.Record.Revision && !seen.Free() {
		m.do(RestartWatch{})
	}
}

// unsettled has a read find out what became of a write. Also of one that met a conflict: what it met may be itself,
// delivered twice.
func (m *machine) unsettled(w *Attempt) {
	m.reread()
	m.s.Redo = true
	if w.Kind == Acquire || w.Kind == Confirm {
		m.s.Pending = w
		return
	}
	recent := m.s.Unsettled[max(0, len(m.s.Unsettled)+1-maxUnsettled):]
	m.s.Unsettled = append(slices.Clip(recent), *w)
}

// results tells whether r is what the API server stored for a write of w.
func (r Record) results(w Record) bool {
	return r.UID == w.UID && r.Revision > w.Revision && r.Holder == w.Holder && r.Token == w.Token && r.RenewTime == w.RenewTime
}

// confirmed handles the answer that a write was stored.
func (m *machine) confirmed(w Attempt, stored Record) {
	if !m.s.Seen.Known || m.s.Seen.Record.Revision <= stored.Revision {
		m.see(stored)
	}
	switch w.Kind {
	case Acquire, Confirm:
		m.s.Pending = nil
		m.s.Phase = Waiting
		if m.s.Seen.Record.Holder != stored.Holder || m.s.Seen.Record.Token != stored.Token || m.s.Seen.Absent {
			return // already replaced
		}
		m.begin(w, stored)
	case Renew:
		if m.tenured() && m.s.owns(m.c, stored) {
			m.extend(w.SentAt)
		}
	case GiveUp: // stop() sees it in the record
	}
}
