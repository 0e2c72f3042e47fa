//go:build linux

package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is this OS process in its role as a parent. It is one value for the
// package because the roles are the kernel's: SIGCHLD, wait and the adoption of
// orphans belong to the process, not to a Tree.
var process = &reaper{
	wake:  make(chan struct{}, 1),
	forks: make(chan func()),
}

type reaper struct {
	// mu makes reaping exclude killing, forking and signalling. That is what
	// makes signals hit the right process: the PID of a child that nobody else
	// can reap is not given to another while mu is held.
	mu   sync.Mutex
	tree *Tree // nil when none is running

	pid1  bool
	wake  chan struct{}
	forks chan func()
}

// Init makes this process the reaper of all its descendants: orphans are handed
// to it by the kernel and never stay zombies. And it hides it from them: see hide.
// Start does it when needed; an agent calls it at once, for the orphans it may get
// as PID 1 before it runs anything.
func Init() error { return initOnce() }

var initOnce = sync.OnceValue(func() error {
	if err := hide(); err != nil {
		return err
	}
	process.pid1 = os.Getpid() == 1
	if !process.pid1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become the subreaper of the process tree: %w", err)
		}
	}
	// One signal may stand for many children: every wake-up waits for all.
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	go process.run(sigchld)
	go process.serveForks()
	return nil
})

// The pause between two rounds of killing while nothing happens: processes in
// uninterruptible sleep may keep a tree from being gone for long.
const (
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
)

func (r *reaper) run(sigchld <-chan os.Signal) {
	pause := firstPause
	retry := time.NewTimer(0)
	for {
		select {
		case <-sigchld:
			pause = firstPause
		case <-r.wake:
			pause = firstPause
		case <-retry.C:
			pause = min(2*pause, lastPause)
		}
		if r.sweep() {
			retry.Reset(pause)
		}
	}
}

// poke has the reaper look again. It never blocks: one pending wake-up is enough.
func (r *reaper) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// serveForks is the one OS thread that leashes are forked from. The parent-death
// signal of a leash fires when the *thread* that forked it ends, so this one is
// locked and never returns.
func (r *reaper) serveForks() {
	runtime.LockOSThread()
	for fork := range r.forks {
		fork()
	}
}

// forkLeash re-executes this binary. The leash leads its own session: no signal of
// the main process to its own group and no key of a terminal reaches it. That the agent
// may die between fork and prctl is dealt with by ForkExec, which compares
// getppid after setting Pdeathsig.
func (r *reaper) forkLeash(argv, env []string, files []int) (pid int, err error) {
	attr := &syscall.ProcAttr{
		Env: env,
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL},
	}
	for _, fd := range files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	done := make(chan struct{})
	r.forks <- func() {
		defer close(done)
		pid, err = syscall.ForkExec("/proc/self/exe", argv, attr)
	}
	<-done
	return pid, err
}

// sweep reaps whatever has ended and draws the conclusions. It reports whether to
// come back without being woken.
func (r *reaper) sweep() (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	childless := r.reapAll()
	t := r.tree
	if t == nil {
		return false
	}
	t.announceExit(false)
	t.announceExecs(childless)
	// The leash ends only with or before the main process. Either way the tenure's
	// work is over, and what is left of it must not go on.
	if !t.killed && t.leashEnd == nil {
		return false
	}
	t.deadlines.stop()
	r.killRound()
	if childless && t.reported && len(t.execs) == 0 && !r.foreign() {
		t.announceExit(true)
		t.close()
		r.tree = nil
		close(t.gone)
		return false
	}
	return true
}

// reapAll waits for every child that has ended and reports whether no child is left,
// dead or alive. The descendants of a subreaper that has no child are none.
func (r *reaper) reapAll() (childless bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err == unix.ECHILD
		case pid == 0:
			return false
		case r.tree != nil:
			r.tree.reaped(pid, ws)
		}
	}
}

// isChild reports whether a process is a child of this one, dead or alive.
func isChild(pid int) bool {
	return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil) == nil
}

// watchMain ends the tree when its main process has ended and the leash does not say so, because it is stopped: without a
// deadline nothing else would end it.
func (t *Tree) watchMain() {
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for ended := 0; ended < 2; {
		select {
		case <-t.gone:
			return
		case <-tick.C:
		}
		process.mu.Lock()
		if ended++; t.mainEnd == nil && canAct(t.main) {
			ended = 0
		}
		process.mu.Unlock()
	}
	t.Kill()
}

// lookPeriod of watchMain: an end that the leash tells of is known at once.
const lookPeriod = time.Second

// reaped notes the ends that matter.
func (t *Tree) reaped(pid int, ws unix.WaitStatus) {
	known := t.run.reaped(pid, ws)
	for x := range t.execs {
		known = known || x.reaped(pid, ws)
	}
	if !known && t.unreported() {
		t.early[pid] = ws
	}
}

