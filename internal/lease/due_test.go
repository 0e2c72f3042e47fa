package lease

import (
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/schedule"
)

func TestTickIsStartedOnce(t *testing.T) {
	s := every(t, "5", schedule.OverlapSkip)
	d := toldFirst(runConfig(), idle(Runs{Schedule: s, Facts: schedule.Facts{Settled: 900}}))
	w, took := d.sends(t, 10*time.Minute)
	now := w.Record.Runs.Now
	if w.Kind != Acquire || now.ID != "job/1970-01-01T00:20:00Z" || now.Tick != 1200 || now.Attempt != 1 || took < 200*time.Second || took > 201*time.Second {
		t.Fatalf("%v of %+v after %v", w.Kind, now, took)
	}
	if f := w.Record.Runs.Facts; f.Settled != 1200 || !f.Running {
		t.Errorf("%+v", f)
	}
	// Stored however late, it has been started: nothing is decided again.
	if d.after(time.Second).confirmed(); has[StartChild](t, d).Run.Tick != 1200 {
		t.Errorf("%+v", d.actions)
	}
}

func TestNextTickKnowsTheLast(t *testing.T) {
	d := toldFirst(runConfig(), idle(Runs{Schedule: every(t, "5", schedule.OverlapSkip), Facts: schedule.Facts{Settled: 900}}))
	d.sends(t, 10*time.Minute)
	d.confirmed().step(ChildExited{}).step(TreeGone{}).after(2 * time.Second).confirmed()
	runs := d.s.Observed.Record.Runs
	if runs.Now.State != RunComplete || runs.Previous != 1200 || runs.Facts.Running {
		t.Errorf("%+v", runs)
	}
	w, _ := d.sends(t, 10*time.Minute)
	if now := w.Record.Runs.Now; now.Tick != 1500 || len(w.Record.Runs.Past) != 1 || w.Record.Runs.Past[0].Tick != 1200 {
		t.Errorf("then %+v", w.Record.Runs)
	}
	if d.confirmed(); has[StartChild](t, d).Previous != 1200 {
		t.Errorf("%+v", d.actions)
	}
}

// A candidate that knows no reliable time starts nothing by a schedule, and continues what was started.
func TestUnknownServerTimeStartsNoTick(t *testing.T) {
	s := every(t, "1", schedule.OverlapSkip)
	runs := Runs{Schedule: s, Facts: schedule.Facts{Settled: 900}}
	d := drive(runConfig()).step(WatchOpened{}).found(idle(runs))
	asked := 0
	for end := d.now.Add(time.Hour); d.now < end; {
		hasNo[SendWrite](t, d)
		if d.s.Read != nil {
			asked++
			d.found(d.s.Observed.Record)
		} else {
			d.wake()
		}
	}
	if asked < 50 || asked > 70 {
		t.Errorf("asked %d times within an hour", asked)
	}
	runs.Now = Run{ID: "job/1970-01-01T00:15:00Z", Tick: 900, Attempt: 1, State: RunFailed, Reason: ReasonRenewFailed}
	d = drive(runConfig()).step(WatchOpened{}).found(idle(runs))
	if got := acquires(t, d); got.Attempt != 2 {
		t.Errorf("%+v", got)
	}
	d.confirmed().step(ChildExited{}).step(TreeGone{})
	if f := d.s.Write.Record.Runs.Facts; f.Settled != 900 {
		t.Errorf("ticks were settled by one clock: %+v", f)
	}
}

func TestTwoClocksDisagree(t *testing.T) {
	t.Cleanup(func() { setAhead = func() int64 { return 0 } })
	for _, apart := range []time.Duration{-24 * time.Hour, -time.Minute, time.Minute, 24 * time.Hour} {
		setAhead = func() int64 { return int64(apart / time.Microsecond) }
		d := drive(runConfig())
		d.now += 1_000_000 * second
		settled := schedule.Stamp(d.now/second) - 120
		d.step(WatchOpened{}).told(idle(Runs{Schedule: every(t, "1", schedule.OverlapSkip), Facts: schedule.Facts{Settled: settled}}))
		asked := 0
		for end := d.now.Add(time.Hour); d.now < end; {
			hasNo[SendWrite](t, d)
			if d.s.Read != nil {
				asked++
				d.told(d.s.Observed.Record)
			} else {
				d.wake()
			}
		}
		if asked < 40 || asked > 70 {
			t.Errorf("%v apart: asked %d times within an hour", apart, asked)
		}
		setAhead = func() int64 { return 0 } // somebody has set it right
		d.step(Ticked{})
		if w, took := d.sends(t, 10*time.Minute); w.Kind != Acquire || took > 11*time.Second {
			t.Errorf("%v after %v", w.Kind, took)
		}
	}
}

