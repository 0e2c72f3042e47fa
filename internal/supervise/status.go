//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Status is how the main process ended.
type Status struct {
	ExitCode   int            // what it gave to exit(2); -1 if a signal ended it
	Signal     syscall.Signal // what ended it; 0 if it exited
	CoreDumped bool
	// ByLeash: the leash went first, by its deadline or killed by somebody, and
	// the kernel killed the main process with it. False when Kill did it.
	ByLeash bool
}

// Code is the exit code that passes the status on, as shells write it: 128+n for
// signal n.
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

// StartError says why a program could not be executed.
type StartError struct {
	Op   string // "execute" or "change to directory"
	Path string
	Err  error
}

const opExecute = "execute"

func (e *StartError) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Path, e.Err) }

func (e *StartError) Unwrap() error { return e.Err }

// Code is what a shell exits with: 127 if there is no such program, 126 if it
// is there and cannot be executed.
func (e *StartError) Code() int {
	if e.Op == opExecute && errors.Is(e.Err, unix.ENOENT) {
		return 127
	}
	return 126
}
