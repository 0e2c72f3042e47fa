package lease

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestValidityCountsFromTheRequest(t *testing.T) {
	d := acquiring(testConfig()).confirmed()
	if got := has[StartChild](t, d); got.Token != 10 || got.Tenure != 4 || got.Deadline != d.now.Add(13*time.Second) {
		t.Errorf("started %+v a second after the request", got)
	}
	sent := d.s.Wake
	d.wake().after(2 * time.Second).confirmed()
	if got := has[ExtendLeash](t, d).Deadline; got != sent.Add(14*time.Second) {
		t.Errorf("leash until %v after the request", got.Sub(sent))
	}
	if !d.s.Valid(d.c, sent.Add(14*time.Second-1)) || d.s.Valid(d.c, sent.Add(14*time.Second)) {
		t.Error("the right to act does not end with the leash")
	}
}

// If an agent acts late, the leash and every report of the remaining time end earlier.
func TestStarvedTenureEndsEarlier(t *testing.T) {
	d := holding(testConfig()).step(Starved{Late: 2 * time.Second})
	d.wake()
	sent := d.now
	if got := has[SendWrite](t, d).Attempt.Kind; got != Renew {
		t.Fatalf("sent %v", got)
	}
	d.after(time.Second).confirmed()
	dead := sent.Add(12 * time.Second)
	if got := has[ExtendLeash](t, d).Deadline; got != dead || d.s.Deadline(d.c) != dead || d.s.ValidUntil(d.c) != dead {
		t.Errorf("leash until %v after the request, deadline %v", got.Sub(sent), d.s.Deadline(d.c).Sub(sent))
	}
	if !d.s.Valid(d.c, dead-1) || d.s.Valid(d.c, dead) {
		t.Error("the right to act does not end with the leash")
	}
	// A tenure that renews continues, whatever the estimate is.
	d.step(Starved{Late: time.Hour})
	if left := d.s.Deadline(d.c).Sub(sent); left != 8*time.Second {
		t.Errorf("the estimate leaves %v of 14s", left)
	}
	for range 20 {
		d.wake()
		has[SendWrite](t, d)
		d.after(time.Second).confirmed()
	}
	d.done(Unknown)
	for d.s.Phase == Holding {
		d.wake()
	}
	if at := d.now.Sub(d.s.Tenure.Confirmed); at != 8*time.Second {
		t.Errorf("stopped %v after the last renewal", at)
	}
}

func TestWaitingCountsFromTheAnswer(t *testing.T) {
	d := drive(testConfig()).step(Ticked{}).after(2 * time.Second).found(held(other, 10))
	if got := d.c.FreeAt(d.s); got != d.now.Add(15*time.Second) {
		t.Errorf("free %v after the answer", got.Sub(d.now))
	}
}

func TestExpiredLeaseIsReadBeforeItIsTaken(t *testing.T) {
	d := waiting(testConfig(), held(other, 10)).wake()
	hasNo[SendWrite](t, d)
	has[SendRead](t, d)
	if d.now != t0.Add(15*time.Second) {
		t.Errorf("read %v after the observation", d.now.Sub(t0))
	}
	d.found(held(other, 10))
	if got := has[SendWrite](t, d).Attempt; got.Kind != Acquire || got.Record.Token != 10 || got.Record.Holder != me.String() {
		t.Errorf("sent %+v", got)
	}
	d = waiting(testConfig(), held(other, 10)).after(14 * time.Second).step(WatchClosed{}).wake()
	if has[SendRead](t, d); d.now != t0.Add(15*time.Second) {
		t.Errorf("without a watch: read %v after the observation", d.now.Sub(t0))
	}
}

func TestAmbiguousRenewalIsTimedFromItsRequest(t *testing.T) {
	d := renewing(testConfig())
	w := *d.s.Write
	d.done(Unknown).after(2 * time.Second)
	stored := w.Record
	stored.Revision++
	d.found(stored)
	if got := has[ExtendLeash](t, d).Deadline; got != w.SentAt.Add(14*time.Second) {
		t.Errorf("leash until %v after the request", got.Sub(w.SentAt))
	}
}

// One renewal that fails must not end a healthy tenure, whatever part of the renew deadline the retry period is.
func TestFailedRenewalIsRepeated(t *testing.T) {
	for _, retry := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 6500 * time.Millisecond} {
		config := testConfig()
		config.RetryPeriod = retry
		renews := func() *driver {
			d := holding(config)
			d.writes(d.s.Tenure.Confirmed.Add(config.RenewDeadline))
			return d
		}
		unanswered := renews()
		unanswered.now = unanswered.s.Write.Patience
		for why, d := range map[string]*driver{
			"no answer": unanswered.step(Ticked{}),
			"refused":   renews().done(Refused),
		} {
			limit := d.s.Tenure.Confirmed.Add(config.RenewDeadline)
			if !d.writes(limit) || d.s.Write.Kind != Renew {
				t.Errorf("retryPeriod %v, %s: no other renewal within the renew deadline", retry, why)
			}
		}
	}
}

