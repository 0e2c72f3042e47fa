package sim

import (
	"fmt"
	"slices"
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

func (v Violation) String() string { return fmt.Sprintf("SAFETY: %v: %s: %s", v.At, v.Kind, v.Text) }

// The promises.
const (
	TwoAtOnce     = "two processes at once"
	TokenNotGrown = "token not grown"
	RunsOn        = "process runs on after another tenure was seen"
	NotOurs       = "somebody else's Lease written"
	StaleAccepted = "stale write accepted"
	FreshRefused  = "write of the present tenure refused"
	LockDelayCut  = "lockDelay cut short"
	Stolen        = "Lease taken before its time"
	Forgotten     = "Lease taken from a holder that a restore forgot"
	LeashTooLong  = "leash outlasts the lease"
	NoHolder      = "no holder"
	LostForNought = "tenure lost for nothing"
	Chatty        = "requests that nobody needs"
	StartedEarly  = "start while processes live"
	ReleasedEarly = "release while processes live"
	Spinning      = "state machine spins"
	RunTwice      = "run started again after its last word, or under two names"
	RunMistold    = "run not told as it was"
	TickMiscount  = "ticks not accounted for once"
	TickEarly     = "tick settled before its time"
	RunForgotten  = "nobody goes on with a run, or starts one that is due"
)

// checker sees the whole world, in true time, and judges by that alone: by when which processes lived and were told to
// die, by what the store was given, and who gave it, by what the sink took. It asks nothing of package lease, and has rules of
// its own: paidFor and exclusive.
type checker struct {
	w         *world
	outcomes  bool
	result    Result
	violation *Violation
	// acting are the trees that live.
	acting []*tree
	// token is the highest that a process was started with, given the one acquired last, and erased the highest of
	// which nothing was left to tell when somebody had edited the Lease.
	token, given, erased int64
	// arrived is the highest token that came to the sink, accepted the highest that it took.
	arrived, accepted int64
	last              *tree
	// claims are what the store was told by each contender, newest last.
	claims []*claim
	// holder is the tree found by holderNow, and counted what was asked by each agent until then.
	holder  *tree
	counted map[*agent]requests
	since   time.Duration
	// ended counts trees that have; judgesNoEnd has none of them judged.
	ended       int
	judgesNoEnd bool
	runs        runsSeen
}

// claim is a tenure as the store knows it: from its acquire to its release, or until its time is up.
type claim struct {
	w     *world
	by    string
	agent *agent // nil where a client-go elector claims
	token int64
	// won is when it was acquired, stored when it was last written, lasts the longest duration that was written.
	won, stored, lasts time.Duration
	revision           int64 // of its last write
	// released says that its holder, or the operator, has given the Lease back.
	released bool
	// lowered is when somebody else lowered the duration, 0 once its holder has written again. Who is not among seenBy by then
	// can't know what it was.
	lowered time.Duration
	seenBy  []*agent
	// fooled says that such a one has taken the Lease.
	fooled bool
	// forged says that somebody else has made the Lease say that it is released.
	forged bool
	// retold says that somebody else has made the Lease say how it ended.
	retold bool
	// half says that its holder's last write has a part of a release, and so helps those who forge one.
	half bool
	// forgotten says that the store went back to what was before its last write.
	forgotten bool
}

// exclusive is until when nobody else may take the Lease, by whatever crystal.
func (c *claim) exclusive() time.Duration {
	return c.stored + fastest.lasts(c.lasts) - time.Microsecond
}

// requests counts what an agent has sent.
type requests struct{ writes, reads int }

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
	if t.ordered {
		c.violated(RunsOn, "the program of token %d of %s begins to run after it was killed", t.token, t.agent.id)
	}
	c.grows(t)
	c.runBegins(t)
	if last := c.last; last != nil && last.endedBadly() && c.delays(last, t) && w.now < last.ended+fastest.lasts(t.agent.config.LockDelay) {
		c.violated(LockDelayCut, "%s starts token %d %v after the unclean end of token %d", t.agent.id, t.token, w.now-last.ended, last.token)
	}
	if w.trace != nil {
		w.note(t.agent.id, "process of token %d runs", t.token)
	}
	c.last = t
	c.acting = append(c.acting, t)
}

