//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// MaxExecs is the maximum number of commands that run beside a main process at once. A command that cannot be killed counts until it is
// gone.
const MaxExecs = 8

// MaxExecOutput is the maximum number of bytes that are kept of a command's output.
const MaxExecOutput = 10 << 10

// ErrTooManyExecs reports that MaxExecs commands already run.
var ErrTooManyExecs = fmt.Errorf("%d commands already run beside the main process", MaxExecs)

// ErrStillRuns reports that the previous command with the same name still runs because it cannot be killed.
var ErrStillRuns = errors.New("the previous command still runs: it cannot be killed")

// errStillStarts reports that the previous command with the same name was not executed yet when it was given up, and still is not.
var errStillStarts = errors.New("the previous command is still being started: the machine is too slow, or a disk does not answer")

// errNotInTime reports that a command was not executed within its allowance for the start. That says nothing about the program.
var errNotInTime = errors.New("the command was not executed in time: the machine is too slow, or a disk does not answer")

// startAllowance is the minimum time that a command has to begin to execute.
var startAllowance = 10 * time.Second

// ExecSpec specifies a command to run beside the main process.
type ExecSpec struct {
	// Argv is as in Spec, with the PATH of Env.
	Argv []string
	// Env and Dir are as in Spec. If they are nil or empty, those of the main process apply.
	Env []string
	Dir string
	// Timeout, counted from when the program executes, is the time after which the command is killed. It must be positive. The start of a
	// leash takes CPU, which is not the program's fault, so it has an allowance of its own: as much time, but at least 10 s.
	Timeout time.Duration
	// Name is the purpose of the command. Only one command with a given name runs at a time, so commands of one kind that hang leave room
	// for others. The empty name has no such limit.
	Name string
}

// ExecResult describes how a command ended.
type ExecResult struct {
	// Status is the status of the command if Err is nil. If the timeout killed the command, or it could not be killed, the signal is
	// SIGKILL. TimedOut is false if Err is not nil.
	Status   Status
	TimedOut bool
	// Output is the first MaxExecOutput bytes of stdout and stderr together, as written until the command ended.
	Output []byte
	// Err is the reason why the command did not run. It is a *StartError if the command cannot be executed. It is ErrStopped,
	// ErrDeadlinePassed, os.ErrProcessDone or a similar error if there was no time to start it. Otherwise its leash did not report in time
	// that it runs.
	Err error
}

// execution is one command beside the main process. It has its own leash, which follows the deadlines of the tree. So whatever ends the
// tree while the agent is stopped ends the command, too.
type execution struct {
	run // guarded by process.mu

	name string
	spec Spec
	// allowance is the time for the start, and timeout is the time after that.
	allowance, timeout time.Duration
	output             *output
	reports            chan struct{} // closed when report or failed is set
	ended              chan struct{} // closed when the leash is dead, and the command too if it ran
	result             chan ExecResult

	// process.mu guards the fields below.
	report *report // nil until the leash has reported, or has died without a report
	failed error   // the reason why there is no leash
	over   bool    // its time is over: it is being killed, and must not begin
}

// Exec runs a command beside the main process, in its tree, with an empty stdin. It does not block. The channel delivers the result once.
// The error is os.ErrProcessDone if the main process does not run (yet, or any more), ErrStillRuns, or ErrTooManyExecs.
//
// The command leads its own session and process group. It dies with the tree: with the agent, at the deadline, by Kill, or when the main
// process ends. If the command ends by itself, processes that it leaves behind live on in the tree, and their output is discarded. If its
// timeout expires, all of its descendants are killed, including those that left its group.
//
// The result arrives when the command is reaped. For a command that does not die, it arrives graceAfterTimeout later at most.
func (t *Tree) Exec(spec ExecSpec) (<-chan ExecResult, error) {
	switch {
	case len(spec.Argv) == 0:
		return nil, errors.New("supervise: ExecSpec.Argv is empty: it needs at least the program")
	case spec.Timeout <= 0:
		return nil, fmt.Errorf("supervise: ExecSpec.Timeout is %v: it must be positive", spec.Timeout)
	}
	x := &execution{
		name:      spec.Name,
		spec:      Spec{Argv: spec.Argv, Env: spec.Env, Dir: spec.Dir, Lock: t.spec.Lock},
		allowance: max(startAllowance, spec.Timeout),
		timeout:   spec.Timeout,
		reports:   make(chan struct{}),
		ended:     make(chan struct{}),
		result:    make(chan ExecResult, 1),
	}
	if x.spec.Env == nil {
		x.spec.Env = t.spec.Env
	}
	if x.spec.Dir == "" {
		x.spec.Dir = t.spec.Dir
	}
	if err := t.admit(x); err != nil {
		return nil, err
	}
	go t.perform(x)
	return x.result, nil
}

