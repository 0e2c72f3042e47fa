package sim

import (
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// newLeashed makes an agent in a world without faults, with a tree that it has just asked for until a deadline.
func newLeashed(until, execHangs time.Duration) (*agent, *tree) {
	w := newWorld(draw(1, Options{Profile: Mixed, Slew: 1}), Options{}, nil)
	w.build()
	a := w.slots[0].agent
	a.machine.execHangs = execHangs
	a.tree = newTree(a, lease.StartChild{Token: 1, Deadline: a.machine.now().Add(until)})
	return a, a.tree
}

func (a *agent) runUntil(t time.Duration) {
	w := a.w
	over := false
	w.at(t, func() { over = true })
	for !over && w.next() {
	}
}

func TestLeashHoldsUntilTheProgramRuns(t *testing.T) {
	t.Parallel()
	a, tree := newLeashed(10*time.Second, time.Hour)
	tree.extend(lease.Never)
	a.runUntil(20 * time.Second)
	if tree.asked == 0 || tree.alive {
		t.Errorf("a program that hung in exec until its deadline was to be killed; asked at %v, alive: %v", tree.asked, tree.alive)
	}
	a, tree = newLeashed(10*time.Second, 0)
	tree.extend(lease.Never)
	a.runUntil(20 * time.Second)
	if tree.asked != 0 || !tree.alive {
		t.Errorf("a program that runs was to run for ever; asked to die at %v, alive: %v", tree.asked, tree.alive)
	}
	a, tree = newLeashed(10*time.Second, 0)
	tree.extend(lease.Never)
	a.stop() // nobody tells the leash
	a.runUntil(20 * time.Second)
	if tree.asked == 0 {
		t.Error("the agent had not got to know that the program runs, so its deadline was to hold")
	}
}

func TestLeashTakesNoEarlierDeadline(t *testing.T) {
	t.Parallel()
	a, tree := newLeashed(10*time.Second, 0)
	until := tree.deadline
	a.late = time.Second
	tree.extend(until - 1)
	if tree.deadline != until || tree.counted != 0 {
		t.Errorf("an earlier deadline was taken: %v before the old one, %v of lateness counted", until.Sub(tree.deadline), tree.counted)
	}
	tree.extend(until + 1)
	if tree.deadline != until+1 || tree.counted != time.Second {
		t.Errorf("a later deadline was not taken: %v after the old one, %v of lateness counted", tree.deadline.Sub(until), tree.counted)
	}
}

// TestLossBeginsAfterTheLastSignOfATenure is about a Lease that somebody edits and edits back, and a watch that is late.
func TestLossBeginsAfterTheLastSignOfATenure(t *testing.T) {
	t.Parallel()
	a, tree := newLeashed(10*time.Second, 0)
	tree.alive, a.revision = true, 10
	mine := lease.Record{Revision: 12, Holder: a.id, Token: tree.token}
	edited := lease.Record{Revision: 11, Holder: a.id, Token: tree.token + 1}
	a.w.check.tells(a, lease.Watched{Record: mine})
	a.w.check.tells(a, lease.Watched{Record: edited})
	if tree.doomed {
		t.Error("what was edited back before the agent was told of it ended the tenure")
	}
	edited.Revision = 13
	a.w.check.tells(a, lease.Watched{Record: edited})
	if !tree.doomed {
		t.Error("an edit that is news did not end the tenure")
	}
}

func TestNothingIsStoredDuringARestore(t *testing.T) {
	t.Parallel()
	w := newWorld(draw(1, Options{Profile: Restore}), Options{}, nil)
	w.build()
	w.api.set(paused)
	stored := false
	w.api.held = append(w.api.held, func() { stored = true })
	w.api.restoring = 1
	w.api.set(up)
	if stored {
		t.Error("a request of before the restore was stored in the middle of it")
	}
}

// TestUnseenDurationIsNotWaitedFor is about candidates that come when a holder's duration was lowered by hand.
func TestUnseenDurationIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(draw(1, Options{Profile: Edited}), Options{}, nil)
	w.build()
	holder, knows, comes := w.slots[0].agent, w.slots[1].agent, w.slots[2].agent
	is := lease.Record{Revision: 5000, Holder: holder.id, Token: 7, Duration: time.Minute}
	w.check.stores(holder.id, lease.Record{}, is)
	claim := w.check.newest(holder.id)
	w.check.tells(knows, lease.Watched{Record: is})
	w.now = time.Second
	claim.lowered = w.now
	is.Duration = time.Second
	w.check.tells(comes, lease.Watched{Record: is})
	if claim.unknownTo(knows) || !claim.unknownTo(comes) {
		t.Errorf("unknown to who knew: %v; to who came later: %v", claim.unknownTo(knows), claim.unknownTo(comes))
	}
	w.check.stores(holder.id, is, is) // with its duration again
	if claim.unknownTo(comes) {
		t.Error("the holder has told its duration anew, and who takes the Lease has seen it")
	}
}

