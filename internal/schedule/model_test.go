package schedule

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/tier"
)

// The model is a ledger with a line for each tick of a simulated time, found by walking over each minute. It follows the rules of
// the policies tick by tick, without Settled, spans or counts, and predicts each decision.

type fate uint8

const (
	open  fate = iota // nothing became of it yet
	taken             // came due during a run, under OverlapSkip
	ran
	done // missed or skipped
	unborn
)

type line struct {
	tick Stamp
	fate fate
}

// world is one simulated time of one schedule.
type world struct {
	t    *testing.T
	r    *rand.Rand
	spec Spec
	s    *Schedule
	y    year

	now      time.Time // what time it is
	wall     time.Duration
	server   time.Duration // how wrong the clocks are
	facts    Facts
	lines    []line            // the first line is not settled
	past     [unborn + 1]int64 // lines that were settled and dropped
	tally    Tally
	runs     []Stamp
	over     time.Time // when enough has been seen
	begun    Stamp
	ends     time.Time // of the run under way
	running  bool
	freed    Stamp
	chain    Stamp // when the first run of a backlog began; 0 if nothing waits
	suspend  Stamp
	away     bool // no candidate
	verdicts map[Verdict]int
	seen     Tally
}

var deadlines = []time.Duration{10 * time.Second, 90 * time.Second, 10 * time.Minute, time.Hour, 7 * time.Hour, 168 * time.Hour}

func newWorld(t *testing.T, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1309))
	w := &world{t: t, r: r, verdicts: map[Verdict]int{}}
	place := r.IntN(len(places))
	w.y = walks[place]()
	d := draw(r, int(seed%3))
	w.spec = Spec{
		Cron: d.text, TimeZone: places[place].zone, StartingDeadline: deadlines[r.IntN(len(deadlines))],
		CatchUp: []CatchUp{CatchUpSkip, CatchUpLatest, CatchUpAll}[r.IntN(3)],
		Overlap: []Overlap{OverlapSkip, OverlapQueue, OverlapReplace}[r.IntN(3)],
	}
	if w.spec.CatchUp == CatchUpAll && w.spec.Overlap == OverlapReplace {
		w.spec.Overlap = OverlapSkip
	}
	var err error
	if w.s, err = Parse(w.spec); err != nil {
		t.Fatal(err)
	}
	begin := w.y.begin + 3*daySeconds
	if turns := w.y.turns; len(turns) > 0 {
		begin = max(begin, turns[r.IntN(len(turns))]-Stamp(r.IntN(3*daySeconds)))
	}
	w.now = begin.Time().Add(time.Duration(r.Int64N(int64(time.Hour))))
	created, _ := StampOf(w.now)
	const enough = 250
	w.facts.Settled = created
	for _, tick := range d.ticks(w.y, created+1, enough) {
		w.lines = append(w.lines, line{tick: tick})
	}
	if n := len(w.lines); n > 0 { // a clock that is a day ahead also needs the last lines
		w.over = min(w.lines[min(n, enough)-1].tick, w.lines[n-1].tick-daySeconds-minuteSeconds).Time()
	}
	return w
}

func (w *world) clocks() Clocks {
	return Clocks{Wall: w.now.Add(w.wall), Server: w.now.Add(w.server).Truncate(time.Second)}
}

// settled reports whether the outcome of a line is final.
func (l line) settled() bool { return l.fate >= ran }