// admit adds an execution to those of the tree.
func (t *Tree) admit(x *execution) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	if !t.runs() {
		return os.ErrProcessDone
	}
	for other := range t.execs {
		switch {
		case x.name == "" || x.name != other.name:
		case other.over && other.main == 0:
			return errStillStarts
		default:
			return ErrStillRuns
		}
	}
	if len(t.execs) >= MaxExecs {
		return ErrTooManyExecs
	}
	t.execs[x] = struct{}{}
	return nil
}

// runs reports whether the main process executes and is not being killed. process.mu is held.
func (t *Tree) runs() bool {
	return process.tree == t && t.main != 0 && t.mainEnd == nil && t.leashEnd == nil && !t.killed
}

// unreported reports whether a leash is being forked, or has yet to report what it started. process.mu is held.
func (t *Tree) unreported() bool {
	for x := range t.execs {
		if !x.reported {
			return true
		}
	}
	return !t.reported
}

// perform runs an execution from start to end.
func (t *Tree) perform(x *execution) {
	output, stdout, err := openOutput()
	if err != nil {
		t.told(x, report{}, err)
		x.result <- ExecResult{Err: err}
		return
	}
	x.output = output
	go t.launch(x, stdout)
	late, timedOut := t.attend(x)
	x.result <- t.resultOf(x, late, timedOut)
	go t.drain(x.output)
	<-x.ended // this can take long if the command cannot be killed
	t.deadlines.leave(x.ends.deadlines)
	x.ends.close()
}

// launch starts the leash of a command, and waits for its report.
func (t *Tree) launch(x *execution, stdout *os.File) {
	err := t.forkCommand(x, stdout)
	_ = stdout.Close()
	var rep report
	if err == nil {
		rep = readReport(x.ends.report)
	}
	t.told(x, rep, err)
}

// told records a leash's report, or why there is no leash.
func (t *Tree) told(x *execution, rep report, failed error) {
	process.mu.Lock()
	defer process.mu.Unlock()
	x.report, x.failed = &rep, failed
	close(x.reports)
	if failed != nil {
		delete(t.execs, x)
		close(x.ended)
	}
	t.takeReport(&x.run, rep)
}

// forkCommand starts the leash of a command. As for Tree.fork, process.mu is not held. If the command's time, or the tree, is over when the
// leash is adopted, it gets no deadline, so it starts nothing.
func (t *Tree) forkCommand(x *execution, stdout *os.File) error {
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer func() { _ = stdin.Close() }()
	spec := x.spec
	spec.Stdin, spec.Stdout, spec.Stderr = stdin, stdout, stdout
	forked, err := process.forkLeash(ofCommand, spec)
	if err != nil {
		return err
	}
	err = forked.ends.command(spec)
	process.mu.Lock()
	defer process.mu.Unlock()
	x.adopt(forked, t.early)
	if err != nil || x.over || !t.runs() {
		x.killLeash()
	} else {
		t.deadlines.join(x.ends.deadlines)
	}
	return err
}

// graceAfterTimeout limits the waits after a command's time is over. The agent waits for the command to die, for its leash to report that
// there was no time to start it, or for a stopped leash to continue killing.
const graceAfterTimeout = 10 * time.Second

// attend waits until an execution has ended, and ends it when its time is over. It reports whether the command was late to begin, or its
// timeout expired.
func (t *Tree) attend(x *execution) (late, timedOut bool) {
	select {
	case <-x.reports:
		select {
		case <-x.ended:
			return false, false
		case <-time.After(x.timeout):
			timedOut = true
		}
	case <-time.After(x.allowance):
		late = true
	}
	if !t.expire(x) {
		return late, timedOut
	}
	go x.killUntilEnded()
	select {
	case <-x.ended:
	case <-time.After(graceAfterTimeout):
	}
	return late, timedOut
}

// expire lets an execution begin no more, and asks its leash to kill the command. It returns false if there is no leash yet.
func (t *Tree) expire(x *execution) bool {
	process.mu.Lock()
	defer process.mu.Unlock()
	x.over = true
	if x.leash == 0 {
		return false
	}
	t.deadlines.expire(x.ends.deadlines)
	return true
}

// killUntilEnded kills a command whose timeout has expired. Its leash does the same, but can be stopped or get no CPU.
func (x *execution) killUntilEnded() {
	patient := time.Now().Add(graceAfterTimeout)
	below := peeling{}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		x.killBelow(&below, time.Now().After(patient))
		select {
		case <-x.ended:
			return
		case <-time.After(pause):
		}
	}
}

// killBelow kills the descendants of a command's leash, and the leash once no descendant can act. If the leash died earlier, its orphans
// would move to the agent and could not be distinguished from descendants of the main process.
//
// The leash's children are not reaped while it lives, and after that not while process.mu is held, so no PID is reused. A leash without
// children can be about to fork. It learns that no time is left, so it is killed only if it is late.
func (x *execution) killBelow(below *peeling, late bool) {
	process.mu.Lock()
	defer process.mu.Unlock()
	if x.leashEnd == nil && below.round(x.leash) && (late || len(below.dead) > 0) {
		_ = unix.Kill(x.leash, unix.SIGKILL)
	}
}

