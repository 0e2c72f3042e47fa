package model

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// key identifies all worlds that differ only in things that no decision depends on. These are clock readings, as long as the
// remainder of each wait is the same. They are also revisions, tokens and counts, as long as their order is the same, and names, as
// long as equal names stay equal. Two worlds with the same key have the same futures.
type key [16]byte

// coder encodes a world. Values that matter only by their order are collected first and ranked at the end.
type coder struct {
	w     *world
	out   []byte
	order []ranked
	names []string
	uids  []string
	times []int64
	// place is the position at which an agent is encoded, by its slot. Agents that differ only in their names are
	// interchangeable.
	place [slots]int
	// now is the clock reading of the agent that is being encoded.
	now lease.Instant
}

// ranked is a number of which only the rank counts, and the position at which the rank is encoded.
type ranked struct {
	class byte
	value int64
	at    int
}

// Classes of numbers that are compared with one another.
const (
	revisionOrToken byte = iota
	transitions
)

func (w *world) key() key {
	c := coder{w: w, out: make([]byte, 0, 512), order: make([]ranked, 0, 64)}
	c.world()
	c.rank()
	full := sha256.Sum256(c.out)
	return key(full[:16])
}

func (c *coder) byte(b byte) { c.out = append(c.out, b) }

func (c *coder) bool(bs ...bool) {
	var b byte
	for i, set := range bs {
		if i > 0 && i%8 == 0 {
			c.byte(b)
			b = 0
		}
		b <<= 1
		if set {
			b |= 1
		}
	}
	c.byte(b)
}

func (c *coder) small(n int) { c.out = append(c.out, byte(n), byte(n>>8)) }

// number encodes a number of which only the rank matters. 0 is below all assigned numbers and stays 0.
func (c *coder) number(class byte, n int64) {
	if n == 0 {
		c.byte(0)
		return
	}
	c.order = append(c.order, ranked{class, n, len(c.out)})
	c.byte(255)
}

func (c *coder) rank() {
	slices.SortFunc(c.order, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.value, b.value)) })
	rank := byte(0)
	for i, r := range c.order {
		switch {
		case i == 0 || c.order[i-1].class != r.class:
			rank = 1
		case c.order[i-1].value != r.value:
			rank++
		}
		c.out[r.at] = rank
	}
}

// grain is the smallest fraction of a tick that a patience can be.
const grain = tick / 24

// span encodes a duration exactly.
func (c *coder) span(d time.Duration) { c.small(int(d / grain)) }

// oldest is the longest time that past instants are compared with: a duration and lockDelay.
func (c *coder) oldest() time.Duration {
	oldest := c.w.m.longest() + time.Duration(c.w.m.lockDelay)*tick
	if c.w.m.runs {
		oldest = max(oldest, c.w.m.delay())
	}
	return oldest
}

// past encodes an instant of which the age matters.
func (c *coder) past(i lease.Instant) {
	c.since(i, c.oldest())
}

// since encodes an instant of which the age matters up to a limit.
func (c *coder) since(i lease.Instant, limit time.Duration) {
	c.span(min(max(c.now.Sub(i), -limit), limit))
}

// acquireTime encodes a time that is compared with others only for equality.
func (c *coder) acquireTime(at int64) {
	if at == 0 {
		c.byte(255)
		return
	}
	i := slices.Index(c.times, at)
	if i < 0 {
		i = len(c.times)
		c.times = append(c.times, at)
	}
	c.byte(byte(i))
}

