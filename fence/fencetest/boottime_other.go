//go:build !linux

package fencetest

import "time"

var start = time.Now()

// Boottime is the time since this process started: only Linux has a clock that all processes share and that
// never stands still. Readings of two processes do not compare here.
func Boottime() time.Duration { return time.Since(start) }
