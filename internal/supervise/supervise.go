//go:build linux

// Package supervise runs one process tree per tenure on a leash that the kernel enforces: start, signal, kill, reap, exit status.
//
// The leash is a process between the agent and the user's process (the main process). It is the agent's own program, executed again. Three
// mechanisms of the kernel tie the process tree to the tenure. None of them needs the agent to be running:
//
//	deadline ──timer──► leash dies ──parent-death signal, SIGKILL──► main process
//	agent dies ──parent-death signal──► leash    │
//	                                             └─closing pipe, SIGKILL──► main's process group
//
// The first two stop the main process itself. The third also stops processes that it has started, as long as they stay in its process group
// (a shell's commands do). The agent kills descendants that have left the group. It is PID 1 or a subreaper and so inherits them.
//
// A main process that changes its user or gains privileges in exec loses its parent-death signal (prctl(2)). It cannot leave its group,
// because it is a session leader. In a user namespace the pipes do not reach it either.
//
// If the agent is PID 1, a running leash therefore kills all of the PID namespace shortly before the deadline, whether or not the agent
// runs. If the leash is stopped, a kernel timer continues it. One case is not covered: a leash that cannot run while its agent is stopped.
// Another timer then kills the leash, but not those descendants. If the agent is not PID 1, those descendants live on as long as the agent
// is stopped.
//
// The package owns every child of its OS process. Once Init or Start was called, it reaps all children, so os/exec in the same process
// would lose exit statuses, and Kill kills all of them. A program that uses this package must start children in no other way. Before the
// first Init or Start the package does nothing, so importing it is harmless.
package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrDeadlinePassed reports that the deadline has passed: the leash has killed the tree, or has not started it.
	ErrDeadlinePassed = errors.New("the leash's deadline has passed")
	// ErrLeashKilled reports that the leash was killed before it could start the program. Its timer killed it, because it got no CPU for
	// most of its time, or the kernel did, because memory ran out.
	ErrLeashKilled = errors.New("the leash was killed before it could start the program: it got too little CPU, or memory ran out")
	// ErrStopped reports that the tree is being killed or is gone.
	ErrStopped = errors.New("the process tree is being stopped")
)

// Spec specifies a program to run.
type Spec struct {
	// Argv is the program and its arguments, passed to exec unchanged. A name without a slash is looked up in the PATH of Env. The program
	// leads its own session and process group, like PID 1 of a container, but has no controlling terminal.
	Argv []string
	// Env is the environment ("NAME=value"). If a name occurs more than once, the last entry counts. nil means the agent's own environment.
	Env []string
	// Dir is the working directory. Empty means the agent's own.
	Dir string
	// Deadline is the BootTime at which the kernel kills the main process, unless Extend was called earlier. If it is Never, the leash
	// guards only against the agent's death.
	Deadline int64
	// Lock, unless nil, is a file that the leash, too, holds open, but not the program. A lock on this open file is freed when both agent
	// and leash have ended.
	Lock *os.File
	// Stdin, Stdout and Stderr default to the agent's own. They, and Lock, must stay open until Started delivers.
	Stdin, Stdout, Stderr *os.File
}

// Tree is the process tree of one tenure: the leash, the main process and all of its descendants.
type Tree struct {
	started chan error
	exited  chan Status
	gone    chan struct{}

	// process.mu guards all fields below except the deadlines.
	run                               // of the main process
	execs     map[*execution]struct{} // the executions that have not ended
	drains    map[*output]struct{}    // the outputs of ended commands that are discarded
	early     map[int]unix.WaitStatus // reaped while the PID of a leash, or of its program, was not known yet
	signals   []syscall.Signal        // to send once main is known
	killed    bool                    // by Kill, before the leash died
	announced bool                    // Exited was delivered

	spec      Spec
	deadlines deadlines
}

// run is a leash and its program.
type run struct {
	// Only the reaper reaps the program, so while mainEnd is nil its PID belongs to no other process.
	leash, main       int
	leashEnd, mainEnd *unix.WaitStatus
	reported          bool // the leash's report was read, or the leash died without a report
	// missed is the status of the program if it was reaped before the report named it: see settle.
	missed *unix.WaitStatus

	// ends are the agent's ends of the pipes. The leash's report is read from one of them, once. Nothing is ever written to the two "alive"
	// pipes. When one of their ends closes because its owner has died, the kernel kills the program's group. See armPipes.
	ends pipeEnds
}

