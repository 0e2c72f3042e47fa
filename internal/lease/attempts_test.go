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

// While nothing answers, a tenure keeps trying, patiently at first. The first attempts are a few round trips apart, or more with a long
// retryPeriod. With the default timing no two are more than a second apart. Not many are in flight. At the end they are closer, so that the
// last one comes just before the renew deadline. That holds even if there is only a second for all of them.
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
					unhurried := min((c.RetryPeriod-usualRetry)/unhurriedShare, end.Sub(sent)/unhurriedShare)
					if apart := d.now.Sub(sent); attempts > 0 && apart > max(time.Second, end.Sub(sent)/16, unhurried) {
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

// TestUnhurriedHolder: with a long retryPeriod, a holder waits for about a quarter of it before it repeats a renewal that is refused or not
// answered. So agents do not multiply the requests to an API server in trouble.
func TestUnhurriedHolder(t *testing.T) {
	for _, c := range []struct {
		timing [3]time.Duration
		want   time.Duration
	}{
		{[3]time.Duration{15 * time.Second, 10 * time.Second, 2 * time.Second}, minPatience},
		{[3]time.Duration{15 * time.Second, 10 * time.Second, 3 * time.Second}, minPatience},
		{[3]time.Duration{time.Minute, 40 * time.Second, 10 * time.Second}, 2 * time.Second},
		{[3]time.Duration{300 * time.Second, 200 * time.Second, 100 * time.Second}, 24500 * time.Millisecond},
	} {
		config := testConfig()
		config.Duration, config.RenewDeadline, config.RetryPeriod = c.timing[0], c.timing[1], c.timing[2]
		for what, answer := range map[string]func(*driver){
			"silence": func(*driver) {},
			"refused": func(d *driver) { d.done(Refused) },
			"unknown": func(d *driver) { d.done(Unknown) },
		} {
			d := quick(config)
			sent := d.now
			answer(d)
			for d.wake(); ; d.wake() {
				if slices.ContainsFunc(d.actions, func(a Action) bool { _, writes := a.(SendWrite); return writes }) {
					break
				}
			}
			if got := d.now.Sub(sent); got != c.want {
				t.Errorf("%v, %s: repeated after %v, want %v", c.timing, what, got, c.want)
			}
		}
	}
}

// TestUnhurriedHolderReleasesSoon: a release does not wait for answers as long as a renewal does, whatever comes first.
func TestUnhurriedHolderReleasesSoon(t *testing.T) {
	ends := func(d *driver) { d.step(ChildExited{}).step(TreeGone{}) }
	for name, c := range map[string]struct {
		failures int // of renewals, with one that is cut off by the end
		end      func(*driver)
	}{
		"at once":     {0, ends},
		"later":       {1, func(d *driver) { ends(d.after(time.Second)) }},
		"much later":  {1, func(d *driver) { ends(d.after(20 * time.Second)) }},
		"in one step": {1, func(d *driver) { d.after(time.Second).step(TreeGone{}) }},
		"after a slow stop": {1, func(d *driver) {
			ends(d.step(Terminated{Signal: sigterm}).after(2 * time.Second))
		}},
		"after a refusal":      {1, func(d *driver) { ends(d.done(Refused).after(time.Second)) }},
		"after two refusals":   {2, func(d *driver) { ends(d.done(Refused).wake().done(Refused).after(time.Second)) }},
		"after two renewals":   {1, func(d *driver) { ends(d.wake().after(100 * time.Millisecond)) }},
		"after three renewals": {2, func(d *driver) { ends(d.wake().wake().after(100 * time.Millisecond)) }},
	} {
		d := quick(lasting())
		c.end(d)
		for gone := d.now; d.s.Write == nil || d.s.Write.Kind != ReleaseLease; d.wake() {
			if most := minPatience << (c.failures + 1); d.s.Wake.Sub(gone) > most {
				t.Fatalf("%s: not released %v after the end of the process, want %v at most", name, d.s.Wake.Sub(gone), most)
			}
		}
		if got, most := d.s.Write.Patience.Sub(d.s.Write.SentAt), minPatience<<(c.failures+1); got > most {
			t.Errorf("%s: the release is repeated after %v, want %v at most", name, got, most)
		}
	}
}

// TestUnhurriedReadIsHurried: the read that a release needs is not awaited longer than by a holder in a hurry.
func TestUnhurriedReadIsHurried(t *testing.T) {
	d := quick(lasting()).done(Conflict) // nobody knows why
	if d.s.Read == nil || d.s.Read.Patience.Sub(d.s.Read.SentAt) != 24500*time.Millisecond {
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

// TestUnhurriedStandby: a standby with a long retryPeriod waits for the answer to a read as long as a holder does. The standbys of all jobs read
// when the API server is back. A standby is in a hurry when it must act on the answer: when it does not know the Lease, and when the Lease is
// free or will soon be.
func TestUnhurriedStandby(t *testing.T) {
	standby := func() *driver { return drive(lasting()).step(WatchOpened{}).found(held(other, 10)) }
	for name, c := range map[string]struct {
		d    *driver
		want time.Duration
	}{
		"does not know the Lease": {drive(lasting()).step(WatchOpened{}), minPatience},
		"a holder renews it":      {standby().step(WatchClosed{}).step(WatchOpened{}), 24500 * time.Millisecond},
		"soon it is free":         {standby().after(300*time.Second - 32*time.Second).step(WatchClosed{}).step(WatchOpened{}), 8 * time.Second},
		"it is free":              {standby().after(300 * time.Second).step(WatchClosed{}).step(WatchOpened{}), minPatience},
		"it does not exist":       {standby().step(Watched{Record: Record{UID: "lease", Revision: 11}, Deleted: true}).step(WatchClosed{}).step(WatchOpened{}), minPatience},
	} {
		if c.d.s.Read == nil {
			t.Errorf("%s: no read", name)
		} else if got := c.d.s.Read.Patience.Sub(c.d.s.Read.SentAt); got != c.want {
			t.Errorf("%s: the read is repeated after %v, want %v", name, got, c.want)
		}
	}
	d := drive(lasting()).step(WatchOpened{}).found(free(other, 10))
	if got := d.s.Write.Patience.Sub(d.s.Write.SentAt); d.s.Write.Kind != Acquire || got != minPatience {
		t.Errorf("%v is repeated after %v", d.s.Write.Kind, got)
	}
}

// TestUnhurriedStandbyTakesOverSoon: if the Lease becomes free while a standby waits for the answer to a read, the read is repeated as soon as
// by one that is in a hurry.
func TestUnhurriedStandbyTakesOverSoon(t *testing.T) {
	for _, later := range []time.Duration{0, 100 * time.Millisecond, minPatience, time.Second, 24 * time.Second} {
		for _, refused := range []bool{false, true} {
			d := drive(lasting()).step(WatchOpened{}).found(held(other, 10)).step(WatchClosed{}).step(WatchOpened{})
			first := *d.s.Read
			if refused {
				d.readFails()
			}
			d.after(later).step(Watched{Record: free(other, 11)})
			for d.s.Read == nil || d.s.Read.ID == first.ID {
				d.wake()
			}
			if got, want := d.now.Sub(first.SentAt), max(later, minPatience); got != want {
				t.Errorf("the Lease is free after %v, refused %v: read again %v after the first read, want %v", later, refused, got, want)
			}
			if d.found(free(other, 11)); d.s.Write == nil || d.s.Write.Kind != Acquire {
				t.Errorf("the Lease is free after %v, refused %v: no acquire", later, refused)
			}
		}
	}
	c := lasting() // it becomes free later than it is seen
	c.LockDelay = time.Second
	d := drive(c).step(WatchOpened{}).found(held(other, 10)).step(WatchClosed{}).step(WatchOpened{})
	sent := d.now
	unclean := held(other, 10).Released(Release{Reason: ReasonProcessExited, Unclean: true}, 3, 3)
	unclean.Revision = 11
	d.after(200 * time.Millisecond).step(Watched{Record: unclean}).wake()
	if has[SendRead](t, d); d.now.Sub(sent) > 450*time.Millisecond {
		t.Errorf("the Lease is free after lockDelay: read again %v after the first read", d.now.Sub(sent))
	}
	for d.found(unclean); d.s.Write == nil; {
		d.wake()
	}
	if got := d.now.Sub(sent); got != 200*time.Millisecond+c.LockDelay {
		t.Errorf("acquires %v after the first read", got)
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
	d = quick(lasting()).done(Conflict) // a read is under way when the tick asks for one
	first := *d.s.Read
	d.after(100 * time.Millisecond)
	d.s.Server.Asked = d.now
	for d.step(Ticked{}); d.s.Read == nil || d.s.Read.ID == first.ID; {
		d.wake()
	}
	if got := d.now.Sub(first.SentAt); got != minPatience {
		t.Errorf("a read under way is repeated after %v", got)
	}
	d = quick(lasting()).confirmed()
	d.s.Server.Asked, d.s.MustRead, d.s.ReadAfter = d.s.RenewAt, true, d.s.RenewAt
	if d.wake(); d.s.Write.Patience.Sub(d.s.Write.SentAt) != 24500*time.Millisecond {
		t.Errorf("a renewal hurries too: %v", d.s.Write.Patience.Sub(d.s.Write.SentAt))
	}
}

// TestUnhurriedHolderThatIsStarved: the deadline comes nearer than it was when an attempt was refused. So the next attempt does, too.
func TestUnhurriedHolderThatIsStarved(t *testing.T) {
	c := lasting()
	c.RenewDeadline = MaxRenewDeadline(c.Duration)
	d := quick(c)
	for d.s.Write == nil || d.now < d.s.Tenure.Confirmed.Add(150*time.Second) {
		d.done(Refused).wake()
	}
	d.done(Refused)
	end := d.s.Tenure.Confirmed.Add(c.Duration - Margin(c.Duration) - c.MaxLate())
	d.step(Starved{Late: c.MaxLate()})
	if got := d.s.RenewBy(c); got != end {
		t.Fatalf("the deadline is %v later than wanted", got.Sub(end))
	}
	left := end.Sub(d.now)
	for d.wake(); d.s.Write == nil; {
		d.wake()
	}
	if got := d.now; d.s.Phase != Holding || end.Sub(got) < left*3/4-time.Second {
		t.Errorf("with %v left, the next attempt is %v before the end", left, end.Sub(got))
	}
}

// TestUnhurriedStandbyNoticesAnOutage: the answer to a read comes so late that the API server was unreachable in between.
func TestUnhurriedStandbyNoticesAnOutage(t *testing.T) {
	c := lasting()
	c.RenewDeadline = 150 * time.Second
	d := drive(c).step(WatchOpened{}).found(held(other, 10)).step(WatchClosed{}).step(WatchOpened{})
	if got := d.s.Read.Patience.Sub(d.s.Read.SentAt); got <= c.requestTimeout()+time.Second {
		t.Fatalf("waits only %v", got)
	}
	d.after(c.requestTimeout() + time.Second).found(held(other, 10))
	if d.s.ReconnectedAt != d.now {
		t.Errorf("reconnected at %v, want %v", d.s.ReconnectedAt, d.now)
	}
}

// TestRefusalsAreFew: whatever is refused at once is not repeated often: an API server may refuse because it has too many requests.
func TestRefusalsAreFew(t *testing.T) {
	for name, c := range map[string]struct {
		d    *driver
		most int
	}{
		"holder":  {quick(lasting()), 7},
		"standby": {drive(lasting()).step(WatchOpened{}).found(held(other, 10)).step(WatchClosed{}).step(WatchOpened{}), 5},
	} {
		requests := 0
		for end := c.d.now.Add(80 * time.Second); c.d.now < end; c.d.wake() {
			for c.d.s.Write != nil || c.d.s.Read != nil {
				if requests++; c.d.s.Write != nil {
					c.d.done(Refused)
				} else {
					c.d.readFails()
				}
			}
		}
		if requests > c.most || requests < 3 {
			t.Errorf("%s: %d requests in 80 s", name, requests)
		}
	}
}

// TestAnOlderStateIsReadSeldom: an API server with restored data answers each read of a holder that stops with a state that cannot be.
func TestAnOlderStateIsReadSeldom(t *testing.T) {
	d := holding(testConfig()).step(Terminated{Signal: sigterm}) // the process takes its time
	old := held(other, 2)
	reads := 0
	for d.wake(); d.s.Write == nil; {
		d.wake()
	}
	d.done(Conflict)
	for end := d.now.Add(4 * time.Second); d.now < end; d.wake() {
		for d.s.Read != nil {
			reads++
			d.found(old)
			if reads > 10 {
				t.Fatalf("%d reads", reads)
			}
		}
	}
	if reads < 2 || reads > 5 {
		t.Errorf("%d reads in 4 s", reads)
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
