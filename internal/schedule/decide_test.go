package schedule

import (
	"testing"
	"time"
)

// Values that the model does not generate, because nobody has a reason to write them.
func TestDecideWithExtremeValues(t *testing.T) {
	t.Parallel()
	now := stamp(t, "2026-11-23T12:00:30Z")
	both := func(at Stamp) Clocks { return Clocks{Wall: at.Time(), Server: at.Time()} }
	for _, c := range []struct {
		why    string
		cron   string
		facts  Facts
		clocks Clocks
		want   Verdict
		tick   string
		missed int64
	}{
		{"no clock of the server's", "* * * * *", Facts{Settled: now - 90}, Clocks{Wall: now.Time()}, NoServerClock, "", 0},
		{"no clock at all", "* * * * *", Facts{Settled: now - 90}, Clocks{}, NoServerClock, "", 0},
		{"the wall clock a day back", "* * * * *", Facts{Settled: now - 90}, Clocks{(now - daySeconds).Time(), now.Time()}, ClocksDisagree, "", 0},
		{"half a minute apart", "* * * * *", Facts{Settled: now - 60}, Clocks{now.Time(), now.Time().Add(30 * time.Second)}, Start, "2026-11-23T12:00:00Z", 0},
		{"more than that", "* * * * *", Facts{Settled: now - 60}, Clocks{now.Time(), now.Time().Add(30*time.Second + 1)}, ClocksDisagree, "", 0},
		{"both clocks before 1970", "* * * * *", Facts{Settled: 1}, Clocks{time.Unix(-9, 0), time.Unix(-9, 0)}, ClocksDisagree, "", 0},
		{"both clocks at the end of what Go counts", "* * * * *", Facts{Settled: 1}, Clocks{time.Unix(1<<62, 0), time.Unix(1<<62, 0)}, ClocksDisagree, "", 0},
		{"both clocks in year 9999", "59 23 31 12 *", Facts{Settled: maxStamp - 90}, both(maxStamp), Start, "9999-12-31T23:59:00Z", 0},
		{"fifty years of minutes", "* * * * *", Facts{Settled: stamp(t, "1976-11-23T12:00:00Z")}, both(now), Start, "2026-11-23T12:00:00Z", 26297279},
		{"no fact at all", "0 0 1 1 *", Facts{}, both(now), NotDue, "", 56},
		{"facts that are negative", "0 0 1 1 *", Facts{Settled: -1 << 63, Local: -1 << 63, Passed: Span{-1 << 63, -1}, Freed: -1 << 63}, both(now), NotDue, "", 56},
		{"settled after time itself", "* * * * *", Facts{Settled: 1<<63 - 1, Local: 1<<63 - 1}, both(now), Ahead, "", 0},
		{"the clocks a day behind what they were", "* * * * *", Facts{Settled: now + daySeconds}, both(now), Ahead, "", 0},
		{"a run since tomorrow", "* * * * *", Facts{Settled: now - 60, Running: true, Since: now + daySeconds}, both(now), Running, "", 0},
	} {
		d := mustParse(t, Spec{Cron: c.cron}).Decide(c.facts, c.clocks)
		if d.Verdict != c.want || d.Tick.String() != c.tick || d.Tally.Missed() != c.missed {
			t.Errorf("%s: %+v, want %s %s, %d missed", c.why, d, c.want, c.tick, c.missed)
		}
		if known := d.Verdict == NotDue || d.Verdict == Ahead && d.Next != 0 || d.Verdict == ClocksDisagree; known && (d.Wait <= 0 || d.Wait > longestWait) {
			t.Errorf("%s: waits for %s", c.why, d.Wait)
		}
	}
}

// Both clocks were a day ahead while a run of a backlog took up ticks, and are correct again. Those ticks are still to come, and a
// tick that comes due during a run is skipped as usual.
func TestWrongClocksUseUpNoTicks(t *testing.T) {
	t.Parallel()
	now := stamp(t, "2026-11-23T12:00:30Z")
	both := func(at Stamp) Clocks { return Clocks{Wall: at.Time(), Server: at.Time()} }
	s := mustParse(t, Spec{Cron: "* * * * *", CatchUp: CatchUpAll})
	for name, start := range map[string]func(Facts) Facts{
		"by the schedule": func(f Facts) Facts { return f.Started(s.Decide(f, both(now))) },
		"by hand":         func(f Facts) Facts { return f.StartedByHand(now) },
	} {
		facts := start(Facts{Settled: now - 200, Passed: Span{now + daySeconds, now + daySeconds + 600}, Freed: now + daySeconds + 600})
		if facts.Passed != (Span{}) {
			t.Errorf("%s: of tomorrow %+v is taken up", name, facts.Passed)
		}
		if during := s.Decide(facts, both(now+180)); during.Tally.Skipped() != 3 {
			t.Errorf("%s: of three ticks during the run %d are passed over", name, during.Tally.Skipped())
		}
		ended, tally := facts.Ended(s, now+180)
		if next := s.Decide(ended, both(now+181)); next.Tick > now || tally.Missed() != 0 {
			t.Errorf("%s: after the run follows %s, of during it", name, next.Tick)
		}
	}
}