// grows judges a new tenure's token. That it does not grow is forgiven once, where somebody has erased every trace of a
// token that was higher than its revision: nobody could know of it. It is the sink's fence that is left then, and it holds.
func (c *checker) grows(t *tree) {
	switch {
	case t.token > c.token:
	case c.misled(t): // it was slow to start, and the next tenure was not; what it may do yet is the same
		c.result.Forged++
		return
	case c.token <= c.erased:
		c.result.Erased++
		c.erased = 0
	default:
		c.violated(TokenNotGrown, "%s starts token %d after token %d", t.agent.id, t.token, c.token)
	}
	c.token = t.token
}

// alone tells off a tree that begins while another acts. Four things are the world's doing and no broken promise, each
// counted by itself: the other is frozen, or was when it was killed; it was to run on while it is cut off; it was told to
// die as long ago as is paid for, and has not yet; somebody has forged the release of its Lease, of which the time is not
// up yet. None of the first three excuses a Lease that was taken before its time.
func (c *checker) alone(t *tree) {
	for _, other := range c.acting {
		switch {
		case other.frozen, other.thawed > 0 && other.asked > 0 && other.asked <= other.thawed:
			c.result.Frozen++
		case c.fools(other, t):
			c.result.Lowered++
		case c.misled(other), c.slow(t, other):
			c.result.Forged++
		case !c.inTime(t, other):
			kind := TwoAtOnce
			if lost := c.claimOf(other); lost != nil && lost.forgotten {
				kind = Forgotten
			}
			c.violated(kind, "%s starts token %d while token %d of %s runs since %v", t.agent.id, t.token, other.token, other.agent.id, other.began)
		case other.agent.config.KeepRunning:
			c.result.Overlaps++
		case other.asked > 0 && other.asked+other.paid() <= c.w.now:
			c.result.Late++
		default:
			c.violated(TwoAtOnce, "%s starts token %d while token %d of %s runs since %v, told to die at %v (0s: never)",
				t.agent.id, t.token, other.token, other.agent.id, other.began, other.asked)
		}
	}
}

// paid is how long after its kill was due a tree's agent has promised to leave the Lease to it: what the margin pays for,
// and what the leash's present deadline counts of its processes' lateness.
func (t *tree) paid() time.Duration { return paidFor(t.agent.config.Duration) + t.counted }

// lateFor is how much of a lateness that was measured a tenure pays for: all of it, up to half of the time that renewals
// leave.
func lateFor(c lease.Config, late time.Duration) time.Duration {
	return min(max(0, late), max(0, (c.Duration-margin(c.Duration)-c.RetryPeriod)/2))
}

// inTime reports whether the Lease was won for a tree after the time of another was up.
func (c *checker) inTime(t, other *tree) bool {
	won, lost := c.claimOf(t), c.claimOf(other)
	return won != nil && lost != nil && !lost.released && (lost.forged || won.won >= lost.exclusive())
}

// misled reports whether somebody has forged the release of a tree's Lease. It may run on until the Lease's time is up, unless
// it learns of it, and no longer.
func (c *checker) misled(other *tree) bool {
	claim := c.claimOf(other)
	return claim != nil && claim.forged && c.w.now < claim.exclusive()
}

// slow reports whether a tree whose release was forged began to run only after one of a later tenure.
func (c *checker) slow(t, other *tree) bool { return t.token < other.token && c.misled(t) }

// delays reports whether the next one has to wait for lockDelay after the end of a tree: not if it was to run on, ended only
// when others might already take the Lease, or let them know too little of it, or somebody else has said for it how it ended.
func (c *checker) delays(last, t *tree) bool {
	claim := c.claimOf(last)
	return !last.agent.config.KeepRunning && !c.outlived(last) && !c.fools(last, t) && (claim == nil || !claim.retold)
}

// fools reports whether the Lease of a tree had its duration lowered by hand, so that who came then could not know when it
// ends.
func (c *checker) fools(other, t *tree) bool {
	claim := c.claimOf(other)
	return claim != nil && (claim.fooled || claim.unknownTo(t.agent))
}

// outlived reports whether a tree ended only when others might already take the Lease: lockDelay counts from then.
func (c *checker) outlived(t *tree) bool {
	claim := c.claimOf(t)
	return claim != nil && t.ended > claim.exclusive()
}

