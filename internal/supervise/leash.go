//go:build linux

package supervise

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// leashName is the argv[0] by which a process knows that it is the leash. The other
// arguments are the deadline, its role, the working directory and the program's argv.
const leashName = "singletonjob-leash"

// Descriptors of the leash beside stdin, stdout and stderr.
const (
	deadlinesFD  = 3 + iota // read: deadlines from the agent
	reportFD                // write: one report to the agent
	agentAliveFD            // read: nothing ever, until the agent dies
	leashAliveFD            // write: nothing ever, until the leash dies
	agentsEndFD             // the agent's end of leashAlive, shared to be armed
	lockFD                  // Spec.Lock, to be held
)

// MaybeLeash is the first statement of main in every binary that calls Start, which
// re-executes it. In the leash it does not return; elsewhere it does nothing.
func MaybeLeash() {
	if len(os.Args) == 0 || os.Args[0] != leashName {
		return
	}
	os.Exit(runLeash(os.Args[1:]))
}

// runLeash starts the program and outlives it by nothing. It exits 0 when the main
// process has ended by itself; any other end of the leash is one that kills.
//
// It never reaps the main process: when the leash exits, the kernel hands the
// zombie with its exact status to the agent, whichever of the two died first.
//
// Before the program exists the deadlines are followed and all is done that takes time:
// beside a program that leaves no CPU to others it would not get done.
func runLeash(args []string) int {
	// The parent-death signal of the main process fires when the thread that
	// forked it ends: this one, which from here on ends with the process.
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // the leash allocates nothing after its start
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&leashThreadName[0])), 0, 0, 0)
	goDeaf()

	l := &leash{}
	if err := l.prepare(args); err != nil {
		l.report(failed(stageSetup, err))
		return 1
	}
	follows := make(chan struct{})
	go l.followDeadlines(follows)
	<-follows
	dieQuickly()
	if !l.ofCommand { // which is soon over
		forgetStart()
	}
	rep := l.start(args[2], args[3:])
	if !l.report(rep) || rep.stage != stageStarted {
		return l.failed()
	}
	return l.watch(rep.pid)
}

// failed is the code of a leash that kills by its end, unless it is killing already.
func (l *leash) failed() int {
	if l.over.Load() && l.ofCommand {
		select {} // until all are dead that the command has left
	}
	return 1
}

// goDeaf catches and drops the signals that are meant for others. It neither blocks
// nor ignores any, because the main process would inherit that, and lets what is
// ignored already be, because the main process is to inherit that.
func goDeaf() {
	var caught []os.Signal
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if !signal.Ignored(sig) {
			caught = append(caught, sig)
		}
	}
	signal.Notify(make(chan os.Signal, 1), caught...)
}

var leashThreadName = [...]byte{'l', 'e', 'a', 's', 'h', 0}

type leash struct {
	goOn     timer // wakes this process if it is stopped
	kill     timer // kills it if it does not run all the same
	alarm    int   // wakes followDeadlines, to look again
	deadline atomic.Int64
	lead     int64 // how long before the deadline the leash kills by itself
	// agentIs1 and ofCommand: see the roles.
	agentIs1, ofCommand bool

	reported atomic.Bool
	over     atomic.Bool // it kills
	forking  atomic.Bool // it forks the program, or has
}

// prepare closes all descriptors to the program, hides the leash from it, creates the timers, and makes the pipes
// deliver SIGKILL (to nobody yet).
func (l *leash) prepare(args []string) error {
	if len(args) < 4 {
		return unix.EINVAL
	}
	if err := hide(); err != nil {
		return err
	}
	deadline, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return unix.EINVAL
	}
	l.deadline.Store(deadline)
	l.agentIs1, l.ofCommand = args[1] == agentIs1, args[1] == ofCommand
	l.lead = leadAlone
	if l.agentIs1 {
		l.lead = leadForAll
	}
	if l.ofCommand { // what the command leaves behind stays within reach
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	if err := closeOnExec(deadlinesFD); err != nil {
		return err
	}
	for _, fd := range []uintptr{agentAliveFD, agentsEndFD} {
		if _, err := unix.FcntlInt(fd, unix.F_SETSIG, int(unix.SIGKILL)); err != nil {
			return err
		}
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err != nil {
			return err
		}
		if _, err := unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_ASYNC); err != nil {
			return err
		}
	}
	if l.alarm, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return err
	}
	if l.goOn, err = createTimer(unix.SIGCONT); err != nil {
		return err
	}
	l.kill, err = createTimer(unix.SIGKILL)
	return err
}

// The roles of a leash, its second argument.
const (
	alone     = ""        // the agent is not PID 1
	agentIs1  = "1"       // the agent is PID 1 of a PID namespace, all of which ends with this leash
	ofCommand = "command" // the program is run beside the main process: see Tree.Exec
)

