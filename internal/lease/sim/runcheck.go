package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// runsSeen is the checker's memory of runs, by their IDs.
type runsSeen struct {
	// known holds all runs that were stored, over those with a final state, begun the attempts whose process has run.
	known, over map[string]bool
	begun       map[attempt]bool
	ticks       map[schedule.Stamp]bool
	// open means that a run is in progress, and since when, or since when there is none.
	open  bool
	since time.Duration
	// idle holds recent periods without a run. starts counts runs.
	idle   []span
	starts int
	// told is when a change of a run was last stored.
	told time.Duration
	// changed is when the present schedule was written; 0 for the first one.
	changed schedule.Stamp
}

type attempt struct {
	id string
	n  int32
}

type span struct{ from, to time.Duration }

func newRunsSeen() runsSeen {
	return runsSeen{known: map[string]bool{}, over: map[string]bool{}, begun: map[attempt]bool{}, ticks: map[schedule.Stamp]bool{}}
}

func (s runsSeen) clone() runsSeen {
	s.known, s.over, s.begun, s.ticks = maps.Clone(s.known), maps.Clone(s.over), maps.Clone(s.begun), maps.Clone(s.ticks)
	return s
}

// forgets sets the checker's memory of runs back to what the restored store contains. The ends of processes before that need no
// longer be stored.
func (c *checker) forgets(saved runsSeen) {
	c.runs = saved.clone()
	for _, a := range c.w.agents {
		if a.tree != nil {
			a.tree.heard = false
		}
	}
	c.runs.open, c.runs.since, c.runs.idle, c.runs.told = c.w.api.lease.Runs.Now.Open(), c.w.now, nil, c.w.now
}

// runBegins is called for each process that begins.
func (c *checker) runBegins(t *tree) {
	if c.w.p.runs == nil {
		return
	}
	at := attempt{t.run.ID, t.run.Attempt}
	switch {
	case c.runs.over[t.run.ID]:
		c.violated(RunTwice, "%s begins attempt %d of %s, of which the last word is stored", t.agent.id, t.run.Attempt, t.run.ID)
	case !c.runs.known[t.run.ID]:
		c.violated(RunTwice, "%s begins %q, which is not stored", t.agent.id, t.run.ID)
	case c.runs.begun[at]:
		c.violated(RunTwice, "%s begins attempt %d of %s again", t.agent.id, t.run.Attempt, t.run.ID)
	}
	c.runs.begun[at] = true
}

// storesRun is called for each compare-and-swap that succeeds.
func (c *checker) storesRun(by string, was, is lease.Record) {
	if c.w.p.runs == nil {
		return
	}
	w, now := c.w, is.Runs.Now
	if w.trace != nil && was.Runs.Now != now {
		w.note("store", "run %s attempt %d %s (%s)", now.ID, now.Attempt, now.State, now.Reason)
	}
	c.waits(by, was.Runs.Now, now)
	if now != was.Runs.Now {
		c.runs.told = w.now
	}
	switch {
	case now == was.Runs.Now:
	case now.ID == was.Runs.Now.ID:
		c.sameRun(by, was, is)
	default:
		c.nextRun(by, was, is)
	}
	c.accounts(by, was.Runs, is.Runs)
	for _, past := range is.Runs.Past {
		c.runs.over[past.ID] = true
	}
	if open := now.Open(); open != c.runs.open {
		if open {
			c.runs.idle = append(c.runs.idle, span{c.runs.since, w.now})
		}
		c.runs.open, c.runs.since = open, w.now
	}
	c.runs.over[now.ID] = now.ID != "" && !now.Open()
}

// waits judges that the next attempt of a run follows only after the delay that Kubernetes' Jobs have, unless something else than the
// process has ended the last one. The delay counts from the stored end at the earliest, on a clock that can be fast.
func (c *checker) waits(by string, before, now lease.Run) {
	if now.ID != before.ID || now.Attempt <= before.Attempt || before.State == lease.RunFailed && !own[before.Reason] {
		return
	}
	delay := min(longestBackoff, 10*time.Second<<min(before.Attempt-1, 10))
	if waited := c.w.now - c.runs.told; waited < fastest.lasts(delay) {
		c.violated(RunTooSoon, "%s begins attempt %d of %s %v after the last one, which is %s (%s)", by, now.Attempt, now.ID, waited, before.State, before.Reason)
	}
}

// own are the reasons that are a process's own, in these worlds.
var own = map[lease.Reason]bool{lease.ReasonProcessExited: true, lease.ReasonPreActivateFailed: true, lease.ReasonLivenessFailed: true, lease.ReasonPostStartFailed: true}

