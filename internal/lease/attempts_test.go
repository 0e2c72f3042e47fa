package lease

import (
	"slices"
	"testing"
	"time"
)

// late answers a write that is not waited for any more: stored, at the next revision.
func (d *driver) late(w Attempt) *driver {
	r := w.Record
	r.Revision++
	return d.step(WriteDone{Nonce: w.Nonce, Outcome: Confirmed, Record: &r})
}

func TestNextRenewalIsSentWhileOneHangs(t *testing.T) {
	d := renewing(testConfig())
	first := *d.s.Write
	d.wake()
	second := has[SendWrite](t, d).Attempt
	if second.Kind != Renew || second.Record.Revision != first.Record.Revision || second.Nonce == first.Nonce {
		t.Errorf("sent %+v after %+v", second, first)
	}
	has[SendRead](t, d)
	if !d.s.Awaits(first.Nonce) || !d.s.Awaits(second.Nonce) {
		t.Error("not both are awaited")
	}
	d.after(100 * time.Millisecond).late(first)
	if got := has[ExtendLeash](t, d).Deadline; got != first.SentAt.Add(14*time.Second) {
		t.Errorf("leash until %v after the request", got.Sub(first.SentAt))
	}
	if d.s.Awaits(first.Nonce) {
		t.Error("what is answered is awaited")
	}
	d.step(WriteDone{Nonce: second.Nonce, Outcome: Conflict}) // with the first, as is known
	hasNo[SendRead](t, d)
	if d.s.Stale || d.s.MustRead || d.s.Tenure.Confirmed != first.SentAt {
		t.Errorf("stale %v, must read %v, confirmed %v after the request", d.s.Stale, d.s.MustRead, d.s.Tenure.Confirmed.Sub(first.SentAt))
	}
}

func TestRenewalStoredLateIsIgnored(t *testing.T) {
	d := renewing(testConfig())
	first := *d.s.Write
	second := has[SendWrite](t, d.wake()).Attempt
	d.confirmed()
	if got := has[ExtendLeash](t, d).Deadline; got != second.SentAt.Add(14*time.Second) {
		t.Errorf("leash until %v after the second", got.Sub(second.SentAt))
	}
	if d.s.Awaits(first.Nonce) {
		t.Error("the first is awaited, though it can't be stored any more")
	}
	before := d.s
	if d.late(first); len(d.actions) > 0 || d.s.Tenure != before.Tenure {
		t.Errorf("%v", d.actions)
	}
}

// A conflict that can't be explained must be, before anything else is written.
func TestLateConflictStopsWriting(t *testing.T) {
	d := renewing(testConfig())
	first := *d.s.Write
	d.wake().done(Refused)
	d.step(WriteDone{Nonce: first.Nonce, Outcome: Conflict})
	for range 3 {
		d.wake()
		hasNo[SendWrite](t, d)
	}
}

func TestReleaseWhileARenewalHangs(t *testing.T) {
	hanging := func() (*driver, Attempt) {
		d := renewing(testConfig())
		renewal := *d.s.Write
		d.wake().done(Refused)
		return d.step(ChildExited{}).step(TreeGone{}).wake(), renewal
	}
	d, _ := hanging()
	if got := has[SendWrite](t, d).Attempt.Kind; got != ReleaseLease {
		t.Fatalf("sent %v", got)
	}
	d.confirmed() // so the renewal was not stored, and can't be any more
	if !has[TenureEnded](t, d).Released {
		t.Error("not released")
	}

	d, renewal := hanging()
	d.late(renewal).done(Conflict) // it was stored before
	again := has[SendWrite](t, d).Attempt
	if again.Kind != ReleaseLease || again.Record.Revision != renewal.Record.Revision+1 {
		t.Fatalf("sent %v on revision %d", again.Kind, again.Record.Revision)
	}
	d.confirmed()
	if !has[TenureEnded](t, d).Released {
		t.Error("not released")
	}
}

func TestSlowAcquireBegins(t *testing.T) {
	d := acquiring(testConfig())
	acquire := *d.s.Write
	d.wake()
	has[SendRead](t, d)
	hasNo[SendWrite](t, d) // it is not known yet on which revision
	d.after(time.Second).late(acquire)
	if got := has[StartChild](t, d); got.Token != acquire.Record.Token || got.Deadline != acquire.SentAt.Add(14*time.Second) {
		t.Errorf("started %+v, %v after the request", got, got.Deadline.Sub(acquire.SentAt))
	}
}

// The answer to the acquire and that to its confirmation both come, one after the other: one tenure begins.
func TestSlowAcquireAndItsConfirmationAreOneTenure(t *testing.T) {
	d := acquiring(testConfig())
	acquire := *d.s.Write
	stored := acquire.Record
	stored.Revision++
	d.wake().found(stored)
	confirm := has[SendWrite](t, d).Attempt
	if confirm.Kind != Confirm {
		t.Fatalf("sent %v", confirm.Kind)
	}
	d.late(acquire)
	has[StartChild](t, d)
	d.after(100 * time.Millisecond).confirmed()
	hasNo[StartChild](t, d)
	if got := has[ExtendLeash](t, d).Deadline; got != confirm.SentAt.Add(14*time.Second) || d.s.Phase != Holding {
		t.Errorf("%v, leash until %v after the confirmation", d.s.Phase, got.Sub(confirm.SentAt))
	}
}