// start starts the program.
func (l *leash) start(dir string, argv []string) report {
	// Files are looked at here and not by the agent: on a dead network file
	// system this hangs, and the agent must not.
	if dir != "" {
		if err := uninterrupted(func() error { return os.Chdir(dir) }); err != nil {
			return failed(stageDir, err)
		}
	}
	env := BareEnv(os.Environ())
	path, err := lookPath(argv[0], env)
	if err != nil {
		return failed(stageExec, err)
	}
	if err := renouncePrivileges(); err != nil {
		return failed(stageSetup, err)
	}
	l.forking.Store(true)
	if left, ends := l.left(); l.over.Load() || ends && left <= l.lead { // the other thread's turn may be late
		l.forking.Store(false)
		return report{stage: stageExpired}
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		// A session leader cannot leave its process group, which is what the
		// pipes kill. (It is also what PID 1 of a container is.)
		// ForkExec compares getppid after prctl, see forkLeash.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		l.forking.Store(false)
		return failed(stageExec, err)
	}
	if l.over.Load() { // the other thread has killed it, before it was executed perhaps: ForkExec takes that for a success
		return report{stage: stageExpired}
	}
	if err := armPipes(pid); err != nil {
		return failed(stageSetup, err)
	}
	return report{stage: stageStarted, pid: pid}
}

// uninterrupted does again what a signal has interrupted: some file systems let that be seen.
func uninterrupted(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// armPipes names the main process's group as the one that hears of the pipes. From
// now on the kernel sends it SIGKILL when the other end of one closes: leashAlive
// when the leash dies while the agent lives (stopped, perhaps), agentAlive when the
// agent dies. The group does not exist before the program runs, so this comes a
// moment late for what the program starts first; Start returns after it.
func armPipes(group int) error { return setOwners(-group) }

// disarmPipes lets what a program has left behind live on.
func disarmPipes() error { return setOwners(0) }

func setOwners(owner int) error {
	for _, fd := range []uintptr{agentAliveFD, agentsEndFD} {
		if _, err := unix.FcntlInt(fd, unix.F_SETOWN, owner); err != nil {
			return err
		}
	}
	return nil
}

// followDeadlines keeps the kernel's timers by each deadline that the agent sends, and kills when one is near. The end of
// the pipe is the end of the agent.
func (l *leash) followDeadlines(follows chan<- struct{}) {
	runtime.LockOSThread() // a thread that dieQuickly finds
	fds := []unix.PollFd{{Fd: deadlinesFD, Events: unix.POLLIN}, {Fd: int32(l.alarm), Events: unix.POLLIN}}
	var buf [deadlineSize]byte
	for {
		// A deadline that was reached is final, even if the extension was sent in time.
		if err := l.setTimers(); err != nil {
			l.end()
		}
		if follows != nil {
			close(follows)
			follows = nil
		}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			l.end()
		}
		if fds[1].Revents != 0 {
			_, _ = retryRead(l.alarm, buf[:]) // how often it has rung
		}
		if fds[0].Revents == 0 {
			continue
		}
		if left, ends := l.left(); ends && left <= l.lead {
			l.end()
		}
		if n, err := retryRead(deadlinesFD, buf[:]); err != nil || n != len(buf) {
			l.end()
		}
		l.deadline.Store(int64(binary.LittleEndian.Uint64(buf[:])))
	}
}

// left is the time until the deadline; ends is false where there is none.
func (l *leash) left() (left int64, ends bool) {
	deadline := l.deadline.Load()
	return deadline - BootTime(), deadline != Never
}

// setTimers sets what wakes this thread to look again, what has the process go on if it is stopped then, and what kills it if it
// does not run all the same. It ends the leash if the deadline is near.
func (l *leash) setTimers() error {
	now := gettime(unix.CLOCK_BOOTTIME) // first: see NoLater
	left, ends := l.left()
	if !ends {
		return errors.Join(l.goOn.set(0), l.kill.set(0), l.setAlarm(0))
	}
	if left <= l.lead {
		l.end()
	}
	after := timersFor(left, l.lead)
	return errors.Join(l.goOn.set(now+after.goOn), l.kill.set(now+after.kill), l.setAlarm(now+after.look))
}

// timers are for how long the kernel's timers are set, in ns.
type timers struct{ look, goOn, kill int64 }

