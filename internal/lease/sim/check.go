package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// Violation is a broken promise.
type Violation struct {
	// Kind names the promise.
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
	RunTooSoon    = "attempt before its delay is over"
	TickMiscount  = "ticks not accounted for once"
	TickEarly     = "tick settled before its time"
	RunForgotten  = "nobody goes on with a run, or starts one that is due"
)

// checker sees the whole world, in true time, and judges from that alone. It sees when each process lived and was killed, which agent's
// writes the store received, and what the sink accepted. It calls nothing in package lease and has rules of its own: paidFor and exclusive.
type checker struct {
	w         *world
	outcomes  bool
	result    Result
	violation *Violation
	// acting are the trees that live.
	acting []*tree
	// token is the highest token with which a process was started, given the token acquired last. The highest token of which an edit of the
	// Lease left no trace is erased.
	token, given, erased int64
	// arrived is the highest token that arrived at the sink, accepted the highest that it accepted.
	arrived, accepted int64
	last              *tree
	// claims are the tenures that each contender wrote to the store, newest last.
	claims []*claim
	// holder is the tree that holderNow found. counted holds the requests of each agent until then.
	holder  *tree
	counted map[*agent]requests
	since   time.Duration
	// ended counts the trees that have ended. judgesNoEnd means that their ends are not judged.
	ended       int
	judgesNoEnd bool
	runs        runsSeen
	// over are the tenures that the store's Lease has ceased to show.
	over map[tenure]bool
}

// tenure names a tenure.
type tenure struct {
	holder string
	token  int64
}

// ends is called with each state of the Lease that the store replaces by one of another tenure, or by none.
func (c *checker) ends(was lease.Record) {
	c.over[tenure{was.Holder, was.Token}] = true
}

// claim is a tenure as the store knows it: from its acquire to its release, or until its time is over.
type claim struct {
	w     *world
	by    string
	agent *agent // nil where a client-go elector claims
	token int64
	// won is when it was acquired, stored when it was last written, and lasts the longest duration that was written.
	won, stored, lasts time.Duration
	revision           int64 // of its last write
	// released means that its holder or the operator has released the Lease.
	released bool
	// lowered is when somebody else lowered the duration; 0 after its holder has written again. An agent that is not in seenBy by
	// then cannot know the former duration.
	lowered time.Duration
	seenBy  []*agent
	// fooled means that such an agent has taken the Lease.
	fooled bool
	// forged means that somebody else has made the Lease look released.
	forged bool
	// retold means that somebody else has written into the Lease how the tenure ended.
	retold bool
	// half means that its holder's last write contains a part of a release, which helps a forger.
	half bool
	// forgotten means that the store went back to a state before its last write.
	forgotten bool
}

// exclusive returns the time until which nobody else may take the Lease, whatever the rates of the clocks.
func (c *claim) exclusive() time.Duration {
	return c.stored + fastest.lasts(c.lasts) - time.Microsecond
}

// requests counts the requests of an agent.
type requests struct{ writes, reads int }

func (c *checker) violated(kind, format string, args ...any) {
	if c.violation == nil {
		c.violation = &Violation{Kind: kind, At: c.w.now, Text: fmt.Sprintf(format, args...)}
		if c.w.trace != nil {
			c.w.note("checker", "%s: %s", kind, c.violation.Text)
		}
	}
}

// started is called for each tree that begins to act.
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

