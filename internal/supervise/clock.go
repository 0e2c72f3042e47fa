//go:build linux

package supervise

import "golang.org/x/sys/unix"

// BootTime reads CLOCK_BOOTTIME: nanoseconds since boot, suspend included. All
// processes of one machine share it (outside time namespaces).
func BootTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("supervise: CLOCK_BOOTTIME cannot be read: " + err.Error()) // in Linux since 2.6.39
	}
	return ts.Nano()
}

// passed says whether a deadline is over; 0 never is.
func passed(deadline int64) bool { return deadline != 0 && BootTime() >= deadline }
