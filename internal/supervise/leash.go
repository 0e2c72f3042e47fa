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
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// leashName is the argv[0] of a leash. Its only argument is the role. What it starts is in its order: see writeOrder.
const leashName = "singletonjob-leash"

// Descriptors of the leash besides stdin, stdout and stderr.
const (
	deadlinesFD  = 3 + iota // read: deadlines from the agent
	reportFD                // write: one report to the agent
	agentAliveFD            // read: nothing ever, until the agent dies
	leashAliveFD            // write: nothing ever, until the leash dies
	agentsEndFD             // the agent's end of leashAlive, shared to be armed
	orderFD                 // read: what to start, which the agent writes before it sends the first deadline
	lockFD                  // Spec.Lock, to be held
)

// MaybeLeash must be the first statement of main in every program that calls Start, because Start executes the program again as the leash.
// In the leash it does not return. Otherwise it does nothing.
func MaybeLeash() {
	if len(os.Args) == 0 || os.Args[0] != leashName {
		return
	}
	os.Exit(runLeash(os.Args[1:]))
}

// runLeash starts the program and ends with it. It exits with 0 if the main process has ended by itself. Every other end of the leash kills
// the main process.
//
// It never reaps the main process. When the leash exits, the kernel hands the zombie with its exact status to the agent, whichever of the
// two died first.
//
// The leash follows the deadlines, and does everything that takes time, before it starts the program. A program that leaves no CPU to
// others could delay such work indefinitely. A leash that waits for its first deadline, which can take months, has done all that it can do
// without knowing the program.
func runLeash(args []string) int {
	goDeaf()
	// The parent-death signal of the main process fires when the thread that forked it ends. That is this thread, which from here on ends
	// only with the process.
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // the leash allocates nothing after its start, unless it kills

	l := &leash{}
	if err := l.prepare(args); err != nil {
		l.report(failed(stageSetup, err))
		return 1
	}
	waits, follows := make(chan struct{}), make(chan struct{})
	go l.followDeadlines(waits, follows)
	<-waits
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&leashThreadName[0])), 0, 0, 0) // tells whoever looks that it has set itself up
	dieQuickly()
	if !l.ofCommand { // a command's leash lives only for a short time
		forgetStart()
	}
	<-follows
	rep := l.start()
	if !l.report(rep) || rep.stage != stageStarted {
		return l.failed()
	}
	return l.watch(rep.pid)
}

// failed returns the exit code of a leash whose end kills the main process. A leash that is already killing does not return.
func (l *leash) failed() int {
	if l.over.Load() && l.ofCommand {
		select {} // wait until all descendants of the command are dead
	}
	return 1
}

// goDeaf catches and drops the signals that would end or stop the leash. It does not block or ignore any, because the main process would
// inherit that. It leaves signals ignored that already are, because the main process must inherit that.
//
// Go's runtime drops the others by itself. To catch one takes several switches between threads, which is much of the CPU time of a start. A
// thread that is locked needs more of them, so runLeash calls this first.
func goDeaf() {
	caught := slices.DeleteFunc(slices.Clone(harmful), signal.Ignored)
	signal.Notify(make(chan os.Signal, 1), caught...)
}

// harmful are the signals that Go's runtime does not drop, without 32 and 34, which C libraries use and which Go cannot catch.
var harmful = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGTERM,
	unix.SIGSTKFLT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGSYS,
}

var leashThreadName = [...]byte{'l', 'e', 'a', 's', 'h', 0}

type leash struct {
	goOn     timer // continues this process if it is stopped
	kill     timer // kills it if it still does not run
	alarm    int   // wakes followDeadlines
	lead     int64 // how long before the deadline the leash kills
	deadline atomic.Int64
	// receiving guards reads of the pipe for deadlines, and deadline until they are stored.
	receiving sync.Mutex
	// agentIs1 and ofCommand are explained at the roles below.
	agentIs1, ofCommand bool

	reported atomic.Bool
	over     atomic.Bool // it is killing
	forking  atomic.Bool // it is forking the program, or has forked it
}

