//go:build linux

// Package supervise runs one process tree per tenure on a leash that the kernel
// holds: start, signal, kill, reap, exit status.
//
// Between the agent and the user's process (the main process) stands the leash,
// the agent's own binary re-executed. Three mechanisms of the kernel tie the
// tree to the tenure, none of which needs the agent to be running:
//
//	deadline ──timer──► leash dies ──parent-death signal, SIGKILL──► main process
//	agent dies ──parent-death signal──► leash    │
//	                                             └─closing pipe, SIGKILL──► main's process group
//
// The first two stop the main process itself; the third also stops what it has
// started, as long as that stayed in its process group (a shell's commands do).
// Descendants that left the group are killed by the agent, which is PID 1 or a
// subreaper and so inherits them. A main
// process that changes its user or gains privileges in exec loses its
// parent-death signal (prctl(2)); leaving its group it cannot, being a session
// leader. In a user namespace it is out of the pipes' reach, too.
//
// Where the agent is PID 1, a leash that runs therefore kills all of the PID namespace
// shortly before the deadline, whether or not the agent runs; if it is stopped, a timer of
// the kernel has it go on. What is left to chance is a leash that can't run while its agent
// is stopped: another timer kills it then, but not those descendants. Where the agent is not
// PID 1, they live on for as long as it is stopped.
//
// The package owns every child of its OS process: once Init or Start was called
// it reaps them all, so os/exec in the same process would lose exit statuses,
// and Kill kills all of them. A program that uses it starts children in no other
// way. Before the first Init or Start it does nothing, so importing it is harmless.
package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	// ErrDeadlinePassed says that the deadline is over: the leash has killed
	// the tree, or has not let it start.
	ErrDeadlinePassed = errors.New("the leash's deadline has passed")
	// ErrLeashKilled says that the leash was killed before it could start the program: by its timer, because it got no CPU
	// for most of the time that it had, or by the kernel for want of memory.
	ErrLeashKilled = errors.New("the leash was killed before it could start the program: it got no CPU for most of the time that it had, or memory ran out")
	// ErrStopped says that the tree is being killed or is gone.
	ErrStopped = errors.New("the process tree is being stopped")
)

// Spec says what to run.
type Spec struct {
	// Argv is the program and its arguments, given to exec as they are. A name
	// without a slash is looked up in the PATH of Env. The program leads a session
	// and a process group of its own, as PID 1 of a container does, but has no
	// controlling terminal.
	Argv []string
	// Env is the environment ("NAME=value"); of equal names the last one
	// counts. nil means the agent's own.
	Env []string
	// Dir is the working directory; empty means the agent's own.
	Dir string
	// Deadline, a BootTime, is when the
	// kernel kills the main process unless Extend came first. If it is Never,
	// the leash guards against the agent's death alone.
	Deadline int64
	// Lock, unless nil, is held open by the leash, too, and not by the program: what is locked by this open file is free when agent and
	// leash are both gone.
	Lock *os.File
	// Stdin, Stdout and Stderr default to the agent's own.
	Stdin, Stdout, Stderr *os.File
}

// Tree is one tenure's processes: the leash, the main process and everything
// that descends from it.
type Tree struct {
	started chan error
	exited  chan Status
	gone    chan struct{}

	// All but the deadlines is guarded by process.mu.
	run                               // of the main process
	execs     map[*execution]struct{} // that have not ended
	early     map[int]unix.WaitStatus // reaped before all that a leash has started was known
	signals   []syscall.Signal        // sent before main was known
	killed    bool                    // by Kill, and the leash had not died before
	announced bool                    // Exited was served

	spec      Spec
	deadlines deadlines
}

// run is a leash and the program on it.
type run struct {
	// The program is reaped by nobody but the reaper, so while mainEnd is nil its PID names no other process.
	leash, main       int
	leashEnd, mainEnd *unix.WaitStatus
	reported          bool // the leash's report was read, or it died without

	// ends are the agent's of the pipes. The leash's report is read from one, once.
	// Nothing is ever written to the two "alive" ones: that an end closes, because
	// its owner died, is what kills the program's group. See armPipes.
	ends pipeEnds
}

