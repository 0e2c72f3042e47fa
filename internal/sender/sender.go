//go:build linux && (amd64 || arm64)

// Package sender tells signals that come from outside of this process's PID namespace from those that come from within it.
//
// A container's runtime is outside. Processes of the container, and what kubectl exec and kubectl debug start in it, are within. So a
// signal by which a runtime stops a container can be told from the same one that asks a process for something else, such as to open
// its log anew. The kernel says who sent a signal in siginfo_t's si_pid, which is 0 for a process that the namespace does not know.
// Go's os/signal drops it. This package puts a handler before the runtime's own, which takes note of it and goes on there.
package sender

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Outside is a signal that was sent from outside of the PID namespace.
type Outside syscall.Signal

// Signal makes it an [os.Signal].
func (Outside) Signal() {}

func (o Outside) String() string { return syscall.Signal(o).String() }

// Notify relays signals to c for ever, as [signal.Notify] does, those from outside as Outside, to one caller. Of two signals of one number
// that come at the same time one may be relayed, which is from outside if any of them was. An error says why none is told apart; they are
// relayed nevertheless.
func Notify(c chan<- os.Signal, signals ...syscall.Signal) error {
	raw := make(chan os.Signal, cap(c))
	var failed error
	for _, s := range signals {
		signal.Notify(raw, s)
		if err := watch(s); err != nil && failed == nil {
			failed = fmt.Errorf("learn who sends %v: %w", s, err)
		}
	}
	go func() {
		for s := range raw {
			if number, ok := s.(syscall.Signal); ok && outside(number) {
				s = Outside(number)
			}
			c <- s
		}
	}()
	return failed
}

// most is the greatest number of a signal.
const most = 64

// came is 1 for each number of which a signal from outside has come since this was last asked for. The handler sets it, where si_code is
// SI_USER, as kill(2) and pidfd_send_signal(2) have it, and si_pid is 0. The kernel's own signals, as when a terminal is resized, have no
// sender either, and another code. Negative codes are for anybody to forge (rt_sigqueueinfo(2)), and no runtime sends them.
var came [most + 1]int32

// next is the handler of Go's runtime, which the one of this package goes on to.
var next uintptr

// handlerPC is where the handler of this package begins.
var handlerPC uintptr

// outside reports whether a signal of this number came from outside since the last call.
func outside(s syscall.Signal) bool {
	return s > 0 && s <= most && atomic.SwapInt32(&came[s], 0) == 1
}

// action is the kernel's struct sigaction, the same on amd64 and arm64.
type action struct{ handler, flags, restorer, mask uint64 }

// watch puts the handler before the one that is there, once.
func watch(s syscall.Signal) error {
	var is action
	if err := sigaction(s, nil, &is); err != nil {
		return err
	}
	const ignored = 1 // SIG_IGN; 0 is SIG_DFL
	switch {
	case uintptr(is.handler) == handlerPC:
		return nil
	case is.handler <= ignored:
		return errors.New("it has no handler")
	case next == 0:
		next = uintptr(is.handler)
	case next != uintptr(is.handler):
		return errors.New("its handler is another one than that of the signals before")
	}
	is.handler = uint64(handlerPC)
	return sigaction(s, &is, nil)
}

func sigaction(s syscall.Signal, to, from *action) error {
	const sizeOfMask = 8
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(from)), sizeOfMask, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