// prepare keeps all descriptors from the program, hides the leash from it, creates the timers, and makes the pipes deliver SIGKILL (to no
// process yet).
func (l *leash) prepare(args []string) error {
	if len(args) != 1 {
		return unix.EINVAL
	}
	if err := hide(); err != nil {
		return err
	}
	l.agentIs1, l.ofCommand = args[0] == agentIs1, args[0] == ofCommand
	l.deadline.Store(Never) // until the first is received
	l.lead = leadAlone
	if l.agentIs1 {
		l.lead = leadForAll
	}
	if l.ofCommand { // processes that the command leaves behind stay below this leash
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
	var err error
	if l.alarm, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return err
	}
	if l.goOn, err = createTimer(unix.SIGCONT); err != nil {
		return err
	}
	l.kill, err = createTimer(unix.SIGKILL)
	return err
}

// The roles of a leash: its first argument.
const (
	alone     = ""        // the agent is not PID 1
	agentIs1  = "1"       // the agent is PID 1 of a PID namespace, and this leash kills all of the namespace
	ofCommand = "command" // the program runs beside the main process: see Tree.Exec
)

// start starts the program of the leash's order.
func (l *leash) start() report {
	o, err := readOrder(orderFD)
	if err != nil {
		return failed(stageSetup, err)
	}
	// The leash accesses the files, not the agent: on a dead network file system this hangs, and the agent must not.
	if o.dir != "" {
		if err := uninterrupted(func() error { return os.Chdir(o.dir) }); err != nil {
			return failed(stageDir, err)
		}
	}
	path, err := lookPath(o.argv[0], o.env)
	if err != nil {
		return failed(stageExec, err)
	}
	if err := renouncePrivileges(); err != nil {
		return failed(stageSetup, err)
	}
	l.forking.Store(true)
	if l.over.Load() || l.isOver() { // the other thread can be late
		l.forking.Store(false)
		return report{stage: stageExpired}
	}
	pid, err := syscall.ForkExec(path, o.argv, &syscall.ProcAttr{
		Env:   o.env,
		Files: []uintptr{0, 1, 2},
		// A session leader cannot leave its process group, and the pipes kill that group. (PID 1 of a container is a session leader, too.)
		// ForkExec compares getppid after prctl, see forkLeash.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		l.forking.Store(false)
		return failed(stageExec, err)
	}
	if l.over.Load() { // the other thread has killed it, perhaps before exec, which ForkExec reports as success
		return report{stage: stageExpired}
	}
	if err := armPipes(pid); err != nil {
		return failed(stageSetup, err)
	}
	return report{stage: stageStarted, pid: pid}
}

// uninterrupted repeats a call that a signal has interrupted. Some file systems return EINTR.
func uninterrupted(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// armPipes makes the main process's group the owner of the pipes. From now on the kernel sends it SIGKILL when the other end of a pipe
// closes. The pipe leashAlive closes when the leash dies while the agent lives (perhaps stopped), agentAlive when the agent dies. The group
// does not exist before the program runs, so this is a moment late for the first processes that the program starts. Start reports success
// only after it.
func armPipes(group int) error { return setOwners(-group) }

// disarmPipes lets processes that a program has left behind live on.
func disarmPipes() error { return setOwners(0) }

func setOwners(owner int) error {
	for _, fd := range []uintptr{agentAliveFD, agentsEndFD} {
		if _, err := unix.FcntlInt(fd, unix.F_SETOWN, owner); err != nil {
			return err
		}
	}
	return nil
}

// followDeadlines sets the kernel's timers for each deadline that the agent sends, and kills when the deadline is near. The end of the pipe
// means that the agent has ended. With the first deadline the agent permits the start, and follows is closed.
func (l *leash) followDeadlines(waits, follows chan<- struct{}) {
	runtime.LockOSThread() // so that dieQuickly applies to this thread
	close(waits)
	fds := []unix.PollFd{{Fd: deadlinesFD, Events: unix.POLLIN}, {Fd: int32(l.alarm), Events: unix.POLLIN}}
	if poll(fds[:1], -1) != nil || l.receive() != nil {
		os.Exit(1) // there is no program that must end with this leash
	}
	var buf [deadlineSize]byte
	for {
		if err := l.setTimers(); err != nil {
			l.end()
		}
		if follows != nil {
			close(follows)
			follows = nil
		}
		if poll(fds, -1) != nil {
			l.end()
		}
		if fds[1].Revents != 0 {
			_, _ = retryRead(l.alarm, buf[:]) // the number of expirations
		}
		if l.receive() != nil {
			l.end()
		}
	}
}

// poll repeats the call if a signal interrupts it.
func poll(fds []unix.PollFd, timeout int) error {
	return uninterrupted(func() error {
		_, err := unix.Poll(fds, timeout)
		return err
	})
}

// receive receives the deadlines that were sent until now. It fails if the agent is dead. A deadline that has been reached is final, even if
// an extension was sent in time.
func (l *leash) receive() error {
	l.receiving.Lock()
	defer l.receiving.Unlock()
	for fds := []unix.PollFd{{Fd: deadlinesFD, Events: unix.POLLIN}}; !l.isOver(); {
		if err := poll(fds, 0); err != nil || fds[0].Revents == 0 {
			return err
		}
		var buf [deadlineSize]byte
		n, err := retryRead(deadlinesFD, buf[:])
		if err == nil && n != len(buf) {
			err = unix.EPIPE
		}
		if err != nil {
			return err
		}
		l.deadline.Store(int64(binary.LittleEndian.Uint64(buf[:])))
	}
	return nil
}

// left is the time until the deadline. ends is false if there is no deadline.
func (l *leash) left() (left int64, ends bool) {
	deadline := l.deadline.Load()
	return deadline - BootTime(), deadline != Never
}

// isOver reports whether the deadline is near.
func (l *leash) isOver() bool {
	left, ends := l.left()
	return ends && left <= l.lead
}

// setTimers sets three timers: one wakes this thread, one continues the process if it is stopped then, and one kills it if it still does
// not run. It ends the leash if the deadline is near.
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

// timers are the durations for which the kernel's timers are set, in ns.
type timers struct{ look, goOn, kill int64 }

// timersFor returns the timers for a deadline that is left ns away on the hardware clock.
//
// The kernel's timers run on CLOCK_BOOTTIME, which NTP can slow down: by 10 % (adjtimex's tick), 0.05 % (its frequency) and 0.05 %
// (adjtime). An offset of 0.5 s takes 12.5 % more, because a quarter of it is made up in a second. Together this is 0.774 of its rate. A timer that
// is set for less than this part of the time left fires in time even if no process corrects it. The leash wakes up when half of the time
// left has passed, again and again, until it is within lead of the deadline. A stopped leash is continued half a lead later, still before
// its deadline, and then kills by itself.
//
// A leash that still does not run is killed. It waits for memory, it is kept stopped, or it gets no CPU. Descendants that its death does
// not reach then live on as long as its agent is stopped. So it gets at least one lead from when it should have woken up, and half a lead
// from when it should have killed. On the slowest clock this ends 0.6 of a lead after the deadline. A leash whose last deadline arrived
// more than four leads before that deadline is always killed in time.
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
	// leadForAll is the same for a leash that first kills all of a PID namespace. It is long enough for a leash that has used up its CPU
	// share to get the next one, or that waits among dozens of threads.
	leadForAll = 300_000_000 // ns
)

// end ends the leash and the processes that are tied to it.
//
// If the agent is PID 1, the ties are not enough. A process of a user namespace that has changed its user has lost its parent-death signal.
// The pipes' SIGKILL does not reach it either, because that takes an equal user or root of the initial namespace. Other processes have left
// the group. So the leash kills the whole PID namespace. It has the agent's privileges, which suffice to kill all of its descendants
// (MayKill).
func (l *leash) end() {
	l.over.Store(true) // from now on the main process does not end by itself
	if l.agentIs1 {
		_ = unix.Kill(-1, unix.SIGKILL) // all but itself and PID 1
	}
	l.report(report{stage: stageExpired})
	if l.ofCommand {
		l.killDescendants()
	}
	os.Exit(1)
}

// killDescendants kills until no descendant of this process, which is their subreaper, can act. It waits for a program that is being
// forked.
//
// The timer of the deadline must not kill the leash meanwhile, because slow descendants would lose their subreaper. So each round sets the
// timers again. A leash that is stopped between rounds is continued, and one that is kept stopped is killed. SIGCONT first: a leash that is
// stopped between the two calls has it, and still has the deadline's SIGKILL.
func (l *leash) killDescendants() {
	for below := (peeling{}); ; time.Sleep(firstPause) {
		now := gettime(unix.CLOCK_BOOTTIME)
		_ = l.goOn.set(now + int64(lastPause))
		_ = l.kill.set(now + int64(graceAfterTimeout))
		if below.round(os.Getpid()) && (len(below.dead) > 0 || !l.forking.Load()) {
			return
		}
	}
}

// watch blocks until the program has ended. It does not reap it.
//
// A command does not end by itself after its deadline. The agent sends an expired deadline before it kills a command, so what it has sent is
// read first: the other thread may get no CPU.
func (l *leash) watch(pid int) int {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == unix.EINTR:
		case err != nil || l.over.Load():
			return l.failed()
		case l.ofCommand && (l.receive() != nil || l.isOver() || l.over.Load()):
			l.end()
		case l.ofCommand && disarmPipes() != nil:
			return 1
		default:
			return 0
		}
	}
}

