//go:build linux

package agent

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

// bootClock is CLOCK_BOOTTIME and a timer on it. Go's own timers stand still while the machine sleeps, so that after it
// they would come too late by all of that time.
type bootClock struct {
	fd int
	c  chan struct{}
}

// NewClock returns the clock of a real agent. It lasts as long as the OS process.
func NewClock() (Clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a timer on CLOCK_BOOTTIME: %w", err)
	}
	b := &bootClock{fd: fd, c: make(chan struct{}, 1)}
	go b.run(os.NewFile(uintptr(fd), "timerfd"))
	return b, nil
}

func (b *bootClock) run(timer *os.File) {
	var expirations [8]byte
	for {
		if _, err := timer.Read(expirations[:]); err != nil {
			panic("agent: the timer can't be read: " + err.Error()) // without it the agent would sleep for ever
		}
		select {
		case b.c <- struct{}{}:
		default: // one wake-up is as good as two
		}
	}
}

// Now implements Clock.
func (b *bootClock) Now() lease.Time {
	return lease.Time{Boot: lease.Instant(supervise.BootTime()), Wall: time.Now().UnixMicro()}
}

// C implements Clock.
func (b *bootClock) C() <-chan struct{} { return b.c }

// WakeAt implements Clock. An instant in the past fires at once.
func (b *bootClock) WakeAt(at lease.Instant) {
	var spec unix.ItimerSpec // zero disarms
	if at != lease.Never {
		spec.Value = unix.NsecToTimespec(max(1, int64(at)))
	}
	if err := unix.TimerfdSettime(b.fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		panic("agent: the timer can't be set: " + err.Error()) // neither argument can be wrong
	}
}