// nextRun judges the first attempt of a run.
func (c *checker) nextRun(by string, was, is lease.Record) {
	now, before := is.Runs.Now, was.Runs.Now
	byHand := strings.HasPrefix(now.ID, "job/by-hand-")
	replaced := before.Open() && len(is.Runs.Past) > 0 && is.Runs.Past[0].ID == before.ID && is.Runs.Past[0].State == lease.RunReplaced
	switch {
	case c.runs.known[now.ID]:
		c.violated(RunTwice, "%s starts %s again", by, now.ID)
	case before.Open() && !replaced:
		c.violated(RunTwice, "%s starts %s, and %s is under way", by, now.ID, before.ID)
	case now.Attempt != 1 || now.Ignored != 0 || now.State != lease.RunRunning || is.Holder != by:
		c.violated(RunMistold, "%s starts %+v", by, now)
	}
	c.runs.known[now.ID] = true
	c.runs.starts++
	if !byHand && now.Tick != 0 {
		c.nextTick(by, now.Tick, was.Runs.Facts.Settled)
	}
}

// nextTick judges which tick is started.
func (c *checker) nextTick(by string, tick, settled schedule.Stamp) {
	switch {
	case tick < c.runs.changed-tolerated:
		c.violated(TickMiscount, "%s starts tick %s of a schedule that is there since %s", by, tick, c.runs.changed)
	case c.runs.ticks[tick] || tick <= settled:
		c.violated(RunTwice, "%s starts tick %s, and all until %s are settled", by, tick, settled)
	}
	c.runs.ticks[tick] = true
}

// sameRun judges a stored change of a known run.
func (c *checker) sameRun(by string, was, is lease.Record) {
	now, before := is.Runs.Now, was.Runs.Now
	again := attempt{now.ID, now.Attempt}
	c.ignores(by, was, is)
	switch {
	case !before.Open():
		c.violated(RunTwice, "%s writes %+v after %+v", by, now, before)
	case is.Holder != "" && now.Attempt != before.Attempt+1 && (now.Attempt != before.Attempt || c.runs.begun[again]):
		c.violated(RunMistold, "%s acquires attempt %d after %d of %s", by, now.Attempt, before.Attempt, now.ID)
	case is.Holder == "" && now.Attempt != before.Attempt:
		c.violated(RunMistold, "%s releases attempt %d of %d of %s", by, now.Attempt, before.Attempt, now.ID)
	case now.Attempt-now.Ignored > c.w.p.runs.policy.BackoffLimit+1:
		c.violated(RunMistold, "%s makes attempt %d of %s", by, now.Attempt, now.ID)
	case is.Holder == "":
		c.endsRun(by, was, now)
	}
}

// ignores judges which attempts do not count: those that ended by themselves with a code that is ignored, each once.
func (c *checker) ignores(by string, was, is lease.Record) {
	now, t := is.Runs.Now, c.treeOf(was)
	told := now.Ignored - was.Runs.Now.Ignored
	ended := is.Holder == "" && by == was.Holder && t != nil && t.ignored
	if told != 0 && (told != 1 || !ended) || told == 0 && ended && now.Reason == lease.ReasonProcessExited {
		c.violated(RunMistold, "%s ignores %d attempts at the end of %d of %s (%s, %d)", by, told, now.Attempt, now.ID, now.Reason, now.Code)
	}
}

// endsRun judges the stored end of an attempt by the actual end of its processes.
func (c *checker) endsRun(by string, was lease.Record, now lease.Run) {
	t := c.treeOf(was)
	if now.State == lease.RunGivenUp {
		c.givesUp(by, now)
	}
	switch {
	case t != nil && t.alive && !c.outlives(t):
		c.violated(RunMistold, "%s says that %s is %s, and its process lives", by, now.ID, now.State)
	case now.State == lease.RunComplete && (t == nil || !t.completed || by != was.Holder):
		c.violated(RunMistold, "%s says that %s is complete, and it is not", by, now.ID)
	case now.State != lease.RunComplete && t != nil && t.heard && by == was.Holder:
		c.violated(RunMistold, "%s says that %s is %s, and it is complete", by, now.ID, now.State)
	}
}

func (c *checker) givesUp(by string, now lease.Run) {
	p := c.w.p.runs.policy
	if now.Attempt-now.Ignored <= p.BackoffLimit && now.Reason != lease.ReasonDeadlineExceeded && !slices.Contains(p.FailCodes, int32(now.Code)) {
		c.violated(RunMistold, "%s gives up %s after attempt %d", by, now.ID, now.Attempt)
	}
}