// A Warm candidate with a day until the next tick sends no request. Its clock is compared before the tick is started.
func TestIdleCandidateIsQuiet(t *testing.T) {
	s, err := schedule.Parse(schedule.Spec{Cron: "0 12 * * *"})
	if err != nil {
		t.Fatal(err)
	}
	d := toldFirst(runConfig(), idle(Runs{Schedule: s, Facts: schedule.Facts{Settled: 900}}))
	woken := 0
	for d.now < 43200*second {
		if len(d.actions) > 0 {
			t.Fatalf("%+v at %v", d.actions, d.now.Sub(t0))
		}
		d.wake()
		woken++
	}
	if woken > 40 {
		t.Errorf("woke %d times", woken)
	}
	has[SendRead](t, d)
	hasNo[SendWrite](t, d)
	started := *d
	if d.told(d.s.Observed.Record); acquires(t, d).Tick != 43200 {
		t.Errorf("%+v", d.actions)
	}
	// Then that result counts.
	started.seenLater(func(r *Record) { r.Runs.Facts.Settled = 43200 })
	started.told(started.s.Observed.Record)
	quiet(t, &started, 23*time.Hour)
	// A job without a schedule that has run is quiet, too.
	quiet(t, toldFirst(runConfig(), idle(Runs{Now: Run{ID: "job", State: RunComplete, Attempt: 1}})), 240*time.Hour)
}

// An estimate that is behind costs no time: the clocks are compared when the first of them has reached the tick.
func TestOldClockEstimateDelaysNoTick(t *testing.T) {
	d := toldFirst(runConfig(), idle(Runs{Schedule: every(t, "5", schedule.OverlapSkip), Facts: schedule.Facts{Settled: 900}}))
	d.s.Server.Date -= 25
	if w, took := d.step(Ticked{}).sends(t, 10*time.Minute); w.Record.Runs.Now.Tick != 1200 || took > 201*time.Second {
		t.Errorf("%+v after %v", w.Record.Runs.Now, took)
	}
}

// A Lease that was just seen does not contain the time.
func TestClockIsReadBeforeATickIsStarted(t *testing.T) {
	d := toldFirst(runConfig(), idle(Runs{Schedule: every(t, "5", schedule.OverlapSkip), Facts: schedule.Facts{Settled: 900}}))
	d.after(198 * time.Second).seenLater(func(*Record) {})
	for len(d.actions) == 0 {
		d.wake()
	}
	hasNo[SendWrite](t, d)
	has[SendRead](t, d)
	if d.told(d.s.Observed.Record); acquires(t, d).Tick != 1200 {
		t.Errorf("%+v", d.actions)
	}
}

func TestReplaceByTheHolder(t *testing.T) {
	d := toldFirst(runConfig(), idle(Runs{Schedule: every(t, "5", schedule.OverlapReplace), Facts: schedule.Facts{Settled: 800}}))
	acquires(t, d)
	d.confirmed()
	reads := 0
	for d.s.Phase == Holding {
		switch {
		case d.s.Write != nil:
			d.confirmed()
		case d.s.Read != nil:
			reads++
			d.told(d.s.Observed.Record)
		default:
			d.wake()
		}
	}
	if d.s.Stop.Reason != ReasonReplaced || seconds(d) != 1200 || reads != 1 {
		t.Fatalf("%v at %d, %d reads", d.s.Stop.Reason, seconds(d), reads)
	}
	runs := d.step(ChildExited{}).after(time.Second).reaped().Record.Runs
	if runs.Now.State != RunReplaced || runs.Now.Reason != ReasonReplaced || runs.Previous != 0 {
		t.Fatalf("%+v", runs)
	}
	d.confirmed()
	if w, took := d.sends(t, time.Minute); w.Kind != Acquire || w.Record.Runs.Now.Tick != 1200 || took > 3*time.Second {
		t.Errorf("%v of %+v after %v", w.Kind, w.Record.Runs.Now, took)
	}
}