// timersFor tells when a leash whose deadline is left away by the hardware's clock looks again.
//
// The kernel's timers run on CLOCK_BOOTTIME, which it lets NTP slow down: by 10 % (adjtimex's tick), 0.05 % (its frequency),
// 0.05 % (adjtime), and 12.5 % (an offset of 0.5 s, a quarter of which is made up in a second): to 0.774 of its rate. A
// timer that is set for less than that part of what is left fires in time, with nobody awake to mend it. The leash looks again
// at half of what is left, and so comes within lead of the deadline. One that is stopped goes on half a lead later, before
// its deadline at any rate, and kills by itself.
//
// One that does not run all the same is killed: its memory is not to be had, somebody holds it, or it gets no CPU. What its own
// death does not reach lives on then, as long as its agent is stopped. So it is given a lead at least from when it should have
// looked, and half of one from when it should have killed; on the slowest clock that ends 0.6 of a lead after the deadline. One that
// was last heard of more than four leads before the deadline is killed before it at any rate.
func timersFor(left, lead int64) timers {
	look := left / 2
	if look < lead {
		look = left - lead
	}
	kill := left - left/4
	if left < 4*lead {
		kill = max(look+lead, left-lead/2)
	}
	return timers{look: look, goOn: look + lead/2, kill: kill}
}

const (
	// leadAlone is how long before the deadline the leash exits.
	leadAlone = 2_000_000 // ns
	// leadForAll is the same for one that kills all of a PID namespace first. It is long enough for one that has
	// used up its share of a CPU to get the next, or waits among dozens.
	leadForAll = 300_000_000 // ns
)

// end ends the leash and what is tied to it.
//
// Where the agent is PID 1 it does not rely on that: a process of a user namespace that changed its user has lost its
// parent-death signal, and is out of the reach of the pipes' SIGKILL, which takes an equal user or root of the initial
// namespace; others have left the group. The leash has the agent's privileges, which suffice to kill all that
// descends from it (MayKill), and it can reach all.
func (l *leash) end() {
	l.over.Store(true) // the end of the main process is not its own now
	if l.agentIs1 {
		_ = unix.Kill(-1, unix.SIGKILL) // but itself and PID 1
	}
	l.report(report{stage: stageExpired})
	if l.ofCommand {
		_ = l.kill.set(0) // it would set free what is slow to die
		l.killDescendants()
	}
	os.Exit(1)
}

// killDescendants kills until none of the descendants of this process, their subreaper, can act. A program that is just
// being forked is waited for.
func (l *leash) killDescendants() {
	for below := (peeling{}); !below.round(os.Getpid()) || len(below.dead) == 0 && l.forking.Load(); {
		time.Sleep(firstPause)
	}
}

// watch blocks until the main process has ended, and leaves it to be reaped.
func (l *leash) watch(pid int) int {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == nil && !l.over.Load():
			if l.ofCommand && disarmPipes() != nil {
				return 1
			}
			return 0
		case err == unix.EINTR:
		default:
			return l.failed()
		}
	}
}

// dieQuickly asks the scheduler for short time slices, so that a thread of the leash
// that is woken to die runs before a busy program's slice is over (Linux 6.12, no
// privilege; elsewhere the leash waits its turn). The program does not inherit it.
//
// On two CPUs with a load of 30 to 70, the second latest of 30 to 50 programs that never
// pause wrote for the last time between 2 ms before and 6 ms after its deadline, in six
// runs, and without the call in runLeash up to 315 ms after it, with a median of 57 ms
// (go test ./internal/supervise -run '^$' -bench 'Deadline/beat-hard$' -benchtime 50x).
func dieQuickly() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		tid, _ := strconv.Atoi(thread.Name())
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil || attr.Policy != unix.SCHED_NORMAL && attr.Policy != unix.SCHED_BATCH || attr.Nice < 0 {
			continue // SCHED_FLAG_RESET_ON_FORK would take from the program what the agent was given
		}
		attr.Runtime = shortestSlice
		attr.Flags |= unix.SCHED_FLAG_RESET_ON_FORK
		_ = unix.SchedSetAttr(tid, attr, 0)
	}
}

const shortestSlice = 100_000 // ns, the least that the kernel grants

// forgetStart gives back the pages of the binary that only the start of the Go
// runtime and the agent's package initialisation have touched: 1.5 MiB of 4.0 MiB
// (go test ./internal/supervise -run '^$' -bench LeashMemory, with the call in
// runLeash and without it, in the tests' binary). What is still needed comes back
// from the page cache when it is touched; killing needs none of it. Read-only
// mappings of files that the process has no private copies in (Anonymous, that is
// relocations) lose nothing by it.
func forgetStart() {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return // then it stays larger
	}
	var from, to uint64 // the mapping that the lines are about; 0: not to be touched
	for line := range strings.Lines(string(smaps)) {
		field := strings.Fields(line)
		switch start, end, isRange := addresses(field); {
		case isRange && field[1][:2] == "r-" && field[4] != "0": // readable, not writable, of a file
			from, to = start, end
		case isRange:
			from, to = 0, 0
		case to != 0 && field[0] == "Anonymous:" && field[1] == "0":
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_DONTNEED)
		}
	}
}