// Start begins to run the program on a leash, and returns at once: exec may hang, on a
// dead network file system for as long as that is dead. Started shows what came of it.
// Deadlines, signals and Kill are heeded meanwhile, by the leash if need be: of a program that is not executing when
// it is killed, or at the deadline, no instruction runs.
//
// There is one tree at a time: Start fails until the last one is Gone.
func Start(spec Spec) (*Tree, error) {
	if len(spec.Argv) == 0 {
		return nil, errors.New("supervise: Spec.Argv is empty: it needs at least the program")
	}
	if spec.Deadline < 0 {
		return nil, fmt.Errorf("supervise: Spec.Deadline %d is negative: it is a BootTime", spec.Deadline)
	}
	if passed(spec.Deadline) {
		return nil, ErrDeadlinePassed
	}
	if err := Init(); err != nil {
		return nil, err
	}
	return process.start(spec)
}

func (r *reaper) start(spec Spec) (*Tree, error) {
	t, err := r.fork(spec)
	if err == nil {
		go t.awaitReport(spec)
	}
	return t, err
}

// Started delivers, once, nil when the program is executing and everything that can
// kill it is armed, and otherwise why it does not execute; Gone follows then, without
// Exited. A program that cannot be run is a *StartError. ErrDeadlinePassed, ErrLeashKilled and
// ErrStopped say that there was no time for it.
func (t *Tree) Started() <-chan error { return t.started }

// Extend moves the leash's deadline (BootTime) to a later time, Never being the latest:
// that counts once the program has started, which it does not after its deadline. An
// earlier one changes nothing and does not fail, since the renewal behind the later one
// stands. Extend does not block. Any error means that the old deadline holds.
func (t *Tree) Extend(deadline int64) error { return t.deadlines.extend(deadline) }

// Signal sends sig to the main process, as soon as there is one, and to nobody else, as a container's runtime does: what
// the main process waits for may end its work. It is a request: for what must end, there is Kill.
func (t *Tree) Signal(sig syscall.Signal) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	switch {
	case !t.reported:
		if !slices.Contains(t.signals, sig) {
			t.signals = append(t.signals, sig)
		}
		return nil
	case t.mainEnd != nil || t.main == 0:
		return os.ErrProcessDone
	}
	return t.signalMain(sig)
}

// signalMain is for a main process that is known and was not reaped. process.mu is held, so it is not reaped meanwhile, and its
// PID is nobody else's.
func (t *Tree) signalMain(sig syscall.Signal) error {
	if err := unix.Kill(t.main, sig); err != nil {
		return fmt.Errorf("send %v to process %d: %w", sig, t.main, err)
	}
	return nil
}

// Kill sends SIGKILL to every descendant of the agent, again and again until
// none is left, which Gone shows. The first round is done when Kill returns.
// Calling it again is harmless. A tree whose main process or leash has ended is
// killed without being asked, as a container is when its process ends.
func (t *Tree) Kill() {
	t.deadlines.stop()
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.tree != t {
		return // gone, and the processes of today are another tenure's
	}
	process.reapAll() // a leash that died by itself is not to be counted as killed here
	t.killed = t.killed || t.leashEnd == nil
	process.killRound()
	process.poke()
}

// Exited delivers the status of the main process, once, when it has ended and
// been reaped. Its descendants may still live.
func (t *Tree) Exited() <-chan Status { return t.exited }

// Gone is closed when every process of the tree has been reaped: not before,
// however long one of them stays in the kernel. Exited was served by then.
func (t *Tree) Gone() <-chan struct{} { return t.gone }

