package fenceproxy

import (
	"time"

	"golang.org/x/sys/unix"
)

// boottime is the time since the machine started, suspension included.
func boottime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}
