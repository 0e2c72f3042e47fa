//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
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

// runHook runs a hook beside the process of the present tenure. done is called in Run's goroutine, unless the process has ended by
// then, and says what that means.
func (a *Agent) runHook(c *contender, name string, h contract.Hook, limit time.Duration, done func(failed bool) lease.Event) {
	process := a.child.process
	go func() {
		err := a.perform(process, h, limit)
		a.post(c, func() lease.Event {
			if a.child.process != process || over(process) {
				return nil // what ends with the process has not failed
			}
			if err != nil {
				a.log.Print("hook failed", "hook", name, "error", err)
			}
			return done(err != nil)
		})
	}()
}

// over reports whether the main process has ended, though that was not told yet, perhaps, nor all that it has started is gone.
func over(process Process) bool {
	select {
	case <-process.Gone():
		return true
	default:
		return errors.Is(process.Signal(0), os.ErrProcessDone)
	}
}

// perform returns when the hook is over, its time is, or nothing of the process is left.
func (a *Agent) perform(process Process, h contract.Hook, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(a.ctx, limit)
	defer cancel()
	go func() {
		select {
		case <-process.Gone():
			cancel()
		case <-ctx.Done():
		}
	}()
	switch {
	case len(h.Exec) > 0:
		results, err := process.Exec(supervise.ExecSpec{Argv: h.Exec, Timeout: limit})
		if err != nil {
			return err
		}
		return failure(<-results)
	case h.HTTPGet != nil:
		return a.o.Call(ctx, h.HTTPGet)
	}
	select {
	case <-time.After(time.Duration(h.Sleep)):
	case <-ctx.Done():
	}
	return nil
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

// started is called when the process executes. As a kubelet does, it has postStart succeed before anything is asked of the process,
// which is not ready until then; and a process whose postStart fails is to end, by preStop and a signal, within the pod's time.
func (a *Agent) started(c *contender) {
	a.child.started = true
	began, hook := time.Now(), a.o.Config.Hooks.PostStart
	if hook == nil {
		a.startProbes(c, began)
		return
	}
	a.child.health = health{why: "postStart runs"}
	a.runHook(c, "postStart", *hook, unlimited, func(failed bool) lease.Event {
		if failed {
			a.child.health.why = "postStart failed"
			return lease.Unhealthy{Reason: lease.ReasonPostStartFailed, Grace: c.config.GracePeriod}
		}
		a.child.health = firstHealth(a.o.Config.Probes)
		a.startProbes(c, began)
		return lease.Ticked{} // to show it
	})
}

// askToEnd has the process told to end, by its preStop hook before it is signalled. A tenure that could not be renewed
// has no time for a hook. What runs before the process gets SIGTERM: a program that does not know the image's signal may ignore it.
func (a *Agent) askToEnd(c *contender, sig syscall.Signal, now lease.Instant) {
	if a.child.prepares {
		sig = syscall.SIGTERM
	}
	hook := a.o.Config.Hooks.PreStop
	stop := c.state.Stop
	left := stop.KillAt.Sub(now) // renewals go on meanwhile; if they do not, hurry and the leash are there
	if hook == nil || !a.child.started || stop.Reason == lease.ReasonRenewFailed || left <= 0 {
		a.end(sig)
		return
	}
	a.child.delayed = sig
	a.runHook(c, "preStop", *hook, left-signalled(left), func(bool) lease.Event {
		a.endDelayed()
		return lease.Ticked{}
	})
	a.endInTime(c)
}

// endInTime has the process get its signal before it is killed, whatever becomes of the hook that holds the signal up: a command that
// waits in the kernel outlives its own time, and one may have been given more than is left when the pod is told to stop.
func (a *Agent) endInTime(c *contender) {
	if a.child.delayed == 0 {
		return
	}
	process := a.child.process
	left := c.state.Stop.KillAt.Sub(c.now().Boot)
	time.AfterFunc(left-signalled(left), func() {
		a.post(c, func() lease.Event {
			if a.child.process == process {
				a.endDelayed()
			}
			return nil
		})
	})
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
