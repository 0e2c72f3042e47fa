package mistake

import (
	"slices"

	"github.com/singletonjob/operator/internal/lease"
)

// before makes a Step that is given a wrong picture of what happened.
func before(change func(lease.Config, lease.State, lease.Time, lease.Event) (lease.Config, lease.State, lease.Event)) Step {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
		c, s, e = change(c, s, t, e)
		return lease.Step(c, s, t, e)
	}
}

func replyTimed(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	if done, ok := e.(lease.WriteDone); ok && s.Write != nil && done.Nonce == s.Write.Nonce && done.Outcome == lease.Confirmed {
		w := *s.Write
		w.SentAt = t.Boot
		s.Write = &w
	}
	return c, s, e
}

func waitFromRequest(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
	next, actions := lease.Step(c, s, t, e)
	if _, ok := e.(lease.ReadDone); ok && s.Read != nil && next.Observed.At == t.Boot {
		next.Observed.At = s.Read.SentAt
	}
	return next, actions
}

func noMargin(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
	next, actions := lease.Step(c, s, t, e)
	m := lease.Margin(c.Duration)
	atDeadline := next.Stop.Killed && !next.Stop.Lost && !next.Tree.Exited && t.Boot < next.Stop.KillAt && t.Boot < next.Tenure.Confirmed.Add(c.Duration)
	var out []lease.Action
	for _, action := range actions {
		switch a := action.(type) {
		case lease.StartChild:
			a.Deadline = a.Deadline.Add(m)
			action = a
		case lease.ExtendLeash:
			a.Deadline = a.Deadline.Add(m)
			action = a
		case lease.KillTree:
			if atDeadline {
				next.Stop.Killed = false
				continue
			}
		}
		out = append(out, action)
	}
	return next, out
}

func kills(actions []lease.Action) bool {
	return slices.ContainsFunc(actions, func(a lease.Action) bool { _, ok := a.(lease.KillTree); return ok })
}

// treeGoneOn takes the processes for dead when the condition holds, and the news of it later for nothing. It counts the trees
// of which that news is still to come, below zero, in Signal, which nothing else reads before the agent is terminated.
func treeGoneOn(condition func(lease.State, []lease.Action) bool) Step {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
		if s.Signal < 0 {
			switch e.(type) {
			case lease.TreeGone:
				s.Signal++
				e = lease.Ticked{}
			case lease.ChildExited:
				e = lease.Ticked{}
			}
		}
		next, actions := lease.Step(c, s, t, e)
		if condition(next, actions) {
			early := min(0, next.Signal) - 1
			var more []lease.Action
			next, more = lease.Step(c, next, t, lease.TreeGone{})
			next.Signal = early
			actions = append(actions, more...)
		}
		return next, actions
	}
}

// rewriteAcquire changes the record that an acquire stores.
func rewriteAcquire(change func(c lease.Config, s lease.State, r *lease.Record)) Step {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
		next, actions := lease.Step(c, s, t, e)
		for i, action := range actions {
			if w, ok := action.(lease.SendWrite); ok && w.Attempt.Kind == lease.Acquire {
				change(c, next, &w.Attempt.Record)
				actions[i] = w
				next.Write = &w.Attempt
			}
		}
		return next, actions
	}
}

// halfReleased leaves a release marker, and no acquire time, as a renewal finds them.
func halfReleased(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
	next, actions := lease.Step(c, s, t, e)
	for i, action := range actions {
		if w, ok := action.(lease.SendWrite); ok && (w.Attempt.Kind == lease.Renew || w.Attempt.Kind == lease.Confirm) {
			was := next.Observed.Record
			w.Attempt.Record.Release, w.Attempt.Record.AcquireTime = was.Release, was.AcquireTime
			actions[i] = w
			next.Write = &w.Attempt
		}
	}
	return next, actions
}

