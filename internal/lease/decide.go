package lease

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// sigterm is SIGTERM on every supported system. This package does not import syscall.
const sigterm = 15

// decide acts on the facts. It is called after every event and must be idempotent: it records in the state whatever it asks for,
// so that it asks once.
func (m *machine) decide() {
	if m.s.Done {
		return
	}
	m.suspectWatch()
	if m.s.Phase == Holding {
		m.hold()
	}
	if m.s.Phase == Stopping {
		m.stop()
	}
	if !m.s.Done && (m.s.Phase == Waiting || m.s.Phase == Acquiring) {
		m.seekDeath()
		m.contend()
	}
	if !m.s.Done {
		m.read()
	}
}

// read sends a read when the next write needs one. It also reads in place of a watch that is down, or that may have stalled where
// no attempt to acquire would detect that. A holder needs no such reads, because its renewals show all that it must know.
func (m *machine) read() {
	m.hurryRead()
	poll := !m.s.Observed.Known || (!m.tenured() && (m.s.Observed.Absent || !m.s.WatchUp))
	if m.s.Read != nil || !(m.s.MustRead || poll) || !m.due(m.s.ReadAfter) {
		return
	}
	m.s.LastRead++
	again := m.patience()
	patience := m.unhurried(again, m.ampleForRead())
	deadline := m.t.Boot.Add(max(patience, m.c.ofUse()))
	m.s.Read = &Reading{
		ID: m.s.LastRead, SentAt: m.t.Boot, Again: m.t.Boot.Add(again), Patience: m.t.Boot.Add(patience), Deadline: deadline,
		Floor: m.s.Observed.Record.Revision,
	}
	ask := SendRead{ID: m.s.LastRead, Deadline: deadline}
	if !m.s.Observed.Absent {
		ask.Floor = m.s.Observed.Record.Revision
	}
	m.do(ask)
}

// mayWrite reports whether a write may be sent now. If the last observation is as old as a lease, a read must come first. The revision
// alone would suffice for the compare-and-swap, unless the server has started to assign its revisions again. A holder does not wait for
// writes whose outcomes are unknown, or for the read that finds them out, before it sends another write. All of them replace one revision,
// so at most one is stored, and the record shows which.
func (m *machine) mayWrite() bool {
	if m.s.Write != nil || !m.s.Observed.Known || m.s.Observed.Absent {
		return false
	}
	old := m.t.Boot >= m.s.Observed.Fresh.Add(m.c.Duration)
	m.s.MustRead = m.s.MustRead || old
	if m.s.MustRead && (old || m.s.Stale || !m.tenured()) {
		return false
	}
	return m.due(m.s.WriteAfter)
}

// write sends a write and remembers it. limit bounds how long its answer is useful.
func (m *machine) write(k Kind, limit Instant, change func(r Record, nonce int64) Record) {
	m.s.LastNonce = max(m.t.Wall, m.s.LastNonce+1)
	again := m.patience()
	patience := m.unhurried(again, m.ample())
	a := Attempt{
		Kind:     k,
		Record:   change(m.s.Observed.Record, m.s.LastNonce),
		Nonce:    m.s.LastNonce,
		SentAt:   m.t.Boot,
		Again:    min(limit, m.t.Boot.Add(again)),
		Patience: min(limit, m.t.Boot.Add(patience)),
		Deadline: min(limit, m.t.Boot.Add(max(patience, m.c.ofUse()))),
	}
	m.s.Write = &a
	m.do(SendWrite{Attempt: a})
}

func (m *machine) acquire(runs Runs) {
	m.s.Phase = Acquiring
	why, at := m.presumedReason(), m.acquireTime()
	m.write(Acquire, Never, func(r Record, nonce int64) Record {
		r.Runs = runs
		return r.acquired(m.c, why, at, nonce)
	})
}

// acquireTime returns the time by the wall clock, or a microsecond later if this agent's last tenure has that acquireTime. A clock
// can be set back, and only the acquireTime tells an acquire from that tenure if both have the same token (see resolvePending).
func (m *machine) acquireTime() int64 {
	if p := m.s.Past; p != nil && p.Tenure.AcquireTime == m.t.Wall {
		return m.t.Wall + 1
	}
	return m.t.Wall
}

