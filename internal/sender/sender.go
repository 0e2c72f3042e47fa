//go:build linux && (amd64 || arm64)

// Package sender distinguishes signals from outside this process's PID namespace from signals from inside.
//
// The container runtime is outside. The container's processes are inside, including those that kubectl exec and kubectl debug start. So the
// agent can distinguish a signal by which the runtime stops the container from the same signal with another purpose, such as to reopen a
// log.
//
// The kernel reports the sender in si_pid of siginfo_t. It is 0 for a process that the namespace does not know. Go's os/signal drops it.
// This package installs a handler in front of the Go runtime's handler. It records the sender and then jumps to the runtime's handler.
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

// Signal makes Outside an [os.Signal].
func (Outside) Signal() {}

func (o Outside) String() string { return syscall.Signal(o).String() }

// Notify relays signals to c indefinitely, like [signal.Notify]. A signal from outside arrives as Outside. Only one caller may use Notify.
// If two signals with the same number arrive at the same time, c can receive one signal for both. It is an Outside if at least one of them
// came from outside.
//
// If Notify cannot distinguish senders it returns the reason as an error. End the process then: c reports signals from outside as signals
// from inside.
func Notify(c chan<- os.Signal, signals ...syscall.Signal) error {
	raw := make(chan os.Signal, cap(c))
	var failed error
	for _, s := range signals {
		signal.Notify(raw, s)
		if err := watch(s); err != nil && failed == nil {
			failed = fmt.Errorf("find out the sender of %v: %w", s, err)
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

// most is the highest signal number.
const most = 64

// came is 1 for each signal number for which a signal from outside has arrived since the last call of outside. The handler sets it if
// si_code is SI_USER, as for kill(2) and pidfd_send_signal(2), and si_pid is 0. The kernel's own signals, as when a terminal is resized,
// also have no sender, but another code. Any process can forge negative codes (rt_sigqueueinfo(2)), and no runtime sends them.
var came [most + 1]int32

// next is the handler of Go's runtime, to which this package's handler jumps.
var next uintptr

// handlerPC is the address of this package's handler.
var handlerPC uintptr

// outside reports whether a signal with this number has arrived from outside since the last call.
func outside(s syscall.Signal) bool {
	return s > 0 && s <= most && atomic.SwapInt32(&came[s], 0) == 1
}

// action is the kernel's struct sigaction. It is the same on amd64 and arm64.
type action struct{ handler, flags, restorer, mask uint64 }

// watch installs the handler in front of the current one, once per signal.
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
		return errors.New("the signal has no handler")
	case next == 0:
		next = uintptr(is.handler)
	case next != uintptr(is.handler):
		return errors.New("its handler differs from the handler of the other signals")
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
