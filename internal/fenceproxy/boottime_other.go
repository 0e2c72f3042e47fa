//go:build !linux

package fenceproxy

import "time"

var started = time.Now()

// boottime is the time since the process started.
func boottime() time.Duration { return time.Since(started) }