// A country moves an hour, and the tables with it: 02:30 comes an hour later than it did for the agent before.
func TestCivilTimeHasOneTick(t *testing.T) {
	t.Parallel()
	spec := Spec{Cron: "30 2 * * *", TimeZone: "Etc/GMT-1"}
	before := mustParse(t, spec)
	spec.TimeZone = "Etc/GMT"
	after := mustParse(t, spec)
	now := stamp(t, "2026-11-23T01:30:01Z")
	clocks := func(at Stamp) Clocks { return Clocks{Wall: at.Time(), Server: at.Time()} }
	facts := Facts{Settled: now - 3600}
	d := before.Decide(facts, clocks(now))
	if d.Verdict != Start || d.Tick.String() != "2026-11-23T01:30:00Z" || d.Local.Time().Format(time.TimeOnly) != "02:30:00" {
		t.Fatalf("%+v", d)
	}
	facts, _ = facts.Started(d).Ended(before, now+10)
	if d := after.Decide(facts, clocks(now+3600)); d.Verdict != NotDue || d.Next.String() != "2026-11-24T02:30:00Z" {
		t.Errorf("02:30 comes twice: %+v", d)
	}
	if d := after.Decide(facts.ChangedAt(now+10), clocks(now+3600)); d.Verdict != Start {
		t.Errorf("a zone that the user has changed has a 02:30 of its own: %+v", d)
	}
	spec.TimeZone = "Etc/GMT-2"
	earlier := mustParse(t, spec)
	if d := earlier.Decide(facts, clocks(now+3600)); d.Verdict != NotDue || d.Next.String() != "2026-11-24T00:30:00Z" {
		t.Errorf("02:30 comes twice: %+v", d)
	}
}

var fuzzed = []Spec{
	{Cron: "* * * * *", TimeZone: "Australia/Lord_Howe", StartingDeadline: 168 * time.Hour, CatchUp: CatchUpAll},
	{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"},
	{Cron: "0 0 29 2 *", TimeZone: "Pacific/Apia", CatchUp: CatchUpSkip, Overlap: OverlapQueue},
	{Cron: "*/7 2 1-31/3 * 1", TimeZone: "America/New_York", Overlap: OverlapReplace},
	{Cron: "17 0-23 * * *", TimeZone: "Africa/Casablanca", CatchUp: CatchUpAll, Overlap: OverlapQueue},
}

// For every Lease and every time on the clocks, a start is for a tick that is due and not settled. No tick starts twice.
func FuzzDecide(f *testing.F) {
	now := int64(1795435230)
	f.Add(uint8(0), now-90, int64(0), int64(0), int64(0), false, int64(0), int64(0), now, int64(0))
	f.Add(uint8(0), int64(1), int64(0), now-90, now-80, true, now-50, now-60, now, int64(3))
	f.Add(uint8(1), int64(-1)<<63, int64(1)<<62, int64(-1), int64(1)<<62, true, int64(-1)<<63, int64(1)<<62, int64(1)<<62, int64(-30))
	f.Add(uint8(3), now-90, now, now, now, true, now, now-900000, int64(maxStamp), int64(1))
	var parsed []*Schedule
	for _, spec := range fuzzed {
		s, err := Parse(spec)
		if err != nil {
			f.Fatal(err)
		}
		parsed = append(parsed, s)
	}
	f.Fuzz(func(t *testing.T, which uint8, settled, local, from, to int64, running bool, since, freed, wall, apart int64) {
		s := parsed[int(which)%len(parsed)]
		facts := Facts{
			Settled: Stamp(settled), Local: Stamp(local), Passed: Span{Stamp(from), Stamp(to)},
			Running: running, Since: Stamp(since), Freed: Stamp(freed),
		}
		c := Clocks{Wall: time.Unix(wall, 0), Server: time.Unix(wall, 0).Add(time.Duration(apart))}
		d := s.Decide(facts, c)
		if d.Wait < 0 || d.Wait > longestWait || d.Tally.Missed() < 0 || d.Tally.Skipped() < 0 {
			t.Fatalf("%+v", d)
		}
		if d.Verdict == Start {
			startedOnce(t, s, facts, c, d)
		}
	})
}

func startedOnce(t *testing.T, s *Schedule, facts Facts, c Clocks, d Decision) {
	t.Helper()
	if d.Tick <= facts.Settled || d.Tick > d.Now || facts.Running || !c.Server.Before(d.Tick.Time().Add(s.spec.StartingDeadline)) {
		t.Fatalf("%+v: %+v", facts, d)
	}
	started := facts.Started(d)
	if again := s.Decide(started, c); again.Verdict == Start || again.Tick != 0 && again.Tick <= d.Tick {
		t.Fatalf("%+v: started again: %+v", started, again)
	}
	ended, tally := started.Ended(s, d.Now)
	if again := s.Decide(ended, c); again.Tick != 0 && again.Tick <= d.Tick || ended.Settled < started.Settled || tally.Missed() != 0 {
		t.Fatalf("%+v: started again: %+v", ended, again)
	}
}