// grows judges a new tenure's token. A token that does not grow is excused once, if somebody has removed every trace of a token
// that was higher than its revision: nobody could know of it. Then only the sink's fence is left, and it holds.
func (c *checker) grows(t *tree) {
	switch {
	case t.token > c.token:
	case c.misled(t): // it started more slowly than the next tenure; what it can still do is the same
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

// alone judges a tree that begins while another acts. Four cases are not a broken promise, and each is counted separately. The
// other tree is frozen, or was when it was killed. It keeps running while it is cut off, as configured. It was killed as long ago
// as is paid for and is not dead yet. Somebody has forged the release of its Lease, whose time is not over yet. None of the first
// three excuses a Lease that was taken before its time.
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

// paid returns how long a tree's agent leaves the Lease to it after its kill was due. That is the time that the margin pays for, and the
// lateness of its processes that the leash's present deadline takes into account.
func (t *tree) paid() time.Duration { return paidFor(t.agent.config.Duration) + t.counted }

// lateFor returns how much of a measured lateness a tenure pays for: all of it, up to half of the time that renewals leave.
func lateFor(c lease.Config, late time.Duration) time.Duration {
	return min(max(0, late), max(0, (c.Duration-margin(c.Duration)-c.RetryPeriod)/2))
}

// inTime reports whether the Lease was won for a tree after the time of another was over.
func (c *checker) inTime(t, other *tree) bool {
	won, lost := c.claimOf(t), c.claimOf(other)
	return won != nil && lost != nil && !lost.released && (lost.forged || won.won >= lost.exclusive())
}

// misled reports whether somebody has forged the release of a tree's Lease. The tree can run until the Lease's time is over, but
// not after its agent learns of the forgery.
func (c *checker) misled(other *tree) bool {
	claim := c.claimOf(other)
	return claim != nil && claim.forged && c.w.now < claim.exclusive()
}

// slow reports whether a tree whose release was forged began to run only after a tree of a later tenure.
func (c *checker) slow(t, other *tree) bool { return t.token < other.token && c.misled(t) }

// delays reports whether the next tenure must wait for lockDelay after the end of a tree. It need not if the tree kept running as
// configured, or if somebody else has written how it ended. It also need not if the tree ended only when others could already take the
// Lease, or if it let them know too little of the Lease.
func (c *checker) delays(last, t *tree) bool {
	claim := c.claimOf(last)
	return !last.agent.config.KeepRunning && !c.outlived(last) && !c.fools(last, t) && (claim == nil || !claim.retold)
}

// fools reports whether the Lease of a tree had its duration lowered by hand, so that an agent that started then could not know
// when the Lease ends.
func (c *checker) fools(other, t *tree) bool {
	claim := c.claimOf(other)
	return claim != nil && (claim.fooled || claim.unknownTo(t.agent))
}

// outlived reports whether a tree ended only when others could already take the Lease. lockDelay counts from then.
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

// asks is called for each action that an agent carries out.
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
		if a.state.Stop.Lost && !a.misled && c.claimOf(a.tree) != nil && !c.over[tenure{a.id, a.tree.token}] {
			c.violated(LostForNought, "%s kills token %d for a loss, and the Lease has been its own all the time", a.id, a.tree.token)
		}
	case lease.SendWrite:
		a.sent.writes++
		if action.Attempt.Record.Holder == "" && a.tree != nil && a.tree.alive {
			c.violated(ReleasedEarly, "%s releases token %d while its processes live", a.id, a.tree.token)
		}
	case lease.SendRead:
		a.sent.reads++
	}
}

// tells is called for everything that an agent learns of the Lease. An event that shows for certain that the tenure is another's
// must end the process at once. A record shows this if it is later than this agent's last write, and later than anything
// that showed the agent its tenure still in place. The Lease may have been edited and edited back.
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

// shows records which agents have seen a tenure with the duration that its holder wrote.
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

// runsOn judges whether a tree that had to be killed was killed.
func (c *checker) runsOn(t *tree) {
	switch {
	case !t.alive || t.frozen || t.asked > 0:
	case t.agent.stopped > 0 || len(t.agent.todo) > 0:
		c.w.after(10*time.Millisecond, func() { c.runsOn(t) })
	default:
		c.violated(RunsOn, "token %d of %s", t.token, t.agent.id)
	}
}

// stores is called for each compare-and-swap that succeeds, with its author.
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

// edited is called for each write by hand. If it makes the Lease look released, candidates can take every lasting tenure for
// released, unless its holder had left a part of the release in place.
func (c *checker) edited(was, is lease.Record) {
	for _, claim := range c.claims {
		claim.retold = claim.retold || released(is) && (!released(was) || was.Release != is.Release)
		claim.forged = claim.forged || released(is) && !released(was) && !claim.released && !claim.half && c.w.now < claim.exclusive()
	}
	if tells(was) >= c.given && tells(is) < c.given && is.Revision+is.TokenBase < c.given {
		c.erased = c.given
	}
}

// released reports whether a record is in the state that a release leaves: no holder, a reason, and no acquire time.
func released(r lease.Record) bool {
	return r.Holder == "" && r.Release.Reason != "" && r.AcquireTime == 0
}