// fork starts the leash and makes t the tree that the reaper works for. Both
// happen under the lock, so the reaper cannot meet a leash it does not know.
func (r *reaper) fork(spec Spec) (*Tree, error) {
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tree != nil {
		return nil, fmt.Errorf("supervise: the tree of process %d is not gone yet: wait for Gone before the next Start", r.tree.main)
	}
	role := alone
	if r.pid1 {
		role = agentIs1
	}
	stdio := [3]int{stdio(spec.Stdin, 0), stdio(spec.Stdout, 1), stdio(spec.Stderr, 2)}
	leashed, err := r.forkRun(role, spec.Deadline, spec, stdio)
	if err != nil {
		return nil, err
	}
	t := &Tree{
		started: make(chan error, 1),
		exited:  make(chan Status, 1),
		gone:    make(chan struct{}),
		run:     leashed,
		execs:   map[*execution]struct{}{},
		early:   map[int]unix.WaitStatus{},
		spec:    spec,
	}
	t.deadlines = deadlines{fd: leashed.ends.deadlines, current: spec.Deadline, starting: true, others: map[int]struct{}{}}
	r.tree = t
	return t, nil
}

// forkRun starts a leash. mu is held.
func (r *reaper) forkRun(role string, deadline int64, spec Spec, stdio [3]int) (run, error) {
	agents, leashs, err := openPipes()
	if err != nil {
		return run{}, fmt.Errorf("open the pipes to the leash: %w", err)
	}
	files := [...]int{
		0: stdio[0], 1: stdio[1], 2: stdio[2],
		deadlinesFD:  leashs.deadlines,
		reportFD:     leashs.report,
		agentAliveFD: leashs.agentAlive,
		leashAliveFD: leashs.leashAlive,
		agentsEndFD:  agents.leashAlive,
		lockFD:       -1, // closed
	}
	if spec.Lock != nil {
		files[lockFD] = int(spec.Lock.Fd())
	}
	argv := append([]string{leashName, strconv.FormatInt(deadline, 10), role, spec.Dir}, spec.Argv...)
	leash, err := r.forkLeash(argv, slices.Concat(leashEnv, HideEnv(lastOfEach(spec.Env))), files[:])
	leashs.close()
	if err != nil {
		agents.close()
		return run{}, fmt.Errorf("execute the leash (/proc/self/exe): %w", err)
	}
	return run{leash: leash, ends: agents}, nil
}

// awaitReport waits until the leash has said what became of the start, or died.
func (t *Tree) awaitReport(spec Spec) {
	rep := readReport(t.ends.report)
	err := t.startedAs(rep, spec)
	if err == nil {
		t.deadlines.started()
	} else {
		t.Kill() // what is left of the attempt
	}
	t.started <- err
}

// startedAs takes note of the leash's report.
func (t *Tree) startedAs(rep report, spec Spec) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	t.takeReport(&t.run, rep)
	if rep.stage == stageStarted {
		for _, sig := range t.signals {
			if t.mainEnd == nil {
				_ = t.signalMain(sig)
			}
		}
		t.signals = nil
		go t.watchMain()
		return nil
	}
	return t.notStarted(rep, spec)
}

// takeReport takes note of what a leash has reported, or that it died without.
func (t *Tree) takeReport(r *run, rep report) {
	defer process.poke()
	r.reported = true
	if rep.stage == stageStarted {
		r.main = rep.pid
		// Its leash is its parent for as long as that lives, and then this process is: else the PID was another's before.
		if ws, ok := t.early[rep.pid]; ok && r.leashEnd != nil && !isChild(rep.pid) {
			r.mainEnd = &ws
		}
	}
	if !t.unreported() {
		clear(t.early)
	}
}

// notStarted is why a leash has not started its program.
func (t *Tree) notStarted(rep report, spec Spec) error {
	switch rep.stage {
	case stageExpired:
		return ErrDeadlinePassed
	case stageDir:
		return &StartError{Op: "change to directory", Path: spec.Dir, Err: rep.errno}
	case stageExec:
		return &StartError{Op: opExecute, Path: spec.Argv[0], Err: rep.errno}
	case stageSetup:
		return fmt.Errorf("set up the leash: %w", rep.errno)
	case stageNone, stageStarted:
	}
	switch {
	case t.killed:
		return ErrStopped
	case passed(t.deadlines.latest()):
		return ErrDeadlinePassed
	}
	return ErrLeashKilled
}