// A run that must be replaced never gets attempt 2.
func TestReplaceByACandidate(t *testing.T) {
	for name, state := range map[string]RunState{"vanished": RunRunning, "between two attempts": RunFailed} {
		runs := Runs{Schedule: every(t, "5", schedule.OverlapReplace), Facts: schedule.Facts{Settled: 600, Since: 600}}
		runs.Now = Run{ID: "job/1970-01-01T00:10:00Z", Tick: 600, Attempt: 1, State: state, Reason: ReasonProcessExited}
		r := idle(runs)
		if state == RunRunning {
			r = held(other, 10)
			r.Runs = runs
		}
		w, _ := toldFirst(runConfig(), r).sends(t, time.Minute)
		got := w.Record.Runs
		if w.Kind != Acquire || got.Now.Tick != 900 || got.Now.Attempt != 1 || len(got.Past) != 1 || got.Past[0].State != RunReplaced || got.Past[0].Tick != 600 {
			t.Errorf("%s: %v of %+v", name, w.Kind, got)
		}
	}
}

func TestRequestByHandIsFollowedOnce(t *testing.T) {
	s := every(t, "5", schedule.OverlapSkip)
	runs := Runs{Schedule: s, Facts: schedule.Facts{Settled: 900}, Asked: Request{Name: "again", Tick: 750}, Previous: 600}
	d := toldFirst(runConfig(), idle(runs))
	now := acquires(t, d)
	if now.ID != "job/again" || now.Tick != 750 || d.s.Write.Record.Runs.Facts.Settled != 900 {
		t.Fatalf("%+v", d.s.Write.Record.Runs)
	}
	d.after(time.Second).confirmed().step(ChildExited{}).step(TreeGone{}).confirmed()
	got := d.s.Observed.Record.Runs
	if got.Answered != "again" || got.Asked != (Request{}) || got.Now.State != RunComplete || got.Previous != 600 {
		t.Fatalf("%+v", got)
	}
	for _, name := range []string{"again", "another"} { // by an operator that has not seen it yet
		d.seenLater(func(r *Record) { r.Runs.Asked.Name = name }).after(3 * time.Second).step(Ticked{})
		if name == "again" {
			hasNo[SendWrite](t, d)
			continue
		}
		d.sends(t, time.Minute)
		if now := acquires(t, d); now.ID != "job/another" {
			t.Errorf("%+v", now)
		}
	}
	d.after(time.Second).confirmed().step(ChildExited{}).step(TreeGone{}).confirmed()
	d.seenLater(func(r *Record) { r.Runs.Asked.Name = "again" }) // which is not the newest any more
	d.after(3 * time.Second).step(Ticked{})
	hasNo[SendWrite](t, d)
	if w, _ := d.sends(t, 10*time.Minute); w.Record.Runs.Asked != (Request{}) {
		t.Error("it is asked for still, and will be forgotten to have been followed")
	}
	// One that comes while a run is under way waits, or replaces it.
	for overlap, phase := range map[schedule.Overlap]Phase{schedule.OverlapSkip: Holding, schedule.OverlapQueue: Holding, schedule.OverlapReplace: Stopping} {
		d := running(runConfig(), Runs{Schedule: every(t, "5", overlap), Facts: schedule.Facts{Settled: 800}})
		if d.seenLater(func(r *Record) { r.Runs.Asked.Name = "now" }); d.s.Phase != phase {
			t.Errorf("%s: %v", overlap, d.s.Phase)
		}
	}
}

