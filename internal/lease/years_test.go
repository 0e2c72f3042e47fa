package lease

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/schedule"
	"github.com/singletonjob/operator/test/tier"
)

// A year of two candidates, in real zones. The started runs are compared with a walk over the year that knows only what a zone's clock
// shows at each minute.

type year struct {
	t          *testing.T
	r          *rand.Rand
	s          *schedule.Schedule
	ticks      []schedule.Stamp
	store      Record
	candidates [2]*driver
	ends       [2]Instant // of their processes, 0 for none
	wall       [2]time.Duration
	chaos      bool
	lasts      time.Duration // a run, on average
	now        Instant
	started    map[schedule.Stamp]bool
	latest     time.Duration
}

// shapes are crons of which the meaning is known without parsing them.
var shapes = []struct {
	cron     string
	realTime bool
	matches  func(civil time.Time) bool
}{
	{"30 2 * * *", false, func(c time.Time) bool { return c.Hour() == 2 && c.Minute() == 30 }},
	{"0 0 * * *", false, func(c time.Time) bool { return c.Hour() == 0 && c.Minute() == 0 }},
	{"15 */6 * * *", true, func(c time.Time) bool { return c.Hour()%6 == 0 && c.Minute() == 15 }},
}

// walk finds the ticks of a year.
func walk(s *schedule.Schedule, shape int, from, to schedule.Stamp) (ticks []schedule.Stamp) {
	const minutes = 5 // of which all that is said here is a multiple
	civil := func(at schedule.Stamp) time.Time { return s.Local(at).Time() }
	from = from / (minutes * 60) * minutes * 60
	reached := civil(from)
	for at := from + minutes*60; at <= to; at += minutes * 60 {
		shows := civil(at)
		due := shapes[shape].realTime && shapes[shape].matches(shows)
		for ; !shapes[shape].realTime && reached.Before(shows); due = due || shapes[shape].matches(reached) {
			reached = reached.Add(minutes * time.Minute)
		}
		if due {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

// do steps a candidate and carries out what it asks for.
func (y *year) do(i int, e Event) {
	d := y.candidates[i]
	setAhead = func() int64 { return int64(y.wall[i] / time.Microsecond) }
	d.now = y.now
	d.step(e)
	for _, action := range slices.Clone(d.actions) {
		switch a := action.(type) {
		case SendRead:
			r := y.store
			y.do(i, ReadDone{ID: a.ID, Found: &r, Date: int64(y.now / second)})
		case SendWrite:
			y.write(i, a.Attempt)
		case StartChild:
			y.ends[i] = y.now.Add(time.Duration(y.r.ExpFloat64() * float64(y.lasts)))
		case SignalChild:
			y.ends[i] = min(y.ends[i], y.now.Add(2*time.Second))
		case KillTree:
			y.ends[i] = 0
			y.do(i, TreeGone{})
		}
	}
}

func (y *year) write(i int, w Attempt) {
	if w.Record.Revision != y.store.Revision {
		y.do(i, WriteDone{Nonce: w.Nonce, Outcome: Conflict})
		return
	}
	was := y.store
	y.store = w.Record
	y.store.Revision++
	y.stored(was.Runs, y.store.Runs)
	r := y.store
	if y.chaos && y.r.IntN(20) == 0 {
		y.do(i, WriteDone{Nonce: w.Nonce})
	} else {
		y.do(i, WriteDone{Nonce: w.Nonce, Outcome: Confirmed, Record: &r})
	}
	y.do(1-i, Watched{Record: r})
}

// stored judges what was: each tick is run at most once, and each up to Settled is run or counted.
func (y *year) stored(was, is Runs) {
	if is.Now.ID != was.Now.ID {
		tick := is.Now.Tick
		if _, known := slices.BinarySearch(y.ticks, tick); !known || y.started[tick] || is.Now.Attempt != 1 {
			y.t.Fatalf("started %+v: a tick %v, started before %v", is.Now, known, y.started[tick])
		}
		y.started[tick] = true
		y.latest = max(y.latest, time.Duration(y.now)-time.Duration(tick)*time.Second)
	}
	passed, last := slices.BinarySearch(y.ticks, is.Facts.Settled)
	if last {
		passed++
	}
	if told := int64(len(y.started)) + is.Missed + is.Skipped; told != int64(passed) {
		y.t.Fatalf("%d ticks until %s, and %d run, %d missed, %d skipped", passed, is.Facts.Settled, len(y.started), is.Missed, is.Skipped)
	}
}

// trouble changes what is wrong.
func (y *year) trouble() {
	i := y.r.IntN(2)
	y.wall = [2]time.Duration{}
	switch y.r.IntN(5) {
	case 0:
		y.wall[i] = time.Duration(y.r.IntN(2*86400)-86400) * time.Second
	case 1:
		y.wall[i] = time.Duration(y.r.IntN(60)-30) * time.Second
	case 2: // its node is lost, and another comes
		y.joins(i)
	case 3: // nobody can start anything
		y.wall = [2]time.Duration{24 * time.Hour, -24 * time.Hour}
	default:
	}
}

func (y *year) joins(i int) {
	c := runConfig()
	c.Duration, c.RenewDeadline, c.RetryPeriod = 10*time.Minute, 6*time.Minute, 100*time.Second // a year has few renewals then
	c.Identity = Identity{Pod: fmt.Sprint("p-", i), PodUID: fmt.Sprint(y.now), Nonce: "1"}
	y.candidates[i], y.ends[i] = drive(c), 0
	y.do(i, WatchOpened{})
}

func (y *year) live(until Instant) {
	next := y.now
	for y.now < until {
		at, who := until, -1
		for i, d := range y.candidates {
			if d.s.Wake < at {
				at, who = d.s.Wake, i
			}
			if y.ends[i] != 0 && y.ends[i] < at {
				at, who = y.ends[i], i
			}
		}
		if y.chaos && next < at {
			y.now = max(next, y.now)
			next = y.now.Add(time.Duration(y.r.ExpFloat64() * float64(5*time.Hour)))
			y.trouble()
			continue
		}
		if y.now = max(y.now, at); who < 0 {
			return
		}
		if y.ends[who] == 0 || y.ends[who] > y.now {
			y.do(who, Ticked{})
			continue
		}
		code := 0
		if y.chaos && y.r.IntN(4) == 0 {
			code = 1
		}
		y.ends[who] = 0
		y.do(who, ChildExited{Code: code, Crashed: code != 0})
	}
}

// yearsOf are those in which clocks are set in unlike ways, as package schedule's own tests have them. An Instant ends before year 9997.
var yearsOf = []struct {
	zone string
	year int
}{
	{"Europe/Berlin", 2026},
	{"America/New_York", 2007},
	{"Australia/Lord_Howe", 2025},
	{"Pacific/Apia", 2011},
	{"Africa/Casablanca", 2024},
	{"America/Sao_Paulo", 2018},
	{"Antarctica/Troll", 2016},
	{"Europe/Dublin", 2025},
	{"Europe/Berlin", 1980},
	{"America/New_York", 2040},
	{"Pacific/Kwajalein", 1993},
	{"Africa/Cairo", 2014},
	{"America/Caracas", 2016},
	{"Asia/Kathmandu", 1986},
	{"Asia/Pyongyang", 2018},
	{"Antarctica/Casey", 2010},
	{"Etc/UTC", 2026},
}

var startingDeadlines = []time.Duration{time.Minute, time.Hour, 7 * time.Hour}

// policies are all there are of catching up and overlapping.
func policies() (all []schedule.Spec) {
	for _, catchUp := range []schedule.CatchUp{schedule.CatchUpLatest, schedule.CatchUpSkip, schedule.CatchUpAll} {
		for _, overlap := range []schedule.Overlap{schedule.OverlapSkip, schedule.OverlapQueue, schedule.OverlapReplace} {
			if catchUp != schedule.CatchUpAll || overlap != schedule.OverlapReplace {
				all = append(all, schedule.Spec{CatchUp: catchUp, Overlap: overlap})
			}
		}
	}
	return all
}

// live has two candidates live from one instant to another.
func live(t *testing.T, spec schedule.Spec, shape int, begin, end schedule.Stamp, y *year) {
	t.Helper()
	spec.Cron = shapes[shape].cron
	s, err := schedule.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	y.t, y.s, y.ticks, y.now, y.started = t, s, walk(s, shape, begin, end), Instant(begin)*second, map[schedule.Stamp]bool{}
	y.store = idle(Runs{Schedule: s, Facts: schedule.Facts{Settled: begin}})
	y.candidates = [2]*driver{drive(runConfig()), drive(runConfig())}
	y.joins(0)
	y.joins(1)
	y.live(Instant(end) * second)
	if t.Failed() {
		t.Fatalf("%+v", spec)
	}
	if all := len(y.started) == len(y.ticks); !y.chaos && (!all || y.latest > 2*time.Second) {
		t.Errorf("%+v from %s: %d of %d ticks run, %v late at most", spec, begin, len(y.started), len(y.ticks), y.latest)
	}
}

// Whole years: what is far from any turn of a clock is run, too.
func TestYearsOfRuns(t *testing.T) {
	t.Cleanup(func() { setAhead = func() int64 { return 0 } })
	first := tier.Seed(t, 0)
	for n, zone := range yearsOf[:len(shapes)] {
		spec := policies()[3*n]
		spec.TimeZone, spec.StartingDeadline = zone.zone, startingDeadlines[n]
		begin := schedule.Stamp(time.Date(zone.year, 1, 1, 0, 0, 30, 0, time.UTC).Unix())
		end := schedule.Stamp(time.Date(zone.year+1, 1, 2, 12, 0, 0, 0, time.UTC).Unix())
		for _, chaos := range []bool{false, true} {
			y := &year{r: rand.New(rand.NewPCG(first+uint64(n), 1)), chaos: chaos, lasts: 5 * time.Minute}
			live(t, spec, n, begin, end, y)
			if chaos && len(y.started) < len(y.ticks)/2 {
				t.Errorf("%+v: %d of %d ticks run", spec, len(y.started), len(y.ticks))
			}
		}
	}
}

const daySeconds = 24 * 60 * 60

// turns are when a zone's clock is set in a year, to the hour; its first day where it never is.
func turns(t *testing.T, zone string, year int) (all []schedule.Stamp) {
	t.Helper()
	s, err := schedule.Parse(schedule.Spec{Cron: "0 0 * * *", TimeZone: zone})
	if err != nil {
		t.Fatal(err)
	}
	first := schedule.Stamp(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
	for at := first - daySeconds; at < first+366*daySeconds; at += 3600 {
		if s.Local(at)-at != s.Local(at+3600)-at-3600 {
			all = append(all, at)
		}
	}
	if len(all) == 0 {
		all = append(all, first)
	}
	return all
}

// How often, each time with other chances: go test ./internal/lease -run TestTurnsOfRuns -rounds=12.
var rounds = flag.Int("rounds", 1, "how `often` TestTurnsOfRuns goes around; three times meet each zone and policy with each cron and deadline")

// The days around each turn of a clock, under every policy: once without faults, and once with runs that overlap and every fault of
// candidates and clocks. The policies together meet each cron and each deadline.
func TestTurnsOfRuns(t *testing.T) {
	t.Cleanup(func() { setAhead = func() int64 { return 0 } })
	first := tier.Seed(t, 0)
	for round := range *rounds {
		for n, zone := range yearsOf {
			at := turns(t, zone.zone, zone.year)
			for i, spec := range policies() {
				spec.TimeZone, spec.StartingDeadline = zone.zone, startingDeadlines[(n+i/3+round)%3]
				turn, shape := at[(i+round)%len(at)], (n+i+round)%3
				seed := rand.NewPCG(first+uint64(n+round*len(yearsOf)), uint64(i))
				live(t, spec, shape, turn-3*daySeconds+30, turn+3*daySeconds+30, &year{r: rand.New(seed), lasts: 5 * time.Minute})
				live(t, spec, shape, turn-3*daySeconds+30, turn+3*daySeconds+30, &year{r: rand.New(seed), lasts: 5 * time.Hour, chaos: true})
			}
		}
	}
}
