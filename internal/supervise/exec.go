//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// MaxExecs is how many commands may run beside a main process at once. One that can't be killed counts until it is gone.
const MaxExecs = 8

// MaxExecOutput is how much of what a command writes is kept, in bytes.
const MaxExecOutput = 4 << 10

// ErrTooManyExecs says that MaxExecs commands run already.
var ErrTooManyExecs = fmt.Errorf("%d commands run beside the main process already", MaxExecs)

// ErrStillRuns says that the last command of the same name runs yet, because it can't be killed.
var ErrStillRuns = errors.New("the last one still runs: it can't be killed")

// errNotInTime is of a command that did not run when its time was over.
var errNotInTime = errors.New("the command was not executing yet when its time was over")

// ExecSpec says what to run beside the main process.
type ExecSpec struct {
	// Argv is as in Spec; the PATH is that of Env.
	Argv []string
	// Env and Dir are as in Spec; nil and empty mean the main process's.
	Env []string
	Dir string
	// Timeout, from the call on, is when the command is killed. It must be positive.
	Timeout time.Duration
	// Name is what the command is for. Of those of one name one runs at a time, so that one kind that hangs leaves room for
	// the others. The empty name is nobody's.
	Name string
}

// ExecResult is how a command ended.
type ExecResult struct {
	// Status is that of the command, if Err is nil. If it could not be killed, or was killed by its timeout, the signal is SIGKILL.
	Status   Status
	TimedOut bool
	// Output is the first MaxExecOutput bytes of stdout and stderr together: what had been written when the command ended.
	Output []byte
	// Err is why the command did not run: a *StartError, or ErrStopped, ErrDeadlinePassed, os.ErrProcessDone and the like
	// where there was no time for it, or for its leash to say that it runs.
	Err error
}

// execution is one command beside the main process, on a leash of its own that follows the tree's deadlines: whatever ends
// the tree while the agent is stopped ends the command in the same way.
type execution struct {
	run // guarded by process.mu

	name    string
	spec    Spec
	expires <-chan time.Time
	output  *output
	ended   chan struct{} // closed by the reaper, when the leash is dead and the command too if it ever ran
	result  chan ExecResult
}

// Exec runs a command beside the main process, in its tree, with nothing to read, and delivers once how it ended. It does
// not block. The error is os.ErrProcessDone where the main process does not run (not yet, or not any more), ErrStillRuns, and ErrTooManyExecs.
//
// The command leads a session and a process group of its own. It dies with the tree: with the agent, at the deadline,
// by Kill, when the main process ends. What it leaves behind when it ends by itself lives on as a part of the tree, and what it
// writes then is lost; when its time is over all of its descendants are killed, those that left its group too.
// The result comes when the command is reaped; for one that does not die, graceAfterTimeout and no more later.
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

// admit counts an execution among those of the tree.
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

// executes reports whether a command of that name runs. process.mu is held.
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

// unreported reports whether a leash has still to say what it has started. process.mu is held.
func (t *Tree) unreported() bool {
	for x := range t.execs {
		if x.leash != 0 && !x.reported {
			return true
		}
	}
	return !t.reported
}

// perform sees an execution through.
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
	<-x.ended // which may be long after, if it could not be killed
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
		process.poke() // the tree may have waited for it
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

// graceAfterTimeout is how long a command may take to die before its end is waited for no longer, and how long a leash may
// take to say that there was no time to start it.
const graceAfterTimeout = 10 * time.Second

// attend waits until an execution has ended, and ends it when its time is over. It reports whether it had to.
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

// killUntilEnded ends a command whose time is over, beside its leash, which is asked to and may be stopped or get no CPU.
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

// killBelow kills what descends from the leash of a command, and the leash when nothing is left below it that can act.
// Killed before that, it would set free what it is the subreaper of, and nobody could tell that from what descends from the
// main process.
//
// Nobody reaps the leash's children while it lives, nor while process.mu is held: so no PID is another's. A leash that has
// none may be about to fork; it will hear that there is no time left for that, unless it is late.
func (x *execution) killBelow(below *peeling, late bool) {
	process.mu.Lock()
	defer process.mu.Unlock()
	if x.leashEnd == nil && below.round(x.leash) && (late || len(below.dead) > 0) {
		_ = unix.Kill(x.leash, unix.SIGKILL)
	}
}

// resultOf is what there is to say of an execution that has ended, or is waited for no longer.
func (t *Tree) resultOf(x *execution, reported <-chan report, timedOut bool) ExecResult {
	result := ExecResult{Status: Status{ExitCode: -1, Signal: unix.SIGKILL}, TimedOut: timedOut, Output: x.output.finish()}
	var rep report
	select {
	case rep = <-reported:
	default: // it hangs in exec, and its leash is dead
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
		result.TimedOut = timedOut && result.Status.Signal == unix.SIGKILL // else it was faster
	}
	return result
}

// announceExecs closes ended for the executions that have. If no child is left, those have that were started, even one
// whose status was taken by somebody else's wait. process.mu is held.
func (t *Tree) announceExecs(childless bool) {
	for x := range t.execs {
		if x.reported && x.leashEnd != nil && (childless || x.main == 0 || x.mainEnd != nil) {
			delete(t.execs, x)
			close(x.ended)
		}
	}
}

// join has another leash, which knows a deadline already, follow all later ones.
func (d *deadlines) join(fd int, known int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.others[fd] = struct{}{}
	if d.current != known {
		_ = sendDeadline(fd, d.current)
	}
}

// leave comes before the descriptor is closed.
func (d *deadlines) leave(fd int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.others, fd)
}

// expire tells the leash of a command, and no later deadline does, that its time is over.
func (d *deadlines) expire(fd int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.others, fd)
	_ = sendDeadline(fd, 0) // who does not hear is killed
}

// output is what a command writes.
type output struct {
	fd   int
	file *os.File // of fd
	kept []byte
	done chan struct{} // nobody reads any more
}

// openOutput also returns the end to write to.
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

// read reads all that comes, so that no writer is held up, and keeps the beginning.
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

// finish returns what was kept. It does not wait for those who could still write.
func (o *output) finish() []byte {
	_ = o.file.SetReadDeadline(time.Unix(1, 0))
	<-o.done
	buf := make([]byte, MaxExecOutput)
	for len(o.kept) < MaxExecOutput {
		n, err := unix.Read(o.fd, buf) // what came since, without waiting
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