// outlives reports whether a tree lives after its deadline, as a frozen one or one that is hard to kill can.
func (c *checker) outlives(t *tree) bool {
	claim := c.claimOf(t)
	return claim == nil || c.w.now >= claim.exclusive()
}

// treeOf returns the tree of the tenure in a record.
func (c *checker) treeOf(r lease.Record) *tree {
	if a := c.w.byID[r.Holder]; a != nil && a.tree != nil && a.tree.token == r.Token {
		return a.tree
	}
	return nil
}

// tolerated is the error, in seconds, that the time used to settle ticks can have.
const tolerated = schedule.Stamp(schedule.Tolerance/time.Second) + 2

// accounts judges the ticks that Settled passes. All of them but the started one must be counted as missed or skipped, unless the
// schedule was suspended then, or is replaced.
func (c *checker) accounts(by string, was, is lease.Runs) {
	if is.Schedule == nil {
		return
	}
	c.notEarly(by, was, is)
	before, after := was.Schedule.Spec(), is.Schedule.Spec()
	if before != after && by != theOperator {
		c.violated(RunMistold, "%s changes the schedule from %v to %v", by, before, after)
	}
	to := is.Facts.Settled
	if was.Facts.Suspended != 0 && is.Facts.Suspended == 0 {
		to = min(to, max(was.Facts.Settled, was.Facts.Suspended))
	}
	period := periodOf(was.Schedule)
	passed := int64(to/period - was.Facts.Settled/period)
	if before.Cron != after.Cron {
		c.runs.changed, passed = c.w.today(), 0
	}
	if now := is.Now; now.ID != was.Now.ID && strings.HasSuffix(now.ID, "/"+now.Tick.String()) {
		passed--
	}
	if told := is.Missed + is.Skipped - was.Missed - was.Skipped; told != passed || to < was.Facts.Settled || is.Missed < was.Missed {
		c.violated(TickMiscount, "%s settles %s after %s, and tells %d ticks of %d", by, is.Facts.Settled, was.Facts.Settled, told, passed)
	}
}

// notEarly judges that no future tick is settled, as long as the servers report the time: one machine's clock is not enough to
// settle a tick. The operator's clock is right, and the operator never settles a future tick.
func (c *checker) notEarly(by string, was, is lease.Runs) {
	const (
		forgets = 5 * time.Minute // after this time no agent uses the servers' earlier times
		drifts  = 10              // seconds by which a clock can be ahead of the reported time
	)
	w := c.w
	grows := is.Facts.Settled > was.Facts.Settled
	told := w.api.dates == [servers]time.Duration{} && w.now >= w.api.datesSet+forgets
	if grows && (told && is.Facts.Settled > w.today()+drifts || by == theOperator && is.Facts.Settled > w.today()+tolerated) {
		c.violated(TickEarly, "%s settles all until %s, and it is %s", by, is.Facts.Settled, w.today())
	}
}

// runsGoOn judges the end of a calm time: a run in progress is continued, and a due run was started.
func (c *checker) runsGoOn() {
	w, r := c.w, c.w.p.runs
	calm := w.now - (w.p.calm - w.p.bound())
	now := w.api.lease.Runs
	if c.runs.open && len(c.acting) == 0 && w.now-c.changed() > longestBackoff+w.p.bound() {
		c.violated(RunForgotten, "nobody goes on with attempt %d of %s, which is %s since %v", now.Now.Attempt, now.Now.ID, now.Now.State, c.changed())
	}
	if r.schedule == nil {
		if len(c.runs.known) == 0 { // a run that is requested first is the job's run
			c.violated(RunForgotten, "nobody has run the job")
		}
		return
	}
	idle := c.runs.idle
	if !c.runs.open {
		idle = append(idle, span{c.runs.since, w.now})
	}
	if now.Schedule.Spec() != w.wanted.Spec() {
		c.violated(RunForgotten, "the Lease says the schedule %v, and %v is wanted", now.Schedule.Spec(), w.wanted.Spec())
	}
	period := periodOf(now.Schedule)
	const inTime = 75 * time.Second
	for _, s := range idle {
		from := r.begin + schedule.Stamp(max(s.from, calm)/time.Second)
		tick := from/period*period + period
		at := time.Duration(tick-r.begin) * time.Second
		if at+inTime < s.to && tick > now.Facts.Settled && now.Facts.Suspended == 0 {
			c.violated(RunForgotten, "nobody starts %s, and nothing has run since %v", tick, s.from)
		}
	}
	c.runs.idle = nil
}

// changed returns when a run was last stored, or when the last fault ended.
func (c *checker) changed() time.Duration {
	return max(c.runs.told, c.w.now-(c.w.p.calm-time.Millisecond))
}