// adopt records a leash, which was forked without process.mu. It can have been reaped already, without having started a program.
// process.mu is held.
func (r *run) adopt(forked waiting, early map[int]unix.WaitStatus) {
	r.leash, r.ends = forked.leash, forked.ends
	if !isChild(r.leash) {
		r.leashEnd = endOf(r.leash, early)
	}
}

// Start starts the program on a leash and returns at once, because exec can hang, for example on a dead network file system. Started
// delivers the result. Deadlines, signals and Kill take effect from the start, if necessary through the leash. A program that is not yet
// executing when it is killed, or at the deadline, executes no instruction.
//
// There is one tree at a time: Start fails until the previous one is Gone.
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
	t, err := r.reserve(spec)
	if err == nil {
		go func() { t.awaitReport(t.fork()) }()
	}
	return t, err
}

// Started delivers one value. It is nil when the program is executing and everything that can kill it is armed. Otherwise it is the reason
// why the program does not execute; Gone follows then, without Exited. The reason is a *StartError if the program cannot be run. It is
// ErrDeadlinePassed, ErrLeashKilled or ErrStopped if there was no time for it.
func (t *Tree) Started() <-chan error { return t.started }

// Extend moves the leash's deadline (a BootTime) to a later time. Never is the latest. It takes effect once the program has started; a
// program does not start after its deadline. An earlier deadline changes nothing and is no error, because the renewal behind the later one
// is still valid. Extend does not block. After any error the old deadline remains in force.
func (t *Tree) Extend(deadline int64) error { return t.deadlines.extend(deadline) }

// Signal sends sig to the main process, as soon as that exists, and to no other process. A container runtime does the same, because a
// signal to a process that the main process waits for could end its work. A signal is a request. Use Kill for processes that must end.
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

// signalMain requires a main process that is known and was not reaped. process.mu is held, so it is not reaped during the call and its PID
// is not reused.
func (t *Tree) signalMain(sig syscall.Signal) error {
	if err := unix.Kill(t.main, sig); err != nil {
		return fmt.Errorf("send %v to process %d: %w", sig, t.main, err)
	}
	return nil
}

// Kill sends SIGKILL to every descendant of the agent, repeatedly until none is left, which Gone shows. The first round is done when Kill
// returns. A repeated call is harmless. A tree whose main process or leash has ended is killed without a call of Kill, like a container
// whose main process ends.
func (t *Tree) Kill() {
	t.deadlines.stop()
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.tree != t {
		return // the tree is gone, and the current processes belong to another tenure
	}
	process.reapAll() // a leash that died by itself must not count as killed here
	t.killed = t.killed || t.leashEnd == nil
	process.killRound()
	process.poke()
}

// Exited delivers the status of the main process, once, when it has ended and been reaped. Its descendants can still be alive.
func (t *Tree) Exited() <-chan Status { return t.exited }

// Gone is closed when every process of the tree has been reaped, and not earlier, however long one of them stays in the kernel. Exited is
// delivered before that.
func (t *Tree) Gone() <-chan struct{} { return t.gone }

// reserve registers a new tree with the reaper. Its leash is forked later, without the lock: see fork.
func (r *reaper) reserve(spec Spec) (*Tree, error) {
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tree != nil {
		return nil, fmt.Errorf("supervise: the tree of process %d still exists: wait for Gone before the next Start", r.tree.main)
	}
	t := &Tree{
		started: make(chan error, 1),
		exited:  make(chan Status, 1),
		gone:    make(chan struct{}),
		execs:   map[*execution]struct{}{},
		drains:  map[*output]struct{}{},
		early:   map[int]unix.WaitStatus{},
		spec:    spec,
	}
	t.deadlines = deadlines{current: spec.Deadline, held: true, starting: true, others: map[int]struct{}{}}
	r.tree = t
	return t, nil
}