func TestAnswerToAnEarlierReadCounts(t *testing.T) {
	d := renewing(testConfig())
	first := *d.s.Write
	early := has[SendRead](t, d.wake()).ID
	d.wake() // the second renewal too
	if has[SendRead](t, d).ID == early {
		t.Fatal("no read of its own")
	}
	stored := first.Record
	stored.Revision++
	d.step(ReadDone{ID: early, Found: &stored})
	has[ExtendLeash](t, d)
	if d.s.Tenure.Confirmed != first.SentAt {
		t.Errorf("confirmed %v after the request", d.s.Tenure.Confirmed.Sub(first.SentAt))
	}
}

// While nothing answers, a tenure keeps trying, patiently at first. The first attempts are a few round trips apart, no two are more than a
// second apart, and not many are in flight. At the end they are closer, so that the last one comes just before the renew deadline. That
// holds even if there is only a second for all of them.
func TestAttemptsInAnOutage(t *testing.T) {
	for _, setting := range [][3]time.Duration{
		{15 * time.Second, 10 * time.Second, 2 * time.Second},
		{5 * time.Second, 2500 * time.Millisecond, 500 * time.Millisecond},
		{3 * time.Second, 1500 * time.Millisecond, time.Second},
		{time.Minute, 40 * time.Second, 10 * time.Second},
		{time.Hour, 50 * time.Minute, 10 * time.Minute},
	} {
		c := testConfig()
		c.Duration, c.RenewDeadline, c.RetryPeriod = setting[0], setting[1], setting[2]
		d := drive(c).step(WatchOpened{}).found(free(other, 10)).confirmed()
		end := d.now.Add(c.RenewDeadline)
		sent, attempts := d.now, 0
		for d.wake(); d.now < end; d.wake() {
			for _, a := range d.actions {
				if _, ok := a.(SendWrite); ok {
					if apart := d.now.Sub(sent); attempts > 0 && apart > max(time.Second, end.Sub(sent)/16) {
						t.Errorf("%v: %v apart, %v before the end", setting, apart, end.Sub(sent))
					}
					sent, attempts = d.now, attempts+1
				}
			}
		}
		if last := end.Sub(sent); last > min(minPatience, c.spare()/9)+time.Millisecond || attempts < 6 || attempts > 120 {
			t.Errorf("%v: %d attempts, the last %v before the renew deadline", setting, attempts, last)
		}
		if d.s.Stop.Reason != ReasonRenewFailed || d.now != end {
			t.Errorf("%v: %q %v after the renew deadline", setting, d.s.Stop.Reason, d.now.Sub(end))
		}
	}
}

func TestPatienceFollowsRoundTrips(t *testing.T) {
	c := testConfig()
	for took, want := range map[time.Duration]time.Duration{
		0:                      250 * time.Millisecond,
		100 * time.Millisecond: 400 * time.Millisecond,
		time.Second:            time.Second,
		time.Hour:              time.Second,
	} {
		d := drive(c).step(WatchOpened{}).found(free(other, 10)).confirmed().wake()
		d.after(min(took, 200*time.Millisecond))
		if took > 200*time.Millisecond { // not waited for
			w := *d.s.Write
			d.wake().after(took - 250*time.Millisecond).late(w)
		} else {
			d.confirmed()
		}
		if d.wake(); took < time.Hour && d.s.Write.Patience.Sub(d.s.Write.SentAt) != want {
			t.Errorf("after a round trip of %v one of %v is waited for", took, d.s.Write.Patience.Sub(d.s.Write.SentAt))
		}
	}
}

// lasting is a configuration whose holders are in no hurry.
func lasting() Config {
	c := testConfig()
	c.Duration, c.RenewDeadline, c.RetryPeriod = 300*time.Second, 200*time.Second, 100*time.Second
	return c
}

// quick has just sent a renewal to an API server that answers quickly.
func quick(c Config) *driver {
	return drive(c).step(WatchOpened{}).found(free(other, 10)).confirmed().wake()
}

// TestUnhurriedHolder: with a long retryPeriod, a holder waits for a twentieth of it before it repeats a renewal that is not answered. So
// agents do not multiply the requests to an API server that becomes slow. What is refused is repeated as soon as with the default timing.
func TestUnhurriedHolder(t *testing.T) {
	for _, c := range []struct {
		timing [3]time.Duration
		want   time.Duration
	}{
		{[3]time.Duration{15 * time.Second, 10 * time.Second, 2 * time.Second}, minPatience},
		{[3]time.Duration{time.Minute, 40 * time.Second, 10 * time.Second}, 500 * time.Millisecond},
		{[3]time.Duration{300 * time.Second, 200 * time.Second, 100 * time.Second}, 5 * time.Second},
	} {
		config := testConfig()
		config.Duration, config.RenewDeadline, config.RetryPeriod = c.timing[0], c.timing[1], c.timing[2]
		for what, answer := range map[string]struct {
			outcome Outcome
			want    time.Duration
		}{"silence": {want: c.want}, "refused": {Refused, minPatience}, "unknown": {Unknown, minPatience}} {
			d := quick(config)
			sent := d.now
			if what != "silence" {
				d.done(answer.outcome)
			}
			for d.wake(); ; d.wake() {
				if slices.ContainsFunc(d.actions, func(a Action) bool { _, writes := a.(SendWrite); return writes }) {
					break
				}
			}
			if got := d.now.Sub(sent); got != answer.want {
				t.Errorf("%v, %s: repeated after %v, want %v", c.timing, what, got, answer.want)
			}
		}
	}
}