// closeRun ends a run that has no attempts left and whose holder vanished. Without it, nothing would record that the run failed.
func (m *machine) closeRun(runs Runs) {
	why := m.presumedReason()
	m.write(Close, Never, func(r Record, nonce int64) Record {
		r.Runs = runs
		return r.vacated(why, nonce)
	})
}

// presumedReason returns the presumed reason for the end of the last tenure if the Lease does not contain one.
func (m *machine) presumedReason() Reason {
	switch r := m.s.Observed.Record; {
	case m.s.lastWasMine():
		return m.s.Past.Reason
	case r.Holder == m.c.Identity.String(): // acquired, but never confirmed in time
		return ReasonRenewFailed
	case r.Holder == UnknownHolder:
		return ReasonLeaseDeleted
	case r.changedHands():
		return ReasonLeaseLost
	case m.s.Death.of(r.Holder):
		return ReasonHolderTerminated
	default:
		return ReasonLeaseExpired
	}
}

func (m *machine) renew(k Kind, limit Instant) {
	acquired := m.s.Tenure.AcquireTime
	if k == Confirm { // no tenure yet
		acquired = m.s.Pending.Record.AcquireTime
	}
	m.write(k, limit, func(r Record, nonce int64) Record { return r.renewed(m.c, acquired, nonce) })
}

// contend handles the phases Waiting and Acquiring.
func (m *machine) contend() {
	if m.s.Write != nil {
		return
	}
	if m.s.Pending != nil && !m.s.MustRead {
		m.resolvePending()
		if m.s.Phase == Stopping { // terminating, with a Lease to release
			m.stop()
			return
		}
	}
	if m.s.Terminating && (m.s.Pending == nil || m.due(m.s.Pending.SentAt.Add(2*m.c.requestTimeout()))) {
		m.exit(0)
		return
	}
	if !m.s.Terminating && m.s.Pending == nil && m.s.Observed.Known && !m.s.Observed.Absent {
		m.seek()
	}
}

// seekDeath asks whether the holder is dead, if the holder is another agent process of this pod. The start of this agent proves
// nothing, since a runtime can lose track of a container that still runs.
func (m *machine) seekDeath() {
	r := m.s.Observed.Record
	if !m.c.EndProvesDeath || !m.s.Observed.Known || r.Holder == m.c.Identity.String() || !m.c.Identity.samePod(r.Holder) {
		return
	}
	if m.s.Death.Holder != r.Holder {
		m.s.Death = Death{Holder: r.Holder}
	}
	if d := &m.s.Death; !d.Proven && !d.Asked && m.due(d.Again) {
		d.Asked = true
		m.do(SeekDeath{Holder: r.Holder})
	}
}

// seek sends the write that a candidate wants to make once it knows the Lease. It exits if nothing is left to do.
func (m *machine) seek() {
	aim, wanted := m.aimed()
	if !wanted && m.left() {
		m.exit(0)
	}
	if !wanted || !m.mayWrite() {
		return
	}
	if _, possible := m.s.Observed.Record.NextToken(); !possible {
		m.due(m.s.Observed.Fresh.Add(m.c.Duration)) // to read again if the watch reports nothing
		return
	}
	if !m.due(m.c.FreeAt(m.s)) {
		return
	}
	if aim.kind == Close {
		m.closeRun(aim.runs)
		return
	}
	m.acquire(aim.runs)
}

// resolvePending settles an acquire whose answer was lost, after a read. If the read finds the acquire stored, it is not a tenure
// yet: one more write must be confirmed first. The acquireTime must match too, because an agent that acted on an outdated answer
// may have tried to win the token of a tenure that it already had. If the acquire is not found, or the token base was changed
// since, it is dropped. If it is stored later after all, the Lease names this agent as the holder of a tenure that never began,
// and FreeAt treats the agent as an ordinary candidate.
func (m *machine) resolvePending() {
	r := m.s.Observed.Record
	if p := m.s.Pending.Record; m.s.Observed.Absent || r.UID != p.UID || r.Holder != p.Holder || r.Token != p.Token || r.TokenBase != p.TokenBase || r.AcquireTime != p.AcquireTime || !m.sameAttempt(r, p) {
		m.s.Pending, m.s.Phase = nil, Waiting
		return
	}
	m.s.Phase = Acquiring
	if m.s.Terminating {
		m.s.Tenure = tenureOf(r, m.s.Pending.SentAt)
		m.s.Pending, m.s.Phase = nil, Stopping
		m.s.Stop = Stop{Reason: ReasonPodTerminating, KillAt: m.t.Boot, Exits: true}
		return
	}
	if m.mayWrite() {
		m.renew(Confirm, Never)
	}
}