// fork starts the leash, or takes one that waits: see Prepare. A fork waits for the exec, which can hang if the disk with the agent's binary
// does not answer. So process.mu is not held, and what happens meanwhile is settled when the leash is adopted:
//
//   - Kill kills the forked process, if the kernel lets it, or the leash gets no deadline.
//   - Extend changes the deadline that the leash will get.
//   - Signal keeps the signal for the program, as long as that does not run.
//   - The forked process dies and is reaped: adopt finds out.
//   - The agent dies: the forked process has a parent-death signal, and a leash without a deadline ends when its pipe closes.
//   - The agent is stopped: the leash waits for its deadline, and starts nothing.
//   - The fork never returns: the tree is not Gone, so there is no other. Each process of it is killed as usual.
func (t *Tree) fork() error {
	forked, ok := process.takeSpare(t.spec)
	if !ok {
		var err error
		if forked, err = process.forkLeash(process.role(), t.spec); err != nil {
			return err
		}
	}
	err := forked.ends.command(t.spec)
	process.mu.Lock()
	defer process.mu.Unlock()
	t.adopt(forked, t.early)
	if err != nil || t.killed {
		t.killLeash()
		return err
	}
	t.deadlines.begin(t.ends.deadlines)
	go t.keepAwake()
	return nil
}

// role is the role of the leash of a main process.
func (r *reaper) role() string {
	if r.pid1 {
		return agentIs1
	}
	return alone
}

// killLeash kills a leash that has no deadline yet, and so no program. process.mu is held.
func (r *run) killLeash() {
	if r.leashEnd == nil {
		_ = unix.Kill(r.leash, unix.SIGKILL)
	}
}

// keepAwake continues the leash until it has reported, because a leash that is stopped before it has read its first deadline has no timer
// that continues it. If it is kept stopped until the deadline, it is killed.
func (t *Tree) keepAwake() {
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for t.wakeLeash() {
		select {
		case <-t.gone:
		case <-tick.C:
		}
	}
}

// wakeLeash reports whether to call it again.
func (t *Tree) wakeLeash() bool {
	process.mu.Lock()
	defer process.mu.Unlock()
	if t.reported || t.leashEnd != nil {
		return false
	}
	signal := unix.SIGCONT
	if passed(t.deadlines.latest()) {
		signal = unix.SIGKILL
	}
	_ = unix.Kill(t.leash, signal)
	return true
}

// waiting is a leash that has no order and no deadline, and so starts nothing.
type waiting struct {
	leash int // its PID
	ends  pipeEnds
}

// forkLeash starts a leash with the files of a spec.
func (r *reaper) forkLeash(role string, spec Spec) (waiting, error) {
	agents, leashs, err := openPipes()
	if err != nil {
		return waiting{}, err
	}
	defer leashs.close()
	files := [...]int{
		0: stdio(spec.Stdin, 0), 1: stdio(spec.Stdout, 1), 2: stdio(spec.Stderr, 2),
		deadlinesFD:  leashs.deadlines,
		reportFD:     leashs.report,
		agentAliveFD: leashs.agentAlive,
		leashAliveFD: leashs.leashAlive,
		agentsEndFD:  agents.leashAlive,
		orderFD:      agents.order,
		lockFD:       -1, // closed
	}
	if spec.Lock != nil {
		files[lockFD] = int(spec.Lock.Fd())
	}
	leash, err := r.execute([]string{leashName, role}, leashEnv, files[:])
	if err != nil {
		agents.close()
		return waiting{}, fmt.Errorf("execute the leash (/proc/self/exe): %w", err)
	}
	return waiting{leash: leash, ends: agents}, nil
}

// awaitReport waits until the leash has reported the result of the start, or has died. forked is the result of fork.
func (t *Tree) awaitReport(forked error) {
	var rep report
	if forked == nil {
		rep = readReport(t.ends.report)
	}
	err := t.startedAs(rep)
	if forked != nil {
		err = forked
	}
	if err == nil {
		t.deadlines.started()
	} else {
		t.Kill() // kill the remains of the attempt
	}
	t.started <- err
}

// startedAs records the leash's report.
func (t *Tree) startedAs(rep report) error {
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
	return t.notStarted(rep, t.spec)
}

