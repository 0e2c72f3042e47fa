//go:build linux

package subprocess

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Handle stands for one process and no other: a PID may belong to another by the time it is asked for, where chains of forks go
// through all that there are.
type Handle struct{ fd int }

// Hold returns the handle of a process that lives. Close it.
func Hold(pid int) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("holding process %d: %w", pid, err)
	}
	return &Handle{fd}, nil
}

// Ended reports whether the process has ended, reaped or not.
func (h *Handle) Ended() bool {
	for {
		polled := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 1
		}
	}
}

// Kill kills the process, if it has not ended.
func (h *Handle) Kill() error { return unix.PidfdSendSignal(h.fd, unix.SIGKILL, nil, 0) }

// Close lets go of it.
func (h *Handle) Close() error { return unix.Close(h.fd) }
