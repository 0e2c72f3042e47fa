//go:build linux

// Package stillness measures how long a machine has stood still for a process that wants to run. A test that can be late for want of a
// CPU asks it how late that may have made the test.
package stillness

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher has threads that want to run at once after each nap.
type Watcher struct {
	most  atomic.Int64
	ended atomic.Bool
	all   sync.WaitGroup
}

// Watch begins to watch, by so many threads that sleep for so long between two looks.
func Watch(threads int, nap time.Duration) *Watcher {
	w := &Watcher{}
	for range threads {
		w.all.Go(func() {
			runtime.LockOSThread()
			for !w.ended.Load() {
				from := time.Now()
				nap := unix.NsecToTimespec(int64(nap))
				_ = unix.Nanosleep(&nap, nil)
				for took, most := int64(time.Since(from)), w.most.Load(); took > most && !w.most.CompareAndSwap(most, took); most = w.most.Load() {
				}
			}
		})
	}
	return w
}

// SoFar is the longest time that a thread has slept, its nap included.
func (w *Watcher) SoFar() time.Duration { return time.Duration(w.most.Load()) }

// Longest ends the watch and returns the same.
func (w *Watcher) Longest() time.Duration {
	w.ended.Store(true)
	w.all.Wait()
	return w.SoFar()
}