// writes answers reads, until a write is sent or the limit is reached.
func (d *driver) writes(limit Instant) bool {
	for d.now < limit {
		read := false
		for _, action := range d.actions {
			switch action.(type) {
			case SendWrite:
				return true
			case SendRead:
				read = true
			}
		}
		if read {
			d.found(d.s.Observed.Record)
		} else {
			d.wake()
		}
	}
	return false
}

func TestAmbiguousAcquireStartsNoTenure(t *testing.T) {
	d := acquiring(testConfig())
	stored := d.s.Write.Record
	stored.Revision++
	d.done(Unknown).found(stored)
	hasNo[StartChild](t, d)
	if got := has[SendWrite](t, d).Attempt.Kind; got != Confirm {
		t.Fatalf("sent %v", got)
	}
	sent := d.now
	d.after(time.Second).confirmed()
	if got := has[StartChild](t, d); got.Token != 10 || got.Deadline != sent.Add(14*time.Second) {
		t.Errorf("started %+v", got)
	}
}

func TestAcquireStoredLateIsNeverBegun(t *testing.T) {
	d := acquiring(testConfig())
	late := d.s.Write.Record
	late.Revision++
	d.done(Unknown).found(free(other, 10)) // not stored yet
	d.step(Watched{Record: late})          // now it is
	hasNo[StartChild](t, d)
	if got := has[SendWrite](t, d).Attempt; got.Kind != Acquire || got.Record.Token <= late.Token {
		t.Errorf("sent %v with token %d after %d", got.Kind, got.Record.Token, late.Token)
	}
}

func TestAcquireDeliveredTwiceIsConfirmed(t *testing.T) {
	d := acquiring(testConfig())
	stored := d.s.Write.Record
	stored.Revision++
	d.done(Conflict).found(stored) // the conflict was with itself
	if got := has[SendWrite](t, d).Attempt.Kind; got != Confirm {
		t.Errorf("sent %v", got)
	}
}

func TestAcquireOvertakenByTheTokenBaseIsDropped(t *testing.T) {
	d := acquiring(testConfig())
	stored := d.s.Write.Record
	stored.Revision, stored.TokenBase = stored.Revision+1, 1000
	d.done(Unknown).found(stored)
	if got := has[SendWrite](t, d).Attempt; got.Kind != Acquire || got.Record.Token != 1011 {
		t.Errorf("sent %v with token %d", got.Kind, got.Record.Token)
	}
}

func TestLateConfirmedAcquireIsConfirmedAgain(t *testing.T) {
	c := testConfig()
	c.RetryPeriod, c.RenewDeadline = 4*time.Second, 4*time.Second // a request may take as long as renewals may fail
	d := waiting(c, free(other, 10))
	d.s.Write.Patience = d.now.Add(time.Minute)
	d.after(4 * time.Second).confirmed()
	hasNo[StartChild](t, d)
	if got := has[SendWrite](t, d).Attempt.Kind; got != Confirm {
		t.Errorf("sent %v", got)
	}
}

func TestUnexpectedReplyConfirmsNothing(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"holder":   func(r *Record) { r.Holder = other.String() },
		"token":    func(r *Record) { r.Token++ },
		"UID":      func(r *Record) { r.UID = "another" },
		"nonce":    func(r *Record) { r.RenewTime++ },
		"revision": func(r *Record) { r.Revision-- },
	} {
		d := acquiring(testConfig())
		r := d.s.Write.Record
		r.Revision++
		change(&r)
		d.step(WriteDone{Nonce: d.s.LastNonce, Outcome: Confirmed, Record: &r})
		hasNo[StartChild](t, d)
		if d.s.Pending == nil {
			t.Errorf("%s: the outcome counts as known", name)
		}
	}
}

func TestAttemptsDiffer(t *testing.T) {
	d := holding(testConfig())
	first := d.s.LastNonce
	d.now = d.s.Wake
	d.s, d.actions = Step(d.c, d.s, Time{Boot: d.now, Wall: 5}, Ticked{}) // the wall clock was set back
	if got := has[SendWrite](t, d).Attempt; got.Nonce <= first || got.Record.RenewTime != got.Nonce {
		t.Errorf("nonce %d, renew time %d, after nonce %d", got.Nonce, got.Record.RenewTime, first)
	}
}

func TestRenewalCorrectsTheDuration(t *testing.T) {
	d := holding(testConfig())
	r := d.s.Observed.Record
	r.Revision, r.Duration = 50, time.Second
	d.step(Watched{Record: r}).wake()
	if got := has[SendWrite](t, d).Attempt.Record.Duration; got != 15*time.Second {
		t.Errorf("others are told to wait %v", got)
	}
}

// TestRenewalLeavesNoPartOfARelease: otherwise clearing the holder, at any time after that, completes it, and
// candidates start beside the process.
func TestRenewalLeavesNoPartOfARelease(t *testing.T) {
	half := func(r Record) Record {
		r.Revision, r.Release, r.AcquireTime = r.Revision+10, Release{Reason: ReasonSwitchover}, 0
		return r
	}
	acquired := acquiring(testConfig())
	for name, d := range map[string]*driver{
		"renewal":        holding(testConfig()).step(Watched{Record: half(held(me, 13))}).wake(),
		"late renewal":   renewing(testConfig()).done(Unknown).found(half(held(me, 13))),
		"confirmation":   acquired.done(Unknown).found(half(acquired.s.Pending.Record)),
		"while stopping": holding(testConfig()).step(Terminated{Signal: 15}).step(Watched{Record: half(held(me, 13))}).wake(),
	} {
		got := has[SendWrite](t, d).Attempt.Record
		if got.Holder = ""; got.Free() || got.Release != (Release{}) || got.AcquireTime == 0 {
			t.Errorf("%s: leaves %+v, acquired at %d", name, got.Release, got.AcquireTime)
		}
	}
}

