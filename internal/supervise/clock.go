//go:build linux

package supervise

import (
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// BootTime reads the clock of all deadlines: nanoseconds since boot, time suspended included, at the rate of the hardware.
// It is CLOCK_MONOTONIC_RAW and the time for which the machine has slept, which is what CLOCK_BOOTTIME is ahead of
// CLOCK_MONOTONIC. CLOCK_BOOTTIME itself runs as fast as NTP has it run: see timersFor. All processes of one machine share
// this clock (outside time namespaces, whose offsets are constant).
func BootTime() int64 { return gettime(unix.CLOCK_MONOTONIC_RAW) + asleep.read(gettime) }

// gettime reads a clock of the kernel.
func gettime(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("supervise: a clock of the kernel cannot be read: " + err.Error()) // in Linux since 2.6.39
	}
	return ts.Nano()
}

// asleep is for how long the machine has slept.
var asleep = neverSlept()

// sleep is the most that was seen of a time that only grows. So BootTime never goes back, and a look at it that is
// interrupted takes nothing away.
type sleep struct{ known atomic.Int64 }

// neverSlept knows nothing yet. In a time namespace the difference may be negative.
func neverSlept() *sleep {
	s := &sleep{}
	s.known.Store(math.MinInt64)
	return s
}

// read looks at CLOCK_BOOTTIME between two looks at CLOCK_MONOTONIC. What it returns is less than the truth by no more
// than the time between these: a look that took long is repeated.
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
	// narrow is the error of BootTime that is of no interest.
	narrow = 50_000 // ns
	// tries is how often it is looked for a moment without an interruption.
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

// NoLater is a reading of CLOCK_BOOTTIME that comes no later than a BootTime does, however slow NTP has that clock run.
func NoLater(at int64) int64 {
	now := gettime(unix.CLOCK_BOOTTIME) // first, so that a pause between the two makes it early
	left := at - BootTime()
	return now + left - max(0, left/4)
}

// Never is later than every BootTime that is reached: no deadline.
const Never = math.MaxInt64

// passed reports whether a deadline is over.
func passed(deadline int64) bool { return BootTime() >= deadline }
