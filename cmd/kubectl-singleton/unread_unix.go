//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// unread calls gone once a pipe has no reader any more: status --watch | head must not wait until there is something to write.
func unread(out *os.File, gone func()) {
	if info, err := out.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	fds := []unix.PollFd{{Fd: int32(out.Fd())}} // poll always reports errors
	for {
		_, err := unix.Poll(fds, -1)
		if err == unix.EINTR {
			continue
		}
		if err == nil && fds[0].Revents != 0 {
			gone()
		}
		return
	}
}
