package sim

import (
	"math/rand/v2"
	"sort"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// clock is a machine's unslewed clock, which counts suspended time too. It begins at any value and runs at the constant rate of
// its crystal. All times that the agents compare are read from it.
type clock struct {
	offset lease.Instant
	ppm    int64
}

const (
	million = 1_000_000
	// maxPPM is how much faster or slower than true time a crystal can run: 1 %, ten times the error of crystals on sale.
	maxPPM = 10_000
	// maxSlew is how much NTP can speed up or slow down the clock that the kernel's timers run on: chrony's default.
	maxSlew = 83_333
	// horizon bounds an episode. forever is later.
	horizon = 200 * time.Hour
	forever = time.Duration(1<<63 - 1)
)

// at returns the clock's reading at a true time.
func (c clock) at(t time.Duration) lease.Instant {
	return c.offset + lease.Instant(int64(t)+share(int64(t), c.ppm, million))
}

// when returns the first true time at which the clock shows i or more.
func (c clock) when(i lease.Instant) time.Duration {
	d := int64(i - c.offset)
	switch {
	case i == lease.Never || d > int64(horizon):
		return forever
	case d <= 0:
		return 0
	}
	t := time.Duration(d - share(d, c.ppm, million+c.ppm))
	for c.at(t) < i {
		t++
	}
	for t > 0 && c.at(t-1) >= i {
		t--
	}
	return t
}

// lasts returns the true time in which the clock advances by d.
func (c clock) lasts(d time.Duration) time.Duration {
	return d - time.Duration(share(int64(d), c.ppm, million+c.ppm))
}

// share returns d·part/whole, even if the product does not fit in 64 bits.
func share(d, part, whole int64) int64 { return d/whole*part + d%whole*part/whole }

// slowest and fastest are the bounds for the crystals of other machines.
var slowest, fastest = clock{ppm: -maxPPM}, clock{ppm: maxPPM}

// timers is the clock that a machine's kernel runs its timers on: the same crystal, sped up and slowed down by NTP.
type timers struct {
	rng   *rand.Rand
	parts []part // in order; the last one lasts until the next is needed
	slew  int64  // bounds the slew
	steps time.Duration
	// ppm is the crystal's error.
	ppm int64
}

// part is a period in which the rate is constant.
type part struct {
	from, until time.Duration // true time
	shown       lease.Instant // at the beginning of the part
	ppm         int64
}

func newTimers(seed, number uint64, c clock, slew int64) *timers {
	t := &timers{rng: rand.New(rand.NewPCG(seed, number)), slew: slew, ppm: c.ppm}
	// Some are slewed by one rate throughout, some by a new rate every few minutes, some by a new rate every few seconds.
	t.steps = [...]time.Duration{horizon, 20 * time.Minute, 8 * time.Second}[t.rng.IntN(3)]
	t.parts = append(t.parts, part{until: forever, shown: c.offset, ppm: c.ppm})
	if slew > 0 {
		t.parts[0].ppm += t.rate()
		t.parts[0].until = t.length()
	}
	return t
}

func (t *timers) rate() int64 {
	switch t.rng.IntN(4) {
	case 0:
		return -t.slew
	case 1:
		return t.slew
	default:
		return t.rng.Int64N(2*t.slew+1) - t.slew
	}
}

func (t *timers) length() time.Duration {
	return t.steps/2 + time.Duration(t.rng.Int64N(int64(t.steps)))
}

// grow appends a part.
func (t *timers) grow() {
	last := t.parts[len(t.parts)-1]
	next := part{from: last.until, shown: last.at(last.until), ppm: t.ppm + t.rate()}
	next.until = next.from + t.length()
	t.parts = append(t.parts, next)
}

// at returns the timer clock's reading at a true time.
func (t *timers) at(at time.Duration) lease.Instant {
	for t.parts[len(t.parts)-1].until <= at {
		t.grow()
	}
	next := sort.Search(len(t.parts), func(i int) bool { return t.parts[i].from > at })
	return t.parts[next-1].at(at)
}

// when returns the true time, not before now, at which it shows i or more.
func (t *timers) when(now time.Duration, i lease.Instant) time.Duration {
	if i == lease.Never {
		return forever
	}
	for last := t.parts[len(t.parts)-1]; last.until < horizon && last.at(last.until) < i; last = t.parts[len(t.parts)-1] {
		t.grow()
	}
	next := sort.Search(len(t.parts), func(n int) bool { return t.parts[n].shown >= i })
	return max(now, t.parts[max(0, next-1)].when(i))
}

// fires returns the true time at which a timer that is set now for d fires.
func (t *timers) fires(now, d time.Duration) time.Duration { return t.when(now, t.at(now).Add(d)) }

// clock returns the part as a clock of its own.
func (p part) clock() clock { return clock{offset: p.shown, ppm: p.ppm} }

func (p part) at(t time.Duration) lease.Instant { return p.clock().at(t - p.from) }

func (p part) when(i lease.Instant) time.Duration {
	at := p.clock().when(i)
	if at == forever {
		return forever
	}
	return p.from + at
}