func noHistory(_ lease.Config, s lease.State, r *lease.Record) {
	was := s.Observed.Record
	r.Token = max(was.Revision+was.TokenBase, was.Token+1)
}

func anyHistory(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	return c, s, rewriteRecord(e, func(r *lease.Record) {
		for _, past := range r.History {
			if r.Holder != c.Identity.String() {
				r.Token = max(r.Token, past.Token)
			}
		}
	})
}

func keepToken(c lease.Config, s lease.State, r *lease.Record) {
	was := s.Observed.Record
	last, _ := lease.ParseIdentity(was.Holder)
	if last.Pod == c.Identity.Pod || s.Past != nil && s.Past.Tenure.Token == was.Token {
		r.Token, r.Transitions = was.Token, was.Transitions
	}
}

func transitionsToken(_ lease.Config, _ lease.State, r *lease.Record) { r.Token = int64(r.Transitions) }

// showsLoss reports whether an event shows for certain that a tenure is not this agent's any more.
func showsLoss(c lease.Config, s lease.State, now lease.Instant, token int64, e lease.Event) bool {
	foreign := func(r *lease.Record) bool {
		return r.Revision > s.Observed.Record.Revision && (r.Holder != c.Identity.String() || r.Token != token)
	}
	switch e := e.(type) {
	case lease.Watched:
		return e.Deleted && e.Record.Revision > s.Observed.Record.Revision || foreign(&e.Record)
	case lease.ReadDone:
		if s.Read == nil || s.Read.ID != e.ID || now >= s.Read.Deadline { // an answer nobody waits for any more
			return false
		}
		return e.Found != nil && foreign(e.Found) || e.Absent && s.Read.Floor == s.Observed.Record.Revision
	}
	return false
}

// blind does not see that the Lease is another's while its process runs.
func blind(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	if s.Tree.Alive && showsLoss(c, s, t.Boot, s.Tenure.Token, e) {
		if read, ok := e.(lease.ReadDone); ok {
			return c, s, lease.ReadDone{ID: read.ID}
		}
		return c, s, lease.Ticked{}
	}
	return c, s, e
}

func ambiguousIsSuccess(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
	w := s.Write
	if w == nil {
		return lease.Step(c, s, t, e)
	}
	stored := w.Record
	stored.Revision++ // it does not know, and will meet a conflict
	success := lease.WriteDone{Nonce: w.Nonce, Outcome: lease.Confirmed, Record: &stored}
	if done, ok := e.(lease.WriteDone); ok && done.Nonce == w.Nonce && done.Outcome == lease.Unknown {
		return lease.Step(c, s, t, success)
	}
	if t.Boot < w.Patience {
		return lease.Step(c, s, t, e)
	}
	next, actions := lease.Step(c, s, lease.Time{Boot: w.Patience - 1, Wall: t.Wall}, success)
	next, more := lease.Step(c, next, t, e)
	return next, append(actions, more...)
}

func readTimed(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	read, ok := e.(lease.ReadDone)
	if !ok || read.Found == nil {
		return c, s, e
	}
	s.Unsettled = slices.Clone(s.Unsettled)
	for i := range s.Unsettled {
		if s.Unsettled[i].Nonce == read.Found.RenewTime {
			s.Unsettled[i].SentAt = t.Boot
		}
	}
	return c, s, e
}

// rewriteRecord changes every record that comes in.
func rewriteRecord(e lease.Event, change func(*lease.Record)) lease.Event {
	switch e := e.(type) {
	case lease.Watched:
		change(&e.Record)
		return e
	case lease.ReadDone:
		if e.Found != nil {
			r := *e.Found
			change(&r)
			e.Found = &r
		}
		return e
	}
	return e
}

func anyEmptyIsFree(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	return c, s, rewriteRecord(e, func(r *lease.Record) {
		if r.Holder == "" {
			r.AcquireTime = 0
			if r.Release.Reason == "" {
				r.Release.Reason = lease.ReasonLeaseExpired
			}
		}
	})
}