func (c *checker) claimOf(t *tree) *claim {
	for _, claim := range slices.Backward(c.claims) {
		if claim.agent == t.agent && claim.token == t.token {
			return claim
		}
	}
	return nil
}

// endedBadly reports whether lockDelay follows. A frozen tree, or one that outlived its kill, may have ended after its time.
func (t *tree) endedBadly() bool {
	return t.crashed && !t.alive && t.ended <= t.asked+t.paid() && t.thawed == 0
}

func (c *checker) died(t *tree) {
	for i, other := range c.acting {
		if other == t {
			c.acting = append(c.acting[:i], c.acting[i+1:]...)
			break
		}
	}
	c.ended++
	if c.w.p.lossless() && !c.judgesNoEnd && t.wanted > c.w.handover && c.w.api.lease.Handover.To == "" {
		c.violated(LostForNought, "%s: token %d ended, and nobody had asked for it", t.agent.id, t.token)
	}
	if c.w.trace != nil {
		c.w.note(t.agent.id, "process of token %d dead", t.token)
	}
}

// asks is told of each action that an agent carries out.
func (c *checker) asks(a *agent, action lease.Action) {
	switch action := action.(type) {
	case lease.StartChild:
		if a.tree != nil && !a.tree.gone {
			c.violated(StartedEarly, "%s starts token %d while %d lives", a.id, action.Token, a.tree.token)
		}
		c.leashed(a, action.Deadline)
	case lease.ExtendLeash:
		c.leashed(a, action.Deadline)
	case lease.KillTree:
		a.tree.ordered = true
	case lease.SendWrite:
		a.sent.writes++
		if action.Attempt.Record.Holder == "" && a.tree != nil && a.tree.alive {
			c.violated(ReleasedEarly, "%s releases token %d while its processes live", a.id, a.tree.token)
		}
	case lease.SendRead:
		a.sent.reads++
	}
}

// tells is told of all that an agent learns of the Lease: what shows for certain that the tenure is another's ends the
// process, at once. A record does that if it followed this agent's last write, and whatever told the agent that the tenure
// is still its: the Lease may have been edited and edited back.
func (c *checker) tells(a *agent, e lease.Event) {
	if starved, ok := e.(lease.Starved); ok {
		a.late = lateFor(a.config, starved.Late)
	}
	if c.w.p.profile == Edited {
		c.shows(a, e)
	}
	t := a.tree
	if t == nil || !t.alive || t.doomed {
		return
	}
	var r *lease.Record
	gone, awaited := false, true
	switch e := e.(type) {
	case lease.Watched:
		r, gone = &e.Record, e.Deleted
	case lease.ReadDone:
		r, awaited = e.Found, e.ID == a.asked.ID && a.machine.now() < a.asked.Deadline
	}
	switch {
	case r == nil || r.Revision <= a.revision:
	case !gone && r.Holder == a.id && r.Token == t.token:
		a.revision = r.Revision
	case awaited:
		t.doomed = true
		c.w.after(time.Millisecond, func() { c.runsOn(t) })
	}
}

// shows takes note of who has seen a tenure with the duration that its holder wrote.
func (c *checker) shows(a *agent, e lease.Event) {
	var r lease.Record
	switch e := e.(type) {
	case lease.Watched:
		r = e.Record
	case lease.ReadDone:
		if e.Found != nil {
			r = *e.Found
		}
	}
	if claim := c.newest(r.Holder); claim != nil && claim.lowered == 0 && !slices.Contains(claim.seenBy, a) {
		claim.seenBy = append(claim.seenBy, a)
	}
}

// runsOn looks whether a tree that had to be told to die has been.
func (c *checker) runsOn(t *tree) {
	switch {
	case !t.alive || t.frozen || t.asked > 0:
	case t.agent.stopped > 0 || len(t.agent.todo) > 0:
		c.w.after(10*time.Millisecond, func() { c.runsOn(t) })
	default:
		c.violated(RunsOn, "token %d of %s", t.token, t.agent.id)
	}
}