// A server that answered with what was before this agent's last tenure has it try for the same token once more. The agent then finds that
// tenure, which is over. A second process must not get its token.
func TestTokenIsNotAcquiredTwice(t *testing.T) {
	d := acquiring(testConfig()).done(Unknown)
	tried := d.s.Pending.Record
	past := tried
	past.Revision, past.AcquireTime, past.RenewTime = tried.Revision+5, tried.AcquireTime-20_000_000, tried.RenewTime-10_000_000
	d.found(past)
	hasNo[StartChild](t, d)
	if w := has[SendWrite](t, d).Attempt; w.Kind != Acquire || w.Record.Token <= tried.Token {
		t.Errorf("%v with token %d, after one with %d", w.Kind, w.Record.Token, tried.Token)
	}
}

// The same, where the wall clock shows the time of that tenure's acquire once more.
func TestATokenIsNotWonTwiceInOneMicrosecond(t *testing.T) {
	t.Cleanup(func() { setAhead = func() int64 { return 0 } })
	d, before := holding(testConfig()), free(other, 10)
	won := d.s.Observed.Record
	for d.s.Phase != Waiting { // the tenure ends, since nothing is answered
		switch {
		case d.s.Phase == Stopping && d.s.Tree.Alive:
			d.step(TreeGone{})
		case d.s.Write != nil:
			d.done(Refused)
		case d.s.Read != nil:
			d.readFails()
		default:
			d.wake()
		}
	}
	setAhead = func() int64 { return won.AcquireTime - int64(d.now/1000) }
	for d.s.Write == nil {
		if d.s.Read != nil {
			d.found(before)
		} else {
			d.wake()
		}
	}
	if tried := d.s.Write.Record; d.s.Write.Kind != Acquire || tried.Token != won.Token {
		t.Fatalf("%v with token %d, not %d once more", d.s.Write.Kind, tried.Token, won.Token)
	}
	d.done(Unknown).found(won)
	hasNo[StartChild](t, d)
	if w := has[SendWrite](t, d).Attempt; w.Kind != Acquire || w.Record.Token <= won.Token {
		t.Errorf("%v with token %d, after one with %d", w.Kind, w.Record.Token, won.Token)
	}
}

func TestConflictIsReadBeforeTheNextWrite(t *testing.T) {
	d := renewing(testConfig()).done(Conflict)
	for range 3 { // reads are lost
		d.after(100 * time.Millisecond).readFails()
		hasNo[SendWrite](t, d)
		d.wake()
		hasNo[SendWrite](t, d)
		has[SendRead](t, d)
	}
}

func TestLostReadDoesNotKeepAHolderFromRenewing(t *testing.T) {
	d := renewing(testConfig()).done(Unknown).readFails()
	if d.wake(); has[SendWrite](t, d).Attempt.Kind != Renew {
		t.Error("no renewal")
	}
}

func TestReadUnderWayDoesNotSettleALaterWrite(t *testing.T) {
	d := waiting(testConfig(), held(other, 10)).step(WatchClosed{}).wake() // polls
	early := has[SendRead](t, d).ID
	d.step(Watched{Record: free(other, 20)})
	d.done(Unknown)
	if later := has[SendRead](t, d).ID; later == early {
		t.Fatal("no read of its own")
	}
	old := free(other, 20)
	d.step(ReadDone{ID: early, Found: &old})
	if d.s.Pending == nil {
		t.Error("the acquire was given up for an answer from before it")
	}
}

func TestLosses(t *testing.T) {
	foreign := held(other, 50)
	cleared, released, recreated, forged := held(me, 50), held(me, 50), held(me, 50), held(me, 50)
	cleared.Token, released.Token, recreated.Token = 10, 10, 10
	cleared.Holder = ""
	released = released.Released(Release{Reason: ReasonNodeLost, Unclean: true}, 1, 1)
	recreated.UID = "another"
	forged.Token = 11
	nonce := held(Identity{Pod: me.Pod, PodUID: me.PodUID, Nonce: "2"}, 50)
	for name, e := range map[string]Event{
		"another holder":          Watched{Record: foreign},
		"cleared":                 Watched{Record: cleared},
		"released by others":      Watched{Record: released},
		"recreated":               Watched{Record: recreated},
		"another token":           Watched{Record: forged},
		"the pod's next agent":    Watched{Record: nonce},
		"deleted":                 Watched{Record: foreign, Deleted: true},
		"gone, as a write learns": WriteDone{Outcome: Gone},
	} {
		for phase, reach := range map[string]func() *driver{
			"Holding":  func() *driver { return renewing(testConfig()) },
			"Stopping": func() *driver { return renewing(testConfig()).step(Terminated{Signal: 15}) },
		} {
			t.Run(name+" while "+phase, func(t *testing.T) {
				d := reach()
				if done, ok := e.(WriteDone); ok {
					done.Nonce = d.s.LastNonce
					e = done
				}
				d.step(e)
				has[KillTree](t, d)
				d.step(TreeGone{})
				if got := has[TenureEnded](t, d).Released; got {
					t.Error("a lost tenure counts as released")
				}
				hasNo[SendWrite](t, d)
			})
		}
	}
}

