package tenure

import (
	"syscall"
	"unsafe"
)

// Clocks of the kernel, by their numbers in <linux/time.h>.
const (
	clockMonotonic    = 1
	clockMonotonicRaw = 4
	clockBoottime     = 7
)

// now is the time since the machine was started, sleep included, at the rate of the hardware. For how long it has slept is
// looked at first, and the older clock before the younger: an interruption makes the time later, never earlier.
func now() int64 {
	awake := read(clockMonotonic)
	slept := read(clockBoottime) - awake
	return read(clockMonotonicRaw) + slept
}

func read(clock uintptr) int64 {
	var ts syscall.Timespec
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0); err != 0 {
		panic("tenure: a clock of the kernel cannot be read: " + err.Error()) // in Linux since 2.6.39
	}
	return ts.Nano()
}

func supported() error { return nil }