// sameAttempt reports whether two records belong to the same attempt of a run.
func (m *machine) sameAttempt(r, o Record) bool {
	return m.c.Runs == nil || r.Runs.Now.ID == o.Runs.Now.ID && r.Runs.Now.Attempt == o.Runs.Now.Attempt
}

// begin starts a tenure that a confirmed write has won.
func (m *machine) begin(w Attempt, stored Record) {
	if c := m.s.Write; c != nil { // the answer to an acquire arrived while a confirmation was in flight: the confirmation is now a renewal
		renewal := *c
		renewal.Kind = Renew
		m.s.Write = &renewal
	}
	switch {
	case m.s.Terminating:
		m.s.Tenure = tenureOf(stored, w.SentAt)
		m.s.Phase = Stopping
		m.s.Stop = Stop{Reason: ReasonPodTerminating, KillAt: m.t.Boot, Exits: true}
	case m.t.Boot >= w.SentAt.Add(m.s.renewBy(m.c)):
		// The answer came so late that the agent would stop the process at once. Confirm first.
		m.s.Phase, m.s.Pending = Acquiring, &w
	default:
		m.s.Tenure = tenureOf(stored, w.SentAt)
		m.s.Tenure.RunUntil = m.runUntil(stored.Runs.Now)
		m.s.Phase, m.s.Stop, m.s.Unsettled, m.s.MustRead = Holding, Stop{}, nil, false
		m.s.Tree = Tree{Alive: true}
		m.do(m.startChild(stored))
		if m.c.KeepRunning {
			m.do(ExtendLeash{Deadline: Never}) // After the start: the process must not start after its tenure.
		}
	}
}

func (m *machine) startChild(r Record) StartChild {
	start := StartChild{Token: r.Token, Tenure: r.Transitions, Deadline: m.s.ValidUntil(m.c)}
	if m.c.Runs != nil {
		start.Run, start.Previous = r.Runs.Now, r.Runs.Previous
		if tick := start.Run.Tick; tick != 0 && tick <= start.Previous {
			start.Previous = 0 // a backfill: the previous tick is not before this one
		}
	}
	return start
}

func tenureOf(r Record, sent Instant) Tenure {
	return Tenure{UID: r.UID, Token: r.Token, Transitions: r.Transitions, AcquireTime: r.AcquireTime, Confirmed: sent}
}

// FreeAt returns the earliest instant at which this candidate may try to acquire the observed Lease.
func (c Config) FreeAt(s State) Instant {
	r, since := s.Observed.Record, s.Observed.At
	if s.Past != nil {
		since = max(since, s.Past.At)
	}
	proven, clean := c.proven(s)
	if s.Death.of(r.Holder) {
		since = max(since, s.Death.From)
	}
	if !clean {
		since = since.Add(c.LockDelay)
	}
	at := since
	switch to := r.Handover.To; {
	case !proven:
		at = c.expiry(s, since).Add(c.jitter(r.Holder))
	case r.Free() && (s.lastWasMine() || to != "" && to != AnyPod && to != c.Identity.Pod):
		at = since.Add(c.RetryPeriod) // other candidates go first
	}
	return max(at, s.NotBefore)
}

// jitter returns Config.Jitter, reduced by one step if the holder, which does not run now, has a lower ordinal than this
// candidate. The first of the running candidates then waits for no other.
func (c Config) jitter(holder string) time.Duration {
	id, _ := ParseIdentity(holder)
	if mine, his := ordinal(c.Identity.Pod), ordinal(id.Pod); his >= 0 && his < mine {
		return c.Jitter - c.Jitter/time.Duration(mine)
	}
	return c.Jitter
}

// ordinal returns the number at the end of a pod's name; -1 if there is none.
func ordinal(pod string) int {
	n, err := strconv.ParseUint(pod[strings.LastIndexByte(pod, '-')+1:], 10, 16)
	if err != nil {
		return -1
	}
	return int(n)
}

