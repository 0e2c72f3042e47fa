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
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is this OS process in its role as a parent. There is one value per package, because SIGCHLD, wait and the adoption of orphans
// belong to the OS process, not to a Tree.
var process = &reaper{
	wake:       make(chan struct{}, 1),
	forks:      make(chan func()),
	executable: "/proc/self/exe",
}

type reaper struct {
	// mu makes reaping exclusive with killing and signalling, so that signals reach the right process. While mu is held, the PID of a child
	// that only this process can reap is not reused. No call under mu waits for a disk: see Tree.fork.
	mu    sync.Mutex
	tree  *Tree  // nil if none is running
	spare *spare // nil if there is none: see Prepare
	// preparing is closed when the spare that is being forked is ready. It is nil if none is being forked.
	preparing chan struct{}

	executable string // this program; only functions in forks use it, once the reaper runs
	pid1       bool
	wake       chan struct{}
	forks      chan func()
}

// Init makes this process the reaper of all its descendants: the kernel hands orphans to it, and they never stay zombies. It also hides
// this process from them: see hide. Start calls Init. An agent calls it at once, because it can get orphans as PID 1 before it runs a
// program.
func Init() error { return initOnce() }

var initOnce = sync.OnceValue(func() error {
	if err := hide(); err != nil {
		return err
	}
	if runtime.GOMAXPROCS(0) < 2 {
		runtime.GOMAXPROCS(2) // see forkExec
	}
	pinHeader()
	process.pid1 = os.Getpid() == 1
	if !process.pid1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become the subreaper of the process tree: %w", err)
		}
	}
	// One signal can stand for many children, so every wake-up reaps all of them.
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	go process.run(sigchld)
	go process.serveForks()
	return nil
})

// The pauses between two rounds of killing while nothing happens. Processes in uninterruptible sleep can keep a tree alive for a long time.
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

// poke wakes the reaper. It never blocks: one pending wake-up is enough.
func (r *reaper) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// serveForks is the OS thread that forks all leashes. The parent-death signal of a leash fires when the *thread* that forked it ends, so
// this thread is locked and never returns.
func (r *reaper) serveForks() {
	runtime.LockOSThread()
	for fork := range r.forks {
		fork()
	}
}

// execute executes this program again as the leash. The leash leads its own session, so signals of the main process to its own group, and
// keys of a terminal, do not reach it. The agent can die between fork and prctl. ForkExec handles this: it compares getppid after it sets
// Pdeathsig.
func (r *reaper) execute(argv, env []string, files []int) (pid int, err error) {
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
		pid, err = forkExec(r.executable, argv, attr)
	}
	<-done
	return pid, err
}

// forkExec executes a program. It returns when the new program executes, which can take long if a disk does not answer. Go's
// scheduler cannot stop the thread meanwhile, so it needs another one, and a garbage collection would stop this process until then.
func forkExec(executable string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	return syscall.ForkExec(executable, argv, attr)
}

// pinHeader keeps the first page of this program in memory. An exec reads no other page before forkExec returns. The limit for locked memory
// can be 0. Then the page can be read again.
func pinHeader() {
	f, err := os.Open(process.executable)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	if page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED); err == nil {
		_ = unix.Mlock(page)
	}
}

// sweep reaps all processes that have ended and acts on that. It returns whether to call it again without a wake-up.
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
	// The leash ends only with or before the main process. In both cases the tenure's work is over, and the remaining processes must end.
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

// reapAll reaps every child that has ended and reports whether no child is left, dead or alive. A subreaper without children has no
// descendants.
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
		case r.spare.reaped(pid):
			r.spare = nil
		case r.tree != nil:
			r.tree.reaped(pid, ws)
		}
	}
}

// isChild reports whether a process is a child of this one, dead or alive.
func isChild(pid int) bool {
	return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil) == nil
}

// watchMain ends the tree if its main process has ended and the leash does not end, because it is stopped. Without a deadline nothing else
// would end the tree.
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

// lookPeriod is the period of watchMain. It can be long, because an end that the leash reports is known at once.
const lookPeriod = time.Second

// reaped records the ends of leashes and programs.
func (t *Tree) reaped(pid int, ws unix.WaitStatus) {
	known := t.run.reaped(pid, ws)
	for x := range t.execs {
		known = known || x.reaped(pid, ws)
	}
	if known || !t.unreported() {
		return
	}
	if len(t.early) >= maxEarly {
		clear(t.early) // the latest are the likeliest to be needed
	}
	t.early[pid] = ws
}

// maxEarly limits the memory for statuses while a start hangs.
const maxEarly = 4096

