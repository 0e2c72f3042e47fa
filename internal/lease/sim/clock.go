package sim

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// clock is a machine's CLOCK_BOOTTIME. It began anywhere and runs fast or slow by a constant rate.
type clock struct {
	offset lease.Instant
	ppm    int64
}

const (
	million = 1_000_000
	// maxPPM is how much faster or slower than true time a clock may run: 1 %.
	maxPPM = 10_000
	// horizon bounds an episode, so that the products below fit in 64 bits. forever lies behind it.
	horizon = 2 * time.Hour
	forever = time.Duration(1<<63 - 1)
)

// at is what the clock shows at a true time.
func (c clock) at(t time.Duration) lease.Instant {
	return c.offset + lease.Instant(int64(t)*(million+c.ppm)/million)
}

// when is the first true time at which the clock shows i or more.
func (c clock) when(i lease.Instant) time.Duration {
	d := int64(i - c.offset)
	if i == lease.Never || d > int64(horizon) {
		return forever
	}
	rate := million + c.ppm
	return time.Duration((d*million + rate - 1) / rate)
}

// lasts is the true time in which the clock advances by d.
func (c clock) lasts(d time.Duration) time.Duration {
	return time.Duration(int64(d) * million / (million + c.ppm))
}

// slowest and fastest bound the clocks of the others.
var slowest, fastest = clock{ppm: -maxPPM}, clock{ppm: maxPPM}