// places sorts the agents by their visible state.
func (c *coder) places() (inOrder [slots]int) {
	var seen [slots]int
	for slot := range inOrder {
		inOrder[slot] = slot
	}
	for slot := range c.w.candidates() {
		a := c.w.agents[slot]
		s := a.state
		seen[slot] = int(s.Phase)
		for _, is := range []bool{
			a.tree.alive, a.alive, a.cut, a.deaf, a.stopped, a.frozen, a.stalled, a.hiccup, a.tree.dying,
			s.WatchUp, s.MustRead, s.Past != nil, s.Pending != nil, s.Read != nil, s.Write != nil,
		} {
			seen[slot] *= 2
			if is {
				seen[slot]++
			}
		}
	}
	if c.w.m.longer == 0 {
		slices.SortStableFunc(inOrder[:c.w.candidates()], func(a, b int) int { return cmp.Compare(seen[a], seen[b]) })
	}
	for place, slot := range inOrder {
		c.place[slot] = place
	}
	return inOrder
}

// due encodes an instant of which only the remaining time matters.
func (c *coder) due(i lease.Instant) {
	if i > c.now.Add(c.oldest()) {
		c.small(1<<16 - 1)
		return
	}
	c.span(max(0, i.Sub(c.now)))
}

// name encodes a holder's name: a process of a slot, or a name that is neither.
func (c *coder) name(s string) {
	if s == "" {
		c.byte(0)
		return
	}
	for slot := range c.w.candidates() {
		if c.w.agents[slot].id == s {
			c.byte(byte(1 + c.place[slot]))
			return
		}
	}
	if slot, _, ok := c.w.process(s); ok { // an earlier process of the same slot
		c.byte(byte(8 + c.place[slot]))
		c.other(s)
		return
	}
	c.byte(16)
	c.other(s)
}

func (c *coder) other(s string) { c.byte(indexOf(&c.names, s)) }

func indexOf(known *[]string, s string) byte {
	i := slices.Index(*known, s)
	if i < 0 {
		i = len(*known)
		*known = append(*known, s)
	}
	return byte(i)
}

func (c *coder) uid(s string) {
	if s == "" {
		c.byte(255)
		return
	}
	c.byte(indexOf(&c.uids, s))
}

// nonce encodes an attempt's nonce. It matters only to the process that sent the attempt, beside that process's other pending
// attempts.
func (c *coder) nonce(n int64) {
	for slot := range c.w.candidates() {
		s := c.w.agents[slot].state
		attempts := [2]*lease.Attempt{s.Write, s.Pending}
		for i, a := range attempts {
			if a != nil && a.Nonce == n {
				c.byte(byte(1 + 16*c.place[slot] + i))
				return
			}
		}
		for i, a := range s.Unsettled {
			if a.Nonce == n {
				c.byte(byte(3 + 16*c.place[slot] + i))
				return
			}
		}
	}
	c.byte(0)
}

func (c *coder) world() {
	w := c.w
	c.clocks()
	inOrder := c.places()
	for _, slot := range inOrder[:w.candidates()] {
		c.agent(w.agents[slot])
	}
	c.api(w.api)
	c.byte(byte(len(w.wire)))
	c.now = 0
	for from := theOperator; from < w.candidates(); from++ { // those of one sender in order; messages of different senders overtake one another anyway
		for i := range w.wire {
			if m := &w.wire[i]; m.from == from && from < 0 || m.from >= 0 && c.place[m.from] == from {
				c.message(m)
			}
		}
	}
	c.small(int(w.slips))
	for _, n := range []int64{w.sink.mark, w.sink.arrived, w.sink.accepted, w.token} {
		c.number(revisionOrToken, n)
	}
	c.byte(byte(len(w.sink.late)))
	for _, n := range w.sink.late {
		c.number(revisionOrToken, n)
	}
	if w.m.lockDelay > 0 && w.ended.delays {
		c.small(int(min(w.now-w.ended.at, w.m.lockDelay)))
	}
	c.byte(byte(w.foreign))
	c.runs()
}

// clocks encodes wall clocks that stand still: the next acquire can have the time of an earlier one.
func (c *coder) clocks() {
	if w := c.w; w.m.standing {
		for slot := range w.candidates() {
			c.acquireTime(w.agents[slot].wall(w))
		}
	}
}

