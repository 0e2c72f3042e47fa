package sim

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// mutant is one mistake.
type mutant struct {
	why     string
	step    func() StepFunc
	profile Profile
	// options are what else is broken, or what the world is like.
	options Options
	// finds is the promise that must be seen broken. With LeashTooLong and Stolen the mistake is found before it does
	// harm; the others are judged by their outcome alone.
	finds string
}

// mutants are the mistakes that the simulator must find, each around the unchanged lease.Step.
var mutants = map[string]mutant{
	"validity counted from the reply": {
		why:  "the others count from when the write was stored, which was before its reply arrived",
		step: before(replyTimed), profile: Mixed, finds: LeashTooLong,
	},
	"waiting counted from the request": {
		why:  "the holder may have renewed between the request and its answer",
		step: waitFromRequest, profile: Mixed, finds: Stolen,
	},
	"no kill budget": {
		why:  "killing takes time, and clocks run apart",
		step: noMargin, profile: Mixed, finds: TwoAtOnce,
	},
	"start before reap": {
		why:  "after a loss the old process may still be dying when the Lease is won again",
		step: treeGoneOn(func(s lease.State, actions []lease.Action) bool { return s.Stop.Lost && kills(actions) }), profile: Mixed,
		finds: TwoAtOnce,
	},
	"release before reap": {
		why:  "a standby starts at once on a release",
		step: treeGoneOn(func(s lease.State, _ []lease.Action) bool { return s.Tree.Alive && s.Tree.Exited && !s.Stop.Lost }), profile: Mixed,
		finds: TwoAtOnce,
	},
	"same identity keeps the token": {
		why:  "a request of the last tenure may still be on the wire",
		step: rewriteAcquire(keepToken), profile: Mixed, finds: TokenNotGrown,
	},
	"token from leaseTransitions": {
		why:  "it starts over with a new Lease, and anybody can set it back",
		step: rewriteAcquire(transitionsToken), profile: Mixed, finds: TokenNotGrown,
	},
	"go on after seeing another holder": {
		why:  "the other may have started",
		step: before(blind), profile: Mixed, finds: RunsOn,
	},
	"keep running after seeing another holder": {
		why:  "KeepRunning is for those who do not know better",
		step: before(blind), profile: KeepRunning, finds: RunsOn,
	},
	"ambiguous reply counted as success": {
		why:  "the write may not have been stored",
		step: ambiguousIsSuccess, profile: Mixed, finds: TwoAtOnce,
	},
	"ambiguous reply timed from the read": {
		why:  "the write was stored long before the read saw it",
		step: before(readTimed), profile: Mixed, finds: LeashTooLong,
	},
	"release marker ignored": {
		why:  "to empty the holder stops no process",
		step: before(anyEmptyIsFree), profile: Mixed, finds: TwoAtOnce,
	},
	"release marker of another tenure believed": {
		why:  "a client-go elector leaves the marker in place, and may be blanked by hand",
		step: before(oldMarkerCounts), profile: Foreign, finds: Stolen,
	},
	"stale watch event accepted": {
		why:  "a watch may deliver what the Lease was before the tenure",
		step: before(staleAccepted), profile: Replies, finds: LostForNought,
	},
	"lockDelay not waited for": {
		why:  "requests of a killed process may still be on the wire",
		step: before(noLockDelay), profile: Mixed, finds: LockDelayCut,
	},
	"restart taken for proof of death": {
		why:  "where the agent is not PID 1 its container's processes may outlive it",
		step: before(restartIsProof), profile: Mixed, finds: TwoAtOnce,
	},
	"an answer is waited for as long as it is of use": {
		why:  "who waits until the end of an outage that is all but as long as the time to renew has none left",
		step: after(patient), profile: Outages, finds: LostForNought,
	},
	"restored data believed": {
		why:  "what the server forgot may have happened",
		step: believeRestored, profile: FastRestore, finds: TwoAtOnce,
	},
}

// hourLease has the settings in which a slewed clock does the most harm.
var hourLease = Timing{time.Hour, 40 * time.Minute, 10 * time.Minute}