// tells returns the highest possible token in a record.
func tells(r lease.Record) int64 {
	highest := r.Token
	for _, past := range r.History {
		if past.Token <= highestToken {
			highest = max(highest, past.Token)
		}
	}
	return highest
}

// highestToken is the highest sum of a revision and a token base.
const highestToken = 1 << 53

// writesOurs is called for each compare-and-swap that succeeds, and says whether the Lease was somebody else's.
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

// releases is called with the author of a write that clears the holder. The write ends a tenure if its author is the holder or
// the operator.
func (c *checker) releases(by string, was lease.Record) {
	claim := c.newest(was.Holder)
	if a := c.w.byID[by]; a != nil && by != was.Holder { // the end of a run, written for a holder that vanished
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

// takes judges an acquire. All others must have released the Lease, or not written it for as long as they announced. An agent
// that replaces a dead one in a place where that proves the death need not wait.
func (c *checker) takes(a *agent, by string, is lease.Record) {
	w := c.w
	c.waited(a, by)
	c.given = is.Token
	c.claims = append(c.claims, &claim{w: w, by: by, agent: a, token: is.Token, won: w.now, stored: w.now, lasts: is.Duration})
}

// waited judges whether all others have released the Lease, or not written it for long enough.
func (c *checker) waited(a *agent, by string) {
	w := c.w
	c.claims = slices.DeleteFunc(c.claims, (*claim).past)
	for _, old := range c.claims {
		if old.by == by || a != nil && old.agent != nil && w.p.endProvesDeath && old.agent.machine.uid == a.machine.uid {
			old.released = old.released || !old.acts()
		}
		if a != nil && old.unknownTo(a) { // and agents that come later wait for that one
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

// free reports whether its holder has released the Lease, somebody else has made it look released, or its time is over.
func (c *claim) free() bool { return c.released || c.forged || c.w.now >= c.exclusive() }

// acts reports whether processes of its holder live.
func (c *claim) acts() bool { return c.agent != nil && c.agent.tree != nil && c.agent.tree.alive }

// past reports whether the claim no longer matters.
func (c *claim) past() bool { return c.w.now > c.exclusive()+4*time.Hour && !c.acts() }

// leashed is called for each deadline. At the deadline, the time that is paid for must be left until others can take the Lease.
func (c *checker) leashed(a *agent, deadline lease.Instant) {
	claim := c.newest(a.id)
	if deadline == lease.Never || claim == nil || c.outcomes {
		return
	}
	if at := a.machine.when(deadline); at+paidFor(a.config.Duration)+a.late > claim.exclusive() {
		c.violated(LeashTooLong, "%s: until %v, but its last write was stored at %v and is good until %v", a.id, at, claim.stored, claim.exclusive())
	}
}

// foreignHolder is called with the record that a client-go elector has replaced. That the elector treats a Lease without a holder
// as free is its own decision. But no process of ours may outlive the time for which it has waited.
func (c *checker) foreignHolder(e *elector, was lease.Record) {
	for _, t := range c.acting {
		switch {
		case t.agent.id != was.Holder:
		case t.frozen, t.thawed > 0 && t.asked > 0 && t.asked <= t.thawed:
			c.result.Frozen++
		case t.asked > 0 && t.asked+t.paid() <= c.w.now:
			c.result.Late++
		case c.newest(was.Holder) != nil && c.w.now < c.newest(was.Holder).exclusive():
			c.result.Stolen++ // it compares whole seconds and does not see that the holder renews
		default:
			c.violated(TwoAtOnce, "%s takes the Lease that has run out from %s, whose token %d still runs", e.id, was.Holder, t.token)
		}
	}
}

// exits is called for each agent that exits by itself.
func (c *checker) exits(a *agent) {
	if a.tree != nil && a.tree.alive {
		c.violated(ReleasedEarly, "%s exits while processes of token %d live", a.id, a.tree.token)
	}
}

// holderNow is called when there must be a holder again, and judges it.
func (c *checker) holderNow() {
	c.holder = nil
	if e := c.w.elector; e != nil && (e.leading || c.w.api.lease.Holder == e.id) {
		return
	}
	switch {
	case len(c.acting) == 0 && c.w.p.runs != nil: // possibly no run is due
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

// holderStays judges the end of a calm time: the holder is the same, it has written once every retryPeriod, and nobody has sent
// anything else.
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