// resultOf returns the result of an execution that has ended, or whose end is no longer awaited.
func (t *Tree) resultOf(x *execution, late, timedOut bool) ExecResult {
	result := ExecResult{Status: Status{ExitCode: -1, Signal: unix.SIGKILL}, Output: x.output.finish()}
	process.mu.Lock()
	defer process.mu.Unlock()
	switch {
	case x.failed != nil:
		result.Err = x.failed
	case x.report == nil: // a fork or an exec hangs
		result.Err = errNotInTime
	case x.report.stage == stageStarted:
		if x.mainEnd != nil {
			result.Status = statusOf(*x.mainEnd)
		}
		killed := result.Status.Signal == unix.SIGKILL // otherwise it ended just before the kill
		result.TimedOut = timedOut && killed
		if late && killed {
			result.Err = errNotInTime
		}
	case late:
		result.Err = errNotInTime
	case x.report.stage == stageNone && !t.runs():
		result.Err = ErrStopped
	default:
		result.Err = t.notStarted(*x.report, x.spec)
	}
	return result
}

// announceExecs closes the channel ended of the executions that have ended. If no child is left, all that were started have ended, even if
// another wait took the status. process.mu is held.
func (t *Tree) announceExecs(childless bool) {
	for x := range t.execs {
		if x.reported && x.leashEnd != nil && (childless || x.main == 0 || x.mainEnd != nil) {
			delete(t.execs, x)
			close(x.ended)
		}
	}
}

// join makes another leash begin, with the current deadline, and follow all later ones.
func (d *deadlines) join(fd int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.others[fd] = struct{}{}
	_ = sendDeadline(fd, d.current) // if this fails, the leash is dead
}

// leave must be called before the descriptor is closed.
func (d *deadlines) leave(fd int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.others, fd)
}

// expire sends a command's leash an expired deadline and no later ones.
func (d *deadlines) expire(fd int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.others, fd)
	_ = sendDeadline(fd, 0) // a leash that does not receive it is killed
}

// output collects the output of a command.
type output struct {
	fd   int
	file *os.File // of fd
	kept []byte
	done chan struct{} // closed when reading has stopped
}

// openOutput also returns the write end of the pipe.
func openOutput() (o *output, writeEnd *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("open a pipe for the output: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	o = &output{fd: fds[0], file: os.NewFile(uintptr(fds[0]), "output"), done: make(chan struct{})}
	go o.read()
	return o, os.NewFile(uintptr(fds[1]), "output"), nil
}

// read reads everything, so that no writer blocks, and keeps the beginning.
func (o *output) read() {
	defer close(o.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := o.file.Read(buf)
		o.keep(buf[:n])
		if err != nil {
			return
		}
	}
}

func (o *output) keep(data []byte) {
	o.kept = append(o.kept, data[:min(len(data), MaxExecOutput-len(o.kept))]...)
}

// finish returns the kept output. It does not wait for processes that can still write. The output stays open: see drain.
func (o *output) finish() []byte {
	_ = o.file.SetReadDeadline(time.Unix(1, 0))
	<-o.done
	buf := make([]byte, MaxExecOutput)
	for len(o.kept) < MaxExecOutput {
		n, err := unix.Read(o.fd, buf) // read the rest without waiting
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			break
		}
		o.keep(buf[:n])
	}
	return o.kept
}

// maxDrains is the maximum number of outputs that are discarded at once. It bounds the memory and the descriptors for commands that leave a
// process behind each time.
const maxDrains = 32

// drain discards what processes write that an ended command has left behind. Without a reader they would die of SIGPIPE at their next write.
// It ends when none is left that could write, or when the tree is gone. Beyond maxDrains the output is closed at once.
func (t *Tree) drain(o *output) {
	defer func() { _ = o.file.Close() }()
	_ = o.file.SetReadDeadline(time.Time{})
	if !t.keepOpen(o) {
		return
	}
	if conn, err := o.file.SyscallConn(); err == nil {
		_ = conn.Read(discard)
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	delete(t.drains, o)
}

// keepOpen registers an output that is drained, and reports whether there is room for it.
func (t *Tree) keepOpen(o *output) bool {
	process.mu.Lock()
	defer process.mu.Unlock()
	if len(t.drains) >= maxDrains || process.tree != t {
		return false
	}
	t.drains[o] = struct{}{}
	return true
}

// discard reads until it would have to wait, and reports whether that was the end. The buffer is small: it is on the stack of each drain.
func discard(fd uintptr) (ended bool) {
	var buf [1 << 10]byte
	for {
		n, err := retryRead(int(fd), buf[:])
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if n <= 0 {
			return true
		}
	}
}