// surroundings are mistakes around the state machine: in the agent's clock, its leash, and the sink.
var surroundings = map[string]mutant{
	"deadlines and waits on the slewed clock, 4 %": {
		why:     "NTP speeds up and slows down CLOCK_BOOTTIME by more than any margin pays for",
		profile: Mixed, finds: TwoAtOnce, options: Options{Broken: SlewedClock, Slew: 40_000, Timing: Timing{15 * time.Second, 10 * time.Second, 2 * time.Second}},
	},
	"deadlines and waits on the slewed clock, 4 %, an hour's lease": {
		why:     "as before, and a margin that is a fifteenth is less than 8 %",
		profile: Mixed, finds: TwoAtOnce, options: Options{Broken: SlewedClock, Slew: 40_000, Timing: hourLease},
	},
	"leash's timer set once for all that is left": {
		why:     "the kernel's timers run on the slewed clock",
		profile: Mixed, finds: TwoAtOnce, options: Options{Broken: LeashArmedOnce, Slew: maxSlew},
	},
	"start blocks until exec is done": {
		why:     "neither deadline nor kill reach a program whose start hangs: it runs although it was killed",
		profile: Starved, finds: RunsOn, options: Options{Broken: StartBlocks},
	},
	"measured lateness ignored": {
		why:  "what starves the agent starves the kill",
		step: before(neverStarved), profile: Starved, finds: TwoAtOnce,
	},
	"operator writes without a condition": {
		why:     "what it read may be long over",
		profile: Mixed, finds: ReleasedEarly, options: Options{Broken: OperatorOverwrites},
	},
	"operator takes absence for death": {
		why:     "a pod deleted by force runs on where its node is cut off",
		profile: Mixed, finds: ReleasedEarly, options: Options{Broken: OperatorBelievesAbsence},
	},
	"operator makes a free Lease": {
		why:     "the holder of the Lease that was deleted may live",
		profile: Mixed, finds: TwoAtOnce, options: Options{Broken: OperatorCreatesFree},
	},
	"API servers start from a snapshot at once": {
		why:     "a candidate that starts after that has never heard of the holder that the server forgot",
		profile: Restore, finds: Forgotten, options: Options{Broken: RestoreTooSoon},
	},
	"newest duration waited for, not the longest": {
		why:  "anyone who lowers it under a holder does not shorten the holder's lease",
		step: before(newestDuration), profile: Edited, finds: Stolen,
	},
	"parts of a release left by renewals": {
		why:  "who clears the holder completes them, and a cleared holder alone frees nothing",
		step: halfReleased, profile: Forged, finds: Stolen,
	},
	"history not heard": {
		why:  "the token may have been lowered",
		step: rewriteAcquire(noHistory), profile: History, finds: TokenNotGrown,
	},
	"history believed": {
		why:  "a token that none can be has nobody acquire ever again",
		step: before(anyHistory), profile: History, finds: NoHolder,
	},
	"agents heed no label": {
		why:     "without our label the Lease is somebody else's",
		profile: Edited, finds: NotOurs, options: Options{Broken: AgentsHeedNoLabel},
	},
	"operator heeds no label": {
		why:     "without our label the Lease is somebody else's",
		profile: Edited, finds: NotOurs, options: Options{Broken: OperatorHeedsNoLabel},
	},
	"own duration waited for": {
		why:  "the holder may have a longer one",
		step: before(ownDuration), profile: Settings, finds: Stolen,
	},
	"sink checks before it writes": {
		why:     "a newer write falls between the check and the write",
		profile: Mixed, finds: StaleAccepted, options: Options{NewSink: func() Sink { return &checkThenWrite{} }},
	},
	"sink forgets its mark": {
		why:     "the mark must be as durable as the data",
		profile: Mixed, finds: StaleAccepted, options: Options{NewSink: func() Sink { return &forgetful{} }},
	},
	"sink refuses equal tokens": {
		why:     "one tenure writes many times",
		profile: Mixed, finds: FreshRefused, options: Options{NewSink: func() Sink { return &strictlyGreater{} }},
	},
	"sink compares tokens as text": {
		why:     "9999 is not above 10000",
		profile: Mixed, finds: StaleAccepted, options: Options{NewSink: func() Sink { return &textual{} }},
	},
}

// budget bounds the episodes in which a mutant must be found.
const budget = 200

// TestMutantsAreCaught runs the unmutated machine through the same episodes as a control.
func TestMutantsAreCaught(t *testing.T) {
	all := maps.Clone(mutants)
	maps.Copy(all, surroundings)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all[name].isCaught(t)
		})
	}
}

func (m mutant) isCaught(t *testing.T) {
	t.Helper()
	mutated := m.options
	mutated.Profile, mutated.NewStep = m.profile, m.step
	mutated.Outcomes = m.finds != LeashTooLong && m.finds != Stolen
	o := mutated
	o.NewStep, o.Broken, o.NewSink = nil, Nothing, nil
	var simulated time.Duration
	for seed := uint64(1); seed <= budget; seed++ {
		if control := Run(seed, o); control.Violation != nil {
			t.Fatalf("the unmutated machine breaks a promise:\n%s", Explain(seed, o))
		}
		r := Run(seed, mutated)
		simulated += r.Simulated
		switch {
		case r.Violation == nil:
			continue
		case r.Violation.Kind != m.finds && !slices.Contains(alsoFinds[m.finds], r.Violation.Kind):
			t.Fatalf("seed %d found %q, want %q", seed, r.Violation, m.finds)
		}
		t.Logf("caught by seed %d after %v: %v", seed, simulated.Round(time.Minute), r.Violation)
		return
	}
	t.Errorf("not caught within %v, but it should be: %s", simulated, m.why)
}