// runs encodes what the checker remembers of runs.
func (c *coder) runs() {
	w := c.w
	if !w.m.runs {
		return
	}
	c.small(int(w.begun))
	c.small(int(w.completed))
	c.small(int(w.ignored))
	if isOwn(w.api.lease.Runs.Now) {
		c.small(int(min(w.now-w.told, ticksOf(c.w.m.delay()))))
	}
}

func (c *coder) api(s *api) {
	c.bool(s.absent, s.unlabelled, s.parts, s.down)
	c.byte(byte(s.downFor))
	c.record(&s.lease)
	c.number(revisionOrToken, s.revision)
	for i := range s.older {
		o := &s.older[i]
		c.bool(o.known, o.absent, o.unlabelled)
		if o.known {
			c.record(&o.lease)
		}
	}
}

func (c *coder) message(m *message) {
	c.byte(byte(m.kind))
	if m.from >= 0 {
		c.byte(byte(c.place[m.from]))
	}
	c.bool(m.parked, m.mute, m.forced, c.w.awaited(*m))
	if m.write != nil {
		c.record(m.write)
		c.nonce(m.nonce)
	}
	if m.read != 0 {
		c.small(int(m.read - c.w.agents[m.from].state.LastRead))
	}
	c.event(m.event)
}

func (c *coder) event(e lease.Event) {
	switch e := e.(type) {
	case nil:
		c.byte(0)
	case lease.Ticked:
		c.byte(1)
	case lease.WatchOpened:
		c.byte(2)
	case lease.WatchClosed:
		c.byte(3)
	case lease.Watched:
		c.byte(4)
		c.bool(e.Deleted)
		c.record(&e.Record)
	case lease.ReadDone:
		c.byte(5)
		c.bool(e.Absent, e.Found != nil)
		if e.Found != nil {
			c.record(e.Found)
		}
	case lease.WriteDone:
		c.byte(6)
		c.nonce(e.Nonce)
		c.byte(byte(e.Outcome))
		c.bool(e.Record != nil)
		if e.Record != nil {
			c.record(e.Record)
		}
	case lease.ChildExited, lease.TreeGone, lease.Unhealthy:
		c.processEvent(e)
	case lease.Starved:
		c.byte(9)
		c.span(e.Late)
	case lease.Terminated:
		c.byte(10)
	case lease.DeathSought:
		c.byte(11)
		c.name(e.Holder)
		c.bool(e.Dead)
	}
}

func (c *coder) processEvent(e lease.Event) {
	switch e := e.(type) {
	case lease.ChildExited:
		c.byte(7)
		c.bool(e.Crashed, e.Code != 0)
		c.reason(e.Reason)
	case lease.TreeGone:
		c.byte(8)
	case lease.Unhealthy:
		c.byte(12)
		c.reason(e.Reason)
		c.span(e.Grace)
	}
}

func (c *coder) agent(a *agent) {
	c.now = a.now(c.w)
	c.bool(a.alive, a.stopped, a.frozen, a.hiccup, a.cut, a.deaf, a.stalled, a.reopen, a.hangs)
	c.byte(byte(len(a.inbox)))
	for _, e := range a.inbox {
		if read, ok := e.(lease.ReadDone); ok {
			c.small(int(read.ID - a.state.LastRead))
		}
		c.event(e)
	}
	c.byte(byte(len(a.todo)))
	for _, x := range a.todo {
		c.action(a, x)
	}
	c.byte(byte(len(a.kept)))
	for _, e := range a.kept {
		c.event(e)
	}
	t := &a.tree
	c.bool(t.alive, t.starting, t.preparing)
	if t.alive || t.starting {
		c.bool(t.dying, t.frozen, t.excused, t.exited, t.crashed, t.signalled, t.killed, t.lost, t.process == a.processes)
		c.byte(byte(t.left))
		c.number(revisionOrToken, t.token)
		c.small(int(t.attempt))
		c.due(t.deadline)
		if c.w.m.lockDelay > 0 {
			c.small(int(min(c.w.now-t.stored, ticksOf(c.oldest()))))
		}
		c.number(revisionOrToken, a.revision)
	}
	if a.alive {
		c.state(a.state)
	} else {
		c.bool(a.state.Terminating)
	}
}

