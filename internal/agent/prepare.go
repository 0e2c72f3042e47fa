//go:build linux

package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

// preActivate runs in a process tree of its own, on a leash that follows the same deadlines. While it runs, all actions for the tenure's
// process apply to it: to extend its deadline, to end it, to kill it.
//
// The main process starts when that tree is gone, in the same step of Run's goroutine that checks that the tenure is still held. So it
// never starts in a tenure that is ending, and nothing that preActivate left behind, such as a daemon, can act beside it.

// prepare waits for preActivate and then starts the main process, or logs why it does not.
func (a *Agent) prepare(c *contender, s lease.StartChild, process Process, err error) {
	limit := time.Duration(a.o.Config.PreActivate.Timeout)
	status, err := a.awaitPreparation(c, process, limit, err)
	if err != nil {
		a.post(c, func() lease.Event {
			a.log.Print("preActivate failed", "token", s.Token, "error", err)
			// A command that was asked to end, and does, has ended in order.
			return notPrepared(status, err, c.state.Phase == lease.Holding || a.child.crashed(status))
		})
		a.reaped(c, process)
		return
	}
	a.post(c, func() lease.Event {
		if a.child.process == process { // processes that preActivate left behind are killed without a request
			a.child.dying(c.now().Boot)
		}
		return nil
	})
	<-process.Gone()
	a.post(c, func() lease.Event {
		if c.state.Phase != lease.Holding {
			go a.reaped(c, process)
			return lease.ChildExited{Reason: lease.ReasonNotBegun} // a successful preActivate does not complete the run
		}
		a.log.Print("prepared", "token", s.Token)
		s.Deadline = c.state.ValidUntil(c.config)
		a.startMain(c, s)
		if c.config.KeepRunning {
			a.child.extend(lease.Never) // once it runs
		}
		return lease.Ticked{}
	})
}

var errTooLong = errors.New("it exceeded its time limit and was killed")

// awaitPreparation returns the exit status, if there is one, and an error unless preActivate succeeded.
func (a *Agent) awaitPreparation(c *contender, process Process, limit time.Duration, err error) (status supervise.Status, _ error) {
	if err != nil {
		return status, err
	}
	inTime := time.AfterFunc(limit, func() {
		a.post(c, func() lease.Event {
			if a.child.process == process {
				a.child.kill(c.now().Boot)
			}
			return nil
		})
	})
	if err := <-process.Started(); err != nil {
		if !inTime.Stop() {
			return status, fmt.Errorf("%w: %w", errTooLong, err)
		}
		return status, err
	}
	status, ended := <-process.Exited()
	switch late := !inTime.Stop(); {
	case late && status != supervise.Status{}:
		return status, errTooLong
	case !ended || status != supervise.Status{}:
		return status, errors.New(status.String())
	}
	return status, nil
}

// notPrepared returns the event for a tenure whose preActivate failed.
func notPrepared(status supervise.Status, err error, crashed bool) lease.ChildExited {
	code := status.Code()
	if code == 0 {
		code = StartCode(err)
	}
	return lease.ChildExited{Code: code, Crashed: crashed, Reason: lease.ReasonPreActivateFailed}
}