// expect is the decision that the rules give.
func (w *world) expect(c Clocks) (want Decision) {
	if d := c.Wall.Sub(c.Server); d > 30*time.Second || d < -30*time.Second {
		return Decision{Verdict: ClocksDisagree}
	}
	now := Stamp(min(c.Wall.Unix(), c.Server.Unix()))
	want.Verdict, want.Now = NotDue, now
	switch {
	case w.suspend != 0:
		want.Verdict = Suspended
		return want
	case w.facts.Settled > now:
		want.Verdict = map[bool]Verdict{true: Ahead, false: NotDue}[w.facts.Settled.Time().Sub(c.Now()) > time.Minute]
		return want
	case w.running:
		want.Verdict = Running
	}
	due, became := w.sort(c, now)
	due = w.pick(c, due, became)
	switch {
	case len(due) > 0 && !w.running:
		want.Verdict, want.Tick = Start, due[0]
	case len(due) > 0 && w.spec.Overlap == OverlapReplace:
		want.Verdict, want.Tick = Replace, due[0]
	}
	for _, l := range w.lines {
		if o, ok := became[l.tick]; ok && (want.Tick == 0 || l.tick < want.Tick) {
			want.Tally.list(o, []Stamp{l.tick})
		}
	}
	return want
}

// sort separates due lines from lines with an outcome.
func (w *world) sort(c Clocks, now Stamp) (due []Stamp, became map[Stamp]Outcome) {
	became = map[Stamp]Outcome{}
	for _, l := range w.lines {
		switch {
		case l.tick > now || l.settled():
		case l.fate == taken, w.running && w.spec.Overlap == OverlapSkip && l.tick > w.begun:
			became[l.tick] = Overlapped
		case !c.Server.Before(l.tick.Time().Add(w.spec.StartingDeadline)):
			became[l.tick] = Expired
		default:
			due = append(due, l.tick)
		}
	}
	return due, became
}

// pick keeps the lines to catch up.
func (w *world) pick(c Clocks, due []Stamp, became map[Stamp]Outcome) []Stamp {
	for ; w.spec.CatchUp != CatchUpAll && len(due) > 1; due = due[1:] {
		became[due[0]] = Overtaken
	}
	for ; len(due) > 100; due = due[1:] {
		became[due[0]] = Backlog
	}
	if w.spec.CatchUp == CatchUpSkip && len(due) > 0 && !w.running && c.Server.Sub(max(due[0], w.freed).Time()) >= time.Minute {
		became[due[0]] = Late
		return nil
	}
	return due
}

// step decides and compares with the model.
func (w *world) step() Decision {
	for ; len(w.lines) > 0 && w.lines[0].settled(); w.lines = w.lines[1:] {
		w.past[w.lines[0].fate]++
	}
	c := w.clocks()
	got, want := w.s.Decide(w.facts, c), w.expect(c)
	w.verdicts[got.Verdict]++
	for o := range got.Tally {
		w.seen[o].Count += got.Tally[o].Count
	}
	if got.Verdict != want.Verdict || got.Tick != want.Tick || got.Now != want.Now || got.Tally != want.Tally {
		w.t.Fatalf("%+v at %s, clocks %s and %s, %+v:\n got %+v\nwant %+v", w.spec, w.now, w.wall, w.server, w.facts, got, want)
	}
	if got.Tick != 0 && got.Local.Time().Format(time.DateTime) != w.s.LocalTime(got.Tick).Format(time.DateTime) {
		w.t.Fatalf("%s is said to be %s by its zone's clock", got.Tick, got.Local)
	}
	if known := got.Verdict != ClocksDisagree && got.Verdict != Suspended; known {
		w.checkNext(got)
	}
	return got
}

// checkNext compares a decision with the first line after now.
func (w *world) checkNext(d Decision) {
	for _, l := range w.lines {
		if l.tick <= max(d.Now, w.facts.Settled) {
			continue
		}
		if d.Next != l.tick {
			w.t.Fatalf("%+v at %s: the next tick is said to be %s, and is %s", w.spec, w.now, d.Next, l.tick)
		}
		return
	}
}

func (w *world) count(t Tally) {
	for o := range t {
		w.tally.add(Outcome(o), t[o])
	}
}