func TestOwnReleaseDoesNotCountAsLoss(t *testing.T) {
	d := holding(testConfig()).step(Terminated{Signal: 15}).step(ChildExited{Code: 143, Crashed: true}).step(TreeGone{})
	w := has[SendWrite](t, d).Attempt
	if w.Kind != ReleaseLease || !w.Record.Free() || !w.Record.Release.Unclean || w.Record.Release.Reason != ReasonPodTerminating {
		t.Fatalf("sent %v %+v", w.Kind, w.Record)
	}
	d.confirmed()
	if !has[TenureEnded](t, d).Released || has[Exit](t, d).Code != 143 {
		t.Errorf("%+v", d.actions)
	}
}

// One that fails its probe is given the probe's own time to end, and its lease continues meanwhile. The agent ends as it did.
func TestUnhealthy(t *testing.T) {
	d := holding(testConfig())
	d.step(Unhealthy{Reason: ReasonLivenessFailed, Grace: time.Minute})
	told := d.now
	if has[SignalChild](t, d).Signal != 15 || d.s.Phase != Stopping {
		t.Fatalf("%v, %+v", d.s.Phase, d.actions)
	}
	d.step(Unhealthy{Reason: ReasonStartupFailed}) // once it is being stopped nothing hurries it
	hasNo[KillTree](t, d)
	renewed := 0
	for !d.s.Stop.Killed {
		d.wake()
		if d.s.Write != nil && d.s.Write.Kind == Renew {
			renewed++
			d.confirmed()
		}
	}
	if d.now.Sub(told) != time.Minute || renewed < 20 {
		t.Errorf("killed after %v and %d renewals", d.now.Sub(told), renewed)
	}
	d.step(ChildExited{Code: 137, Crashed: true}).step(TreeGone{})
	for d.s.Write == nil || d.s.Write.Kind != ReleaseLease {
		d.confirmed()
	}
	if w := d.s.Write.Record.Release; w.Reason != ReasonLivenessFailed || !w.Unclean {
		t.Errorf("released as %+v", w)
	}
	d.confirmed()
	if has[Exit](t, d).Code != 137 {
		t.Errorf("%+v", d.actions)
	}
}

// While a pod stops, no probe shortens the time that it has.
func TestUnhealthyWhileTerminating(t *testing.T) {
	d := holding(testConfig()).step(Terminated{Signal: 15})
	before := d.s.Stop
	d.step(Unhealthy{Reason: ReasonLivenessFailed})
	hasNo[KillTree](t, d)
	if d.s.Stop != before {
		t.Errorf("stops as %+v, was %+v", d.s.Stop, before)
	}
	d = waiting(testConfig(), held(other, 10)).step(Unhealthy{Reason: ReasonLivenessFailed})
	if d.s.Tree != (Tree{}) {
		t.Errorf("without a process: %+v", d.s.Tree)
	}
}

// TestGraceEnds: a container that is killed sooner than its Pod's template says leaves its processes no more time than it has.
func TestGraceEnds(t *testing.T) {
	c := testConfig()
	none := Instant(-1)
	for name, row := range map[string]struct {
		ends []time.Duration // when the container's time is over, in the order in which that is learned, after the signal
		want time.Duration   // until the kill, after the signal
	}{
		"sooner":               {[]time.Duration{c.GracePeriod / 2}, c.GracePeriod / 2},
		"later":                {[]time.Duration{2 * c.GracePeriod}, c.GracePeriod},
		"never":                {[]time.Duration{time.Duration(Never)}, c.GracePeriod},
		"sooner and sooner":    {[]time.Duration{c.GracePeriod / 2, c.GracePeriod / 4}, c.GracePeriod / 4},
		"the earliest counts":  {[]time.Duration{c.GracePeriod / 4, c.GracePeriod / 2}, c.GracePeriod / 4},
		"it is over, as known": {[]time.Duration{-time.Hour}, 0},
		"at the beginning":     {[]time.Duration{-time.Duration(t0) * 2}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := holding(c).step(Terminated{Signal: 15})
			told, killed := d.now, none
			for _, end := range row.ends {
				d.step(GraceEnds{At: told.Add(end)})
			}
			for killed == none {
				if d.s.Stop.Killed {
					killed = d.now
				} else if d.wake(); d.s.Write != nil {
					d.confirmed()
				}
			}
			if got := killed.Sub(told); got != row.want || d.s.Stop.Reason != ReasonPodTerminating || !d.s.Stop.Exits {
				t.Errorf("killed after %v, want %v; %+v", got, row.want, d.s.Stop)
			}
			d.step(ChildExited{Code: 137, Crashed: true}).step(TreeGone{})
			if d.s.Write == nil || d.s.Write.Kind != ReleaseLease {
				t.Errorf("no release: %v", facts(d))
			}
		})
	}
	d := holding(c).step(GraceEnds{At: t0})
	if d.s.Stop != (Stop{}) || d.s.Phase != Holding {
		t.Errorf("before the signal: %v", facts(d))
	}
}