// While ticks do not exist nothing starts beside them either.
func TestARequestWaitsForResumption(t *testing.T) {
	for _, overlap := range []schedule.Overlap{schedule.OverlapSkip, schedule.OverlapQueue, schedule.OverlapReplace} {
		d := running(runConfig(), Runs{Schedule: every(t, "5", overlap), Facts: schedule.Facts{Settled: 800}})
		if d.seenLater(func(r *Record) { r.Runs.Asked.Name, r.Runs.Facts.Suspended = "now", 900 }); d.s.Phase != Holding {
			t.Errorf("%s: %v", overlap, d.s.Phase)
		}
		d.step(ChildExited{}).step(TreeGone{}).confirmed()
		d.after(3 * time.Second).step(Ticked{})
		hasNo[SendWrite](t, d)
		quiet(t, d, time.Hour)
		d.seenLater(func(r *Record) { r.Runs.Facts.Suspended = 0 })
		if w, _ := d.sends(t, 10*time.Minute); w.Record.Runs.Now.ID != "job/now" {
			t.Errorf("%s: resumed, it starts %+v", overlap, w.Record.Runs.Now)
		}
	}
}

// A process that never began completes nothing, whatever came before it, and however late its agent is.
func TestUnstartedProcessCompletesNothing(t *testing.T) {
	d := running(runConfig(), Runs{})
	d.after(time.Hour).step(Ticked{})
	has[KillTree](t, d)
	d.step(ChildExited{Reason: ReasonNotBegun}).step(TreeGone{})
	if w, _ := d.sends(t, time.Minute); w.Record.Runs.Now.State != RunFailed {
		t.Errorf("the run is %+v", w.Record.Runs.Now)
	}
}

// A candidate that closes a run follows nothing new. The marks of what was followed before stay, for the next acquire to clear.
func TestCloseFollowsNoNewRequest(t *testing.T) {
	c := runConfig()
	c.Runs.BackoffLimit = 0
	asked := Request{Name: "before"}
	d := toldFirst(c, idle(Runs{Now: Run{ID: "job/x", Attempt: 1, State: RunRunning}, Asked: asked, Answered: "before"}))
	if w, _ := d.sends(t, time.Minute); w.Kind != Close || w.Record.Runs.Asked != asked || w.Record.Runs.Now.State != RunGivenUp {
		t.Errorf("%v of %+v", w.Kind, w.Record.Runs)
	}
}

// A backfill is not told that what comes after it was done before.
func TestABackfillHasNoPreviousTick(t *testing.T) {
	for tick, want := range map[schedule.Stamp]schedule.Stamp{300: 0, 600: 0, 660: 600} {
		d := running(runConfig(), Runs{Previous: 600, Asked: Request{Name: "back", Tick: tick}})
		if got := has[StartChild](t, d).Previous; got != want {
			t.Errorf("the run of %d finds %d", tick, got)
		}
	}
}

// Text that cannot be parsed may say that the run that seems due was executed.
func TestBadRunsBlock(t *testing.T) {
	d := toldFirst(runConfig(), idle(Runs{Bad: "nonsense", Asked: Request{Name: "again"}}))
	hasNo[SendWrite](t, d)
	quiet(t, d, time.Hour)
	d.seenLater(func(r *Record) { r.Runs.Bad = "" })
	if w, _ := d.sends(t, time.Minute); w.Kind != Acquire || w.Record.Runs.Now.ID != "job/again" {
		t.Errorf("%v of %+v", w.Kind, w.Record.Runs)
	}
	// A holder continues, and leaves it as it stands.
	d = running(runConfig(), Runs{}).seenLater(func(r *Record) { r.Runs = Runs{Bad: "nonsense"} })
	if d.s.Phase != Holding {
		t.Fatalf("%v", facts(d))
	}
	d.wake()
	if w := has[SendWrite](t, d).Attempt; w.Record.Runs.Bad != "nonsense" {
		t.Errorf("renews %+v", w.Record.Runs)
	}
	d.confirmed().step(ChildExited{}).step(TreeGone{})
	if w := has[SendWrite](t, d).Attempt; w.Kind != ReleaseLease || w.Record.Runs.Bad != "nonsense" || w.Record.Runs.Now != (Run{}) {
		t.Errorf("%v of %+v", w.Kind, w.Record.Runs)
	}
}