// endOf returns the status of a process that was reaped while its PID was not known yet. If it is lost, the process counts as killed.
func endOf(pid int, early map[int]unix.WaitStatus) *unix.WaitStatus {
	ws, ok := early[pid]
	if !ok {
		ws = unix.WaitStatus(unix.SIGKILL)
	}
	return &ws
}

// reaped records the end of a leash or of its program, and reports whether the process was one of these. The program is reaped here, as an
// orphan: the leash watches it without reaping it, so its exact status is never lost with the leash.
func (r *run) reaped(pid int, ws unix.WaitStatus) bool {
	switch {
	case pid == r.leash && r.leashEnd == nil:
		r.leashEnd = &ws
		r.settle()
	case pid == r.main && r.mainEnd == nil:
		r.mainEnd = &ws
	default:
		return false
	}
	return true
}

// announceExit delivers Exited once both ends are known. If last is true, because no process is left, it also delivers it for a main
// process whose status another wait has taken.
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

// killRound sends SIGKILL to every descendant that it can find.
//
// For PID 1 this is one atomic system call. The call kill(-1) walks the process list under the lock that fork needs to add to it, and a
// fork whose parent has SIGKILL pending fails.
//
// Otherwise there is no such call for a tree. Every round kills the *children* of this process. The children of a dead process become its
// children in turn, so the tree is killed from the top, and no parent is left to restart a killed process. Only for its own children can no
// other process free the PID, so grandchildren are never killed by PID.
//
// A process can fork and exit faster than it is found. Each generation then becomes a child of this process, and each end wakes the reaper
// for a round. So each generation is another chance with the same odds, and in practice the chain ends after milliseconds. Stopping all
// processes first (SIGSTOP) would have the same race, and would still need the kill.
func (r *reaper) killRound() {
	if r.pid1 {
		_ = unix.Kill(-1, unix.SIGKILL)
		return
	}
	for _, pid := range children() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// peeling kills the descendants of a subreaper that does not reap them, round by round from the top.
type peeling struct {
	dead []int // the children that were dead in the last round
}

// round sends SIGKILL to the children, and reports whether no descendant of the subreaper can act.
//
// The children of a dying child move up, perhaps after the list was read. So one list with only dead children proves nothing. It is over
// when the next list, read after they were dead, contains no other process. They are looked at again then: canAct can miss a thread while
// other threads end.
func (p *peeling) round(subreaper int) (over bool) {
	over = true
	var dead []int
	for _, pid := range childrenOf(subreaper) {
		acts := canAct(pid)
		over = over && !acts && slices.Contains(p.dead, pid)
		if !acts {
			dead = append(dead, pid)
		}
		_ = unix.Kill(pid, unix.SIGKILL) // a dead child keeps its PID, because it is not reaped
	}
	p.dead = dead
	return over
}

// foreign kills processes in PID 1's namespace that are not its descendants, and reports whether any of them can still act. A process that
// joined the namespace from outside (kubectl exec) can be doing the tenure's work as well.
//
// Such processes are reaped outside, or never if their parent hangs, so only those that can still act count. Processes that this one may
// not kill, such as a debugger of another user, do not belong to the tenure and do not count.
func (r *reaper) foreign() (found bool) {
	if !r.pid1 {
		return false
	}
	for _, pid := range processes() {
		// One by one, because kill(-1) succeeds even if it was not allowed to kill any process.
		if pid != 1 && unix.Kill(pid, unix.SIGKILL) == nil && canAct(pid) {
			found = true
		}
	}
	return found
}

// canAct reports whether any thread of a process can execute another instruction, or is still in the kernel. A zombie cannot act. But the
// first thread of a process can be a zombie while other threads run. A process that cannot be inspected counts as able to act.
func canAct(pid int) bool {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	for _, thread := range threads {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, thread.Name()))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the process has ended
		}
		if fields := statFields(data); err != nil || len(fields) == 0 || fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

// statFields returns the fields of a stat file from the state on. The file has the form "pid (name) state ppid …", and the name can contain
// any text, even ") S 1".
//
// This is hand-written, because prometheus/procfs reads stat files, but not single lists of children or single mappings of smaps. For
// canAct it takes twice the time, and it adds the package regexp and 0.27 MB to an agent of 7.15 MB.
func statFields(stat []byte) []string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// processes lists all processes in /proc.
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

// children lists the children of this process: see childrenOf. Only ECHILD, not an empty list, proves that none is left.
func children() []int { return childrenOf(os.Getpid()) }

// childrenOf lists the children of a process, including zombies. It can miss one that appears or ends at the same time.
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
			continue // the process has ended
		}
		if fields := statFields(data); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}