// A pod that is told to stop has its own time from then on, and no longer, whatever its tenure ends for.
func TestTerminatedWhileUnhealthy(t *testing.T) {
	c := testConfig()
	for name, row := range map[string]struct {
		probe, later, want time.Duration
	}{
		"the probe's is longer":  {10 * c.GracePeriod, c.GracePeriod, 2 * c.GracePeriod},
		"the probe's is shorter": {c.GracePeriod / 2, c.GracePeriod / 4, c.GracePeriod / 2},
		"it is over first":       {3 * c.GracePeriod, 2*c.GracePeriod + c.GracePeriod/2, 3 * c.GracePeriod},
	} {
		t.Run(name, func(t *testing.T) {
			d := holding(c)
			d.step(Unhealthy{Reason: ReasonLivenessFailed, Grace: row.probe})
			told := d.now
			stopped := false
			for !d.s.Stop.Killed {
				if at := told.Add(row.later); !stopped && d.s.Wake >= at {
					d.now, stopped = at, true
					d.step(Terminated{Signal: 15})
				} else {
					d.wake()
				}
				if d.s.Write != nil {
					d.confirmed()
				}
			}
			if got := d.now.Sub(told); got != row.want || !d.s.Stop.Exits || d.s.Stop.Reason != ReasonLivenessFailed {
				t.Errorf("killed after %v, want %v; %+v", got, row.want, d.s.Stop)
			}
		})
	}
}

func TestNothingIsReleasedWhileProcessesLive(t *testing.T) {
	d := holding(testConfig()).step(ChildExited{})
	has[KillTree](t, d)
	for range 20 { // the rest is hard to kill; renewals continue, past the deadline too
		d.wake()
		if d.s.Write == nil {
			continue
		}
		if d.s.Write.Kind != Renew || d.s.Write.Deadline.Sub(d.now) < time.Second {
			t.Fatalf("sent %v with %v to answer", d.s.Write.Kind, d.s.Write.Deadline.Sub(d.now))
		}
		d.done(Refused)
	}
	if d.now < t0.Add(20*time.Second) {
		t.Fatalf("only %v passed", d.now.Sub(t0))
	}
}

func TestRecreatedLeaseIsReadAfterGone(t *testing.T) {
	d := acquiring(testConfig())
	anew := held(other, 50)
	anew.UID, anew.Holder = "another", UnknownHolder
	d.step(Watched{Record: anew}).done(Gone)
	if d.s.Observed.Absent {
		t.Error("the new Lease counts as absent")
	}
	has[SendRead](t, d)
}

func TestAbsentLeaseIsPolled(t *testing.T) {
	d := waiting(testConfig(), held(other, 10)).step(Watched{Record: held(other, 11), Deleted: true})
	for range 3 { // the watch is up, and stalled
		d.wake()
		has[SendRead](t, d)
		d.step(ReadDone{ID: d.s.LastRead, Absent: true})
	}
}

func TestRepeatedWatchClosedDoesNotDelayReads(t *testing.T) {
	d := waiting(testConfig(), held(other, 10)).step(WatchClosed{})
	at := d.s.Wake
	for d.now < at {
		d.after(time.Second).step(WatchClosed{})
	}
	has[SendRead](t, d)
}

// A renewal that met a conflict waits for a read. If the watch breaks meanwhile, the read is not delayed beyond the renew deadline.
func TestWatchClosedDoesNotDelayARequiredRead(t *testing.T) {
	d := renewing(testConfig()).done(Conflict).readFails()
	at := d.s.Wake
	d.after(at.Sub(d.now) / 2).step(WatchClosed{})
	if d.s.Wake != at {
		t.Errorf("woken %v later", d.s.Wake.Sub(at))
	}
	d.wake()
	has[SendRead](t, d)
}

func TestWatchIsRestartedWhenItMissedAChange(t *testing.T) {
	lost := func() *driver { // the race for a Lease that has run out
		d := waiting(testConfig(), held(other, 10)).wake().found(held(other, 10)).done(Conflict)
		hasNo[RestartWatch](t, d)
		return d
	}
	restarts := func(d *driver) (n int) {
		for end := d.now.Add(2 * d.c.RetryPeriod); d.s.Wake < end; {
			if d.wake(); d.s.Read != nil {
				d.found(d.s.Observed.Record)
			}
			for _, a := range d.actions {
				if _, ok := a.(RestartWatch); ok {
					n++
				}
			}
		}
		return n
	}
	winner := held(Identity{"c", "uc", "1"}, 12)
	if n := restarts(lost().found(winner)); n != 1 {
		t.Errorf("%d restarts of a watch that does not tell", n)
	}
	if n := restarts(lost().after(time.Second).step(Watched{Record: winner})); n != 0 {
		t.Errorf("%d restarts of a watch that tells a little later", n)
	}
	if n := restarts(acquiring(testConfig()).done(Conflict).found(winner)); n != 0 {
		t.Errorf("%d restarts after a race for a released Lease", n)
	}
}

