//go:build linux

package supervise

import (
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// BootTime reads the clock of all deadlines: nanoseconds since boot, including suspend, at the rate of the hardware clock.
//
// It is CLOCK_MONOTONIC_RAW plus the time for which the machine has slept, which is the difference between CLOCK_BOOTTIME and
// CLOCK_MONOTONIC. CLOCK_BOOTTIME itself runs at the rate that NTP sets: see timersFor. All processes of a machine share this clock, except
// in time namespaces, whose offsets are constant.
func BootTime() int64 { return gettime(unix.CLOCK_MONOTONIC_RAW) + asleep.read(gettime) }

// gettime reads a kernel clock.
func gettime(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("supervise: cannot read a kernel clock: " + err.Error()) // all of them exist since Linux 2.6.39
	}
	return ts.Nano()
}

// asleep is the time for which the machine has slept.
var asleep = neverSlept()

// sleep holds the highest reading of a time that only grows. So BootTime never goes back, and an interrupted reading does not lower it.
type sleep struct{ known atomic.Int64 }

// neverSlept returns a sleep without a reading. In a time namespace the difference can be negative.
func neverSlept() *sleep {
	s := &sleep{}
	s.known.Store(math.MinInt64)
	return s
}

// read reads CLOCK_BOOTTIME between two readings of CLOCK_MONOTONIC. The result is too low by at most the time between these two. A reading
// that took long is repeated.
func (s *sleep) read(clock func(int32) int64) int64 {
	for range tries {
		before := clock(unix.CLOCK_MONOTONIC)
		boot := clock(unix.CLOCK_BOOTTIME)
		after := clock(unix.CLOCK_MONOTONIC)
		least, most := boot-after, boot-before
		atLeast(&s.known, least)
		if most-s.known.Load() <= narrow {
			break
		}
	}
	return s.known.Load()
}

const (
	// narrow is the acceptable error of BootTime.
	narrow = 50_000 // ns
	// tries is the maximum number of readings to get one without an interruption.
	tries = 5
)

func atLeast(a *atomic.Int64, to int64) {
	for {
		now := a.Load()
		if to <= now || a.CompareAndSwap(now, to) {
			return
		}
	}
}

// NoLater converts a BootTime to a reading of CLOCK_BOOTTIME that is reached no later, however much NTP slows that clock down.
func NoLater(at int64) int64 {
	now := gettime(unix.CLOCK_BOOTTIME) // first, so that a pause between the two makes the result earlier
	left := at - BootTime()
	return now + left - max(0, left/4)
}

// Never is later than every BootTime. As a deadline it means none.
const Never = math.MaxInt64

// passed reports whether a deadline is over.
func passed(deadline int64) bool { return BootTime() >= deadline }
