//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// unread calls gone once nobody reads what is written to a pipe: status --watch | head must not wait for something to write.
func unread(out *os.File, gone func()) {
	if info, err := out.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	fds := []unix.PollFd{{Fd: int32(out.Fd())}} // errors are told without being asked for
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