func oldMarkerCounts(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	return c, s, rewriteRecord(e, func(r *lease.Record) {
		if r.Holder == "" {
			r.AcquireTime = 0
		}
	})
}

func staleAccepted(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	if watched, ok := e.(lease.Watched); ok && watched.Record.Revision < s.Observed.Record.Revision {
		s.Observed.Record.Revision = watched.Record.Revision - 1
	}
	return c, s, e
}

func neverStarved(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	if _, ok := e.(lease.Starved); ok {
		return c, s, lease.Ticked{}
	}
	return c, s, e
}

func newestDuration(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	s.Observed.Longest = 0
	return c, s, e
}

func ownDuration(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	s.Observed.Longest = 0
	return c, s, rewriteRecord(e, func(r *lease.Record) { r.Duration = c.Duration })
}

func noLockDelay(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	c.LockDelay = 0
	return c, s, e
}

func restartIsProof(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	c.EndProvesDeath = true
	return c, s, e
}

func startIsProof(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	if sought, ok := e.(lease.DeathSought); ok {
		sought.Dead = true
		e = sought
	}
	return c, s, e
}

// after makes a Step that remembers something else than what it has decided.
func after(change func(s lease.State) lease.State) Step {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
		next, actions := lease.Step(c, s, t, e)
		return change(next), actions
	}
}

// patient waits for every answer for as long as it is of use.
func patient(s lease.State) lease.State {
	if s.Write != nil {
		w := *s.Write
		w.Patience = w.Deadline
		s.Write = &w
	}
	if s.Read != nil {
		r := *s.Read
		r.Patience = r.Deadline
		s.Read = &r
	}
	return s
}

// oneAfterAnother writes nothing until a read has told what became of the last write.
func oneAfterAnother(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	s.Stale = s.Stale || s.MustRead
	return c, s, e
}

// lateIsLost hears no answer that it does not wait for any more, while a tenure lasts.
func lateIsLost(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	switch done := e.(type) {
	case lease.WriteDone:
		if !s.Tree.Alive {
			return c, s, e
		}
		if s.Write == nil || s.Write.Nonce != done.Nonce || t.Boot >= s.Write.Patience {
			return c, s, lease.Ticked{}
		}
	case lease.ReadDone:
		if s.Read == nil || s.Read.ID != done.ID || t.Boot >= s.Read.Patience {
			return c, s, lease.Ticked{}
		}
	}
	return c, s, e
}

func believeRestored(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
	s.NotBefore = 0
	next, actions := lease.Step(c, s, t, e)
	if next.NotBefore > t.Boot { // decide again without it
		next.NotBefore = 0
		var more []lease.Action
		next, more = lease.Step(c, next, t, lease.Ticked{})
		actions = append(actions, more...)
	}
	return next, actions
}

// acquireWithoutItsTime takes whatever tenure has the name and the token of an acquire whose answer was lost for that acquire.
func acquireWithoutItsTime(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	if s.Pending == nil {
		return c, s, e
	}
	pending := *s.Pending
	p := &pending.Record
	takes := func(r lease.Record) {
		if r.Revision >= s.Observed.Record.Revision && r.UID == p.UID && r.Holder == p.Holder && r.Token == p.Token {
			p.AcquireTime = r.AcquireTime
		}
	}
	takes(s.Observed.Record)
	switch e := e.(type) {
	case lease.Watched:
		takes(e.Record)
	case lease.ReadDone:
		if e.Found != nil {
			takes(*e.Found)
		}
	}
	s.Pending = &pending
	return c, s, e
}

// acquireAtWallTime writes the time that the clock shows, whatever it showed before.
func acquireAtWallTime(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
	return rewriteAcquire(func(_ lease.Config, _ lease.State, r *lease.Record) { r.AcquireTime = t.Wall })(c, s, t, e)
}