// close frees what the tree holds of the kernel. Only when all is reaped: until
// then the pipes are what ties the processes to this one.
func (t *Tree) close() {
	t.deadlines.stop()
	t.ends.close()
}

// deadlines is the agent's end of the pipe that carries the leash's deadlines.
// It has a lock of its own, so that Extend waits for no reaping or killing.
type deadlines struct {
	mu      sync.Mutex
	fd      int
	current int64 // what was last sent to the leash
	stopped bool
	// others are the same ends for the leashes of commands, which follow the same deadlines.
	others map[int]struct{}
	// starting: the program does not run yet; never: Never is the deadline when it does.
	starting, never bool
}

func (d *deadlines) extend(deadline int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.extendLocked(deadline)
}

// started takes note that the program runs.
func (d *deadlines) started() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.starting = false
	if d.never {
		_ = d.extendLocked(Never) // if it cannot be said, the deadline holds
	}
}

func (d *deadlines) extendLocked(deadline int64) error {
	switch {
	case deadline < 0:
		return fmt.Errorf("deadline %d is negative: it is a BootTime", deadline)
	case d.stopped:
		return ErrStopped
	case passed(d.current):
		return ErrDeadlinePassed
	case d.starting && deadline == Never:
		d.never = true
		return nil
	case deadline <= d.current:
		return nil
	}
	if err := sendDeadline(d.fd, deadline); errors.Is(err, unix.EPIPE) {
		return ErrStopped // the leash is dead
	} else if err != nil {
		return fmt.Errorf("send the leash its new deadline (a full pipe means that it is not running): %w", err)
	}
	d.current = deadline
	for fd := range d.others {
		_ = sendDeadline(fd, deadline) // if it cannot be said, that command dies at the old one
	}
	return nil
}

// sendDeadline writes to a pipe of deadlines. A message is far below PIPE_BUF, so it is written whole or not at all.
func sendDeadline(fd int, deadline int64) error {
	var msg [deadlineSize]byte
	binary.LittleEndian.PutUint64(msg[:], uint64(deadline))
	_, err := unix.Write(fd, msg[:])
	return err
}

func (d *deadlines) latest() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

func (d *deadlines) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
}

// pipeEnds are one process's ends of the four pipes between agent and leash.
type pipeEnds struct{ deadlines, report, agentAlive, leashAlive int }

func (e pipeEnds) close() {
	for _, fd := range []int{e.deadlines, e.report, e.agentAlive, e.leashAlive} {
		if fd != 0 { // 0 is not opened: Go's runtime keeps 0, 1 and 2 taken
			_ = unix.Close(fd)
		}
	}
}

// openPipes opens all four or none. Every end is close-on-exec: a stray copy of one
// would keep the kernel from seeing that its owner died.
func openPipes() (agents, leashs pipeEnds, err error) {
	for _, end := range []struct{ read, write *int }{
		{&leashs.deadlines, &agents.deadlines},
		{&agents.report, &leashs.report},
		{&leashs.agentAlive, &agents.agentAlive},
		{&agents.leashAlive, &leashs.leashAlive},
	} {
		var fds [2]int
		if err = unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			break
		}
		*end.read, *end.write = fds[0], fds[1]
	}
	if err == nil {
		err = unix.SetNonblock(agents.deadlines, true) // Extend never blocks
	}
	if err != nil {
		agents.close()
		leashs.close()
	}
	return agents, leashs, err
}

func stdio(f *os.File, inherited int) int {
	if f == nil {
		return inherited
	}
	return int(f.Fd())
}

// retryRead reads once, through interruptions by signals.
func retryRead(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if err != unix.EINTR {
			return n, err
		}
	}
}