// action encodes an action that waits until its agent gets a CPU.
func (c *coder) action(a *agent, x lease.Action) {
	switch x := x.(type) {
	case lease.SendWrite:
		c.byte(1)
		c.attempt(&x.Attempt)
	case lease.SendRead:
		c.byte(2)
		c.small(int(x.ID - a.state.LastRead))
		c.due(x.Deadline) // a read here shows one state, so Floor is not used
	case lease.RestartWatch:
		c.byte(3)
	case lease.StartChild:
		c.byte(4)
		c.number(revisionOrToken, x.Token)
		c.small(int(x.Run.Attempt))
		c.due(x.Deadline)
	case lease.ExtendLeash:
		c.byte(5)
		c.due(x.Deadline)
	case lease.SignalChild:
		c.byte(6)
	case lease.KillTree:
		c.byte(7)
	case lease.TenureEnded:
		c.byte(8)
	case lease.Exit:
		c.byte(9)
	case lease.SeekDeath:
		c.byte(10)
		c.name(x.Holder)
	}
}

// state encodes an agent's state. A test checks that every field of it changes the key, except those that the test names.
func (c *coder) state(s *lease.State) {
	c.byte(byte(s.Phase))
	c.bool(s.WatchUp, s.MustRead, s.Stale, s.RetryOnChange, s.Disconnected, s.Terminating, s.Done,
		s.Write != nil, s.Read != nil, s.Pending != nil, s.Past != nil, s.Tree.Alive, s.Tree.Exited, s.Tree.Crashed, s.Tree.Code != 0)
	c.observation(s)
	for _, a := range []*lease.Attempt{s.Write, s.Pending} {
		if a != nil {
			c.attempt(a)
		}
	}
	c.byte(byte(len(s.Unsettled)))
	for i := range s.Unsettled {
		c.attempt(&s.Unsettled[i])
	}
	if s.Read != nil {
		c.reading(s, s.Read)
	}
	c.byte(byte(len(s.Overdue)))
	for i := range s.Overdue {
		c.reading(s, &s.Overdue[i])
	}
	c.small(int(min(s.LastRead+1-s.Since, 12)))
	c.due(s.ReadAfter)
	c.due(s.ReadSoon)
	c.due(s.WriteAfter)
	c.due(s.WriteSoon)
	c.due(s.RenewAt)
	c.due(s.NotBefore)
	c.due(s.Wake)
	c.roundTrip(s.RoundTrip)
	c.span(s.Backoff)
	c.since(s.Answered, tick)
	if c.w.m.keepRunning {
		c.past(s.ReconnectedAt)
	}
	c.bool(s.WatchBy != 0)
	if s.WatchBy != 0 {
		c.number(revisionOrToken, s.WatchFrom)
		c.due(s.WatchBy)
	}
	c.span(s.Late)
	c.bool(s.Tree.Unhealthy != "")
	if s.Tree.Unhealthy != "" {
		c.reason(s.Tree.Unhealthy)
		c.span(s.Tree.Grace)
	}
	c.reason(s.Tree.Reason)
	c.tenure(s)
	if p := s.Past; p != nil && s.Phase < lease.Holding { // the end of a tenure replaces it
		c.uid(p.Tenure.UID)
		c.number(revisionOrToken, p.Tenure.Token)
		c.number(transitions, int64(p.Tenure.Transitions))
		c.acquireTime(p.Tenure.AcquireTime)
		c.bool(p.Clean)
		c.past(p.At)
	}
	c.death(&s.Death)
	c.small(s.Signal)
}

func (c *coder) death(d *lease.Death) {
	c.name(d.Holder)
	c.bool(d.Asked, d.Proven, d.Seen)
	c.due(d.Again)
	c.past(d.From)
}