// stores is told of each compare-and-swap that succeeds, and whose it is.
func (c *checker) stores(by string, was, is lease.Record) {
	w := c.w
	a := w.byID[by]
	if w.trace != nil && (was.Holder != is.Holder || was.Token != is.Token) {
		w.note("store", "%s replaces revision %d, %q token %d, by %q token %d", by, was.Revision, was.Holder, was.Token, is.Holder, is.Token)
	}
	c.storesRun(by, was, is)
	switch {
	case is.Holder == "":
		c.releases(by, was)
	case is.Holder != by: // an edit
	case was.Holder != by || a != nil && was.Token != is.Token:
		c.takes(a, by, is)
	}
	if claim := c.newest(by); claim != nil && is.Holder == by {
		claim.stored, claim.lasts = w.now, max(claim.lasts, is.Duration)
		claim.lowered, claim.forged, claim.retold = 0, false, false
		claim.half = is.Release.Reason != "" || is.AcquireTime == 0
	}
}

// edited is told of each write by hand. Where it makes the Lease look as a release leaves it, candidates may believe that of
// every tenure that lasts, unless its holder had let a part of that stand.
func (c *checker) edited(was, is lease.Record) {
	for _, claim := range c.claims {
		claim.retold = claim.retold || released(is) && (!released(was) || was.Release != is.Release)
		claim.forged = claim.forged || released(is) && !released(was) && !claim.released && !claim.half && c.w.now < claim.exclusive()
	}
	if tells(was) >= c.given && tells(is) < c.given && is.Revision+is.TokenBase < c.given {
		c.erased = c.given
	}
}

// released reports whether a record is what a release leaves: no holder, why, and no time of an acquire.
func released(r lease.Record) bool {
	return r.Holder == "" && r.Release.Reason != "" && r.AcquireTime == 0
}

// tells is the highest token that a record tells of, and that tokens can be.
func tells(r lease.Record) int64 {
	highest := r.Token
	for _, past := range r.History {
		if past.Token <= highestToken {
			highest = max(highest, past.Token)
		}
	}
	return highest
}

// highestToken is what revisions and the greatest token base add up to.
const highestToken = 1 << 53

// writesOurs is told of each compare-and-swap that succeeds, and whether the Lease was somebody else's.
func (c *checker) writesOurs(by string, unlabelled bool) {
	if e := c.w.elector; unlabelled && (e == nil || by != e.id) {
		c.violated(NotOurs, "%s writes a Lease without our label", by)
	}
}

func (c *checker) newest(by string) *claim {
	for _, claim := range slices.Backward(c.claims) {
		if claim.by == by {
			return claim
		}
	}
	return nil
}

// releases is told who empties the holder: it ends a tenure where its holder does it, or the operator.
func (c *checker) releases(by string, was lease.Record) {
	claim := c.newest(was.Holder)
	if a := c.w.byID[by]; a != nil && by != was.Holder { // a run's last word, said for a holder that vanished
		c.waited(a, by)
		return
	}
	if claim == nil || by != was.Holder && by != theOperator {
		return
	}
	claim.released = true
	if a := claim.agent; a != nil && a.tree != nil && a.tree.alive && a.tree.token == claim.token {
		c.violated(ReleasedEarly, "%s releases token %d of %s while its processes live", by, claim.token, claim.by)
	}
}

// takes judges an acquire: all others must have given the Lease back, or have left it alone for as long as they said. One
// who starts in the dead one's place, where that proves it dead, need not wait.
func (c *checker) takes(a *agent, by string, is lease.Record) {
	w := c.w
	c.waited(a, by)
	c.given = is.Token
	c.claims = append(c.claims, &claim{w: w, by: by, agent: a, token: is.Token, won: w.now, stored: w.now, lasts: is.Duration})
}

// waited judges whether all others have given the Lease back, or have left it alone.
func (c *checker) waited(a *agent, by string) {
	w := c.w
	c.claims = slices.DeleteFunc(c.claims, (*claim).past)
	for _, old := range c.claims {
		if old.by == by || a != nil && old.agent != nil && w.p.endProvesDeath && old.agent.machine.uid == a.machine.uid {
			old.released = old.released || !old.acts()
		}
		if a != nil && old.unknownTo(a) { // and who comes after that one waits for that one
			old.released, old.fooled = true, true
		}
		if !c.outcomes && a != nil && !old.free() {
			kind := Stolen
			if old.forgotten {
				kind = Forgotten
			}
			c.violated(kind, "%s takes the Lease %v after the last write of %s, which is good for %v", by, w.now-old.stored, old.by, old.lasts)
		}
	}
}

