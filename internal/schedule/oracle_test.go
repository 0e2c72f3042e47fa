package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The oracle uses only the zone's clock at each minute of a year, and the two rules.

// minute is one minute of UTC as a zone's clock shows it.
type minute struct {
	civil                          int64 // in minutes
	min, hour, day, month, weekday int8
}

// year is all minutes of a year in a zone, from two days before it to two days after it.
type year struct {
	name    string
	begin   Stamp // the first minute
	minutes []minute
	turns   []Stamp // when the clock was set
}

var places = []struct {
	zone string
	year int
	why  string
}{
	{"Europe/Berlin", 2026, "one hour, at night"},
	{"Europe/Berlin", 1980, "the first summer time"},
	{"Europe/Berlin", 9997, "by the rule behind the table"},
	{"America/New_York", 2007, "another rule than the year before"},
	{"America/New_York", 2040, "beyond 32 bits, and a leap year beyond the table"},
	{"Australia/Lord_Howe", 2025, "half an hour"},
	{"Pacific/Apia", 2011, "30 December never was"},
	{"Pacific/Kwajalein", 1993, "21 August never was"},
	{"Africa/Casablanca", 2024, "winter time for Ramadan"},
	{"Africa/Cairo", 2014, "set four times"},
	{"America/Sao_Paulo", 2018, "midnight is skipped"},
	{"America/Caracas", 2016, "half an hour, for good"},
	{"Asia/Kathmandu", 1986, "a quarter of an hour, for good, at new year"},
	{"Asia/Pyongyang", 2018, "half an hour at 23:30"},
	{"Antarctica/Casey", 2010, "three hours back"},
	{"Antarctica/Troll", 2016, "two hours"},
	{"Europe/Dublin", 2025, "summer time is the standard"},
	{"Etc/UTC", 2026, "never set"},
}

// walks caches the year of each place.
var walks = func() (all []func() year) {
	for _, p := range places {
		all = append(all, sync.OnceValue(func() year {
			z, err := loadZone(p.zone)
			if err != nil {
				panic(err)
			}
			return walkYear(fmt.Sprintf("%s in %d", p.zone, p.year), z.location, p.year)
		}))
	}
	return all
}()

func walkYear(name string, in *time.Location, number int) year {
	const often = 5 // minutes: clocks were set only at multiples of this
	from := time.Date(number, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, -2)
	y := year{name: name, begin: Stamp(from.Unix()), minutes: make([]minute, 370*24*60)}
	offset, day := 0, minute{civil: -1}
	for i := range y.minutes {
		at := from.Unix() + int64(i)*60
		if i%often == 0 {
			_, now := time.Unix(at, 0).In(in).Zone()
			if i > 0 && now != offset {
				y.turns = append(y.turns, Stamp(at))
			}
			offset = now
		}
		civil := (at + int64(offset)) / 60
		if today := civil / (24 * 60); today != day.civil {
			day = dayOf(today)
		}
		y.minutes[i] = day.at(civil)
	}
	return y
}

func dayOf(day int64) minute {
	date := time.Unix(day*24*60*60, 0).UTC()
	return minute{civil: day, day: int8(date.Day()), month: int8(date.Month()), weekday: int8(date.Weekday())}
}

func (m minute) at(civil int64) minute {
	m.civil, m.hour, m.min = civil, int8(civil/60%24), int8(civil%60)
	return m
}

// drawn is a cron text whose meaning is known without parsing it.
type drawn struct {
	text     string
	sets     [5][61]bool
	anyDay   bool // one of the day fields is a star
	realTime bool
}

var fields = [5]struct{ low, high int }{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}

// draw generates a cron with a tick every few minutes, hours or days, for density 0, 1 or 2.
func draw(r *rand.Rand, density int) drawn {
	var d drawn
	words := make([]string, 5)
	for i := range words {
		star := r.IntN(3) > 0
		switch i {
		case 0:
			star = density == 0 && r.IntN(2) == 0
		case 1:
			star = density < 2 && r.IntN(2) == 0
		}
		words[i] = d.field(r, i, star, density == 0)
	}
	if words[2] != "*" && words[4] != "*" && strings.Contains(words[2]+words[4], "*") {
		words[2] = d.field(r, 2, true, false)
	}
	d.anyDay = words[2] == "*" || words[4] == "*"
	d.realTime = strings.Contains(words[0]+words[1], "*")
	d.text = strings.Join(words, " ")
	return d
}

