//go:build linux

package subprocess

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Handle stands for one process and no other. A PID can belong to another process by the time it is used, where chains of forks go
// through all PIDs.
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

// In lists the living processes whose working directory is dir, or was before it was removed.
func In(dir string) ([]int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || strings.TrimSuffix(target, " (deleted)") != dir {
			continue // it has ended, or is of another
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return nil, err
		}
		found = append(found, pid)
	}
	return found, nil
}
