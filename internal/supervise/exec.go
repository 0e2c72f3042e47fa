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

// errNotInTime reports that a command was not running yet when its timeout expired.
var errNotInTime = errors.New("the command was not running yet when its timeout expired")

// ExecSpec specifies a command to run beside the main process.
type ExecSpec struct {
	// Argv is as in Spec, with the PATH of Env.
	Argv []string
	// Env and Dir are as in Spec. If they are nil or empty, those of the main process apply.
	Env []string
	Dir string
	// Timeout, counted from the call, is the time after which the command is killed. It must be positive.
	Timeout time.Duration
	// Name is the purpose of the command. Only one command with a given name runs at a time, so commands of one kind that hang leave room
	// for others. The empty name has no such limit.
	Name string
}

// ExecResult describes how a command ended.
type ExecResult struct {
	// Status is the status of the command if Err is nil. If the timeout killed the command, or it could not be killed, the signal is
	// SIGKILL.
	Status   Status
	TimedOut bool
	// Output is the first MaxExecOutput bytes of stdout and stderr together, as written until the command ended.
	Output []byte
	// Err is the reason why the command did not run: a *StartError, or ErrStopped, ErrDeadlinePassed, os.ErrProcessDone and the like if
	// there was no time to start it, or no time for its leash to report that it runs.
	Err error
}

// execution is one command beside the main process. It has its own leash, which follows the deadlines of the tree. So whatever ends the
// tree while the agent is stopped ends the command, too.
type execution struct {
	run // guarded by process.mu

	name    string
	spec    Spec
	expires <-chan time.Time
	output  *output
	ended   chan struct{} // closed by the reaper when the leash is dead, and the command too if it ran
	result  chan ExecResult
}

// Exec runs a command beside the main process, in its tree, with an empty stdin. It does not block. The channel delivers the result once.
// The error is os.ErrProcessDone if the main process does not run (yet, or any more), ErrStillRuns, or ErrTooManyExecs.
//
// The command leads its own session and process group. It dies with the tree: with the agent, at the deadline, by Kill, or when the main
// process ends. If the command ends by itself, processes that it leaves behind live on in the tree, and their output is lost. If its
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
		name:    spec.Name,
		spec:    Spec{Argv: spec.Argv, Env: spec.Env, Dir: spec.Dir, Lock: t.spec.Lock},
		expires: time.After(spec.Timeout),
		ended:   make(chan struct{}),
		result:  make(chan ExecResult, 1),
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
	switch {
	case !t.runs():
		return os.ErrProcessDone
	case x.name != "" && t.executes(x.name):
		return ErrStillRuns
	case len(t.execs) >= MaxExecs:
		return ErrTooManyExecs
	}
	t.execs[x] = struct{}{}
	return nil
}

// executes reports whether a command with that name runs. process.mu is held.
func (t *Tree) executes(name string) bool {
	for x := range t.execs {
		if x.name == name {
			return true
		}
	}
	return false
}

// runs reports whether the main process executes and is not being killed. process.mu is held.
func (t *Tree) runs() bool {
	return process.tree == t && t.main != 0 && t.mainEnd == nil && t.leashEnd == nil && !t.killed
}

// unreported reports whether a leash has yet to report what it started. process.mu is held.
func (t *Tree) unreported() bool {
	for x := range t.execs {
		if x.leash != 0 && !x.reported {
			return true
		}
	}
	return !t.reported
}

// perform runs an execution from start to end.
func (t *Tree) perform(x *execution) {
	if err := t.forkCommand(x); err != nil {
		x.result <- ExecResult{Err: err}
		return
	}
	reported := make(chan report, 1)
	go func() {
		rep := readReport(x.ends.report)
		reported <- rep
		process.mu.Lock()
		defer process.mu.Unlock()
		t.takeReport(&x.run, rep)
	}()
	timedOut := t.attend(x)
	x.result <- t.resultOf(x, reported, timedOut)
	<-x.ended // this can take long if the command cannot be killed
	t.deadlines.leave(x.ends.deadlines)
	x.ends.close()
}

// forkCommand starts the leash of a command.
func (t *Tree) forkCommand(x *execution) error {
	out, stdout, err := openOutput()
	if err == nil {
		defer func() { _ = unix.Close(stdout) }()
		err = t.forkWith(x, stdout)
	}
	if err != nil {
		if out != nil {
			out.finish()
		}
		process.mu.Lock()
		delete(t.execs, x)
		process.mu.Unlock()
		process.poke() // the tree can have waited for it
		return err
	}
	x.output = out
	return nil
}

func (t *Tree) forkWith(x *execution, stdout int) error {
	stdin, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer func() { _ = unix.Close(stdin) }()
	process.mu.Lock()
	defer process.mu.Unlock()
	if !t.runs() {
		return os.ErrProcessDone
	}
	deadline := t.deadlines.latest()
	x.run, err = process.forkRun(ofCommand, deadline, x.spec, [3]int{stdin, stdout, stdout})
	if err == nil {
		t.deadlines.join(x.ends.deadlines, deadline)
	}
	return err
}

// graceAfterTimeout limits the waits after a command's time is over: for the command to die, for its leash to report that there was no time
// to start it, and for a leash that does not run to continue killing.
const graceAfterTimeout = 10 * time.Second

// attend waits until an execution has ended, and ends it when its timeout expires. It reports whether the timeout expired.
func (t *Tree) attend(x *execution) (timedOut bool) {
	select {
	case <-x.ended:
		return false
	case <-x.expires:
	}
	t.deadlines.expire(x.ends.deadlines)
	go x.killUntilEnded()
	select {
	case <-x.ended:
	case <-time.After(graceAfterTimeout):
	}
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
func (t *Tree) resultOf(x *execution, reported <-chan report, timedOut bool) ExecResult {
	result := ExecResult{Status: Status{ExitCode: -1, Signal: unix.SIGKILL}, TimedOut: timedOut, Output: x.output.finish()}
	var rep report
	select {
	case rep = <-reported:
	default: // the command hangs in exec, and its leash is dead
		result.Err = errNotInTime
		return result
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	switch {
	case rep.stage != stageStarted && timedOut:
		result.Err = errNotInTime
	case rep.stage == stageNone && !t.runs():
		result.Err = ErrStopped
	case rep.stage != stageStarted:
		result.Err = t.notStarted(rep, x.spec)
	case x.mainEnd != nil:
		result.Status = statusOf(*x.mainEnd)
		result.TimedOut = timedOut && result.Status.Signal == unix.SIGKILL // otherwise it ended just before the kill
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

// join makes another leash, which already knows one deadline, follow all later ones.
func (d *deadlines) join(fd int, known int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.others[fd] = struct{}{}
	if d.current != known {
		_ = sendDeadline(fd, d.current)
	}
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
func openOutput() (o *output, writeEnd int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, fmt.Errorf("open a pipe for the output: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, -1, err
	}
	o = &output{fd: fds[0], file: os.NewFile(uintptr(fds[0]), "output"), done: make(chan struct{})}
	go o.read()
	return o, fds[1], nil
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

// finish returns the kept output. It does not wait for processes that can still write.
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
	_ = o.file.Close()
	return o.kept
}
