//go:build linux

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/test/cgroup"
)

// BenchmarkTakeoverUnderCPULimit measures the overlap of two processes whose containers are each limited to a tenth of a CPU. The processes
// are programs of 60 threads that never pause. The shipped agent is PID 1 and sees its limit. Alternately, the holder is cut off or its
// agent is stopped. The benchmark needs root and a cgroup in which it can create children.
func BenchmarkTakeoverUnderCPULimit(b *testing.B) {
	const milli, rounds = 100, 15
	for _, setting := range [][3]float64{{3, 1.5, 0.5}, {5, 2.5, 0.5}, {15, 10, 2}} {
		b.Run(fmt.Sprintf("cpu=%dm/lease=%vs", milli, setting[0]), func(b *testing.B) {
			config := testConfig()
			config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = seconds(setting[0]), seconds(setting[1]), seconds(setting[2])
			program := shipped(b)
			var overlaps []time.Duration
			for round := range rounds {
				found := takeoverUnderLimit(b, program, config, milli, round%2 == 1)
				b.Logf("round %d: overlaps of %v", round, found)
				overlaps = append(overlaps, found...)
			}
			report(b, "overlap", overlaps)
			two := 0 // fewer changes than rounds: a limit so small that no process got to begin in time
			for _, overlap := range overlaps {
				if overlap > 0 {
					two++
				}
			}
			b.ReportMetric(float64(two), "times-two-ran")
		})
	}
}

// takeoverUnderLimit makes one agent take over from another repeatedly. For each change it returns how long both processes wrote. The value
// is negative if one was dead before the other began.
func takeoverUnderLimit(b *testing.B, program string, config contract.AgentConfig, milli int, stopped bool) []time.Duration {
	b.Helper()
	w := newWorld(b)
	w.program = program
	dir := b.TempDir()
	limited := func(pod string) *candidate {
		c := w.prepare(pod, config)
		c.limit(milli)
		exe, err := os.Executable()
		w.must(err)
		c.run("env", roleEnv+"=spin", exe, dir, pod)
		return c
	}
	a := limited("a")
	w.eventually("a process writes", func() bool { return len(beats(w, dir)) > 0 })
	standby := limited("b")
	standby.await("lease ")
	elapse(b, time.Duration(config.LeaseDuration)/3)
	all := beats(w, dir)
	holder, other := a, all[len(all)-1].pod
	if other != "a" {
		holder = standby
	}
	if stopped {
		holder.signal(syscall.SIGSTOP)
	} else {
		holder.proxy.Cut()
	}
	for end := time.Now().Add(patience); time.Now().Before(end) && all[len(all)-1].pod == holder.pod; all = beats(w, dir) {
		elapse(b, 20*time.Millisecond)
	}
	elapse(b, 3*time.Second) // time for late writes to appear
	a.agent.Stop(0)
	standby.agent.Stop(0)
	var overlaps []time.Duration
	all = beats(w, dir)
	for i := 1; i < len(all); i++ {
		if all[i].pod != all[i-1].pod {
			overlaps = append(overlaps, time.Duration(all[i-1].last-all[i].first))
		}
	}
	return overlaps
}

// limit makes the agent PID 1 of what looks like a container with a CPU limit.
func (c *candidate) limit(milli int) {
	c.w.t.Helper()
	g := cgroup.New(c.w.t, "cpu")
	g.LimitCPU(milli)
	c.attr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	c.by = g.Execute(`mount --make-rprivate /; mount --bind "$1" "$2"; mount -t proc proc /proc;`)
}

// spun is the life of a process that spins.
type spun struct {
	pod         string
	first, last int64
}

// spin is a process that never pauses. Its threads write the time into a file of this process. Its arguments are the directory of the file
// and the name of its Pod.
func spin() {
	const threads = 60
	runtime.GOMAXPROCS(threads + 1)
	name := filepath.Join(os.Args[1], fmt.Sprintf("%s.%s.%d", os.Args[2], os.Getenv(fence.EnvToken), supervise.BootTime()))
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	const words = 16
	if err := file.Truncate(words); err != nil {
		panic(err)
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, words, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	first, last := (*atomic.Int64)(unsafe.Pointer(&memory[0])), (*atomic.Int64)(unsafe.Pointer(&memory[8]))
	first.Store(supervise.BootTime())
	for range threads - 1 {
		go hurry(last)
	}
	hurry(last)
}

func hurry(last *atomic.Int64) {
	for {
		for now, before := supervise.BootTime(), last.Load(); now > before && !last.CompareAndSwap(before, now); before = last.Load() {
		}
	}
}

// beats returns the lives of all processes that ran spin, in the order of their starts.
func beats(w *world, dir string) []spun {
	w.t.Helper()
	files, err := os.ReadDir(dir)
	w.must(err)
	var all []spun
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		w.must(err)
		if len(data) != 16 {
			continue
		}
		pod, _, _ := strings.Cut(file.Name(), ".")
		s := spun{pod, *(*int64)(unsafe.Pointer(&data[0])), *(*int64)(unsafe.Pointer(&data[8]))}
		if s.last != 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b spun) int { return cmp.Compare(a.first, b.first) })
	return all
}