// proven reports whether the last tenure is known to be over, so that at most lockDelay must pass. The result clean reports whether the
// tenure ended cleanly, so that lockDelay need not pass either.
func (c Config) proven(s State) (proven, clean bool) {
	switch r := s.Observed.Record; {
	case r.Free():
		return true, !r.Release.Unclean
	case r.Holder == c.Identity.String(), r.Holder == "" && s.lastWasMine():
		// No process of this agent's own tenures lives, or the agent would not be waiting.
		return true, s.lastWasMine() && s.Past.Clean
	case c.EndProvesDeath && s.Death.of(r.Holder):
		return true, false
	default:
		return false, false
	}
}

// expiry returns when time alone frees the Lease. The longest duration counts that the Lease was seen with during this tenure,
// or this candidate's own if that is longer. Others write the Lease too, and a duration that they lower takes no right from the holder.
// With KeepRunning, holders outlast an outage of the API server. They get time to renew after it, because a missing renewal
// during the outage proves nothing.
func (c Config) expiry(s State, since Instant) Instant {
	at := since.Add(min(max(s.Observed.Longest, s.Observed.Record.Duration, c.Duration), MaxDuration))
	if c.KeepRunning {
		at = max(at, s.ReconnectedAt.Add(2*c.requestTimeout()+c.RetryPeriod))
	}
	return at
}

// lastWasMine reports whether the Lease's last tenure is this agent's own last one, of which no process lives.
func (s State) lastWasMine() bool {
	p, r := s.Past, s.Observed.Record
	return p != nil && r.UID == p.Tenure.UID && r.Token == p.Tenure.Token && r.Transitions == p.Tenure.Transitions &&
		(r.AcquireTime == 0 || r.AcquireTime == p.Tenure.AcquireTime) // a release clears it
}

// hold handles the phase Holding: it renews until there is a reason to stop.
func (m *machine) hold() {
	stop, why := m.mustStop()
	if stop {
		m.s.Phase, m.s.Stop = Stopping, why
	}
	if m.hurryWrite(); stop {
		return
	}
	m.renewWhenDue(m.s.Tenure.Confirmed.Add(m.s.renewBy(m.c)))
}

// renewWhenDue sends the next renewal. limit is when its answer stops being useful, unless the process keeps running anyway.
func (m *machine) renewWhenDue(limit Instant) {
	if m.c.KeepRunning {
		limit = Never
	}
	if m.s.Write == nil && m.due(m.s.RenewAt) && m.mayWrite() {
		m.renew(Renew, limit)
	}
}

// mustStop lists everything that ends a tenure, the most urgent first.
func (m *machine) mustStop() (bool, Stop) {
	grace := m.t.Boot.Add(m.c.GracePeriod)
	seen := m.s.Observed
	to := seen.Record.Handover.To
	switch {
	case seen.Absent:
		return true, Stop{Reason: ReasonLeaseDeleted, Lost: true, KillAt: m.t.Boot}
	case !m.s.owns(m.c, seen.Record):
		return true, Stop{Reason: ReasonLeaseLost, Lost: true, KillAt: m.t.Boot}
	case !m.c.KeepRunning && m.due(m.s.Tenure.Confirmed.Add(m.s.renewBy(m.c))):
		return true, Stop{Reason: ReasonRenewFailed, KillAt: grace}
	case m.s.Tree.Exited:
		return true, Stop{Reason: cmp.Or(m.s.Tree.Reason, ReasonProcessExited), KillAt: m.t.Boot, Exits: m.c.Runs == nil}
	case m.s.Terminating:
		return true, Stop{Reason: ReasonPodTerminating, KillAt: grace, Exits: true}
	case m.s.Tree.Unhealthy != "": // the agent exits too, because the kubelet restarts the container, with a backoff
		return true, Stop{Reason: m.s.Tree.Unhealthy, KillAt: m.t.Boot.Add(m.s.Tree.Grace), Exits: m.c.Runs == nil}
	case to != "" && to != m.c.Identity.Pod:
		return true, Stop{Reason: cmp.Or(seen.Record.Handover.Reason, ReasonSwitchover), KillAt: grace}
	}
	if why := m.overrun(); why != "" {
		return true, Stop{Reason: why, KillAt: grace}
	}
	return false, Stop{}
}

