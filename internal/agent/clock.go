//go:build linux

package agent

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

// bootClock combines supervise.BootTime with a kernel timer. The timer uses CLOCK_BOOTTIME, which NTP can speed up or slow down, so a timer
// that fires early is set again. Go's own timers stop while the machine sleeps and would then fire too late.
type bootClock struct {
	fd int
	at atomic.Int64 // a lease.Instant
	c  chan struct{}
}

// NewClock returns the clock of a real agent. It exists until the OS process ends.
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
			panic("agent: cannot read the timer: " + err.Error()) // without the timer the agent would never wake up
		}
		if at := lease.Instant(b.at.Load()); b.Now().Boot < at {
			b.set(at)
			continue
		}
		select {
		case b.c <- struct{}{}:
		default: // one pending wake-up is enough
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
	b.at.Store(int64(at))
	b.set(at)
}

func (b *bootClock) set(at lease.Instant) {
	var spec unix.ItimerSpec // zero disarms
	if at != lease.Never {
		spec.Value = unix.NsecToTimespec(max(1, at.Sub(b.Now().Boot).Nanoseconds()))
	}
	if err := unix.TimerfdSettime(b.fd, 0, &spec, nil); err != nil {
		panic("agent: cannot set the timer: " + err.Error()) // both arguments are always valid
	}
}
