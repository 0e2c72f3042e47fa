package lease

import "slices"

// Step is the state machine: a pure and total function. It absorbs the event into the state as a fact, then decides
// from the facts and the time alone, so that the order in which facts arrive cannot matter to the decision.
func Step(c Config, s State, t Time, e Event) (State, []Action) {
	s.Unsettled = slices.Clone(s.Unsettled)
	m := &machine{c: c, s: s, t: t}
	m.s.Wake = Never
	m.expireRequests()
	m.absorb(e)
	m.decide()
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
	if w := m.s.Write; w != nil && m.due(w.Deadline) {
		m.writeDone(WriteDone{Nonce: w.Nonce, Outcome: Unknown})
	}
	if r := m.s.Read; r != nil && m.due(r.Deadline) {
		m.readDone(ReadDone{ID: r.ID})
	}
}

func (m *machine) absorb(e Event) {
	switch e := e.(type) {
	case WatchOpened:
		// What happened before the watch opened is found by a read. A holder's next renewal tells it as much.
		m.s.WatchUp = true
		m.s.MustRead = m.s.MustRead || !m.tenured()
		m.s.ReadAfter = m.t.Boot
	case WatchClosed:
		m.s.WatchUp = false
		m.s.ReadAfter = m.t.Boot.Add(m.c.RetryPeriod)
	case Watched:
		m.watched(e)
	case ReadDone:
		m.readDone(e)
	case WriteDone:
		m.writeDone(e)
	case ChildExited:
		m.s.Tree.Exited, m.s.Tree.Code, m.s.Tree.Crashed = true, e.Code, e.Crashed
	case TreeGone:
		m.s.Tree.Alive, m.s.Tree.Exited = false, true
	case Terminated:
		if !m.s.Leaving {
			m.s.Leaving, m.s.Signal = true, e.Signal
		}
	}
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

// see takes note of a record.
func (m *machine) see(r Record) {
	seen := &m.s.Seen
	if !seen.Known || seen.Absent || r.UID != seen.Record.UID || r.Revision != seen.Record.Revision {
		*seen = Sight{Known: true, Record: r, At: m.t.Boot}
		if m.s.Redo {
			m.s.Redo, m.s.WriteAfter = false, m.t.Boot
		}
	}
	m.settle(r)
}

func (m *machine) seeAbsent(revision int64) {
	m.s.Seen = Sight{Known: true, Absent: true, Record: Record{Revision: max(revision, m.s.Seen.Record.Revision)}, At: m.t.Boot}
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

func (m *machine) readDone(e ReadDone) {
	r := m.s.Read
	if r == nil || r.ID != e.ID {
		return
	}
	m.s.Read = nil
	m.s.ReadAfter = m.t.Boot.Add(m.c.RetryPeriod)
	known := m.s.Seen.Record.Revision
	switch {
	case e.Absent:
		m.s.MustRead = false
		// A Lease seen after this read was sent is newer than its answer.
		if known == r.Floor {
			m.seeAbsent(known)
		}
	case e.Found == nil:
		// A tenure is not lost because reads fail: the next write is conditional, and tells.
		m.s.MustRead = m.s.MustRead && !m.tenured()
	case e.Found.Revision >= known || !m.s.Seen.Known:
		m.s.MustRead = false
		m.see(*e.Found)
	case known > r.Floor: // overtaken by the watch
		m.s.MustRead = false
	default:
		// Older than what was known when it was asked for: the server lags, or its data was restored. A holder learns
		// nothing from it, fails to renew, and stops in time. A candidate waits anew.
		m.s.MustRead = false
		if !m.tenured() {
			m.see(*e.Found)
		}
	}
}

// maxUnsettled bounds the lost replies that are remembered; forgetting one only shortens the tenure.
const maxUnsettled = 8

func (m *machine) writeDone(e WriteDone) {
	w := m.s.Write
	if w == nil || w.Nonce != e.Nonce {
		return
	}
	m.s.Write = nil
	m.s.WriteAfter = w.SentAt.Add(m.c.RetryPeriod)
	switch e.Outcome {
	case Confirmed:
		m.s.WriteAfter, m.s.RenewAt = m.t.Boot, m.s.WriteAfter
		m.confirmed(*w, *e.Record)
	case Conflict:
		m.s.MustRead, m.s.ReadAfter, m.s.Redo = true, m.t.Boot, true
		if m.s.Phase == Acquiring {
			m.s.Phase = Waiting
			if !m.s.Seen.Record.released() { // it looked expired: the watch may have stalled
				m.do(RestartWatch{})
			}
		}
	case Gone:
		m.seeAbsent(w.Record.Revision)
		if m.s.Phase == Acquiring {
			m.s.Phase = Waiting
		}
	case Refused:
		if m.s.Phase == Acquiring && m.s.Pending == nil {
			m.s.Phase = Waiting
		}
	case Unknown:
		m.s.MustRead, m.s.ReadAfter, m.s.Redo = true, m.t.Boot, true
		if w.Kind == Acquire || w.Kind == Confirm {
			m.s.Pending = w
		} else {
			m.s.Unsettled = append(m.s.Unsettled, *w)
			m.s.Unsettled = m.s.Unsettled[max(0, len(m.s.Unsettled)-maxUnsettled):]
		}
	}
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