func (d *drawn) field(r *rand.Rand, i int, star, many bool) string {
	f := fields[i]
	d.sets[i] = [61]bool{}
	set := func(from, to, step int) {
		for v := from; v <= to; v += step {
			d.sets[i][v] = true
		}
	}
	one := func() int { return f.low + r.IntN(f.high-f.low+1) }
	if i == 2 {
		one = func() int { return 1 + r.IntN(28) } // some month has it
	}
	if i == 1 {
		one = func() int { return []int{0, 1, 2, 2, 2, 3, 23, r.IntN(24)}[r.IntN(8)] } // where clocks are set
	}
	switch {
	case star:
		set(f.low, f.high, 1)
		return "*"
	case many && r.IntN(2) == 0 || r.IntN(5) == 0:
		step := 2 + r.IntN(f.high-f.low-1)
		if many {
			step = 2 + r.IntN(min(20, f.high-f.low-1))
		}
		set(f.low, f.high, step)
		if r.IntN(3) == 0 && i != 2 && i != 4 {
			return "*/" + strconv.Itoa(step)
		}
		return fmt.Sprintf("%d-%d/%d", f.low, f.high, step)
	case r.IntN(4) == 0:
		a, b := one(), one()
		set(min(a, b), max(a, b), 1)
		return fmt.Sprintf("%d-%d", min(a, b), max(a, b))
	default:
		var list []string
		for range 1 + r.IntN(3) {
			v := one()
			set(v, v, 1)
			list = append(list, strconv.Itoa(v))
		}
		return strings.Join(list, ",")
	}
}

func (d *drawn) matches(m minute) bool {
	if !d.sets[0][m.min] || !d.sets[1][m.hour] || !d.sets[3][m.month] {
		return false
	}
	day, weekday := d.sets[2][m.day], d.sets[4][m.weekday]
	if d.anyDay {
		return day && weekday
	}
	return day || weekday
}

// ticks walks over a year, minute by minute, from two days before an instant until two days after it has found enough ticks.
func (d *drawn) ticks(y year, from Stamp, enough int) (all []Stamp) {
	begin := int(from-y.begin)/60 - 2*24*60
	shown := y.minutes[begin].civil
	end := len(y.minutes) - 24*60
	for i := begin; i < end; i++ {
		m := y.minutes[i]
		due := d.matches(m)
		if !d.realTime {
			due = due && m.civil > shown
			for skipped := shown + 1; skipped < m.civil; skipped++ {
				due = due || d.matches(dayOf(skipped/(24*60)).at(skipped))
			}
			shown = max(shown, m.civil)
		}
		if at := y.begin + Stamp(i)*60; due && at >= from {
			if all = append(all, at); len(all) == enough {
				end = min(end, i+2*24*60)
			}
		}
	}
	return all
}

func TestTicksMatchAWalkMinuteByMinute(t *testing.T) {
	t.Parallel()
	for i, p := range places {
		t.Run(fmt.Sprintf("%s in %d, %s", p.zone, p.year, p.why), func(t *testing.T) {
			t.Parallel()
			y := walks[i]()
			r := rand.New(rand.NewPCG(13, uint64(i)))
			for n := range 12 {
				d := draw(r, n%3)
				if n == 0 {
					d = drawn{text: "* * * * *", anyDay: true, realTime: true}
					for i := range d.sets {
						for v := range d.sets[i] {
							d.sets[i][v] = true
						}
					}
				}
				s, err := Parse(Spec{Cron: d.text, TimeZone: places[i].zone})
				if err != nil {
					t.Fatal(err)
				}
				compare(t, r, s, y, d.ticks(y, y.begin+2*daySeconds, len(y.minutes)))
			}
		})
	}
}

func compare(t *testing.T, r *rand.Rand, s *Schedule, y year, want []Stamp) {
	t.Helper()
	begin, end := y.begin+2*daySeconds-1, y.begin+Stamp(len(y.minutes))*60-daySeconds-1
	all := ticks{Schedule: s}
	if got := all.count(begin, end); got != int64(len(want)) {
		t.Errorf("%s: %q has %d ticks, counted as %d", y.name, s.spec.Cron, len(want), got)
	}
	at := begin
	for i, tick := range want {
		if i > 1500 {
			break
		}
		if got, ok := s.Next(at); !ok || got != tick {
			t.Fatalf("%s: %q after %s: %s, want %s", y.name, s.spec.Cron, at, got, tick)
		}
		at = tick
	}
	for range 200 {
		from := begin + Stamp(r.Int64N(int64(end-begin)))
		if len(y.turns) > 0 && r.IntN(2) == 0 {
			from = min(max(y.turns[r.IntN(len(y.turns))]+Stamp(r.Int64N(8*3600))-4*3600, begin), end-1)
		}
		to := from + Stamp(r.Int64N(int64(min(end-from, 40*daySeconds))))
		first, _ := slices.BinarySearch(want, from+1)
		last, _ := slices.BinarySearch(want, to+1)
		if got := all.count(from, to); got != int64(last-first) {
			t.Fatalf("%s: %q from %s to %s: %d ticks, want %d", y.name, s.spec.Cron, from, to, got, last-first)
		}
		if first < len(want) {
			if got, ok := s.Next(from); !ok || got != want[first] {
				t.Fatalf("%s: %q after %s: %s, want %s", y.name, s.spec.Cron, from, got, want[first])
			}
		}
		if last > first {
			if got := all.last(from, to); got != want[last-1] {
				t.Fatalf("%s: %q last from %s to %s: %s, want %s", y.name, s.spec.Cron, from, to, got, want[last-1])
			}
		}
	}
}