// dieQuickly requests short time slices from the scheduler, so that a thread of the leash that wakes up to die runs before a busy program's
// slice is over. This needs Linux 6.12 and no privilege. On older kernels the leash waits its turn. The program does not inherit the
// setting.
//
// This was measured on two CPUs with a load of 30 to 70, over six runs of 30 to 50 programs that never pause. The second latest last write
// came between 2 ms before and 6 ms after the deadline. Without the call in runLeash it came up to 315 ms after the deadline, with a median
// of 57 ms (go test ./internal/supervise -run '^$' -bench 'Deadline/beat-hard$' -benchtime 50x).
func dieQuickly() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		tid, _ := strconv.Atoi(thread.Name())
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil || attr.Policy != unix.SCHED_NORMAL && attr.Policy != unix.SCHED_BATCH || attr.Nice < 0 {
			continue // SCHED_FLAG_RESET_ON_FORK would take the agent's priority from the program
		}
		attr.Runtime = shortestSlice
		attr.Flags |= unix.SCHED_FLAG_RESET_ON_FORK
		_ = unix.SchedSetAttr(tid, attr, 0)
	}
}

const shortestSlice = 100_000 // ns, the kernel's minimum

// forgetStart releases the pages of the binary that only the start of the Go runtime and the package initialization have used. In the
// tests' binary these are 1.5 MiB of 4.0 MiB (go test ./internal/supervise -run '^$' -bench LeashMemory, with the call in runLeash and
// without it). A page that is needed again comes back from the page cache; killing needs none of them. It is safe for read-only mappings of files without
// private copies (Anonymous is 0; relocations are private copies).
func forgetStart() {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return // the leash then uses more memory
	}
	var from, to uint64 // the mapping that the lines describe; 0: keep it
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

// timer is a kernel timer that sends this process a signal.
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

// set makes the timer send its signal at an instant of CLOCK_BOOTTIME. 0 disarms the timer. (An interval would not help against a process
// that stops this one again: the kernel drops the undelivered signal, and with it the next expiration.)
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

// closeOnExec marks every descriptor from first on, including those that the agent itself was started with.
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

// leashEnv is all of the leash's own environment, for its Go runtime. One thread can be in exec for as long as that hangs, and another one
// follows the deadlines.
var leashEnv = []string{"GOMAXPROCS=2"}

const deadlineSize = 8 // bytes of a message on the deadlines pipe

// report is the leash's only message to the agent: the result of the start.
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

// report sends the result of the start to the agent, once. It returns whether this call was the first and succeeded.
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

// readReport blocks until the leash has reported, or can no longer report.
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
