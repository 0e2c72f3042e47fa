//go:build linux

package main

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/torture/judge"
)

const (
	// tick is the interval at which a witness needs its CPU. noted is the interval at which it records its longest wait.
	tick  = 10 * time.Millisecond
	noted = 100 * time.Millisecond
)

// witnesses are threads, one on each CPU, that have nothing to do but to be on time.
type witnesses struct {
	mu   sync.Mutex
	late []judge.Lateness
}

// bearWitness starts the witnesses, which run as long as this process.
func bearWitness() (*witnesses, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, err
	}
	w := &witnesses{}
	for cpu := range len(allowed) * 64 {
		if allowed.IsSet(cpu) {
			w.late = append(w.late, nil)
			go w.watch(len(w.late)-1, cpu)
		}
	}
	return w, nil
}

// watch never returns: its thread is bound to a CPU and must not be used for anything else.
func (w *witnesses) watch(series, cpu int) {
	runtime.LockOSThread()
	var only unix.CPUSet
	only.Set(cpu)
	_ = unix.SchedSetaffinity(0, &only) // this CPU no longer exists; the other witnesses continue
	var late judge.Late
	for last := time.Duration(0); ; {
		due := fencetest.Boottime() + tick
		pause := unix.NsecToTimespec(int64(tick))
		_ = unix.Nanosleep(&pause, nil)
		late.At = fencetest.Boottime()
		late.Max = max(late.Max, late.At-due)
		if late.At-last < noted {
			continue
		}
		last = late.At
		w.mu.Lock()
		w.late[series] = append(w.late[series], late)
		w.mu.Unlock()
		late.Max = 0
	}
}

func (w *witnesses) series() []judge.Lateness {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]judge.Lateness{}, w.late...)
}