// takeReport records a leash's report, or that it died without one. process.mu is held.
func (t *Tree) takeReport(r *run, rep report) {
	defer process.poke()
	r.reported = true
	if rep.stage == stageStarted {
		r.main, r.missed = rep.pid, endOf(rep.pid, t.early)
		r.settle()
	}
	if !t.unreported() {
		clear(t.early)
	}
}

// settle finds out whether the program was reaped before its PID was known. It can tell only when the leash is reaped: the program is then a
// child of this process, or was reaped. Before that, the leash can still be the program's parent, or its last thread can be about to
// end, which has handed the program over. A status with the program's PID can also be that of an earlier process. process.mu is held.
func (r *run) settle() {
	if r.leashEnd != nil && r.main != 0 && r.mainEnd == nil && !isChild(r.main) {
		r.mainEnd = r.missed
	}
}

// notStarted returns the reason why a leash has not started its program.
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

// close frees the tree's kernel resources. Call it only when all processes are reaped, because until then the pipes tie them to this one.
func (t *Tree) close() {
	t.deadlines.stop()
	t.ends.close()
	for o := range t.drains { // a process outside can hold it open
		_ = o.file.SetReadDeadline(time.Unix(1, 0))
	}
}

// deadlines is the agent's end of the pipe for the leash's deadlines. It has its own lock, so that Extend does not wait for reaping or
// killing.
type deadlines struct {
	mu      sync.Mutex
	fd      int   // while held, there is none
	current int64 // the deadline that was last sent to the leash, or will be the first
	// held: the leash was not adopted yet, and must not begin.
	held    bool
	stopped bool
	// others are the corresponding pipe ends for the leashes of commands, which follow the same deadlines.
	others map[int]struct{}
	// starting: the program does not run yet. never: the deadline becomes Never when it does.
	starting, never bool
}

func (d *deadlines) extend(deadline int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.extendLocked(deadline)
}

// begin sends the leash its first deadline, with which it begins.
func (d *deadlines) begin(fd int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fd, d.held = fd, false
	_ = sendDeadline(d.fd, d.current) // if this fails, the leash is dead
}

// started records that the program runs.
func (d *deadlines) started() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.starting = false
	if d.never {
		_ = d.extendLocked(Never) // if this fails, the old deadline remains in force
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
	if d.held {
		d.current = deadline
		return nil
	}
	if err := sendDeadline(d.fd, deadline); errors.Is(err, unix.EPIPE) {
		return ErrStopped // the leash is dead
	} else if err != nil {
		return fmt.Errorf("send the new deadline to the leash (if the pipe is full, the leash is not running): %w", err)
	}
	d.current = deadline
	for fd := range d.others {
		_ = sendDeadline(fd, deadline) // if this fails, the command dies at the old deadline
	}
	return nil
}

// sendDeadline writes to a deadlines pipe. A message is far smaller than PIPE_BUF, so it is written completely or not at all.
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

// pipeEnds are the ends of one process, of the four pipes between agent and leash. The agent's ends include the file of the leash's order.
type pipeEnds struct{ deadlines, report, agentAlive, leashAlive, order int }

// command writes the leash's order, once.
func (e *pipeEnds) command(spec Spec) error {
	err := writeOrder(e.order, spec)
	_ = unix.Close(e.order)
	e.order = 0
	return err
}

func (e *pipeEnds) close() {
	for _, fd := range []int{e.deadlines, e.report, e.agentAlive, e.leashAlive, e.order} {
		if fd != 0 { // 0 means not opened: Go's runtime keeps 0, 1 and 2 in use
			_ = unix.Close(fd)
		}
	}
}

// openPipes opens all four pipes or none. Every end is close-on-exec: with a stray copy of an end, the kernel would not notice that its
// owner has died.
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
	if err == nil {
		agents.order, err = newOrderFile()
	}
	if err != nil {
		agents.close()
		leashs.close()
		return pipeEnds{}, pipeEnds{}, fmt.Errorf("open what agent and leash share: %w", err)
	}
	return agents, leashs, nil
}

func stdio(f *os.File, inherited int) int {
	if f == nil {
		return inherited
	}
	return int(f.Fd())
}

// retryRead reads once, and repeats the call if a signal interrupts it.
func retryRead(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if err != unix.EINTR {
			return n, err
		}
	}
}
