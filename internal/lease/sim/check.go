package sim

import (
	"fmt"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// Violation is a broken promise.
type Violation struct {
	// Kind is which.
	Kind string
	At   time.Duration
	Text string
}

func (v Violation) String() string { return fmt.Sprintf("%v: %s: %s", v.At, v.Kind, v.Text) }

// The promises.
const (
	TwoAtOnce     = "two processes at once"
	TokenNotGrown = "token not grown"
	RunsOn        = "process runs on after another tenure was seen"
	StaleAccepted = "stale write accepted"
	LockDelayCut  = "lockDelay cut short"
	Stolen        = "Lease taken before its time"
	LeashTooLong  = "leash outlasts the lease"
	NoHolder      = "no holder"
	LostForNought = "tenure lost for nothing"
	TwoWrites     = "two writes under way"
	StartedEarly  = "start while processes live"
	ReleasedEarly = "release while processes live"
	Spinning      = "state machine spins"
)

// checker sees the whole world, in true time.
type checker struct {
	w         *world
	outcomes  bool
	result    Result
	violation *Violation
	// acting are the trees that live.
	acting []*tree
	// token is the highest that a process was started with, highest the highest that wrote to the sink.
	token, highest int64
	last           *tree
	// holder is the tree found by holderNow.
	holder *tree
}

func (c *checker) violated(kind, format string, args ...any) {
	if c.violation == nil {
		c.violation = &Violation{Kind: kind, At: c.w.now, Text: fmt.Sprintf(format, args...)}
		if c.w.trace != nil {
			c.w.note("checker", "%s: %s", kind, c.violation.Text)
		}
	}
}

// started is told of each tree that begins to act.
func (c *checker) started(t *tree) {
	w := c.w
	c.result.Tenures++
	if c.last != nil && c.last.agent != t.agent {
		c.result.Takeovers++
	}
	c.alone(t)
	if t.token <= c.token {
		c.violated(TokenNotGrown, "%s starts token %d after token %d", t.agent.id, t.token, c.token)
	}
	if last := c.last; last != nil && last.endedBadly() && w.now < last.ended+fastest.lasts(w.p.config.LockDelay) {
		c.violated(LockDelayCut, "%s starts token %d %v after the unclean end of token %d", t.agent.id, t.token, w.now-last.ended, last.token)
	}
	if w.trace != nil {
		w.note(t.agent.id, "process of token %d runs", t.token)
	}
	c.token = max(c.token, t.token)
	c.last = t
	c.acting = append(c.acting, t)
}

// alone tells off a tree that begins while another acts.
func (c *checker) alone(t *tree) {
	w := c.w
	for _, other := range c.acting {
		switch {
		case other.frozen, other.froze && other.dies > 0:
			// It does nothing, and the sink refuses what it does in the instant between its thaw and its death.
		case other.agent.config.KeepRunning && other.agent.cutOffSince(w.now-fastest.lasts(w.p.config.Duration)):
			c.result.Overlaps++
		default:
			c.violated(TwoAtOnce, "%s starts token %d while token %d of %s runs since %v", t.agent.id, t.token, other.token, other.agent.id, other.began)
		}
	}
}

// endedBadly tells whether lockDelay follows. A frozen tree may have ended after its time.
func (t *tree) endedBadly() bool { return t.crashed && !t.alive && !t.froze }

// cutOffSince tells whether an agent has had no renewal stored since a time.
func (a *agent) cutOffSince(t time.Duration) bool { return a.stored <= t }

func (c *checker) died(t *tree) {
	for i, other := range c.acting {
		if other == t {
			c.acting = append(c.acting[:i], c.acting[i+1:]...)
			break
		}
	}
	if c.w.trace != nil {
		c.w.note(t.agent.id, "process of token %d dead", t.token)
	}
}

// write is one write at the sink.
func (c *checker) write(token int64) {
	c.result.Writes++
	if token < c.highest {
		c.result.Refused++
		return
	}
	c.highest = token
}

// stepped is told of each step of a state machine; the actions stand in a.todo.
func (c *checker) stepped(a *agent, before lease.State, e lease.Event) {
	for _, action := range a.todo {
		switch action := action.(type) {
		case lease.StartChild:
			if before.Tree.Alive && a.tree != nil && !a.tree.gone {
				c.violated(StartedEarly, "%s wants to start token %d while %d lives", a.id, action.Token, a.tree.token)
			}
		case lease.SendWrite:
			c.sent(a, before, e, action.Attempt)
		}
	}
	if t := a.tree; t != nil && t.alive && !t.doomed && showsLoss(a.config, before, a.machine.at(c.w.now), t.token, e) {
		t.doomed = true
		c.w.after(t.budget()+time.Millisecond, func() { c.runsOn(t) })
	}
}

// sent is told of each write.
func (c *checker) sent(a *agent, before lease.State, e lease.Event, w lease.Attempt) {
	if before.Write != nil && a.machine.at(c.w.now) < before.Write.Deadline && !concludes(e, before.Write) {
		c.violated(TwoWrites, "%s sends %v while %v is under way", a.id, w.Kind, before.Write.Kind)
	}
	if w.Kind == lease.GiveUp && a.tree != nil && a.tree.alive {
		c.violated(ReleasedEarly, "%s releases token %d while its processes live", a.id, a.tree.token)
	}
}

func concludes(e lease.Event, w *lease.Attempt) bool {
	done, ok := e.(lease.WriteDone)
	return ok && done.Nonce == w.Nonce
}

// showsLoss tells whether an event shows for certain that a tenure is not this agent's any more.
func showsLoss(c lease.Config, s lease.State, now lease.Instant, token int64, e lease.Event) bool {
	foreign := func(r *lease.Record) bool {
		return r.Revision > s.Seen.Record.Revision && (r.Holder != c.Identity.String() || r.Token != token)
	}
	switch e := e.(type) {
	case lease.Watched:
		return e.Deleted && e.Record.Revision > s.Seen.Record.Revision || foreign(&e.Record)
	case lease.ReadDone:
		if s.Read == nil || s.Read.ID != e.ID || now >= s.Read.Deadline { // an answer nobody waits for any more
			return false
		}
		return e.Found != nil && foreign(e.Found) || e.Absent && s.Read.Floor == s.Seen.Record.Revision
	}
	return false
}

// runsOn looks whether a tree that had to die has.
func (c *checker) runsOn(t *tree) {
	switch {
	case !t.alive || t.frozen:
	case t.agent.stopped > 0 || len(t.agent.todo) > 0:
		c.w.after(10*time.Millisecond, func() { c.runsOn(t) })
	case t.dies >= c.w.now: // killed by its agent, or with it
		c.w.at(t.dies+time.Millisecond, func() { c.runsOn(t) })
	default:
		c.violated(RunsOn, "token %d of %s", t.token, t.agent.id)
	}
}

// stores is told of each compare-and-swap that succeeds.
func (c *checker) stores(was, is lease.Record) {
	a := c.w.byID[is.Holder]
	if a != nil {
		a.stored = c.w.now
	}
	if c.w.trace != nil && (was.Holder != is.Holder || was.Token != is.Token) {
		c.w.note("store", "revision %d %q token %d becomes %q token %d", was.Revision, was.Holder, was.Token, is.Holder, is.Token)
	}
	if a == nil || c.outcomes || is.Token == was.Token || was.Free() || a.knowsOver(was) {
		return
	}
	// Acquired from a holder that is not proven dead: the Lease must have been unchanged for as long as it says.
	if wait := fastest.lasts(max(was.Duration, is.Duration)) - time.Microsecond; c.w.now-c.w.api.changed < wait {
		c.violated(Stolen, "%s takes the Lease from %q, which changed %v ago", is.Holder, was.Holder, c.w.now-c.w.api.changed)
	}
}

// knowsOver tells whether an agent may know that no process of a tenure lives, although nobody has released it: the
// tenure was its own, or that of the last agent in its pod.
func (a *agent) knowsOver(was lease.Record) bool {
	if p := a.state.Past; was.Holder == "" && p != nil {
		return p.Tenure.Token == was.Token && p.Tenure.Transitions == was.Transitions
	}
	if a.w.p.restartProvesDeath {
		prev, ok := lease.ParseIdentity(was.Holder)
		return ok && prev.Pod == a.machine.pod && prev.PodUID == a.machine.uid
	}
	return was.Holder == a.id
}

// leashed is told of each deadline. Others count from when the last write was stored.
func (c *checker) leashed(a *agent, deadline lease.Instant) {
	limit := a.machine.at(a.stored).Add(a.config.Duration - lease.Margin(a.config.Duration))
	if deadline != lease.Never && deadline > limit && !c.outcomes {
		c.violated(LeashTooLong, "%s: until %v, but its last write was stored at %v", a.id, a.machine.when(deadline), a.stored)
	}
}

// foreignHolder is told what a client-go elector has replaced. That it takes an empty holder for free is its own affair;
// but what it has waited for, no process of ours may outlive.
func (c *checker) foreignHolder(e *elector, was lease.Record) {
	for _, t := range c.acting {
		if t.agent.id == was.Holder && !t.frozen {
			c.violated(TwoAtOnce, "%s takes the Lease that has run out from %s, whose token %d still runs", e.id, was.Holder, t.token)
		}
	}
}

// ended is told how each tenure ended.
func (c *checker) ended(a *agent, e lease.TenureEnded) {
	if c.w.p.profile == Replies && e.Reason != lease.ReasonSwitchover {
		c.violated(LostForNought, "%s ends token %d: %s", a.id, e.Token, e.Reason)
	}
}

// exits is told of each agent that ends by itself.
func (c *checker) exits(a *agent) {
	if a.tree != nil && a.tree.alive {
		c.violated(ReleasedEarly, "%s exits while processes of token %d live", a.id, a.tree.token)
	}
}

// holderNow judges when there must be a holder again.
func (c *checker) holderNow() {
	c.holder = nil
	if e := c.w.elector; e != nil && (e.leading || c.w.api.lease.Holder == e.id) {
		return
	}
	switch {
	case len(c.acting) == 0:
		c.violated(NoHolder, "nobody acts %v after the end of all faults; the Lease says %q at revision %d", c.w.p.bound(), c.w.api.lease.Holder, c.w.api.lease.Revision)
	case len(c.acting) > 1:
		c.violated(TwoAtOnce, "tokens %d and %d run %v after the end of all faults", c.acting[0].token, c.acting[1].token, c.w.p.bound())
	default:
		t := c.acting[0]
		if a := t.agent; a.state.Phase != lease.Holding || c.w.api.lease.Holder != a.id || c.w.api.lease.Token != t.token {
			c.violated(NoHolder, "token %d of %s, %v, runs without the Lease, which says %q, token %d", t.token, a.id, a.state.Phase, c.w.api.lease.Holder, c.w.api.lease.Token)
		}
		c.holder = t
	}
}

// holderStays judges at the end of a calm time.
func (c *checker) holderStays() {
	if t := c.holder; t != nil && !t.alive {
		c.violated(LostForNought, "token %d of %s ended without a fault", t.token, t.agent.id)
	}
}

// spin counts wakes.
type spin struct {
	second time.Duration
	wakes  int
}

// maxWakes bounds the wakes of one agent in one second.
const maxWakes = 100

func (s *spin) count(a *agent) {
	if second := a.w.now / time.Second; second != s.second {
		s.second, s.wakes = second, 0
	}
	if s.wakes++; s.wakes > maxWakes {
		a.w.check.violated(Spinning, "%s woke %d times within a second", a.id, s.wakes)
	}
}
