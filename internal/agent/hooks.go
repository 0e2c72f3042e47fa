//go:build linux

package agent

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

// unlimited is for a hook that may take as long as its process lives.
const unlimited = time.Duration(math.MaxInt64)

// runHook runs a hook beside the process of the present tenure. done is called in Run's goroutine, unless the process is
// gone by then.
func (a *Agent) runHook(c *contender, name string, h contract.Hook, limit time.Duration, done func(failed bool)) {
	process := a.child.process
	go func() {
		err := perform(process, h, limit)
		a.post(c, func() lease.Event {
			if a.child.process != process {
				return nil
			}
			if err != nil {
				a.log.Print("hook failed", "hook", name, "error", err)
			}
			done(err != nil)
			return lease.Ticked{}
		})
	}()
}

func perform(process Process, h contract.Hook, limit time.Duration) error {
	if len(h.Exec) == 0 {
		select {
		case <-time.After(min(time.Duration(h.Sleep), limit)):
		case <-process.Gone():
		}
		return nil
	}
	results, err := process.Exec(supervise.ExecSpec{Argv: h.Exec, Timeout: limit})
	if err != nil {
		return err
	}
	return failure(<-results)
}

// failure is why the result of a command is no success.
func failure(r supervise.ExecResult) error {
	output := strings.ToValidUTF8(strings.TrimSpace(string(r.Output)), "?")
	said := func(what string) error {
		if output == "" {
			return errors.New(what)
		}
		return fmt.Errorf("%s: %s", what, contract.Cut(output, maxSaid))
	}
	switch {
	case r.Err != nil:
		return r.Err
	case r.TimedOut:
		return said("it was killed when its time was over")
	case r.Status != supervise.Status{}:
		return said(r.Status.String())
	}
	return nil
}

// maxSaid bounds what a command's output adds to the log, in bytes.
const maxSaid = 500

// started is called when the process executes.
func (a *Agent) started(c *contender) {
	a.child.started = true
	hook := a.o.Config.Hooks.PostStart
	if hook == nil {
		return
	}
	a.runHook(c, "postStart", *hook, unlimited, func(failed bool) {
		if failed && c.state.Phase == lease.Holding {
			a.child.failed = lease.ReasonPostStartFailed
			a.child.kill(c.now().Boot)
		}
	})
}

// askToEnd has the process told to end, by its preStop hook before it is signalled. A tenure that could not be renewed
// has no time for a hook.
func (a *Agent) askToEnd(c *contender, sig syscall.Signal, now lease.Instant) {
	hook := a.o.Config.Hooks.PreStop
	stop := c.state.Stop
	left := stop.KillAt.Sub(now) // renewals go on meanwhile; if they do not, hurry and the leash are there
	if hook == nil || !a.child.started || stop.Reason == lease.ReasonRenewFailed || left <= 0 {
		a.end(sig)
		return
	}
	a.child.delayed = sig
	a.runHook(c, "preStop", *hook, left-signalled(left), func(bool) { a.endDelayed() })
}

// signalled is the end of a grace period, in which the process has got its signal whatever a hook does.
func signalled(grace time.Duration) time.Duration { return min(2*time.Second, grace/4) }

// endDelayed sends the signal that a hook has put off.
func (a *Agent) endDelayed() {
	if sig := a.child.delayed; sig != 0 {
		a.child.delayed = 0
		a.end(sig)
	}
}

func (a *Agent) end(sig syscall.Signal) {
	a.metrics.stops.add(unix.SignalName(sig))
	a.child.asked = sig
	a.child.signal(sig)
}

// hurry ends what a hook puts off when the tenure turns out to have no time for it.
func (a *Agent) hurry(c *contender, now lease.Instant) {
	if a.child.delayed != 0 && !c.config.KeepRunning && now >= c.state.RenewBy(c.config) {
		a.endDelayed()
	}
}