// unknownTo reports whether an agent first saw this tenure after its duration was lowered by hand, in field and annotation.
func (c *claim) unknownTo(a *agent) bool { return c.lowered > 0 && !slices.Contains(c.seenBy, a) }

// free reports whether its holder has given the Lease back, somebody else has made it look so, or its time is up.
func (c *claim) free() bool { return c.released || c.forged || c.w.now >= c.exclusive() }

// acts reports whether processes of its holder live.
func (c *claim) acts() bool { return c.agent != nil && c.agent.tree != nil && c.agent.tree.alive }

// past reports whether nothing follows from it any more.
func (c *claim) past() bool { return c.w.now > c.exclusive()+4*time.Hour && !c.acts() }

// leashed is told of each deadline: when it comes, what is paid for must be left until others may take the Lease.
func (c *checker) leashed(a *agent, deadline lease.Instant) {
	claim := c.newest(a.id)
	if deadline == lease.Never || claim == nil || c.outcomes {
		return
	}
	if at := a.machine.when(deadline); at+paidFor(a.config.Duration)+a.late > claim.exclusive() {
		c.violated(LeashTooLong, "%s: until %v, but its last write was stored at %v and is good until %v", a.id, at, claim.stored, claim.exclusive())
	}
}

// foreignHolder is told what a client-go elector has replaced. That it takes an empty holder for free is its own affair;
// but what it has waited for, no process of ours may outlive.
func (c *checker) foreignHolder(e *elector, was lease.Record) {
	for _, t := range c.acting {
		switch {
		case t.agent.id != was.Holder:
		case t.frozen, t.thawed > 0 && t.asked > 0 && t.asked <= t.thawed:
			c.result.Frozen++
		case t.asked > 0 && t.asked+t.paid() <= c.w.now:
			c.result.Late++
		case c.newest(was.Holder) != nil && c.w.now < c.newest(was.Holder).exclusive():
			c.result.Stolen++ // it compares whole seconds, and does not see that the holder renews
		default:
			c.violated(TwoAtOnce, "%s takes the Lease that has run out from %s, whose token %d still runs", e.id, was.Holder, t.token)
		}
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
	case len(c.acting) == 0 && c.w.p.runs != nil: // perhaps nothing is due
	case len(c.acting) == 0:
		c.violated(NoHolder, "nobody acts %v after the end of all faults; the Lease says %q at revision %d", c.w.p.bound(), c.w.api.lease.Holder, c.w.api.lease.Revision)
	case len(c.acting) > 1:
		c.violated(TwoAtOnce, "tokens %d and %d run %v after the end of all faults", c.acting[0].token, c.acting[1].token, c.w.p.bound())
	default:
		t := c.acting[0]
		if a := t.agent; c.w.api.lease.Holder != a.id || c.w.api.lease.Token != t.token {
			c.violated(NoHolder, "token %d of %s runs without the Lease, which says %q, token %d", t.token, a.id, c.w.api.lease.Holder, c.w.api.lease.Token)
		}
		c.holder = t
		c.counted = map[*agent]requests{}
		for _, s := range c.w.slots {
			c.counted[s.agent] = s.agent.sent
		}
		c.since = c.w.now
	}
}

// holderStays judges at the end of a calm time: the holder is the same, it has written once every retryPeriod, and nobody
// has sent anything else.
func (c *checker) holderStays() {
	t := c.holder
	if c.w.p.runs != nil {
		c.runsGoOn()
		return
	}
	if t == nil {
		return
	}
	if !t.alive {
		c.violated(LostForNought, "token %d of %s ended without a fault", t.token, t.agent.id)
		return
	}
	for _, s := range c.w.slots {
		a := s.agent
		before, ok := c.counted[a]
		if !ok {
			c.violated(LostForNought, "%s ended without a fault", a.id)
			return
		}
		most := 0
		if a == t.agent {
			most = 2 + int(slowest.lasts(c.w.now-c.since)/a.config.RetryPeriod)
		}
		if writes, reads := a.sent.writes-before.writes, a.sent.reads-before.reads; writes > most || reads > 0 {
			c.violated(Chatty, "%s sends %d writes and %d reads in %v of calm", a.id, writes, reads, c.w.now-c.since)
		}
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
