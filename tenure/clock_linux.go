package tenure

import (
	"syscall"
	"unsafe"
)

// Kernel clocks, with their numbers in <linux/time.h>.
const (
	clockMonotonic    = 1
	clockMonotonicRaw = 4
	clockBoottime     = 7
)

// now returns the time since the machine booted, including sleep, at the rate of the hardware clock. It computes the sleep time first, and
// reads CLOCK_MONOTONIC before CLOCK_BOOTTIME, so an interruption can make the result later but never earlier.
func now() int64 {
	awake := read(clockMonotonic)
	slept := read(clockBoottime) - awake
	return read(clockMonotonicRaw) + slept
}

func read(clock uintptr) int64 {
	var ts syscall.Timespec
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0); err != 0 {
		panic("tenure: cannot read a kernel clock: " + err.Error()) // all three exist since Linux 2.6.39
	}
	return ts.Nano()
}

func supported() error { return nil }