func leaver() Config {
	c := runConfig()
	c.Runs.Leaves = true
	return c
}

// over is when a leaver's run has ended.
func over(runs Runs, code int) *driver {
	return running(leaver(), runs).step(ChildExited{Code: code, Crashed: code != 0}).step(TreeGone{}).confirmed()
}

func TestAgentLeavesWhenItsRunIsOver(t *testing.T) {
	d := over(Runs{}, 0)
	if got := has[Exit](t, d); got.Code != 0 {
		t.Errorf("%+v", got)
	}
	if d := over(Runs{}, 3); has[Exit](t, d).Code != 0 { // given up: a container started again would do no better
		t.Errorf("%+v", d.actions)
	}
	if d := over(Runs{}, 1); d.s.Done {
		t.Error("left between two attempts")
	}
}

func TestAgentLooksForTheNextRunBeforeItLeaves(t *testing.T) {
	s := every(t, "5", schedule.OverlapQueue)
	d := over(Runs{Schedule: s, Facts: schedule.Facts{Settled: 800}}, 0)
	for !d.s.Done && d.now < t0.Add(time.Minute) {
		d.wake()
		hasNo[SendWrite](t, d)
	}
	if !d.s.Done || d.now > t0.Add(5*time.Second) {
		t.Errorf("%v after %v", facts(d), d.now.Sub(t0))
	}
	d = running(leaver(), Runs{Schedule: s, Facts: schedule.Facts{Settled: 800}})
	for d.now < t0.Add(4*time.Minute) {
		if d.s.Write != nil {
			d.confirmed()
		} else {
			d.wake()
		}
	}
	for d.s.Write != nil {
		d.confirmed()
	}
	d.step(ChildExited{}).step(TreeGone{}).confirmed()
	if w, _ := d.sends(t, time.Minute); d.s.Done || w.Kind != Acquire || w.Record.Runs.Now.Tick != 1200 {
		t.Errorf("%v of %+v", w.Kind, w.Record.Runs.Now)
	}
}

// Another pod's run, a request, and what can't be read are no reasons.
func TestAgentStays(t *testing.T) {
	for name, runs := range map[string]Runs{
		"of another pod":         {Now: Run{ID: "job", Attempt: 1, State: RunComplete, Pod: "b", PodUID: "ub"}},
		"of another of its name": {Now: Run{ID: "job", Attempt: 1, State: RunComplete, Pod: "a", PodUID: "before"}},
		"asked for":              {Now: Run{ID: "job", Attempt: 1, State: RunComplete, Pod: "a", PodUID: "ua"}, Asked: Request{Name: "again"}},
		"bad":                    {Now: Run{ID: "job", Attempt: 1, State: RunComplete, Pod: "a", PodUID: "ua"}, Bad: "nonsense"},
	} {
		if d := toldFirst(leaver(), idle(runs)); d.s.Done {
			t.Errorf("left: %s", name)
		}
	}
	if d := toldFirst(leaver(), idle(Runs{Now: Run{ID: "job", Attempt: 1, State: RunComplete, Pod: "a", PodUID: "ua"}})); !d.s.Done {
		t.Error("stayed after the container was started again")
	}
}

// A run whose record the operator changes under it keeps what is its own.
func TestOperatorWritesDuringARun(t *testing.T) {
	s := every(t, "5", schedule.OverlapSkip)
	d := running(runConfig(), Runs{Schedule: s, Facts: schedule.Facts{Settled: 800}})
	d.after(400 * time.Second)
	d.s.Tenure.Confirmed = d.now // renewals have gone well
	d.s.RenewAt = Never
	d.seenLater(func(r *Record) { r.Runs.Facts = r.Runs.Facts.SuspendedAt(1250) })
	d.step(ChildExited{}).step(TreeGone{})
	got := d.s.Write.Record.Runs
	if got.Facts.Suspended != 1250 || got.Facts.Settled != 1250 || got.Skipped != 1 || got.Now.State != RunComplete {
		t.Errorf("%+v", got)
	}
}