// No candidate acquires a Lease in which no further token is possible. A present tenure continues.
func TestNoAcquireWithoutAToken(t *testing.T) {
	for name, spoil := range map[string]func(*Record){
		"bad base":      func(r *Record) { r.BadTokenBase = "9223372036854775807" },
		"largest token": func(r *Record) { r.Token = math.MaxInt64 },
	} {
		r := free(other, 10)
		spoil(&r)
		d := waiting(testConfig(), r)
		for range 100 {
			hasNo[SendWrite](t, d)
			if d.s.Read != nil {
				d.found(r)
			} else {
				d.wake()
			}
		}
		if d.now > t0.Add(time.Hour) || d.now < t0.Add(time.Minute) {
			t.Errorf("%s: looked at 50 times in %v", name, d.now.Sub(t0))
		}
		if d.s.Read != nil {
			d.found(r)
		}
		if r.BadTokenBase != "" {
			mended := r
			mended.Revision, mended.BadTokenBase = 20, ""
			has[SendWrite](t, d.step(Watched{Record: mended}))
			h := holding(testConfig())
			spoiled := h.s.Observed.Record
			spoiled.Revision = 50
			spoil(&spoiled)
			h.step(Watched{Record: spoiled}).wake()
			if got := has[SendWrite](t, h).Attempt; got.Kind != Renew || got.Record.BadTokenBase == "" {
				t.Errorf("%s: sent %+v", name, got)
			}
		}
	}
}

func TestStaleWatchEventIsIgnored(t *testing.T) {
	d := holding(testConfig())
	before := d.s
	d.step(Watched{Record: free(other, 10)}).step(Watched{Record: held(other, 9), Deleted: true})
	before.Wake = d.s.Wake
	if diff := cmp.Diff(before, d.s); diff != "" || len(d.actions) > 0 {
		t.Errorf("%v\n%s", d.actions, diff)
	}
}

func TestHandover(t *testing.T) {
	for name, test := range map[string]struct {
		to     string
		reason Reason
		stops  bool
		want   Reason
	}{
		"none":         {},
		"to anyone":    {to: AnyPod, stops: true, want: ReasonSwitchover},
		"to another":   {to: "b", reason: ReasonRollout, stops: true, want: ReasonRollout},
		"to itself":    {to: me.Pod},
		"token raised": {to: AnyPod, reason: ReasonTokenBaseRaised, stops: true, want: ReasonTokenBaseRaised},
	} {
		t.Run(name, func(t *testing.T) {
			d := holding(testConfig())
			r := d.s.Observed.Record
			r.Revision, r.Handover = 50, Handover{To: test.to, Reason: test.reason}
			d.step(Watched{Record: r})
			if !test.stops {
				hasNo[SignalChild](t, d)
				if d.wake(); has[SendWrite](t, d).Attempt.Record.Handover != (Handover{}) {
					t.Error("the request that it fulfils is left standing")
				}
				return
			}
			has[SignalChild](t, d)
			d.step(ChildExited{}).step(TreeGone{})
			w := has[SendWrite](t, d).Attempt.Record
			if w.Release != (Release{Reason: test.want}) || w.Handover.To != test.to {
				t.Errorf("released %+v to %q", w.Release, w.Handover.To)
			}
			d.confirmed()
			if has[TenureEnded](t, d).Reason != test.want || d.s.Done {
				t.Errorf("%+v, done: %v", d.actions, d.s.Done)
			}
			won := w
			won.Revision = 60
			if got := won.acquired(Config{Identity: other}, "", 1, 1); got.Handover != (Handover{}) || got.Release != (Release{}) {
				t.Errorf("the next tenure begins with %+v and %+v", got.Handover, got.Release)
			}
		})
	}
}

func TestStopEscalates(t *testing.T) {
	d := holding(testConfig()).step(Terminated{Signal: 2})
	if got := has[SignalChild](t, d).Signal; got != 2 {
		t.Errorf("forwarded signal %d", got)
	}
	asked := d.now
	for range 20 {
		if d.wake(); d.s.Write != nil {
			d.confirmed()
		}
		if d.s.Stop.Killed {
			break
		}
	}
	if d.now != asked.Add(d.c.GracePeriod) {
		t.Errorf("killed %v after it was asked", d.now.Sub(asked))
	}
}

func TestRenewalsThatFailEndTheTenureInTime(t *testing.T) {
	d := holding(testConfig())
	confirmed := d.s.Tenure.Confirmed
	var signalled, killed Instant
	for d.now < confirmed.Add(20*time.Second) {
		d.wake()
		for _, a := range d.actions {
			switch a.(type) {
			case SignalChild:
				signalled = d.now
			case KillTree:
				killed = d.now
			case ExtendLeash:
				t.Fatal("the leash was extended")
			}
		}
	}
	if signalled != confirmed.Add(10*time.Second) || killed != confirmed.Add(14*time.Second) {
		t.Errorf("SIGTERM after %v, SIGKILL after %v", signalled.Sub(confirmed), killed.Sub(confirmed))
	}
}