// TestForgedReleaseExcusesOneTenure, until its own last write is no longer good.
func TestForgedReleaseExcusesOneTenure(t *testing.T) {
	t.Parallel()
	const token = 7
	whole := func(r *lease.Record) { r.Holder, r.Release.Reason, r.AcquireTime = "", lease.ReasonSwitchover, 0 }
	for name, c := range map[string]struct {
		mine  func(*lease.Record) // what the holder's last write has left
		edit  func(*lease.Record)
		after func(*world, *agent, lease.Record)
		later time.Duration
		want  string
	}{
		"forged":            {edit: whole},
		"holder cleared":    {edit: func(r *lease.Record) { r.Holder = "" }, want: Stolen},
		"marker alone":      {edit: func(r *lease.Record) { r.Holder, r.Release.Reason = "", lease.ReasonSwitchover }, want: Stolen},
		"no marker":         {edit: func(r *lease.Record) { r.Holder, r.AcquireTime = "", 0 }, want: Stolen},
		"part left to it":   {mine: func(r *lease.Record) { r.AcquireTime = 0 }, edit: whole, want: Stolen},
		"marker left to it": {mine: func(r *lease.Record) { r.Release.Reason = lease.ReasonSwitchover }, edit: whole, want: Stolen},
		"renewed after it":  {edit: whole, after: func(w *world, a *agent, r lease.Record) { w.check.stores(a.id, r, r) }, want: Stolen},
		"long ago":          {edit: whole, later: time.Minute, want: TwoAtOnce},
	} {
		w := newWorld(draw(1, Options{Profile: Forged}), Options{}, nil)
		w.build()
		holder, next := w.slots[0].agent, w.slots[1].agent
		is := lease.Record{Revision: 5000, Holder: holder.id, Token: token, Duration: 15 * time.Second, AcquireTime: 1}
		if c.mine != nil {
			c.mine(&is)
		}
		w.check.stores(holder.id, lease.Record{}, is)
		w.check.started(&tree{agent: holder, token: token})
		w.now = time.Second
		edited := is
		c.edit(&edited)
		w.check.edited(is, edited)
		if c.after != nil {
			c.after(w, holder, is)
		}
		w.check.stores(next.id, edited, lease.Record{Holder: next.id, Token: token + 1, Duration: 15 * time.Second, AcquireTime: 2})
		w.now += c.later
		w.check.started(&tree{agent: next, token: token + 1})
		got := ""
		if w.check.violation != nil {
			got = w.check.violation.Kind
		}
		if forged := w.check.result.Forged == 1; got != c.want || forged != (c.want == "") {
			t.Errorf("%s: %q, want %q; excused: %v", name, got, c.want, forged)
		}
	}
}

