//go:build linux

// Package subprocess starts processes that cannot outlive the one that started them: when it ends, however it ends,
// the kernel kills them.
package subprocess

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Process is a started child. Its methods may be called from any goroutine.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start starts cmd with SIGKILL as its parent-death signal and reaps it when it ends.
// Only the child itself is tethered; what it starts is its own to look after.
// Pipes of cmd.StdoutPipe and cmd.StderrPipe are closed as soon as the child ends, read or not: give cmd.Stdout and
// cmd.Stderr a writer instead.
func Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := onForkingThread(cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid is the child's process id. It may have been given to another process once Done is closed.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended and is reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the child ended, as exec.Cmd.Wait tells it; valid once Done is closed.
func (p *Process) Err() error { return p.err }

// Signal sends sig to the child; a child that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %v to %s: %w", sig, p.cmd.Path, err)
	}
	return nil
}

// Stop asks the child to end, waits for up to grace, then kills it. It returns when the child is reaped.
// A stopped (SIGSTOP) child dies too: SIGKILL needs no cooperation.
func (p *Process) Stop(grace time.Duration) {
	if grace > 0 {
		_ = p.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
			return
		case <-time.After(grace):
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// The parent-death signal is sent when the *thread* that forked ends, so all forks are made by one goroutine that
// is locked to its thread and never returns.
var (
	forks     = make(chan func())
	startFork sync.Once
)

func onForkingThread(start func() error) error {
	startFork.Do(func() {
		go func() {
			runtime.LockOSThread()
			for fork := range forks {
				fork()
			}
		}()
	})
	result := make(chan error)
	forks <- func() { result <- start() }
	return <-result
}