// reaped notes the two ends that matter of a leash and its program, and reports whether this was one. The program comes to
// this process as an orphan: the leash watches it without reaping it, so its exact status is never lost with the leash.
func (r *run) reaped(pid int, ws unix.WaitStatus) bool {
	switch {
	case pid == r.leash && r.leashEnd == nil:
		r.leashEnd = &ws
	case pid == r.main && r.mainEnd == nil:
		r.mainEnd = &ws
	default:
		return false
	}
	return true
}

// announceExit serves Exited once both ends are known; and at last, when nothing is
// left, even for a main process whose status was taken by somebody else's wait.
func (t *Tree) announceExit(last bool) {
	known := t.leashEnd != nil && t.mainEnd != nil
	if t.announced || t.main == 0 || !known && !last {
		return
	}
	t.announced = true
	status := Status{ExitCode: -1, Signal: unix.SIGKILL}
	if t.mainEnd != nil {
		status = statusOf(*t.mainEnd)
	}
	leashFailed := t.leashEnd != nil && (t.leashEnd.Signaled() || t.leashEnd.ExitStatus() != 0)
	status.ByLeash = leashFailed && !t.killed && status.Signal == unix.SIGKILL
	t.exited <- status
	close(t.exited)
}

// killRound sends SIGKILL to every descendant it can find.
//
// As PID 1 that is one system call, and it is atomic: kill(-1) walks the process
// list under the lock that fork needs to add to it, and a fork whose parent has
// SIGKILL pending fails.
//
// Elsewhere there is no such call for a tree. Every round kills the *children* of
// this process. The children of the dead become ours in turn, so the tree is
// peeled from the top, and nobody is left above to restart what was killed. Only
// our children have PIDs that nobody else can free, so no grandchild is killed by
// PID. A process that forks and exits faster than it is found stays a child of ours
// with each generation, and each end wakes the reaper for a round: every generation
// is another chance, with odds that do not fall, so the chain ends, in practice after
// milliseconds. Stopping all first (SIGSTOP) would run the very same race, and
// then still have to kill.
func (r *reaper) killRound() {
	if r.pid1 {
		_ = unix.Kill(-1, unix.SIGKILL)
		return
	}
	for _, pid := range children() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// peeling is the killing of what descends from a subreaper that reaps none of it, round by round from the top.
type peeling struct {
	dead []int // the children that were dead when the last round looked
}

// round sends SIGKILL to the children, and reports whether nothing can act that descends from the subreaper.
//
// A child that dies hands its own children up, perhaps after the list was read. So a list of the dead shows nothing by
// itself: all is over when the next list, read after they were dead, has nobody else.
func (p *peeling) round(subreaper int) (over bool) {
	over = true
	var dead []int
	for _, pid := range childrenOf(subreaper) {
		over = over && slices.Contains(p.dead, pid)
		if !canAct(pid) {
			dead = append(dead, pid)
		}
		_ = unix.Kill(pid, unix.SIGKILL) // a dead one keeps its PID: nobody reaps it
	}
	p.dead = dead
	return over
}

// foreign reports whether PID 1 has company that is not descended from it: who joined
// the namespace from outside (kubectl exec) may be doing the tenure's work as well.
// It kills them; they are reaped outside, or never, by a parent that hangs: only who
// can still act is counted. Those that it may not kill, a
// debugger of another user for instance, are not the tenure's and are not counted.
func (r *reaper) foreign() (found bool) {
	if !r.pid1 {
		return false
	}
	for _, pid := range processes() {
		// One by one: kill(-1) succeeds even if it was allowed to kill nobody.
		if pid != 1 && unix.Kill(pid, unix.SIGKILL) == nil && canAct(pid) {
			found = true
		}
	}
	return found
}

// canAct reports whether any thread of a process may execute another instruction, or is in the kernel still. A zombie's
// cannot; but the thread that a process began with may be a zombie while others go on. What cannot be looked at may act.
func canAct(pid int) bool {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	for _, thread := range threads {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, thread.Name()))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if fields := statFields(data); err != nil || len(fields) == 0 || fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

// statFields are the fields of a stat file from the state on: pid (name) state ppid …, where the name may contain
// anything, ") S 1" too.
//
// By hand: prometheus/procfs reads stat files, and neither the lists of children nor the mappings of smaps one by one. For
// canAct it takes twice the time, and it adds the package regexp and 0.27 MB to an agent of 7.15 MB.
func statFields(stat []byte) []string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// processes lists all that /proc shows.
func processes() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// children lists the children of this process: see childrenOf. ECHILD, not an empty list, says that none is left.
func children() []int { return childrenOf(os.Getpid()) }

// childrenOf lists the children of a process, zombies included. It may miss one that comes or goes at the same time.
func childrenOf(parent int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/children", parent))
	if len(lists) == 0 {
		return childrenByScan(parent)
	}
	var pids []int
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// childrenByScan is for kernels without CONFIG_PROC_CHILDREN.
func childrenByScan(parent int) []int {
	var pids []int
	for _, pid := range processes() {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue // it has ended
		}
		if fields := statFields(data); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}
