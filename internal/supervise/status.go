//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Status describes how the main process ended.
type Status struct {
	ExitCode   int            // the argument of exit(2); -1 if a signal ended it
	Signal     syscall.Signal // the signal that ended it; 0 if it exited
	CoreDumped bool
	// ByLeash is true if the leash ended first, at its deadline or because it was killed, and the kernel killed the main process with it.
	// It is false after Kill.
	ByLeash bool
}

// Code returns the status as an exit code, as in shells: 128+n for signal n.
func (s Status) Code() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.ExitCode
}

func (s Status) String() string {
	if s.Signal == 0 {
		return fmt.Sprintf("exit code %d", s.ExitCode)
	}
	text := fmt.Sprintf("signal %d (%v)", int(s.Signal), s.Signal)
	if s.CoreDumped {
		text += ", core dumped"
	}
	if s.ByLeash {
		text += ", by the leash"
	}
	return text
}

func statusOf(ws unix.WaitStatus) Status {
	if ws.Signaled() {
		return Status{ExitCode: -1, Signal: ws.Signal(), CoreDumped: ws.CoreDump()}
	}
	return Status{ExitCode: ws.ExitStatus()}
}

// StartError is the reason why a program could not be executed.
type StartError struct {
	Op   string // "execute" or "change to directory"
	Path string
	Err  error
}

const opExecute = "execute"

func (e *StartError) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Path, e.Err) }

func (e *StartError) Unwrap() error { return e.Err }

// Code returns the exit code that a shell uses: 127 if the program does not exist, 126 if it exists but cannot be executed.
func (e *StartError) Code() int {
	if e.Op == opExecute && errors.Is(e.Err, unix.ENOENT) {
		return 127
	}
	return 126
}
