package contract

import (
	"maps"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

const created = "2026-01-02T03:04:05Z"

func stamp(t testing.TB, name string) schedule.Stamp {
	t.Helper()
	s, ok := schedule.ParseStamp(name)
	if !ok {
		t.Fatal(name)
	}
	return s
}

func berlin(t testing.TB) *schedule.Schedule {
	t.Helper()
	s, err := schedule.Parse(schedule.Spec{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bySpec compares schedules by what they were parsed from.
var bySpec = cmp.Comparer(func(a, b *schedule.Schedule) bool { return a == b || a != nil && b != nil && a.Spec() == b.Spec() })

func fullRuns(t testing.TB) lease.Runs {
	t.Helper()
	tick, later := stamp(t, "2026-03-01T01:30:00Z"), stamp(t, "2026-03-01T01:30:02Z")
	past := lease.Run{
		ID: "uid/by-hand.1", Attempt: 2, Ignored: 2, State: lease.RunGivenUp, Token: 41, Pod: "job-1", Code: 137, Reason: lease.ReasonDeadlineExceeded, Began: -1, Ended: 1,
	}
	return lease.Runs{
		Now: lease.Run{
			ID: "uid/2026-03-01T01:30:00Z", Tick: tick, Attempt: 3, Ignored: 1, State: lease.RunFailed, Token: 1 << 52, Pod: "job-0", PodUID: "8a-B", Code: 3,
			Reason: lease.ReasonProcessExited, Began: 1_700_000_000_000, Ended: 1_700_000_000_001, Until: later,
		},
		Past: []lease.Run{past}, Asked: lease.Request{Name: "again", Tick: tick}, Answered: "by-hand.1", Schedule: berlin(t),
		Facts: schedule.Facts{
			Settled: tick, Local: tick + 3600, Passed: schedule.Span{From: tick + 1, To: later}, Running: true, Since: later, Freed: 7, Suspended: later,
		},
		Missed: 5, Skipped: math.MaxInt64, Previous: tick - 86400,
	}
}

func TestRunsRoundTrip(t *testing.T) {
	fields := Fields{UID: "u", ResourceVersion: "1", CreationTimestamp: created}
	none := schedule.Facts{Settled: stamp(t, created)}
	for name, runs := range map[string]lease.Runs{
		"of a job that has none": {Facts: none},
		"all there is":           fullRuns(t),
		"of one run":             {Facts: none, Now: lease.Run{ID: "uid", Attempt: 1, State: lease.RunComplete, Pod: "job-0", Token: 9}},
		"of a new schedule":      {Facts: none, Schedule: berlin(t)},
		"that are asked for":     {Facts: none, Asked: lease.Request{Name: "x"}},
		"in the year 9999": {
			Facts: schedule.Facts{Settled: lastStamp, Running: true},
			Now:   lease.Run{ID: "uid", Attempt: math.MaxInt32, Ignored: math.MaxInt32, State: lease.RunRunning, Token: math.MaxInt64, Until: lastStamp, Began: math.MinInt64, Ended: math.MaxInt64},
		},
	} {
		t.Run(name, func(t *testing.T) {
			back, err := DecodeLease(EncodeLease(lease.Record{UID: "u", Revision: 1, Runs: runs}, fields))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(runs, back.Runs, bySpec); diff != "" {
				t.Errorf("round trip (-want +got):\n%s", diff)
			}
		})
	}
	f := EncodeLease(lease.Record{UID: "u", Revision: 1, Runs: lease.Runs{Facts: none}}, fields)
	if len(f.Annotations) != 0 {
		t.Errorf("the Lease of a job without runs gets %v", f.Annotations)
	}
}

// People and the guard read these.
func TestRunsAsText(t *testing.T) {
	runs := fullRuns(t)
	runs.Now.Until, runs.Past, runs.Skipped = 0, nil, 0
	runs.Facts = schedule.Facts{Settled: runs.Now.Tick, Since: runs.Now.Tick, Running: true}
	got := EncodeLease(lease.Record{UID: "u", Runs: runs}, Fields{}).Annotations
	want := map[string]string{
		ScheduleAnnotation:   `{"cron":"30 2 * * *","timeZone":"Europe/Berlin","startingDeadline":"1h0m0s","catchUp":"Latest","overlap":"Skip"}`,
		RunRequestAnnotation: "again@2026-03-01T01:30:00Z",
		TickAnnotation:       "2026-03-01T01:30:00Z",
		RunAnnotation: `{"now":{"id":"uid/2026-03-01T01:30:00Z","tick":"2026-03-01T01:30:00Z","attempt":3,"state":"Failed","token":4503599627370496,` +
			`"pod":"job-0","podUID":"8a-B","code":3,"ignored":1,"reason":"ProcessExited","began":1700000000000,"ended":1700000000001},"answered":"by-hand.1",` +
			`"previous":"2026-02-28T01:30:00Z","missed":5,"since":"2026-03-01T01:30:00Z"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestGuardReadsRuns: the guard's expression finds the newest run in what this package writes. It ends at the state, so every field that the
// expression does not know must come after that.
func TestGuardReadsRuns(t *testing.T) {
	guard, err := os.ReadFile("../../charts/singletonjob/templates/_guard.tpl")
	if err != nil {
		t.Fatal(err)
	}
	expressions := regexp.MustCompile(`\.find\(r'([^']*"state"[^']*)'\)`).FindAllSubmatch(guard, -1)
	if len(expressions) != 1 {
		t.Fatalf("%d expressions of the guard read a run, want 1", len(expressions))
	}
	read := regexp.MustCompile(string(expressions[0][1]))
	full := fullRuns(t)
	once := full
	once.Now.Tick = 0
	for want, runs := range map[string]lease.Runs{
		`{"now":{"id":"uid/2026-03-01T01:30:00Z","tick":"2026-03-01T01:30:00Z","attempt":3,"state":"`: full,
		`{"now":{"id":"uid/2026-03-01T01:30:00Z","attempt":3,"state":"`:                               once,
	} {
		text := EncodeLease(lease.Record{UID: "u", Runs: runs}, Fields{}).Annotations[RunAnnotation]
		if got := read.FindString(text); got != want {
			t.Errorf("it finds %q, want %q, in %s", got, want, text)
		}
	}
}

// badRuns are values that nobody wrote who knows what they mean.
func badRuns(t testing.TB) map[string]map[string]string {
	t.Helper()
	good := EncodeLease(lease.Record{UID: "u", Runs: fullRuns(t)}, Fields{}).Annotations
	instead := func(annotation, of, by string) map[string]string {
		a := maps.Clone(good)
		if a[annotation] = strings.Replace(a[annotation], of, by, 1); a[annotation] == good[annotation] {
			t.Fatalf("no %q in %s", of, a[annotation])
		}
		return a
	}
	long := strings.Repeat("x", 1<<20)
	return map[string]map[string]string{
		"1 MiB of run":             {RunAnnotation: long},
		"1 MiB of tick":            {TickAnnotation: long},
		"1 MiB of schedule":        {ScheduleAnnotation: long},
		"an empty run":             {RunAnnotation: "{}"},
		"null":                     {RunAnnotation: "null"},
		"a list":                   {RunAnnotation: "[]"},
		"no JSON":                  {RunAnnotation: "Complete"},
		"of two kinds":             instead(RunAnnotation, `"attempt":3`, `"attempt":"3"`),
		"twice the same key":       instead(RunAnnotation, `"attempt":3`, `"attempt":3,"attempt":1`),
		"another case":             instead(RunAnnotation, `"attempt"`, `"Attempt"`),
		"a field of a later time":  instead(RunAnnotation, `{"now"`, `{"more":1,"now"`),
		"white space":              instead(RunAnnotation, `{"now"`, `{ "now"`),
		"more behind it":           instead(RunAnnotation, `{"now"`, `{}{"now"`),
		"no ID":                    instead(RunAnnotation, `"id":"uid/2026-03-01T01:30:00Z"`, `"id":""`),
		"an ID with a line":        instead(RunAnnotation, `"uid/2026-03-01T01:30:00Z"`, `"uid\n"`),
		"a long ID":                instead(RunAnnotation, `"uid/2026-03-01T01:30:00Z"`, `"`+strings.Repeat("i", 200)+`"`),
		"attempt 0":                instead(RunAnnotation, `"attempt":3`, `"attempt":0`),
		"a negative attempt":       instead(RunAnnotation, `"attempt":3`, `"attempt":-3`),
		"attempt 2^31":             instead(RunAnnotation, `"attempt":3`, `"attempt":2147483648`),
		"a negative ignored":       instead(RunAnnotation, `"ignored":1`, `"ignored":-1`),
		"no attempt is ignored":    instead(RunAnnotation, `"ignored":1`, `"ignored":0`),
		"more ignored than made":   instead(RunAnnotation, `"ignored":1`, `"ignored":4`),
		"an unknown state":         instead(RunAnnotation, `"Failed"`, `"Done"`),
		"a past run that is open":  instead(RunAnnotation, `"GivenUp"`, `"Running"`),
		"a negative token":         instead(RunAnnotation, `"token":41`, `"token":-41`),
		"token 2^63":               instead(RunAnnotation, `"token":41`, `"token":9223372036854775808`),
		"a fraction":               instead(RunAnnotation, `"token":41`, `"token":4.1e1`),
		"a negative code":          instead(RunAnnotation, `"code":137`, `"code":-1`),
		"a code of 2^40":           instead(RunAnnotation, `"code":137`, `"code":1099511627776`),
		"no reason's word":         instead(RunAnnotation, `"ProcessExited"`, `"it ended"`),
		"no pod's name":            instead(RunAnnotation, `"pod":"job-0"`, `"pod":"JOB 0"`),
		"negative missed":          instead(RunAnnotation, `"missed":5`, `"missed":-5`),
		"an answer to no request":  instead(RunAnnotation, `"answered":"by-hand.1"`, `"answered":"By Hand"`),
		"an instant of no second":  instead(RunAnnotation, `"2026-03-01T01:30:02Z"`, `"2026-03-01T01:30:02.5Z"`),
		"an instant elsewhere":     instead(RunAnnotation, `"2026-03-01T01:30:02Z"`, `"2026-03-01T02:30:02+01:00"`),
		"an instant before 1970":   instead(RunAnnotation, `"2026-03-01T01:30:02Z"`, `"1969-03-01T01:30:02Z"`),
		"an empty instant":         instead(RunAnnotation, `"2026-03-01T01:30:02Z"`, `""`),
		"a tick at an offset":      {TickAnnotation: "2026-03-01T02:30:00+01:00"},
		"a tick in numbers":        {TickAnnotation: "1772328600"},
		"a tick of the year 10000": {TickAnnotation: "10000-01-01T00:00:00Z"},
		"a tick in white space":    {TickAnnotation: " 2026-03-01T01:30:00Z"},
		"a tick at the dawn":       {TickAnnotation: "1970-01-01T00:00:00Z"},
		"six fields":               instead(ScheduleAnnotation, "30 2", "0 30 2"),
		"another zone":             instead(ScheduleAnnotation, "Europe/Berlin", "Europe/Bonn"),
		"no zone":                  instead(ScheduleAnnotation, "Europe/Berlin", ""),
		"no deadline":              instead(ScheduleAnnotation, `"1h0m0s"`, `"0s"`),
		"a deadline written else":  instead(ScheduleAnnotation, `"1h0m0s"`, `"60m"`),
		"two schedules":            instead(ScheduleAnnotation, `{"cron"`, `{"cron":"0 0 * * *","cron"`),
		"an overlap of neither":    instead(ScheduleAnnotation, `"Skip"`, `"Allow"`),
	}
}

// An unreadable record is reported and starts nothing. It stays as it is until a user resets it.
func TestBadRuns(t *testing.T) {
	for name, annotations := range badRuns(t) {
		t.Run(name, func(t *testing.T) {
			f := Fields{UID: "u", ResourceVersion: "1", CreationTimestamp: created, Annotations: annotations}
			r, err := DecodeLease(f)
			if err != nil || r.Runs.Bad == "" || len(r.Runs.Bad) > 128 {
				t.Fatalf("bad: %.200q, %v", r.Runs.Bad, err)
			}
			if diff := cmp.Diff(annotations, EncodeLease(r, f).Annotations); diff != "" {
				t.Errorf("written back as something else:\n%.1000s", diff)
			}
			r.Runs = lease.Runs{Facts: schedule.Facts{Settled: stamp(t, "2026-06-01T00:00:00Z")}}
			want := map[string]string{TickAnnotation: "2026-06-01T00:00:00Z"}
			if diff := cmp.Diff(want, EncodeLease(r, f).Annotations); diff != "" {
				t.Errorf("reset to something else:\n%.1000s", diff)
			}
		})
	}
}

// The operator writes the schedule, and so can write it again if that alone is bad.
func TestBadSchedule(t *testing.T) {
	want := fullRuns(t)
	f := EncodeLease(lease.Record{UID: "u", Runs: want}, Fields{})
	f.Annotations[ScheduleAnnotation] = "@daily"
	r, err := DecodeLease(f)
	if err != nil || r.Runs.Bad != ScheduleAnnotation+"=@daily" {
		t.Fatalf("bad: %q, %v", r.Runs.Bad, err)
	}
	r.Runs.Bad, r.Runs.Schedule = "", want.Schedule
	if r, err = DecodeLease(EncodeLease(r, f)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, r.Runs, bySpec); diff != "" {
		t.Error(diff)
	}
}

// No tick is due from before the Lease was there, and a tick only grows.
func TestSettled(t *testing.T) {
	const before, after = "2026-01-01T00:00:00Z", "2026-05-01T00:00:00Z"
	for name, test := range map[string]struct{ tick, created, want string }{
		"of a new Lease":        {"", created, created},
		"of a Lease restored":   {before, created, created},
		"of a tick":             {after, created, after},
		"of an unstored Lease":  {"", "", ""},
		"of a creation at +1h":  {"", "2026-01-02T04:04:05+01:00", created},
		"of a creation unknown": {after, "yesterday", after},
	} {
		f := Fields{UID: "u", ResourceVersion: "1", CreationTimestamp: test.created, Annotations: map[string]string{TickAnnotation: test.tick}}
		r, err := DecodeLease(f)
		if err != nil || r.Runs.Bad != "" || r.Runs.Facts.Settled.String() != test.want {
			t.Errorf("%s: %v, bad %q, %v", name, r.Runs.Facts.Settled, r.Runs.Bad, err)
		}
		if got := EncodeLease(r, f).Annotations[TickAnnotation]; got != test.tick {
			t.Errorf("%s: %q became %q", name, test.tick, got)
		}
		r.Runs.Facts.Settled = stamp(t, "2026-06-01T00:00:00Z")
		if got := EncodeLease(r, f).Annotations[TickAnnotation]; got != "2026-06-01T00:00:00Z" {
			t.Errorf("%s: it grows to %q", name, got)
		}
	}
}

// TestLostTickIsRestored: the last tick is at least that of the runs in the same Lease. The next run restores it.
func TestLostTickIsRestored(t *testing.T) {
	tick := stamp(t, "2026-05-01T00:00:00Z")
	run := lease.Run{ID: "uid/" + tick.String(), Tick: tick, Attempt: 1, State: lease.RunComplete}
	byHand := lease.Run{ID: "uid/x", Tick: tick + 3600, Attempt: 1, State: lease.RunRunning}
	for name, test := range map[string]struct {
		runs lease.Runs
		want string
	}{
		"the newest run": {lease.Runs{Now: run}, tick.String()},
		"one before":     {lease.Runs{Now: byHand, Past: []lease.Run{run}}, tick.String()},
		"one by hand":    {lease.Runs{Now: byHand}, created},
	} {
		t.Run(name, func(t *testing.T) {
			settled := test.runs
			settled.Facts.Settled = tick
			f := EncodeLease(lease.Record{UID: "u", Runs: settled}, Fields{CreationTimestamp: created})
			delete(f.Annotations, TickAnnotation)
			f.CreationTimestamp = created
			r, err := DecodeLease(f)
			if err != nil || r.Runs.Facts.Settled.String() != test.want {
				t.Fatalf("settled %v, want %v: %v", r.Runs.Facts.Settled, test.want, err)
			}
			if got := EncodeLease(r, f).Annotations[TickAnnotation]; got != "" {
				t.Errorf("a renewal writes %q, which the guard refuses", got)
			}
			r.Runs.Now.ID, r.Runs.Past = "uid/y", nil // all that was is forgotten
			got := EncodeLease(r, f).Annotations[TickAnnotation]
			if want := strings.TrimPrefix(test.want, created); got != want {
				t.Errorf("the next run's acquire writes %q, want %q", got, want)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	tick := stamp(t, created)
	for text, want := range map[string]lease.Request{
		"":                                {},
		"again":                           {Name: "again"},
		"again@" + created:                {Name: "again", Tick: tick},
		"again@":                          {},
		"@" + created:                     {},
		"again@2026-01-02T04:04:05+01:00": {},
		"Again":                           {},
		"a b":                             {},
		created:                           {},
		"a@b@c":                           {},
		strings.Repeat("x", 63):           {Name: strings.Repeat("x", 63)},
		strings.Repeat("x", 64):           {},
		strings.Repeat("x", 1<<20):        {},
	} {
		f := Fields{UID: "u", ResourceVersion: "1", Annotations: map[string]string{RunRequestAnnotation: text}}
		r, err := DecodeLease(f)
		if err != nil || r.Runs.Asked != want || r.Runs.Bad != "" {
			t.Errorf("%.80q: %+v, %v", text, r.Runs, err)
		}
		if got := EncodeLease(r, f).Annotations[RunRequestAnnotation]; got != text {
			t.Errorf("%.80q is written back as %.80q", text, got)
		}
		r.Runs.Asked = lease.Request{}
		if got := EncodeLease(r, f).Annotations[RunRequestAnnotation]; want.Name != "" && got != "" {
			t.Errorf("%.80q was followed, and is %.80q", text, got)
		}
	}
}

// A record that cannot be written is not written. Otherwise every reader would report it as bad.
func TestRunsStayWithinTheirBounds(t *testing.T) {
	long := strings.Repeat("x", 253)
	run := lease.Run{
		ID: strings.Repeat("i", maxRunID), Tick: math.MaxInt64, Attempt: math.MaxInt32, Ignored: math.MaxInt32, State: lease.RunGivenUp, Token: math.MaxInt64,
		Pod: long, PodUID: strings.Repeat("u", maxUID), Code: math.MaxInt, Reason: lease.Reason(strings.Repeat("R", maxWord)), Began: math.MinInt64, Ended: math.MinInt64, Until: math.MaxInt64,
	}
	most := lease.Runs{
		Now: run, Past: []lease.Run{run, run, run, run, run, run, run}, Answered: strings.Repeat("x", maxRequest), Missed: math.MaxInt64, Skipped: math.MaxInt64,
		Facts: schedule.Facts{
			Settled: math.MaxInt64, Local: math.MaxInt64, Since: math.MaxInt64, Freed: math.MaxInt64, Suspended: math.MaxInt64,
			Passed: schedule.Span{From: math.MaxInt64, To: math.MaxInt64},
		},
		Previous: math.MaxInt64,
	}
	worst := most
	worst.Now = lease.Run{ID: "uid", Tick: -1, Attempt: -1, Ignored: -1, State: "?", Token: -1, Pod: "\n", PodUID: "/", Code: -1, Reason: "no word", Until: -1}
	worst.Past = []lease.Run{{ID: "uid"}, {ID: "\n"}}
	worst.Facts = schedule.Facts{Settled: -1, Local: -1, Since: math.MinInt64, Passed: schedule.Span{From: -1, To: -1}}
	worst.Missed, worst.Answered = math.MinInt64, "Ä"
	usual := run
	usual.ID, usual.Pod, usual.Reason = strings.Repeat("i", 57), "billing-0", lease.ReasonProcessExited
	usual.Began, usual.Ended = 1<<41, 1<<41
	for name, test := range map[string]struct {
		runs lease.Runs
		past int
	}{"of greatest length": {most, 1}, "of no sense": {worst, 0}, "as they are": {lease.Runs{Now: usual, Past: []lease.Run{usual, usual, usual, usual, usual, usual}}, 5}} {
		f := EncodeLease(lease.Record{UID: "u", Runs: test.runs}, Fields{})
		text := f.Annotations[RunAnnotation]
		r, err := DecodeLease(f)
		if err != nil || r.Runs.Bad != "" || len(text) > maxRuns || len(r.Runs.Past) < test.past || r.Runs.Now.ID != test.runs.Now.ID {
			t.Errorf("%s: %d bytes, %d past runs, bad %q, %v", name, len(text), len(r.Runs.Past), r.Runs.Bad, err)
		}
		if again := EncodeLease(r, Fields{}); cmp.Diff(f, again) != "" {
			t.Errorf("%s: written otherwise the second time: %s", name, cmp.Diff(f, again))
		}
	}
}

// FuzzRuns: what a Lease says of runs is either bad, and stays as it is, or the same when it is written and read again.
func FuzzRuns(f *testing.F) {
	good := EncodeLease(lease.Record{UID: "u", Runs: fullRuns(f)}, Fields{}).Annotations
	add := func(a map[string]string) {
		f.Add(created, a[RunAnnotation], a[TickAnnotation], a[ScheduleAnnotation], a[RunRequestAnnotation])
	}
	add(good)
	for _, a := range badRuns(f) {
		add(a)
	}
	f.Add("9999-12-31T23:59:59Z", "", "9999-12-31T23:59:59Z", "", "-@9999-12-31T23:59:59Z")
	f.Fuzz(func(t *testing.T, creation, run, tick, plan, asked string) {
		fields := Fields{UID: "u", ResourceVersion: "1", CreationTimestamp: creation, Annotations: map[string]string{
			RunAnnotation: run, TickAnnotation: tick, ScheduleAnnotation: plan, RunRequestAnnotation: asked,
		}}
		r, err := DecodeLease(fields)
		if err != nil {
			t.Fatal(err)
		}
		back := EncodeLease(r, fields)
		if diff := cmp.Diff(fields.Annotations, back.Annotations); diff != "" {
			t.Fatalf("it is not left as it is:\n%s", diff)
		}
		if r.Runs.Bad != "" {
			return
		}
		// Written again, it is the same.
		fresh := EncodeLease(r, Fields{CreationTimestamp: creation})
		again, err := DecodeLease(fresh)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r.Runs, again.Runs, bySpec); diff != "" {
			t.Errorf("read again as another:\n%s", diff)
		}
		if now := r.Runs.Now; now.ID != "" && now.Attempt < 1 || now.Ignored < 0 || now.Ignored > now.Attempt || now.Token < 0 || r.Runs.Facts.Running != now.Open() || r.Runs.Missed < 0 {
			t.Errorf("read as %+v", r.Runs)
		}
	})
}

// BenchmarkDecode reads a Lease, with runs and without.
func BenchmarkDecode(b *testing.B) {
	runs := fullRuns(b)
	runs.Past = []lease.Run{runs.Past[0], runs.Past[0], runs.Past[0], runs.Past[0], runs.Past[0]}
	for name, f := range map[string]Fields{
		"runs": EncodeLease(lease.Record{UID: "u", Revision: 1, Runs: runs}, Fields{CreationTimestamp: created}),
		"none": {UID: "u", ResourceVersion: "1", CreationTimestamp: created},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if r, err := DecodeLease(f); err != nil || r.Runs.Bad != "" {
					b.Fatal(r.Runs.Bad, err)
				}
			}
		})
	}
}

func TestRunConfig(t *testing.T) {
	full := func() *RunConfig {
		return &RunConfig{JobUID: "0f3c", BackoffLimit: 6, ActiveDeadline: Duration(time.Hour), FailCodes: []int32{2, 255}, IgnoreCodes: []int32{3}, Leaves: true}
	}
	config := valid()
	config.Run = full()
	got, err := DecodeConfig(config.Encode())
	if err != nil {
		t.Fatal(err)
	}
	want := &lease.RunPolicy{UID: "0f3c", BackoffLimit: 6, ActiveDeadline: time.Hour, FailCodes: []int32{2, 255}, IgnoreCodes: []int32{3}, Leaves: true}
	if diff := cmp.Diff(want, got.Lease(lease.Identity{}, "", false).Runs); diff != "" {
		t.Error(diff)
	}
	if c := valid(); c.Lease(lease.Identity{}, "", false).Runs != nil || strings.Contains(c.Encode(), `"run"`) {
		t.Errorf("a job that runs for ever has runs: %s", c.Encode())
	}
	for name, test := range map[string]struct {
		spoil func(*AgentConfig)
		want  string
	}{
		"no UID":              {func(c *AgentConfig) { c.Run.JobUID = "" }, "run.jobUID"},
		"a UID with a slash":  {func(c *AgentConfig) { c.Run.JobUID = "a/b" }, `run.jobUID "a/b"`},
		"a long UID":          {func(c *AgentConfig) { c.Run.JobUID = strings.Repeat("x", 65) }, "64"},
		"negative attempts":   {func(c *AgentConfig) { c.Run.BackoffLimit = -1 }, "run.backoffLimit -1"},
		"a negative deadline": {func(c *AgentConfig) { c.Run.ActiveDeadline = -1 }, "run.activeDeadline -1ns"},
		"success as failure":  {func(c *AgentConfig) { c.Run.FailCodes = []int32{0} }, "run.failCodes 0"},
		"success is ignored":  {func(c *AgentConfig) { c.Run.IgnoreCodes = []int32{0} }, "run.ignoreCodes 0"},
		"no exit code":        {func(c *AgentConfig) { c.Run.FailCodes = []int32{256} }, "run.failCodes 256"},
		"it must not end":     {func(c *AgentConfig) { c.KeepRunning = true }, "keepRunning and run"},
	} {
		c := valid()
		c.Run = full()
		test.spoil(&c)
		if _, err := DecodeConfig(c.Encode()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