// TestForgedReleaseExcusesASlowStart of that tenure, after the next one's, and only until its time is up.
func TestForgedReleaseExcusesASlowStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		forged bool
		at     time.Duration
		want   string
	}{
		"in its time": {forged: true, at: 10 * time.Second},
		"after that":  {forged: true, at: time.Minute, want: TwoAtOnce},
		"not forged":  {at: 10 * time.Second, want: Stolen},
	} {
		w := newWorld(draw(1, Options{Profile: Forged}), Options{}, nil)
		w.build()
		slow := w.slots[0].agent
		is := lease.Record{Revision: 5000, Holder: slow.id, Token: 5000, Duration: 15 * time.Second, AcquireTime: 1}
		w.check.stores(slow.id, lease.Record{}, is)
		if c.forged {
			release := is
			release.Holder, release.AcquireTime, release.Release.Reason = "", 0, lease.ReasonSwitchover
			w.check.edited(is, release)
		}
		next := is
		next.Holder, next.Token = w.slots[1].agent.id, 5001
		w.check.stores(next.Holder, is, next)
		w.check.started(&tree{agent: w.slots[1].agent, token: 5001})
		w.now = c.at
		w.check.started(&tree{agent: slow, token: 5000})
		got := ""
		if w.check.violation != nil {
			got = w.check.violation.Kind
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestErasedTokenExcusesALowerToken where nothing is left that tells of it, once.
func TestErasedTokenExcusesALowerToken(t *testing.T) {
	t.Parallel()
	const high = 900_000
	for name, c := range map[string]struct {
		left   lease.Record
		tokens []int64
		want   bool
	}{
		"erased":              {lease.Record{Revision: 5000, Token: 1}, []int64{5000}, true},
		"in the history":      {lease.Record{Revision: 5000, Token: 1, History: []lease.PastTenure{{Token: high}}}, []int64{5000}, false},
		"below the revision":  {lease.Record{Revision: high + 1, Token: 1}, []int64{5000}, false},
		"below the base":      {lease.Record{Revision: 5000, TokenBase: high, Token: 1}, []int64{5000}, false},
		"grows":               {lease.Record{Revision: 5000, Token: 1}, []int64{high + 1, high}, false},
		"grows no more again": {lease.Record{Revision: 5000, Token: 1}, []int64{5000, 5000}, false},
		"and then it grows":   {lease.Record{Revision: 5000, Token: 1}, []int64{5000, 5001}, true},
	} {
		w := newWorld(draw(1, Options{Profile: History}), Options{}, nil)
		w.build()
		a := w.slots[0].agent
		is := lease.Record{Revision: 4000, Holder: a.id, Token: high, AcquireTime: 1}
		w.check.stores(a.id, lease.Record{}, is)
		w.check.grows(&tree{agent: a, token: high})
		w.check.edited(is, c.left)
		for _, token := range c.tokens {
			w.check.grows(&tree{agent: a, token: token})
		}
		if got := w.check.violation == nil; got != c.want {
			t.Errorf("%s: excused: %v, want %v", name, got, c.want)
		}
	}
}

// TestLockDelayOfAnUnknownTenure is about the process of such a holder, which ends when it learns of the other.
func TestLockDelayOfAnUnknownTenure(t *testing.T) {
	t.Parallel()
	w := newWorld(draw(1, Options{Profile: Edited}), Options{}, nil)
	w.build()
	holder, comes := w.slots[0].agent, w.slots[1].agent
	w.check.stores(holder.id, lease.Record{}, lease.Record{Holder: holder.id, Token: 7, Duration: time.Minute})
	comes.config.LockDelay = time.Minute
	w.now = 2 * time.Second
	last := &tree{agent: holder, token: 7, crashed: true, asked: w.now, ended: w.now}
	w.check.last = last
	next := &tree{agent: comes, token: 8}
	w.check.newest(holder.id).lowered = time.Second
	if w.check.started(next); w.check.violation != nil {
		t.Error(w.check.violation)
	}
	w.check.last, w.check.acting, next.token = last, nil, 9
	w.check.newest(holder.id).lowered = 0
	if w.check.started(next); w.check.violation == nil || w.check.violation.Kind != LockDelayCut {
		t.Errorf("%v, want %q", w.check.violation, LockDelayCut)
	}
}