// roundTrip encodes the recent round-trip time. It decays by an eighth with each answer, so every value would be a separate state
// for long. Here it is rounded to either nothing or one tick.
func (c *coder) roundTrip(d time.Duration) { c.bool(d > tick/2) }

// tenure encodes the tenure, which exists in two of the phases only.
func (c *coder) tenure(s *lease.State) {
	if s.Phase != lease.Holding && s.Phase != lease.Stopping {
		return
	}
	t := s.Tenure
	c.uid(t.UID)
	c.number(revisionOrToken, t.Token)
	c.number(transitions, int64(t.Transitions))
	c.acquireTime(t.AcquireTime)
	c.past(t.Confirmed)
	if s.Phase == lease.Stopping {
		c.bool(s.Stop.Lost, s.Stop.Signalled, s.Stop.Killed, s.Stop.Exits)
		if c.w.m.runs {
			c.bool(s.Stop.Ending.Known)
			c.reason(s.Stop.Reason)
		}
		c.due(s.Stop.KillAt)
	}
}

func (c *coder) observation(s *lease.State) {
	o := &s.Observed
	c.bool(o.Known, o.Absent)
	if !o.Known {
		return
	}
	c.record(&o.Record)
	if s.Phase < lease.Holding { // a candidate that held it before waits from the end of that tenure
		c.past(o.At)
	}
	c.past(o.Fresh)
	c.span(o.Longest)
}

func (c *coder) handover(to string) {
	for slot := range c.w.candidates() {
		if pod(slot) == to {
			c.byte(byte(2 + c.place[slot]))
			return
		}
	}
	c.bool(to != "")
}

// record leaves out the fields that are only for people.
func (c *coder) record(r *lease.Record) {
	c.uid(r.UID)
	c.number(revisionOrToken, r.Revision)
	c.name(r.Holder)
	c.number(revisionOrToken, r.Token)
	c.number(transitions, int64(r.Transitions))
	c.acquireTime(r.AcquireTime)
	c.span(r.Duration)
	c.nonce(r.RenewTime)
	c.bool(r.Release.Reason != "", r.Release.Unclean, r.BadTokenBase != "")
	c.number(revisionOrToken, r.TokenBase)
	c.handover(r.Handover.To)
	c.byte(byte(len(r.History)))
	for _, past := range r.History {
		c.number(revisionOrToken, past.Token)
		c.bool(past.Reason != "")
	}
	if c.w.m.runs {
		c.run(&r.Runs.Now)
		c.bool(r.Runs.Bad != "")
	}
}

// run leaves out the fields that are only for people, and those that only schedules and leaving agents use.
func (c *coder) run(r *lease.Run) {
	c.bool(r.ID != "", r.State == lease.RunRunning, r.State == lease.RunFailed)
	c.small(int(r.Attempt))
	c.small(int(r.Ignored))
	if r.State == lease.RunFailed {
		c.reason(r.Reason)
	}
}

// reason encodes why a process ended: by itself, by another fault of its own, because it never began, or for a reason that is
// only for people. Only runs make a difference of that.
func (c *coder) reason(why lease.Reason) {
	switch {
	case !c.w.m.runs:
	case why == "":
		c.byte(0)
	case why == lease.ReasonProcessExited:
		c.byte(1)
	case slices.Contains(ownFaults, why):
		c.byte(2)
	case why == lease.ReasonNotBegun:
		c.byte(3)
	default:
		c.byte(4)
	}
}

func (c *coder) attempt(a *lease.Attempt) {
	c.byte(byte(a.Kind))
	c.record(&a.Record)
	c.past(a.SentAt)
	c.due(a.Patience)
	c.due(a.Again)
	c.due(a.Deadline)
}

func (c *coder) reading(s *lease.State, r *lease.Reading) {
	c.small(int(s.LastRead - r.ID))
	c.past(r.SentAt)
	c.due(r.Patience)
	c.due(r.Again)
	c.due(r.Deadline)
	c.number(revisionOrToken, r.Floor)
}