// alsoFinds are promises that break of the same mistake, now one first and now another.
var alsoFinds = map[string][]string{
	TwoAtOnce:     {ReleasedEarly, StartedEarly, LockDelayCut, Forgotten},
	Forgotten:     {TwoAtOnce, TokenNotGrown},
	StaleAccepted: {FreshRefused},
	RunsOn:        {LockDelayCut, TwoAtOnce},
	ReleasedEarly: {TwoAtOnce, TokenNotGrown},
}

// checkThenWrite looks at the mark when a write arrives, and writes a little later.
type checkThenWrite struct{ mark int64 }

func (s *checkThenWrite) Write(token int64, later func(time.Duration, func()), accepted, refused func()) {
	if token < s.mark {
		refused()
		return
	}
	later(200*time.Millisecond, func() {
		s.mark = max(s.mark, token)
		accepted()
	})
}

func (s *checkThenWrite) Restart() {}

// forgetful keeps the mark in memory.
type forgetful struct{ fenced }

func (s *forgetful) Restart() { s.mark = 0 }

// strictlyGreater is off by one.
type strictlyGreater struct{ mark int64 }

func (s *strictlyGreater) Write(token int64, _ func(time.Duration, func()), accepted, refused func()) {
	if token <= s.mark {
		refused()
		return
	}
	s.mark = token
	accepted()
}

func (s *strictlyGreater) Restart() {}

// textual compares the tokens' digits.
type textual struct{ mark string }

func (s *textual) Write(token int64, _ func(time.Duration, func()), accepted, refused func()) {
	text := strconv.FormatInt(token, 10)
	if text < s.mark {
		refused()
		return
	}
	s.mark = text
	accepted()
}

func (s *textual) Restart() {}

// before makes a mutant that is given a wrong picture of what happened.
func before(change func(lease.Config, lease.State, lease.Time, lease.Event) (lease.Config, lease.State, lease.Event)) func() StepFunc {
	return func() StepFunc {
		return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
			c, s, e = change(c, s, t, e)
			return lease.Step(c, s, t, e)
		}
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

func waitFromRequest() StepFunc {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
		next, actions := lease.Step(c, s, t, e)
		if _, ok := e.(lease.ReadDone); ok && s.Read != nil && next.Observed.At == t.Boot {
			next.Observed.At = s.Read.SentAt
		}
		return next, actions
	}
}

func noMargin() StepFunc {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
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
}

func kills(actions []lease.Action) bool {
	return slices.ContainsFunc(actions, func(a lease.Action) bool { _, ok := a.(lease.KillTree); return ok })
}

// treeGoneOn takes the processes for dead when the condition holds, and the news of it later for nothing.
func treeGoneOn(condition func(lease.State, []lease.Action) bool) func() StepFunc {
	return func() StepFunc {
		early := map[lease.Identity]int{}
		return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
			switch e.(type) {
			case lease.TreeGone:
				if early[c.Identity] > 0 {
					early[c.Identity]--
					e = lease.Ticked{}
				}
			case lease.ChildExited:
				if early[c.Identity] > 0 {
					e = lease.Ticked{}
				}
			}
			next, actions := lease.Step(c, s, t, e)
			if condition(next, actions) {
				early[c.Identity]++
				var more []lease.Action
				next, more = lease.Step(c, next, t, lease.TreeGone{})
				actions = append(actions, more...)
			}
			return next, actions
		}
	}
}

// rewriteAcquire changes the record that an acquire stores.
func rewriteAcquire(change func(c lease.Config, s lease.State, r *lease.Record)) func() StepFunc {
	return func() StepFunc {
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
}

// halfReleased leaves a release marker, and no acquire time, as a renewal finds them.
func halfReleased() StepFunc {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
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

func ambiguousIsSuccess() StepFunc {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
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
	c.RestartProvesDeath = true
	return c, s, e
}

// after makes a mutant that remembers something else than what it has decided.
func after(change func(s lease.State) lease.State) func() StepFunc {
	return func() StepFunc {
		return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
			next, actions := lease.Step(c, s, t, e)
			return change(next), actions
		}
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

func believeRestored() StepFunc {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
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
}
