package lease

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/internal/schedule"
)

func runConfig() Config {
	c := testConfig()
	c.Runs = &RunPolicy{UID: "job", BackoffLimit: 2, FailCodes: []int32{3}, IgnoreCodes: []int32{4}}
	return c
}

// every is a schedule with a tick at each whole number of minutes, which t0 is not.
func every(t *testing.T, minutes string, overlap schedule.Overlap) *schedule.Schedule {
	t.Helper()
	s, err := schedule.Parse(schedule.Spec{Cron: "*/" + minutes + " * * * *", Overlap: overlap, StartingDeadline: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// seconds is a stamp of the drivers' time.
func seconds(d *driver) schedule.Stamp { return schedule.Stamp(d.now / second) }

// idle is a Lease that nobody has held yet.
func idle(runs Runs) Record {
	return Record{UID: "lease", Revision: 10, Duration: 15 * time.Second, Release: Release{Reason: ReasonCreated}, Runs: runs}
}

// told answers the read under way, with the API server's time.
func (d *driver) told(r Record) *driver {
	return d.step(ReadDone{ID: d.s.LastRead, Found: &r, Date: int64(d.now / second)})
}

// toldFirst sees a Lease for the first time, and watches it.
func toldFirst(c Config, r Record) *driver { return drive(c).step(WatchOpened{}).told(r) }

// running has started a run's process. The acquire was sent a second before.
func running(c Config, runs Runs) *driver {
	return toldFirst(c, idle(runs)).after(time.Second).confirmed()
}

// seenLater shows the Lease as it is, changed, in a watch's event.
func (d *driver) seenLater(change func(r *Record)) *driver {
	r := d.s.Observed.Record
	r.Revision++
	change(&r)
	return d.step(Watched{Record: r})
}

// acquires fails unless the last step sends an acquire, and returns the run in it.
func acquires(t *testing.T, d *driver) Run {
	t.Helper()
	w := has[SendWrite](t, d).Attempt
	if w.Kind != Acquire {
		t.Fatalf("sends %v", w.Kind)
	}
	return w.Record.Runs.Now
}

// sends continues until a write is sent, answering reads, and returns it and how long that took.
func (d *driver) sends(t *testing.T, within time.Duration) (Attempt, time.Duration) {
	t.Helper()
	began := d.now
	for limit := d.now.Add(within); d.now <= limit; {
		read := false
		for _, action := range d.actions {
			switch a := action.(type) {
			case SendWrite:
				return a.Attempt, d.now.Sub(began)
			case SendRead:
				read = true
			}
		}
		switch {
		case read:
			d.told(d.s.Observed.Record)
		case d.s.Wake == Never:
			d.now = limit + 1
		default:
			d.wake()
		}
	}
	t.Fatalf("no write within %v; the state is %v", within, facts(d))
	return Attempt{}, 0
}

func TestAcquireNamesTheRun(t *testing.T) {
	d := toldFirst(runConfig(), idle(Runs{}))
	sent := acquires(t, d)
	if want := (Run{ID: "job", Attempt: 1, State: RunRunning, Token: 10, Pod: "a", PodUID: "ua", Began: 1_000_000}); sent != want {
		t.Fatalf("sent %+v, want %+v", sent, want)
	}
	d.after(time.Second).confirmed()
	if start := has[StartChild](t, d); start.Run != sent {
		t.Errorf("started %+v", start)
	}
	d.wake()
	if w := has[SendWrite](t, d).Attempt; w.Kind != Renew || w.Record.Runs.Now != sent {
		t.Errorf("renewed as %+v", w.Record.Runs.Now)
	}
}

// The state of a run after the end of an attempt.
func TestEndOfAnAttempt(t *testing.T) {
	exit := func(code int) func(*driver) {
		return func(d *driver) { d.step(ChildExited{Code: code, Crashed: code != 0}) }
	}
	terminated := func(code int) func(*driver) {
		return func(d *driver) { exit(code)(d.step(Terminated{Signal: 15})) }
	}
	for _, c := range []ending{
		{"exit 0", 1, exit(0), RunComplete, 0, ReasonProcessExited, false, 0},
		{"exit 0, the last attempt", 3, exit(0), RunComplete, 0, ReasonProcessExited, false, 0},
		{"exit 1", 1, exit(1), RunFailed, 1, ReasonProcessExited, false, 0},
		{"exit 1, the last attempt but one", 2, exit(1), RunFailed, 1, ReasonProcessExited, false, 0},
		{"exit 1, the last attempt", 3, exit(1), RunGivenUp, 1, ReasonProcessExited, false, 0},
		{"a code after which none follows", 1, exit(3), RunGivenUp, 3, ReasonProcessExited, false, 0},
		{"a code that is ignored", 1, exit(4), RunFailed, 4, ReasonProcessExited, false, 1},
		{"a code that is ignored, the last attempt", 3, exit(4), RunFailed, 4, ReasonProcessExited, false, 1},
		{"a code that is ignored, after SIGTERM", 1, terminated(4), RunFailed, 4, ReasonPodTerminating, true, 0},
		{"a code that is ignored, after SIGTERM, the last attempt", 3, terminated(4), RunGivenUp, 4, ReasonPodTerminating, true, 0},
		{"a code that is ignored, by preActivate", 3, func(d *driver) {
			d.step(ChildExited{Code: 4, Crashed: true, Reason: ReasonPreActivateFailed})
		}, RunGivenUp, 4, ReasonPreActivateFailed, false, 0},
		{"a code that is ignored, after a probe failed", 3, func(d *driver) {
			exit(4)(d.step(Unhealthy{Reason: ReasonLivenessFailed, Grace: time.Second}))
		}, RunGivenUp, 4, ReasonLivenessFailed, false, 0},
		{"exit 0 after SIGTERM", 1, terminated(0), RunFailed, 0, ReasonPodTerminating, true, 0},
		{"exit 0 after SIGTERM, the last attempt", 3, terminated(0), RunGivenUp, 0, ReasonPodTerminating, true, 0},
		{"exit 0 before the pod is told to stop", 1, func(d *driver) { exit(0)(d); d.step(Terminated{Signal: 15}) }, RunComplete, 0, ReasonProcessExited, true, 0},
		{"a code after SIGTERM after which none follows", 1, terminated(3), RunFailed, 3, ReasonPodTerminating, true, 0},
		{"exit 0 after a handover was asked for", 1, func(d *driver) {
			exit(0)(d.seenLater(func(r *Record) { r.Handover.To = "b" }))
		}, RunFailed, 0, ReasonSwitchover, false, 0},
		{"exit 0 in the step in which renewals have failed for too long", 1, func(d *driver) {
			d.now = d.s.Tenure.Confirmed.Add(10 * time.Second)
			exit(0)(d)
		}, RunComplete, 0, ReasonProcessExited, false, 0},
		{"exit 0 after that", 1, func(d *driver) {
			d.now = d.s.Tenure.Confirmed.Add(10 * time.Second)
			exit(0)(d.step(Ticked{}))
		}, RunFailed, 0, ReasonRenewFailed, false, 0},
		{"exit 0, said to be a failure", 1, func(d *driver) { d.step(ChildExited{Reason: ReasonPreActivateFailed}) }, RunFailed, 0, ReasonPreActivateFailed, false, 0},
		{"exit 0, in no order", 1, func(d *driver) { d.step(ChildExited{Crashed: true}) }, RunFailed, 0, ReasonProcessExited, false, 0},
		{"a probe fails, and exit 0", 1, func(d *driver) {
			exit(0)(d.step(Unhealthy{Reason: ReasonLivenessFailed, Grace: time.Second}))
		}, RunFailed, 0, ReasonLivenessFailed, false, 0},
		{"nothing is known of the end", 1, func(*driver) {}, RunFailed, 1, ReasonProcessExited, false, 0},
	} {
		t.Run(c.name, c.test)
	}
}

// ending is how an attempt ends, and what the release has to say of it.
type ending struct {
	name    string
	attempt int32
	end     func(*driver)
	state   RunState
	code    int
	reason  Reason
	exits   bool
	ignored int32
}

func (c ending) test(t *testing.T) {
	open := Run{ID: "job", Attempt: c.attempt - 1, State: RunFailed, Began: 5}
	if c.attempt == 1 {
		open = Run{}
	}
	d := toldFirst(runConfig(), idle(Runs{Now: open}))
	d.sends(t, time.Hour)
	if d.after(time.Second).confirmed(); has[StartChild](t, d).Run.Attempt != c.attempt {
		t.Fatalf("started %+v", d.actions)
	}
	c.end(d)
	for _, a := range d.actions {
		if w, ok := a.(SendWrite); ok && w.Attempt.Kind == ReleaseLease {
			t.Fatal("released before all processes were gone")
		}
	}
	w := d.reaped()
	if w.Kind != ReleaseLease {
		t.Fatalf("sends %v", w.Kind)
	}
	want := Run{
		ID: "job", Attempt: c.attempt, Ignored: c.ignored, State: c.state, Token: w.Record.Token, Pod: "a", PodUID: "ua", Code: c.code, Reason: c.reason,
		Began: w.Record.Runs.Now.Began, Ended: int64(d.now / 1e6),
	}
	if diff := cmp.Diff(want, w.Record.Runs.Now); diff != "" {
		t.Fatal(diff)
	}
	d.confirmed()
	if got := has[TenureEnded](t, d); !got.Released || got.Run != c.state {
		t.Errorf("%+v", got)
	}
	if d.s.Done != c.exits {
		t.Errorf("exits: %v", d.s.Done)
	}
}

// reaped tells that no process lives, and returns the write that follows, after a renewal that was under way.
func (d *driver) reaped() Attempt {
	d.step(TreeGone{})
	if d.s.Write.Kind == Renew {
		d.confirmed()
	}
	return *d.s.Write
}

// An agent whose run is over contends again, after the delay.
func TestAttemptsFollowOneAnother(t *testing.T) {
	d := running(runConfig(), Runs{})
	for attempt, least := range []time.Duration{10 * time.Second, 20 * time.Second} {
		d.step(ChildExited{Code: 1, Crashed: true}).step(TreeGone{}).confirmed()
		w, took := d.sends(t, time.Minute)
		if w.Kind != Acquire || w.Record.Runs.Now.Attempt != int32(attempt+2) || took < least || took > least+3*time.Second {
			t.Fatalf("%v of %+v after %v", w.Kind, w.Record.Runs.Now, took)
		}
		if w.Record.Runs.Now.ID != "job" || w.Record.Runs.Now.Code != 1 || len(w.Record.Runs.Past) > 0 {
			t.Errorf("the next attempt is of %+v", w.Record.Runs)
		}
		d.after(time.Second).confirmed()
		has[StartChild](t, d)
	}
	d.step(ChildExited{Code: 1, Crashed: true}).step(TreeGone{}).confirmed()
	if d.s.Observed.Record.Runs.Now.State != RunGivenUp || d.s.Done {
		t.Fatalf("%+v", d.s.Observed.Record.Runs.Now)
	}
	quiet(t, d, time.Hour)
}

// fails ends the present attempt with a code, and returns the write that follows its release.
func (d *driver) fails(t *testing.T, code int) (Attempt, time.Duration) {
	t.Helper()
	d.step(ChildExited{Code: code, Crashed: true}).step(TreeGone{}).confirmed()
	return d.sends(t, 10*time.Minute)
}

// An attempt that is ignored is delayed like all others.
func TestIgnoredAttemptsDoNotCount(t *testing.T) {
	c := runConfig()
	c.Runs.BackoffLimit = 0
	d := running(c, Runs{})
	for n, least := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		w, took := d.fails(t, 4)
		now := w.Record.Runs.Now
		if w.Kind != Acquire || now.Attempt != int32(n+2) || now.Ignored != int32(n+1) || took < least || took > least+3*time.Second {
			t.Fatalf("%v of %+v after %v", w.Kind, now, took)
		}
		d.after(time.Second).confirmed()
		has[StartChild](t, d)
	}
	vanishes := d.s.Observed.Record
	d.step(ChildExited{Code: 1, Crashed: true}).step(TreeGone{}).confirmed()
	if now := d.s.Observed.Record.Runs.Now; now.State != RunGivenUp || now.Attempt != 4 || now.Ignored != 3 {
		t.Errorf("the first attempt that counts leaves %+v", now)
	}
	c.Identity = other
	w, _ := toldFirst(c, vanishes).sends(t, time.Minute)
	if now := w.Record.Runs.Now; w.Kind != Close || now.State != RunGivenUp || now.Ignored != 3 {
		t.Errorf("after a holder that vanished: %v of %+v", w.Kind, now)
	}
}

// The reply to a release is lost, and the release is or is not stored.
func TestAttemptIsIgnoredOnce(t *testing.T) {
	d := running(runConfig(), Runs{}).step(ChildExited{Code: 4, Crashed: true}).step(TreeGone{})
	stored := d.s.Write.Record
	stored.Revision++
	d.done(Unknown)
	notStored := *d
	d.after(time.Second).told(stored)
	if w, _ := d.sends(t, time.Minute); w.Kind != Acquire || w.Record.Runs.Now.Ignored != 1 {
		t.Errorf("stored: %v of %+v", w.Kind, w.Record.Runs.Now)
	}
	d = &notStored
	d.after(time.Second).told(d.s.Observed.Record)
	if w, _ := d.sends(t, time.Minute); w.Kind != ReleaseLease || w.Record.Runs.Now.Ignored != 1 {
		t.Errorf("not stored: %v of %+v", w.Kind, w.Record.Runs.Now)
	}
	// Somebody has written the end of the attempt under its holder.
	d = running(runConfig(), Runs{}).seenLater(func(r *Record) { r.Runs.Now.State, r.Runs.Now.Ignored = RunFailed, 1 })
	d.step(ChildExited{Code: 4, Crashed: true})
	if w := d.reaped(); w.Record.Runs.Now.Ignored != 1 {
		t.Errorf("written before: %v of %+v", w.Kind, w.Record.Runs.Now)
	}
}

// A hostile record could otherwise make attempts begin again at 1.
func TestMoreAttemptsThanCanBeCounted(t *testing.T) {
	open := Run{ID: "job", Attempt: math.MaxInt32, Ignored: math.MaxInt32, State: RunFailed, Reason: ReasonProcessExited}
	w, _ := toldFirst(runConfig(), idle(Runs{Now: open})).sends(t, time.Hour)
	if now := w.Record.Runs.Now; w.Kind != Close || now.State != RunGivenUp || now.Attempt != math.MaxInt32 {
		t.Errorf("%v of %+v", w.Kind, now)
	}
}

// quiet fails if anything is sent or started for so long.
func quiet(t *testing.T, d *driver, long time.Duration) {
	t.Helper()
	for end := d.now.Add(long); d.s.Wake <= end; {
		d.wake()
		if len(d.actions) > 0 {
			t.Fatalf("%+v after %v of quiet", d.actions, long-end.Sub(d.now))
		}
	}
}

func TestAttemptDelayMatchesAJob(t *testing.T) {
	for attempt, want := range map[int32]float64{0: 10, 1: 10, 2: 20, 3: 40, 6: 320, 7: 360, 50: 360, 1 << 30: 360} {
		for _, r := range []Run{{Attempt: attempt, State: RunRunning}, {Attempt: attempt, State: RunFailed, Reason: ReasonProcessExited}} {
			if got := r.backoff(); got.Seconds() != want {
				t.Errorf("%v after %+v", got, r)
			}
		}
	}
	if got := (Run{Attempt: 5, State: RunFailed, Reason: ReasonPodTerminating}).backoff(); got != 0 {
		t.Errorf("%v after an attempt that others ended", got)
	}
}

// vanished is a Lease whose holder was last seen in an attempt.
func vanished(attempt int32, runs Runs) Record {
	r := held(other, 20)
	runs.Now = Run{ID: "job", Attempt: attempt, State: RunRunning, Token: 17, Pod: "b", PodUID: "ub", Began: 7, Tick: runs.Now.Tick, Code: 9}
	r.Runs = runs
	return r
}

func TestVanishedHolder(t *testing.T) {
	for attempt, least := range map[int32]time.Duration{1: 15 * time.Second, 2: 20 * time.Second} {
		d := toldFirst(runConfig(), vanished(attempt, Runs{}))
		w, took := d.sends(t, time.Minute)
		now := w.Record.Runs.Now
		if w.Kind != Acquire || now.Attempt != attempt+1 || now.ID != "job" || took != least || now.Reason != ReasonLeaseExpired || now.Code != 0 || now.Began != 7 {
			t.Errorf("%v of %+v after %v", w.Kind, now, took)
		}
	}
}

// No other component would record that it failed.
func TestExhaustedRunOfAVanishedHolderIsClosed(t *testing.T) {
	s := every(t, "5", schedule.OverlapSkip)
	tick := schedule.Stamp(900)
	before := vanished(3, Runs{Now: Run{Tick: tick}, Schedule: s, Facts: schedule.Facts{Settled: tick, Since: tick}})
	d := toldFirst(runConfig(), before)
	w, took := d.sends(t, time.Minute)
	now := w.Record.Runs.Now
	if w.Kind != Close || took != 15*time.Second || now.State != RunGivenUp || now.Attempt != 3 || now.Reason != ReasonLeaseExpired || now.Token != 17 {
		t.Fatalf("%v of %+v after %v", w.Kind, now, took)
	}
	if r := w.Record; !r.Free() || r.Token != before.Token || r.Transitions != before.Transitions || r.History[0].Reason != ReasonLeaseExpired {
		t.Errorf("closed as %+v", r)
	}
	if f := w.Record.Runs.Facts; f.Running || f.Freed != seconds(d) || f.Settled != seconds(d) {
		t.Errorf("%+v", f)
	}
}

// The tick of 1200 is that of the next run.
func TestNextRunAfterOneThatWasClosed(t *testing.T) {
	tick := schedule.Stamp(900)
	d := toldFirst(runConfig(), vanished(3, Runs{
		Now: Run{Tick: tick}, Schedule: every(t, "5", schedule.OverlapSkip), Facts: schedule.Facts{Settled: tick, Since: tick},
	}))
	closing, _ := d.sends(t, time.Minute)
	lost := *d
	d.after(100 * time.Millisecond).confirmed()
	hasNo[StartChild](t, d)
	if d.s.Phase != Waiting {
		t.Errorf("%v after it was closed", d.s.Phase)
	}
	w, _ := d.sends(t, 10*time.Minute)
	if w.Kind != Acquire || w.Record.Runs.Now.ID != "job/1970-01-01T00:20:00Z" || w.Record.Runs.Now.Attempt != 1 {
		t.Errorf("%v of %+v", w.Kind, w.Record.Runs.Now)
	}
	// Its reply lost it is found closed, and not closed again.
	stored := closing.Record
	stored.Revision++
	lost.done(Unknown)
	has[SendRead](t, &lost)
	lost.told(stored)
	hasNo[SendWrite](t, &lost)
}

func TestReleaseByTheOperatorFailsTheAttempt(t *testing.T) {
	r := vanished(1, Runs{}).Released(Release{Reason: ReasonHolderTerminated, Unclean: true}, 1, 1)
	w, took := toldFirst(runConfig(), r).sends(t, time.Minute)
	if now := w.Record.Runs.Now; w.Kind != Acquire || now.Attempt != 2 || now.Reason != ReasonHolderTerminated || took != 10*time.Second {
		t.Errorf("%v of %+v after %v", w.Kind, w.Record.Runs.Now, took)
	}
	r = vanished(3, Runs{}).Released(Release{Reason: ReasonHolderTerminated, Unclean: true}, 1, 1)
	w, _ = toldFirst(runConfig(), r).sends(t, time.Minute)
	if now := w.Record.Runs.Now; w.Kind != Close || now.State != RunGivenUp || now.Reason != ReasonHolderTerminated || w.Record.Release != r.Release {
		t.Errorf("%v of %+v", w.Kind, w.Record)
	}
}

// Its own acquire, stored after it was given up: this agent knows that nothing has run by it.
func TestUnstartedAttemptIsRepeated(t *testing.T) {
	c := runConfig()
	c.Runs.BackoffLimit = 0
	d := toldFirst(c, idle(Runs{}))
	late := d.s.Write.Record
	d.done(Unknown).after(time.Second).told(d.s.Observed.Record) // not stored: it is sent again
	acquires(t, d)
	d.done(Conflict)
	late.Revision += 5
	d.told(late)
	if d.s.Pending != nil {
		t.Fatalf("%v", facts(d))
	}
	d.sends(t, time.Minute)
	if now := acquires(t, d); now.Attempt != 1 || now.State != RunRunning {
		t.Errorf("sent %+v", now)
	}
	// Somebody else can't know it.
	w, _ := toldFirst(func() Config { c := c; c.Identity = other; return c }(), late).sends(t, time.Minute)
	if w.Kind != Close {
		t.Errorf("another sends %v of %+v", w.Kind, w.Record.Runs.Now)
	}
}

// A backup names an agent by a token that is not above its last: it may have begun then.
func TestAttemptFromABackupCounts(t *testing.T) {
	for name, test := range map[string]struct {
		last *Past
		want Kind
	}{
		"the first tenure":     {nil, Acquire},
		"above the last token": {&Past{Tenure: Tenure{Token: 1}}, Acquire},
		"below the last token": {&Past{Tenure: Tenure{Token: 1 << 40}}, Close},
	} {
		t.Run(name, func(t *testing.T) {
			c := runConfig()
			c.Runs.BackoffLimit = 0
			r := toldFirst(c, idle(Runs{})).s.Write.Record
			r.Revision += 5
			d := drive(c).step(WatchOpened{})
			d.s.Past = test.last
			if w, _ := d.told(r).sends(t, 10*time.Minute); w.Kind != test.want {
				t.Errorf("%v of %+v", w.Kind, w.Record.Runs.Now)
			}
		})
	}
}

func TestPodStopsBeforeTheProcessStarts(t *testing.T) {
	c := runConfig()
	c.Runs.BackoffLimit = 0
	d := toldFirst(c, idle(Runs{})).step(Terminated{Signal: 15}).after(time.Second).confirmed()
	hasNo[StartChild](t, d)
	w := has[SendWrite](t, d).Attempt
	if now := w.Record.Runs.Now; w.Kind != ReleaseLease || now.State != RunFailed || now.Reason != ReasonNotBegun {
		t.Fatalf("%v of %+v", w.Kind, now)
	}
	r := w.Record
	r.Revision++
	c.Identity = other
	again, took := toldFirst(c, r).sends(t, time.Minute)
	if now := again.Record.Runs.Now; again.Kind != Acquire || now.Attempt != 1 || now.State != RunRunning || took > 0 {
		t.Errorf("%v of %+v after %v", again.Kind, now, took)
	}
}

// A result is not lost because it could not be stored in time.
func TestResultIsStoredBeyondTheLease(t *testing.T) {
	d := running(runConfig(), Runs{Schedule: every(t, "5", schedule.OverlapSkip), Facts: schedule.Facts{Settled: 800}})
	d.step(ChildExited{}).step(TreeGone{})
	ended, freed := d.s.Write.Record.Runs.Now.Ended, d.s.Write.Record.Runs.Facts.Freed
	if ended == 0 || freed == 0 {
		t.Fatalf("%+v", d.s.Write.Record.Runs)
	}
	d.outage(time.Hour)
	w, _ := d.sends(t, time.Minute)
	if now := w.Record.Runs.Now; w.Kind != ReleaseLease || now.State != RunComplete || now.Ended != ended || w.Record.Runs.Facts.Freed != freed {
		t.Errorf("%v of %+v", w.Kind, w.Record.Runs)
	}
	taken := *d
	d.confirmed()
	if got := has[TenureEnded](t, d); got.Run != RunComplete {
		t.Errorf("%+v", got)
	}
	// Unless somebody else has acquired it: then the result is forgotten.
	r := vanished(2, Runs{})
	r.Revision = w.Record.Revision + 1
	taken.step(Watched{Record: r})
	if got := has[TenureEnded](t, &taken); got.Released || got.Run != "" || taken.s.Phase != Waiting || taken.s.Stop != (Stop{}) {
		t.Errorf("%+v; %v", got, facts(&taken))
	}
}

// outage has no request answered for a while, and then the next read.
func (d *driver) outage(long time.Duration) {
	for end := d.now.Add(long); d.now < end || d.s.Read == nil; {
		switch {
		case d.s.Write != nil:
			d.done(Unknown)
		case d.s.Read != nil:
			d.readFails()
		default:
			d.wake()
		}
	}
	d.told(d.s.Observed.Record)
}

func TestReplyToTheReleaseIsLost(t *testing.T) {
	d := running(runConfig(), Runs{}).step(ChildExited{}).step(TreeGone{})
	stored := d.s.Write.Record
	stored.Revision++
	d.done(Unknown)
	has[SendRead](t, d)
	notStored := *d
	d.after(time.Second).told(stored)
	if got := has[TenureEnded](t, d); !got.Released || got.Run != RunComplete {
		t.Errorf("%+v", got)
	}
	quiet(t, d, time.Hour)
	ended := stored.Runs.Now.Ended
	d = &notStored
	d.after(time.Second).told(d.s.Observed.Record)
	w, _ := d.sends(t, time.Minute)
	if now := w.Record.Runs.Now; w.Kind != ReleaseLease || now.State != RunComplete || now.Ended != ended {
		t.Errorf("%v of %+v, ended %d", w.Kind, now, ended)
	}
}

func TestReplyToTheAcquireIsLost(t *testing.T) {
	d := toldFirst(runConfig(), idle(Runs{}))
	stored := d.s.Write.Record
	stored.Revision++
	d.done(Unknown).after(time.Second)
	another := *d
	d.told(stored)
	if w := has[SendWrite](t, d).Attempt; w.Kind != Confirm || w.Record.Runs.Now != stored.Runs.Now {
		t.Fatalf("%v of %+v", w.Kind, w.Record.Runs.Now)
	}
	if d.confirmed(); has[StartChild](t, d).Run != stored.Runs.Now {
		t.Errorf("%+v", d.actions)
	}
	stored.Runs.Now.Attempt = 2 // somebody has written over it
	another.told(stored)
	if another.s.Pending != nil {
		t.Errorf("%v", facts(&another))
	}
}

func TestActiveDeadline(t *testing.T) {
	c := runConfig()
	c.Runs.ActiveDeadline = time.Minute
	d := running(c, Runs{})
	began := d.now
	if until := d.s.Observed.Record.Runs.Now.Until; until != 1060 {
		t.Fatalf("until %d", until)
	}
	for d.s.Phase == Holding {
		if d.s.Write != nil {
			d.confirmed()
		} else {
			d.wake()
		}
	}
	if took := d.now.Sub(began); took != 59*time.Second || d.s.Stop.Reason != ReasonDeadlineExceeded {
		t.Fatalf("%v after %v", d.s.Stop.Reason, took)
	}
	if now := d.step(ChildExited{}).reaped().Record.Runs.Now; now.State != RunGivenUp || now.Reason != ReasonDeadlineExceeded {
		t.Errorf("%+v", now)
	}
	// Between two attempts, a candidate records it when both clocks have reached the time.
	open := Run{ID: "job", Attempt: 1, State: RunFailed, Reason: ReasonProcessExited, Until: 1003}
	w, took := toldFirst(c, idle(Runs{Now: open})).sends(t, time.Minute)
	if now := w.Record.Runs.Now; w.Kind != Close || took != 3*time.Second || now.State != RunGivenUp || now.Reason != ReasonDeadlineExceeded {
		t.Errorf("%v of %+v after %v", w.Kind, now, took)
	}
	// A wall clock that is a day ahead gives it up no sooner, and one that is a day behind has no attempt run for longer.
	t.Cleanup(func() { setAhead = func() int64 { return 0 } })
	const day = int64(24 * time.Hour / time.Microsecond)
	setAhead = func() int64 { return day }
	if w, _ := toldFirst(c, idle(Runs{Now: open})).sends(t, time.Minute); w.Kind != Close {
		t.Errorf("%v", w.Kind)
	}
	open.Until = 1000 + 86400
	setAhead = func() int64 { return 0 }
	d = toldFirst(c, idle(Runs{Now: open}))
	d.sends(t, time.Minute)
	if d.confirmed(); d.s.Tenure.RunUntil != d.now.Add(time.Minute) {
		t.Errorf("until %v", d.s.Tenure.RunUntil.Sub(d.now))
	}
}

func TestPastRunsAreBounded(t *testing.T) {
	runs := Runs{}
	for i := range 2 * PastRunsLimit {
		runs.Now.State = RunComplete
		runs = runs.started(Run{ID: string(rune('a' + i))}, RunPolicy{}, Time{}, time.Time{})
	}
	var ids []string
	for _, p := range runs.Past {
		ids = append(ids, p.ID)
	}
	if diff := cmp.Diff([]string{"i", "h", "g", "f", "e"}, ids); diff != "" || runs.Now.ID != "j" {
		t.Error(diff)
	}
}