func (w *world) start(d Decision) {
	for i := range w.lines {
		switch l := &w.lines[i]; {
		case l.tick == d.Tick:
			if l.fate != open || len(w.runs) > 0 && d.Tick <= w.runs[len(w.runs)-1] {
				w.t.Fatalf("%+v: %s is started again, or after a newer one", w.spec, d.Tick)
			}
			if n := d.Now; n < d.Tick {
				w.t.Fatalf("%s is started at %s", d.Tick, n)
			}
			l.fate = ran
		case l.tick < d.Tick && !l.settled():
			l.fate = done
		}
	}
	if w.chain > d.Now { // both clocks were wrong: the taken ticks are still to come
		w.chain = 0
		for i := range w.lines {
			if l := &w.lines[i]; l.fate == taken {
				l.fate = open
			}
		}
	}
	w.runs = append(w.runs, d.Tick)
	w.facts = w.facts.Started(d)
	w.count(d.Tally)
	w.running, w.begun = true, d.Now
	length := time.Duration(w.r.ExpFloat64() * float64([]time.Duration{time.Second, 5 * time.Minute, 3 * time.Hour}[w.r.IntN(3)]))
	w.ends = w.now.Add(length)
}

// waits reports whether there is an open line that came due up to an instant.
func (w *world) waits(upTo Stamp) bool {
	return slices.ContainsFunc(w.lines, func(l line) bool { return l.fate == open && l.tick <= upTo })
}

// end ends the run. Under OverlapSkip, the run takes up the ticks that came due during it, and those in the pause before it if
// older ticks waited then.
func (w *world) end() {
	at := Stamp(w.clocks().Now().Unix())
	if w.suspend != 0 {
		at = min(at, w.suspend)
	}
	at = max(at, w.begun)
	w.running, w.freed = false, at
	if w.spec.Overlap == OverlapSkip {
		if w.chain == 0 || !w.waits(w.chain) {
			w.chain = w.begun
		}
		for i := range w.lines {
			if l := &w.lines[i]; l.fate == open && l.tick > w.chain && l.tick <= at {
				l.fate = taken
			}
		}
	}
	var t Tally
	w.facts, t = w.facts.Ended(w.s, at)
	w.count(t)
	for i := range w.lines { // what Settled has passed
		if l := &w.lines[i]; l.fate == taken && l.tick <= w.facts.Settled {
			l.fate = done
		}
	}
}

func (w *world) resume() {
	at := Stamp(w.clocks().Server.Unix())
	for i := range w.lines {
		switch l := &w.lines[i]; {
		case l.settled() || l.tick > at:
		case l.tick <= w.suspend:
			l.fate = done
		default:
			l.fate = unborn
		}
	}
	var t Tally
	w.facts, t = w.facts.Resumed(w.s, at)
	w.count(t)
	w.suspend = 0
	w.begun = max(w.begun, at)
}

// chaos changes things that can go wrong.
func (w *world) chaos() {
	wrong := []time.Duration{0, 0, 0, time.Second, -3 * time.Second, 20 * time.Second, -20 * time.Second, 5 * time.Minute, -time.Hour, 24 * time.Hour, -24 * time.Hour}
	switch w.r.IntN(8) {
	case 0:
		w.wall, w.server = wrong[w.r.IntN(len(wrong))], 0
	case 1:
		w.wall, w.server = 0, wrong[w.r.IntN(len(wrong))]
	case 2:
		w.wall = wrong[w.r.IntN(len(wrong))]
		w.server = w.wall
	case 3:
		w.away = true
	case 4:
		if w.suspend == 0 {
			w.suspend = Stamp(w.clocks().Server.Unix())
			w.facts = w.facts.SuspendedAt(w.suspend)
		}
	default:
		w.away, w.wall, w.server = false, 0, 0
		if w.suspend != 0 {
			w.resume()
		}
	}
}