func TestKeepRunning(t *testing.T) {
	c := testConfig()
	c.KeepRunning = true
	begun := acquiring(c).confirmed()
	if got := has[StartChild](t, begun).Deadline; got != begun.now.Add(13*time.Second) {
		t.Errorf("it may begin until %v from now", got.Sub(begun.now))
	}
	if got := has[ExtendLeash](t, begun).Deadline; got != Never {
		t.Errorf("leash until %d", got)
	}

	cutOff := func() *driver {
		d := acquiring(c).confirmed().after(time.Hour).step(Ticked{})
		hasNo[SignalChild](t, d)
		hasNo[KillTree](t, d)
		return d
	}
	d := cutOff()
	if has[SendRead](t, d); d.s.Write != nil {
		t.Error("it writes over what it has not read for an hour")
	}
	if d.found(d.s.Observed.Record); has[SendWrite](t, d).Attempt.Kind != Renew {
		t.Error("it does not go on")
	}
	if d.confirmed(); d.s.Phase != Holding || d.s.Tenure.Token != 10 {
		t.Errorf("%v with token %d", d.s.Phase, d.s.Tenure.Token)
	}

	d = cutOff()
	d.found(held(other, 60))
	has[KillTree](t, d)

	d = cutOff()
	old := held(other, 5) // restored from a backup of before its tenure
	d.found(old)
	has[KillTree](t, d)
}

func TestServerThatWentBack(t *testing.T) {
	holder := holding(testConfig()).wake().done(Conflict)
	holder.found(held(other, 5))
	hasNo[KillTree](t, holder)
	for range 3 {
		if holder.wake(); holder.s.Read != nil {
			holder.found(held(other, 5))
		}
		hasNo[SendWrite](t, holder) // a revision may be given out again
	}
	own := holding(testConfig()).wake().done(Conflict)
	mine := own.s.Observed.Record
	mine.Revision = 5
	own.found(mine)
	if got := has[SendWrite](t, own).Attempt; got.Kind != Renew || got.Record.Revision != 5 {
		t.Errorf("its own tenure does not go on: %v on revision %d", got.Kind, got.Record.Revision)
	}

	released, sooner, handedOut := free(other, 5), free(other, 110), held(other, 100)
	sooner.Token = 50
	handedOut.RenewTime++
	for name, test := range map[string]struct{ known, found Record }{
		"an older revision":             {held(other, 100), released},
		"a lower token":                 {held(other, 100), sooner},
		"other content at one revision": {held(other, 100), handedOut},
		"held again after its release":  {free(other, 100), held(other, 100)},
	} {
		t.Run(name, func(t *testing.T) {
			d := waiting(testConfig(), held(other, 1)).step(WatchClosed{}).wake()
			d.s.Observed.Record, d.s.Read.Floor = test.known, test.known.Revision
			d.found(test.found)
			hasNo[SendWrite](t, d)
			if got := d.c.FreeAt(d.s); got < d.now.Add(15*time.Second) {
				t.Errorf("free after %v, though a forgotten holder may live", got.Sub(d.now))
			}
		})
	}
}

func TestTerminating(t *testing.T) {
	d := acquiring(testConfig()).step(Terminated{Signal: 15}).confirmed()
	hasNo[StartChild](t, d)
	if has[SendWrite](t, d).Attempt.Kind != ReleaseLease {
		t.Error("a Lease that was won on the way out is not given back")
	}
	d = acquiring(testConfig()).step(Terminated{Signal: 15})
	for range 10 {
		if d.s.Done {
			break
		}
		d.wake()
	}
	if !d.s.Done || d.now > t0.Add(10*time.Second) {
		t.Errorf("done: %v, %v after it was told to stop and cut off", d.s.Done, d.now.Sub(t0))
	}
	d = acquiring(testConfig()).step(Terminated{Signal: 15})
	stored := d.s.Write.Record
	stored.Revision++
	d.done(Unknown).found(stored)
	if has[SendWrite](t, d).Attempt.Kind != ReleaseLease {
		t.Error("an acquire that was stored after all is not given back")
	}
}

func TestPresumedReasons(t *testing.T) {
	old := held(Identity{Pod: me.Pod, PodUID: me.PodUID, Nonce: "0"}, 10)
	unknown := held(other, 10)
	unknown.Holder = UnknownHolder
	blanked, elector := held(other, 10), held(other, 10)
	blanked.Holder, elector.Holder = "", "elector-of-somebody"
	for name, test := range map[string]struct {
		record Record
		past   *Past
		death  Death
		want   Reason
	}{
		"another":                 {record: held(other, 10), want: ReasonLeaseExpired},
		"unknown":                 {record: unknown, want: ReasonLeaseDeleted},
		"restarted":               {record: old, want: ReasonLeaseExpired},
		"restarted after a death": {record: old, death: Death{Holder: old.Holder, Proven: true}, want: ReasonHolderTerminated},
		"blanked":                 {record: blanked, want: ReasonLeaseLost},
		"an elector's":            {record: elector, want: ReasonLeaseLost},
		"never begun":             {record: held(me, 10), want: ReasonRenewFailed},
		"own, no answer":          {record: held(me, 10), past: &Past{Tenure: Tenure{UID: "lease", Token: 7, Transitions: 3, AcquireTime: 1}, Reason: ReasonPodTerminating}, want: ReasonPodTerminating},
	} {
		d := drive(testConfig())
		d.s.Past, d.s.Death = test.past, test.death
		d.step(WatchOpened{}).found(test.record)
		for i := 0; d.s.Write == nil && i < 5; i++ {
			if d.s.Read != nil {
				d.found(test.record)
			} else {
				d.wake()
			}
		}
		if d.s.Write == nil {
			t.Errorf("%s: not acquired", name)
			continue
		}
		if got := d.s.Write.Record.History[1].Reason; got != test.want {
			t.Errorf("%s: the last tenure ended by %s, want %s", name, got, test.want)
		}
	}
}