// stop handles the phase Stopping. It first stops the processes, then releases the Lease. It renews the Lease while processes
// live, and releases it only when none lives.
func (m *machine) stop() {
	if !m.s.Stop.Lost && m.lost() {
		m.s.Stop.Lost, m.s.Stop.KillAt = true, m.t.Boot
	}
	if m.s.Terminating {
		m.s.Stop.Exits = true
		m.s.Stop.KillAt = min(m.s.Stop.KillAt, m.t.Boot.Add(m.c.GracePeriod)) // the first call is the earliest
	}
	if m.s.Tree.Alive {
		m.stopTree()
		if !m.s.Stop.Lost {
			m.renewWhenDue(Never) // Also after the deadline: while a process is hard to kill, no other may start beside it.
		}
		return
	}
	if !m.s.Stop.Ending.Known {
		m.s.Stop.Ending = Ending{Known: true, At: m.stamp(), Wall: m.t.Wall / 1000}
	}
	if m.s.Stop.Lost || m.released() || m.due(m.releaseUntil()) {
		m.end()
		return
	}
	if m.s.Write == nil && m.mayWrite() {
		why := Release{Reason: m.s.Stop.Reason, Unclean: m.s.Tree.Crashed}
		m.write(ReleaseLease, m.releaseUntil(), func(r Record, nonce int64) Record {
			r.Runs = m.concluded(r.Runs)
			return r.Released(why, m.t.Wall, nonce)
		})
	}
}

// stopTree asks the process to end. It kills all remaining processes when their time is up or when the main process has ended.
func (m *machine) stopTree() {
	s := &m.s.Stop
	kill := s.Lost || m.s.Tree.Exited
	if m.due(s.KillAt) || m.due(m.s.Deadline(m.c)) {
		kill = true
	}
	switch {
	case kill && !s.Killed:
		s.Killed = true
		m.do(KillTree{})
	case !kill && !s.Signalled:
		s.Signalled = true
		m.do(SignalChild{Signal: m.stopSignal()})
	}
}

func (m *machine) stopSignal() int {
	if m.c.StopSignal != 0 {
		return m.c.StopSignal
	}
	if m.s.Terminating && m.s.Signal != 0 {
		return m.s.Signal
	}
	return sigterm
}

// lost reports whether the newest observation of the Lease excludes that it is still this tenure's. This agent releases the Lease
// only when no process lives. A release that it sees before that is another client's write, and another holder may be starting.
func (m *machine) lost() bool {
	return m.s.Observed.Absent || !(m.s.owns(m.c, m.s.Observed.Record) || m.released() && !m.s.Tree.Alive)
}

// released reports whether the newest observation of the Lease is a release of this tenure.
func (m *machine) released() bool {
	r := m.s.Observed.Record
	return !m.s.Observed.Absent && r.Free() && r.UID == m.s.Tenure.UID && r.Token == m.s.Tenure.Token
}

// othersMayAcquire returns when the last confirmed write has run out for every candidate. After that a release has no use.
func (m *machine) othersMayAcquire() Instant { return m.s.Tenure.Confirmed.Add(m.c.Duration) }

// releaseUntil returns how long a release is tried. The release of a run says how the run ended. That is worth storing as long as
// nobody else has acquired the Lease. It is safe at any time, since no process lives and the write can replace only this
// revision.
func (m *machine) releaseUntil() Instant {
	if m.c.Runs != nil {
		return Never
	}
	return m.othersMayAcquire()
}

// end closes a tenure of which no process lives.
func (m *machine) end() {
	released := m.released() && !m.s.Stop.Lost
	ended := TenureEnded{Token: m.s.Tenure.Token, Reason: m.s.Stop.Reason, Released: released}
	if released && m.c.Runs != nil {
		ended.Run = m.s.Observed.Record.Runs.Now.State
	}
	m.do(ended)
	m.s.Past = &Past{Tenure: m.s.Tenure, At: m.t.Boot, Clean: !m.s.Tree.Crashed, Reason: m.s.Stop.Reason}
	exits, code := m.s.Stop.Exits, m.s.Tree.Code
	m.s.Phase, m.s.Tenure, m.s.Stop, m.s.Tree, m.s.Unsettled = Waiting, Tenure{}, Stop{}, Tree{}, nil
	if !released {
		m.reread()
	}
	if exits {
		m.exit(code)
	}
}

func (m *machine) exit(code int) {
	m.s.Done = true
	m.do(Exit{Code: code})
}