// addresses parses the first line about a mapping in smaps:
// "from-to perm offset device inode [path]".
func addresses(field []string) (from, to uint64, ok bool) {
	if len(field) < 5 {
		return 0, 0, false
	}
	start, end, ok := strings.Cut(field[0], "-")
	if !ok {
		return 0, 0, false
	}
	from, err := strconv.ParseUint(start, 16, 64)
	if err != nil {
		return 0, 0, false
	}
	to, err = strconv.ParseUint(end, 16, 64)
	return from, to, err == nil
}

// sigevent is the kernel's struct sigevent, 64 bytes.
type sigevent struct {
	value  uintptr
	signo  int32
	notify int32
	_      [64 - 8 - unsafe.Sizeof(uintptr(0))]byte
}

const sigevSignal = 0 // SIGEV_SIGNAL: send signo to the process

// timer is one of the kernel's, which sends this process a signal.
type timer int32

func createTimer(sig unix.Signal) (timer, error) {
	ev := sigevent{signo: int32(sig), notify: sigevSignal}
	var t timer
	_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_BOOTTIME,
		uintptr(unsafe.Pointer(&ev)), uintptr(unsafe.Pointer(&t)))
	if errno != 0 {
		return 0, errno
	}
	return t, nil
}

// set has the signal sent at an instant of CLOCK_BOOTTIME; 0 disarms the timer. (An interval would be of no use against who stops
// this process again: the kernel drops the signal that was not delivered yet, and with it what sets the timer anew.)
func (t timer) set(at int64) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(at)}
	_, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(t),
		unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (l *leash) setAlarm(at int64) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(at)}
	return unix.TimerfdSettime(l.alarm, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// closeOnExec marks every descriptor from first on, those included that the agent
// itself was started with.
func closeOnExec(first int) error {
	err := unix.CloseRange(uint(first), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	// Before Linux 5.11, or filtered by an old seccomp profile.
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range fds {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// The leash's own environment carries the program's, each entry behind a character
// that keeps it from meaning something to the leash (GODEBUG, GOMEMLIMIT).
const envMark = "_"

// leashEnv is for the leash's own Go runtime.
// One thread may be in exec, for as long as that hangs, and another has
// deadlines to follow.
var leashEnv = []string{"GOMAXPROCS=2"}

// HideEnv is an environment in such a form that it means nothing to the process that has it.
func HideEnv(env []string) []string {
	hidden := make([]string, 0, len(env))
	for _, kv := range env {
		hidden = append(hidden, envMark+kv)
	}
	return hidden
}

// BareEnv is what HideEnv has hidden, of an environment that may have more.
func BareEnv(hidden []string) []string {
	bare := make([]string, 0, len(hidden))
	for _, kv := range hidden {
		if len(kv) > 0 && kv[:1] == envMark {
			bare = append(bare, kv[1:])
		}
	}
	return bare
}

const deadlineSize = 8 // bytes of a message on the deadlines pipe

// report is the leash's one message: how far the start came.
type report struct {
	stage stage
	errno unix.Errno
	pid   int
}

type stage uint32

const (
	stageNone    stage = iota // the leash died first
	stageSetup                // the leash could not be set up: errno
	stageExpired              // the deadline had passed
	stageDir                  // the working directory could not be entered: errno
	stageExec                 // the program could not be executed: errno
	stageStarted              // pid runs
)

const reportSize = 12

// report sends the agent what became of the start, once. It reports whether it was the first to.
func (l *leash) report(rep report) bool {
	return l.reported.CompareAndSwap(false, true) && rep.send() == nil
}

func (rep report) send() error {
	var buf [reportSize]byte
	binary.LittleEndian.PutUint32(buf[0:], uint32(rep.stage))
	binary.LittleEndian.PutUint32(buf[4:], uint32(rep.errno))
	binary.LittleEndian.PutUint32(buf[8:], uint32(rep.pid))
	if _, err := unix.Write(reportFD, buf[:]); err != nil {
		return err
	}
	return unix.Close(reportFD)
}

// readReport blocks until the leash has reported, or none can any more.
func readReport(fd int) report {
	buf := make([]byte, reportSize)
	if n, err := retryRead(fd, buf); err != nil || n != reportSize {
		return report{}
	}
	return decodeReport(buf)
}

func decodeReport(buf []byte) report {
	return report{
		stage: stage(binary.LittleEndian.Uint32(buf[0:])),
		errno: unix.Errno(binary.LittleEndian.Uint32(buf[4:])),
		pid:   int(binary.LittleEndian.Uint32(buf[8:])),
	}
}

func failed(at stage, err error) report {
	errno := unix.EINVAL
	errors.As(err, &errno)
	return report{stage: at, errno: errno}
}