func TestTreeThatVanishedIsUnclean(t *testing.T) {
	d := holding(testConfig()).step(TreeGone{})
	if got := has[SendWrite](t, d).Attempt.Record.Release; !got.Unclean {
		t.Errorf("released %+v", got)
	}
}

func TestStrayProcessEvents(t *testing.T) {
	d := waiting(testConfig(), held(other, 10)).step(ChildExited{Code: 1, Crashed: true}).step(TreeGone{})
	if d.s.Tree != (Tree{}) {
		t.Errorf("%+v without a tenure", d.s.Tree)
	}
}

// A read names the newest state that anything has shown, so that an answer that contradicts it is confirmed.
func TestReadsCarryTheKnownState(t *testing.T) {
	c := testConfig()
	c.KeepRunning = true
	for name, test := range map[string]struct {
		d    *driver
		want int64
	}{
		"nothing":                  {drive(c).step(Ticked{}), 0},
		"what a read found":        {waiting(c, held(other, 10)).step(WatchClosed{}).wake(), 10},
		"what a watch showed":      {waiting(c, held(other, 10)).step(Watched{Record: held(other, 11)}).step(WatchClosed{}).wake(), 11},
		"that it was deleted":      {waiting(c, held(other, 10)).step(Watched{Record: held(other, 11), Deleted: true}).wake(), 0},
		"what a write was told of": {acquiring(c).confirmed().after(time.Hour).step(Ticked{}), 11},
	} {
		if got := has[SendRead](t, test.d).Floor; got != test.want {
			t.Errorf("%s: a read names revision %d, want %d", name, got, test.want)
		}
	}
}

func TestSynced(t *testing.T) {
	c := testConfig()
	for name, test := range map[string]struct {
		d    *driver
		want bool
	}{
		"started":    {drive(c).step(Ticked{}), false},
		"watching":   {drive(c).step(WatchOpened{}), false},
		"standby":    {waiting(c, held(other, 10)), true},
		"watch down": {waiting(c, held(other, 10)).step(WatchClosed{}), false},
		"no Lease":   {waiting(c, held(other, 10)).step(Watched{Record: held(other, 11), Deleted: true}), false},
	} {
		if got := test.d.s.Synced(); got != test.want {
			t.Errorf("%s: fit to take over: %v", name, got)
		}
	}
}

func TestTenureOfAnElectorIsNotTakenForOwn(t *testing.T) {
	// A client-go elector keeps the token; with leaseTransitions lowered by hand before, its tenure counts as many as mine did.
	mine := func(d *driver) Record {
		r := d.s.Observed.Record
		r.Revision++
		r.Holder = ""
		return r
	}
	ended := func() *driver {
		d := holding(testConfig())
		d.step(Watched{Record: mine(d)}).step(TreeGone{})
		return d
	}
	d := ended()
	d.found(d.s.Observed.Record)
	has[SendWrite](t, d) // blanked under me, and nothing of mine lives

	d = ended()
	r := d.s.Observed.Record
	r.Revision, r.AcquireTime = r.Revision+1, r.AcquireTime+1
	d.found(r)
	hasNo[SendWrite](t, d)
	if at := d.c.FreeAt(d.s); at < d.s.Observed.At.Add(d.c.Duration) {
		t.Errorf("taken at %v, but the elector may lead until its duration is over", at)
	}
}

// An acquire found stored under a token that somebody has edited since is not confirmed as a tenure.
func TestAcquireOfAnotherTokenIsDropped(t *testing.T) {
	d := acquiring(testConfig())
	stored := d.s.Write.Record
	stored.Revision++
	lowered, raised := stored, stored
	lowered.Token, raised.Token = 3, 300
	d.done(Unknown)
	asked := *d
	d.found(lowered)
	hasNo[SendWrite](t, d)
	if d.s.Phase != Waiting || d.s.Pending != nil {
		t.Errorf("%v, pending %v", d.s.Phase, d.s.Pending)
	}
	if got := has[SendWrite](t, asked.found(raised)).Attempt; got.Kind != Acquire || got.Record.Token != 301 {
		t.Errorf("sent %v with token %d", got.Kind, got.Record.Token)
	}
}

// An answer that there is no Lease shows the state at the time of the request.
func TestOvertakenAbsenceIsIgnored(t *testing.T) {
	d := renewing(testConfig())
	w := *d.s.Write
	d.wake()
	asked := has[SendRead](t, d).ID
	stored := w.Record
	stored.Revision++
	d.step(Watched{Record: stored}).step(ReadDone{ID: asked, Absent: true})
	if d.s.Phase != Holding || d.s.Observed.Absent {
		t.Errorf("%v, absent: %v", d.s.Phase, d.s.Observed.Absent)
	}
}
