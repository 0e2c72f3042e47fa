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
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// leashName is the argv[0] by which a process knows that it is the leash. The other
// arguments are the deadline, the working directory and the program's argv.
const leashName = "singletonjob-leash"

// Descriptors of the leash beside stdin, stdout and stderr.
const (
	deadlinesFD  = 3 + iota // read: deadlines from the agent
	reportFD                // write: one report to the agent
	agentAliveFD            // read: nothing ever, until the agent dies
	leashAliveFD            // write: nothing ever, until the leash dies
	agentsEndFD             // the agent's end of leashAlive, shared to be armed and then closed
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
func runLeash(args []string) int {
	// The parent-death signal of the main process fires when the thread that
	// forked it ends: this one, which from here on ends with the process.
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // the leash allocates nothing after its start
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&leashThreadName[0])), 0, 0, 0)
	goDeaf()

	l, rep := startLeash(args)
	if err := rep.send(); err != nil || rep.stage != stageStarted {
		return 1
	}
	go l.followDeadlines()
	dieQuickly()
	forgetStart()
	return l.watch(rep.pid)
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
	timer    int32
	deadline int64
}

// startLeash arms what kills, as far as it can before there is anything to kill, and
// starts the program.
func startLeash(args []string) (*leash, report) {
	l := &leash{}
	if len(args) < 3 {
		return l, failed(stageSetup, unix.EINVAL)
	}
	var err error
	if l.deadline, err = strconv.ParseInt(args[0], 10, 64); err != nil {
		return l, failed(stageSetup, unix.EINVAL)
	}
	dir, argv := args[1], args[2:]
	if err := l.prepare(); err != nil {
		return l, failed(stageSetup, err)
	}
	// Files are looked at here and not by the agent: on a dead network file
	// system this hangs until the deadline, and the agent must not.
	if dir != "" {
		if err := os.Chdir(dir); err != nil {
			return l, failed(stageDir, err)
		}
	}
	env := bareEnv(os.Environ())
	path, err := lookPath(argv[0], env)
	if err != nil {
		return l, failed(stageExec, err)
	}
	// The timer's interrupt needs a moment; the program must not start in it.
	if passed(l.deadline) {
		return l, report{stage: stageExpired}
	}
	if err := renouncePrivileges(); err != nil {
		return l, failed(stageSetup, err)
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		// A session leader cannot leave its process group, which is what
		// signals are sent to. (It is also what PID 1 of a container is.)
		// ForkExec compares getppid after prctl, see forkLeash.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return l, failed(stageExec, err)
	}
	if err := armPipes(pid); err != nil {
		return l, failed(stageSetup, err)
	}
	return l, report{stage: stageStarted, pid: pid}
}

// prepare closes all descriptors to the program, creates and sets the timer, and
// makes the pipes deliver SIGKILL (to nobody yet).
func (l *leash) prepare() error {
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
	if err := l.createTimer(); err != nil {
		return err
	}
	return l.setTimer(l.deadline)
}

// armPipes names the main process's group as the one that hears of the pipes. From
// now on the kernel sends it SIGKILL when the other end of one closes: leashAlive
// when the leash dies while the agent lives (stopped, perhaps), agentAlive when the
// agent dies. The group does not exist before the program runs, so this comes a
// moment late for what the program starts first; Start returns after it.
func armPipes(group int) error {
	for _, fd := range []uintptr{agentAliveFD, agentsEndFD} {
		if _, err := unix.FcntlInt(fd, unix.F_SETOWN, -group); err != nil {
			return err
		}
	}
	return unix.Close(agentsEndFD)
}

// followDeadlines sets the timer to each deadline that the agent sends. The end of
// the pipe is the end of the agent.
func (l *leash) followDeadlines() {
	var msg [deadlineSize]byte
	for {
		n, err := retryRead(deadlinesFD, msg[:])
		if err != nil || n != len(msg) {
			os.Exit(1)
		}
		// A deadline that was reached is final, even if the extension was sent
		// in time and the timer's interrupt is late.
		if passed(l.deadline) {
			os.Exit(1)
		}
		l.deadline = int64(binary.LittleEndian.Uint64(msg[:]))
		if err := l.setTimer(l.deadline); err != nil {
			os.Exit(1)
		}
	}
}

// watch blocks until the main process has ended, and leaves it to be reaped.
func (l *leash) watch(pid int) int {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch err {
		case nil:
			return 0
		case unix.EINTR:
		default:
			return 1
		}
	}
}

// dieQuickly asks the scheduler for short time slices, so that a thread of the leash
// that is woken to die runs before a busy program's slice is over (Linux 6.12, no
// privilege; elsewhere the leash waits its turn). After the program was started,
// which is not to inherit it.
func dieQuickly() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		tid, _ := strconv.Atoi(thread.Name())
		if attr, err := unix.SchedGetAttr(tid, 0); err == nil {
			attr.Runtime = shortestSlice
			_ = unix.SchedSetAttr(tid, attr, 0)
		}
	}
}

const shortestSlice = 100_000 // ns, the least that the kernel grants

// forgetStart gives back the pages of the binary that only the start of the Go
// runtime and the agent's package initialisation have touched: most of the leash's
// memory. What is still needed comes back from the page cache when it is touched;
// killing needs none of it. Read-only mappings of files that the process has no
// private copies in (Anonymous, that is relocations) lose nothing by it.
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

func (l *leash) createTimer() error {
	ev := sigevent{signo: int32(unix.SIGKILL), notify: sigevSignal}
	_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_BOOTTIME,
		uintptr(unsafe.Pointer(&ev)), uintptr(unsafe.Pointer(&l.timer)))
	if errno != 0 {
		return errno
	}
	return nil
}

// setTimer has the kernel kill this process at the deadline; 0 disarms it.
func (l *leash) setTimer(deadline int64) error {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(deadline)}
	_, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(l.timer),
		unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&at)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
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

// leashEnv is what the leash's own Go runtime is told.
var leashEnv = []string{"GOMAXPROCS=1"}

func hideEnv(env []string) []string {
	hidden := slices.Clone(leashEnv)
	for _, kv := range env {
		hidden = append(hidden, envMark+kv)
	}
	return hidden
}

func bareEnv(hidden []string) []string {
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
	_            stage = iota // the leash died first
	stageSetup                // the leash could not be set up: errno
	stageExpired              // the deadline had passed
	stageDir                  // the working directory could not be entered: errno
	stageExec                 // the program could not be executed: errno
	stageStarted              // pid runs
)

const reportSize = 12

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