// TestUnhurriedHolderReleasesSoon: a release does not wait for answers as long as a renewal does, whatever comes first.
func TestUnhurriedHolderReleasesSoon(t *testing.T) {
	for name, end := range map[string]func(*driver){
		"at once":     func(d *driver) { d.step(ChildExited{}).step(TreeGone{}) },
		"later":       func(d *driver) { d.after(time.Second).step(ChildExited{}).step(TreeGone{}) },
		"much later":  func(d *driver) { d.after(4 * time.Second).step(ChildExited{}).step(TreeGone{}) },
		"in one step": func(d *driver) { d.after(time.Second).step(TreeGone{}) },
		"after a slow stop": func(d *driver) {
			d.step(Terminated{Signal: sigterm}).after(2 * time.Second).step(ChildExited{}).step(TreeGone{})
		},
		"after two renewals":   func(d *driver) { d.wake().after(100 * time.Millisecond).step(ChildExited{}).step(TreeGone{}) },
		"after three renewals": func(d *driver) { d.wake().wake().after(100 * time.Millisecond).step(ChildExited{}).step(TreeGone{}) },
	} {
		d := quick(lasting())
		end(d)
		gone, lost := d.now, len(d.s.Unsettled)
		for d.s.Write == nil || d.s.Write.Kind != ReleaseLease {
			d.wake()
		}
		if most := minPatience << (lost + 1); d.now.Sub(gone) > most {
			t.Errorf("%s: released %v after the end of the process, want %v at most", name, d.now.Sub(gone), most)
		}
		if got := d.s.Write.Patience.Sub(d.s.Write.SentAt); got > minPatience<<(lost+1) {
			t.Errorf("%s: the release is repeated after %v", name, got)
		}
	}
}

// TestUnhurriedReadIsHurried: the read that a release needs is not awaited longer than by a holder in a hurry.
func TestUnhurriedReadIsHurried(t *testing.T) {
	d := quick(lasting()).done(Conflict) // nobody knows why
	if d.s.Read == nil || d.s.Read.Patience.Sub(d.s.Read.SentAt) != 5*time.Second {
		t.Fatalf("reads %+v", d.s.Read)
	}
	first := *d.s.Read
	d.after(100 * time.Millisecond).step(ChildExited{}).step(TreeGone{})
	for d.s.Read == nil || d.s.Read.ID == first.ID {
		d.wake()
	}
	if got := d.now.Sub(first.SentAt); got > time.Second {
		t.Errorf("it is repeated after %v", got)
	}
}

// TestUnhurriedStandby: a candidate is in a hurry even with a long retryPeriod, because a takeover waits for it.
func TestUnhurriedStandby(t *testing.T) {
	d := drive(lasting()).step(WatchOpened{})
	if got := d.s.Read.Patience.Sub(d.s.Read.SentAt); got != minPatience {
		t.Errorf("a read is repeated after %v", got)
	}
	d.found(free(other, 10))
	if got := d.s.Write.Patience.Sub(d.s.Write.SentAt); d.s.Write.Kind != Acquire || got != minPatience {
		t.Errorf("%v is repeated after %v", d.s.Write.Kind, got)
	}
}

// TestUnhurriedHolderLearnsTheTimeSoon: a tick can end the tenure, and the next run waits for it. So the read for the API server's time is in
// a hurry.
func TestUnhurriedHolderLearnsTheTimeSoon(t *testing.T) {
	d := quick(lasting()).confirmed()
	d.s.Server.Asked, d.s.MustRead, d.s.ReadAfter = d.now, true, d.now
	d.step(Ticked{})
	if d.s.Read == nil || d.s.Read.Patience.Sub(d.s.Read.SentAt) != minPatience {
		t.Errorf("reads %+v at %v", d.s.Read, d.now)
	}
}

// TestUnhurriedWaitsAreUseful: a holder waits no longer than the answer to a renewal is of use.
func TestUnhurriedWaitsAreUseful(t *testing.T) {
	c := testConfig()
	c.Duration, c.RenewDeadline, c.RetryPeriod = time.Hour, 50*time.Minute, 20*time.Minute
	if w := quick(c).s.Write; w.Patience.Sub(w.SentAt) != c.ofUse() || w.Deadline != w.Patience {
		t.Errorf("waits for %v, until %v", w.Patience.Sub(w.SentAt), w.Deadline.Sub(w.SentAt))
	}
}
