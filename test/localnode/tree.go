//go:build linux

package localnode

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Process is one process of a container.
type Process struct {
	Pid, Parent int
	// State is the kernel's letter: R running, S sleeping, D waiting in the kernel, T stopped, Z zombie.
	State byte
	// Args is the command line. It is empty for a zombie.
	Args []string
}

// below lists everything under the process root without itself, parents before their children.
func below(root int) []Process {
	children := map[int][]Process{}
	all, _ := procfs.AllProcs()
	for _, p := range all {
		if stat, err := p.Stat(); err == nil {
			children[stat.PPID] = append(children[stat.PPID], Process{Pid: p.PID, Parent: stat.PPID, State: stat.State[0]})
		}
	}
	var found []Process
	for next := []int{root}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			found = append(found, p)
			next = append(next, p.Pid)
		}
	}
	return found
}

func withArgs(all []Process) []Process {
	for i, p := range all {
		if proc, err := procfs.NewProc(p.Pid); err == nil {
			all[i].Args, _ = proc.CmdLine()
		}
	}
	return all
}

// patience with processes that are to stop. A machine that stands still for a while is slow, not broken.
const patience = 4 * time.Minute

// stopAll stops everything below root and returns when all of it has stopped. From the top down, so that nobody starts anything new below a
// stopped one. A process that waits in the kernel counts as stopped once it was signalled, because it stops before it can do anything. With
// vfork it may wait for a stopped process. Two looks must agree: what was seen waiting may continue before what it waits for is seen
// stopped.
func stopAll(root int) error {
	asked := map[int]bool{}
	quiet := 0
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		running := slices.DeleteFunc(below(root), func(p Process) bool {
			return p.State == 'T' || p.State == 'Z' || p.State == 't' || p.State == 'D' && asked[p.Pid]
		})
		if len(running) == 0 {
			if quiet++; quiet == 2 {
				return nil
			}
			continue
		}
		quiet = 0
		for _, p := range running {
			_ = syscall.Kill(p.Pid, syscall.SIGSTOP)
			asked[p.Pid] = true
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v are not stopped after %v", running, patience)
		}
	}
}

// resumeAll resumes everything below root from the bottom up: the user's process acts before who watches over it knows
// that time has passed. That is the worst order, and a thaw may happen in any.
func resumeAll(root int) {
	for _, p := range slices.Backward(below(root)) {
		_ = syscall.Kill(p.Pid, syscall.SIGCONT)
	}
}
