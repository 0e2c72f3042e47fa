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

// unlimited is the time limit of a hook that can take as long as its process lives.
const unlimited = time.Duration(math.MaxInt64)

// runHook runs a hook beside the process of the current tenure. When the hook is over it calls done in Run's goroutine, unless the process
// has ended by then. done returns the resulting event.
func (a *Agent) runHook(c *contender, name string, h contract.Hook, limit time.Duration, done func(failed bool) lease.Event) {
	process := a.child.process
	go func() {
		err := a.perform(process, h, limit)
		a.post(c, func() lease.Event {
			if a.child.process != process || over(process) {
				return nil // a hook that ends with the process has not failed
			}
			if err != nil {
				a.log.Print("hook failed", "hook", name, "error", err)
			}
			return done(err != nil)
		})
	}()
}

// over reports whether the main process has ended. The agent may not know that yet, and descendants of the process may still live.
func over(process Process) bool {
	select {
	case <-process.Gone():
		return true
	default:
		return errors.Is(process.Signal(0), os.ErrProcessDone)
	}
}

// perform returns when the hook is over, when its time limit has passed, or when the process tree is gone.
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

// failure returns the reason why a command failed, or nil if it succeeded.
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
		return said("it exceeded its time limit and was killed")
	case r.Status != supervise.Status{}:
		return said(r.Status.String())
	}
	return nil
}

// maxSaid is the maximum number of bytes of a command's output in the log.
const maxSaid = 500

// started is called when the process executes. As in a kubelet, probes begin after postStart has succeeded, and the process is not ready
// until then. If postStart fails, the process must end, by preStop and a signal, within the Pod's grace period. No kubelet stops the Pod then,
// so the process has all of that period.
func (a *Agent) started(c *contender) {
	a.child.started = true
	began, hook := time.Now(), a.o.Config.Hooks.PostStart
	if hook == nil {
		a.child.health = firstHealth(a.o.Config.Probes)
		a.startProbes(c, began)
		return
	}
	a.child.health = health{why: "postStart runs"}
	a.runHook(c, "postStart", *hook, unlimited, func(failed bool) lease.Event {
		if failed {
			a.child.health.why = "postStart failed"
			return lease.Unhealthy{Reason: lease.ReasonPostStartFailed, Grace: time.Duration(a.o.Config.GracePeriod)}
		}
		a.child.health = firstHealth(a.o.Config.Probes)
		a.startProbes(c, began)
		return lease.Ticked{} // publish the change
	})
}

// askToEnd asks the process to end: first by its preStop hook, then by a signal. A tenure that could not be renewed has no time for the
// hook. preActivate gets SIGTERM, because its program may ignore the image's stop signal.
func (a *Agent) askToEnd(c *contender, sig syscall.Signal, now lease.Instant) {
	if a.child.prepares {
		sig = syscall.SIGTERM
	}
	hook := a.o.Config.Hooks.PreStop
	stop := c.state.Stop
	// Renewals continue during the hook. If they fail, hurry and the leash limit it.
	if hook == nil || !a.child.started || stop.Reason == lease.ReasonRenewFailed || stop.KillAt <= now {
		a.end(sig)
		return
	}
	a.child.delayed, a.child.stopped = sig, now
	limit := lastPart(now, stop.KillAt).Sub(now)
	a.runHook(c, "preStop", *hook, limit, func(bool) lease.Event {
		a.endDelayed()
		return lease.Ticked{}
	})
}

// endDelayed sends the signal that waits for a hook.
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

// hurry sends the signal that waits for a hook if there is no more time for the hook.
func (a *Agent) hurry(c *contender, now lease.Instant) {
	if now >= a.signalBy(c) {
		a.endDelayed()
	}
}