// live advances time until all lines are in the past.
func (w *world) live() {
	if len(w.lines) == 0 {
		return
	}
	period := max(w.over.Sub(w.now)/250, time.Minute)
	trouble := func() time.Time {
		return w.now.Add(time.Duration(w.r.ExpFloat64() * float64([]time.Duration{10 * time.Minute, period, 20 * period}[w.r.IntN(3)])))
	}
	for next := trouble(); w.now.Before(w.over); {
		look := next
		if !w.away {
			d := w.step()
			switch d.Verdict {
			case Start:
				w.start(d)
				continue
			case Replace:
				w.now = w.now.Add(time.Duration(w.r.Int64N(int64(40 * time.Second)))) // it stops, in its own time
				w.end()
				continue
			default:
			}
			if d.Wait > 0 {
				look = w.now.Add(d.Wait + time.Duration(w.r.Int64N(int64(time.Second))))
			}
		}
		if w.running && w.ends.Before(look) {
			look = w.ends
		}
		if !look.Before(next) {
			w.now = next
			w.chaos()
			next = trouble()
			continue
		}
		w.now = look
		if w.running && !w.now.Before(w.ends) {
			w.end()
		}
	}
}

// check verifies that each tick is accounted for once.
func (w *world) check() {
	n := w.past
	for _, l := range w.lines {
		n[l.fate]++
	}
	if int64(len(w.runs)) != n[ran] || w.tally.Missed()+w.tally.Skipped() != n[done] {
		w.t.Errorf("%+v: %d runs and %d missed, %d skipped; the ledger has %v", w.spec, len(w.runs), w.tally.Missed(), w.tally.Skipped(), n)
	}
	if !slices.IsSorted(w.runs) || len(slices.Compact(slices.Clone(w.runs))) != len(w.runs) {
		w.t.Errorf("%+v: the runs are %v", w.spec, w.runs)
	}
}

// The number of simulated times, and the first seed: go test ./internal/schedule -run TestEachTick -seeds=10000 -first-seed=1000.
var (
	seeds     = flag.Uint64("seeds", enoughSeeds, "through how `many` simulated times TestEachTickIsAccountedFor goes")
	firstSeed = flag.Uint64("first-seed", 0, "the `number` of the first of them")
)

// enoughSeeds is a number of seeds with which everything that can happen does happen.
const enoughSeeds = 160

// Each tick of a simulated time is run once, or missed or skipped for the reason that the rules give, in order, whatever fails.
func TestEachTickIsAccountedFor(t *testing.T) {
	t.Parallel()
	const workers = 4
	all := tier.Seeds(t, *seeds, *seeds)
	verdicts, tallies := make([]map[Verdict]int, workers), make([]Tally, workers)
	t.Run("seeds", func(t *testing.T) {
		for i := range workers {
			verdicts[i] = map[Verdict]int{}
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for n := i; n < len(all) && !t.Failed(); n += workers {
					goThrough(t, *firstSeed+all[n], verdicts[i], &tallies[i])
				}
			})
		}
	})
	if *seeds < enoughSeeds {
		return
	}
	for _, v := range []Verdict{Start, Replace, NotDue, Running, Suspended, ClocksDisagree, Ahead} {
		n := 0
		for _, seen := range verdicts {
			n += seen[v]
		}
		if n == 0 {
			t.Errorf("no world has come to %s", v)
		}
	}
	for o := range outcomes {
		var n int64
		for _, seen := range tallies {
			n += seen[o].Count
		}
		if n == 0 {
			t.Errorf("no tick was %s", o)
		}
	}
}

// goThrough runs one simulated time, and returns what happened in it.
func goThrough(t *testing.T, seed uint64, verdicts map[Verdict]int, tally *Tally) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("again: -first-seed=%d -seeds=1", seed)
		}
	}()
	w := newWorld(t, seed)
	w.live()
	w.check()
	for v, n := range w.verdicts {
		verdicts[v] += n
	}
	for o := range w.seen {
		tally[o].Count += w.tally[o].Count + w.seen[o].Count
	}
}
