//go:build linux

package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

// What runs before the main process is a tree of its own, on a leash that follows the same deadlines. All that the tenure
// asks of its process is asked of that one meanwhile: to live longer, to end, to be killed. The main process starts when
// that tree is gone, in the same step of Run's goroutine that finds the tenure unbroken: so none starts in one that is
// ending, and what was left behind, a daemon, cannot act beside it.

// prepare waits for what runs before the main process, and starts that, or says why not.
func (a *Agent) prepare(c *contender, s lease.StartChild, process Process, err error) {
	limit := time.Duration(a.o.Config.PreActivate.Timeout)
	status, err := a.awaitPreparation(c, process, limit, err)
	if err != nil {
		a.post(c, func() lease.Event {
			a.log.Print("preActivate failed", "token", s.Token, "error", err)
			// One that is asked to end, and does, has ended in order.
			return notPrepared(status, err, c.state.Phase == lease.Holding || a.child.crashed(status))
		})
		a.reaped(c, process)
		return
	}
	a.post(c, func() lease.Event {
		if a.child.process == process { // what a main process leaves behind is killed unasked
			a.child.dying(c.now().Boot)
		}
		return nil
	})
	<-process.Gone()
	a.post(c, func() lease.Event {
		if c.state.Phase != lease.Holding {
			go a.reaped(c, process)
			return lease.ChildExited{Reason: lease.ReasonNotBegun} // that what comes before the process has succeeded completes no run
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

var errTooLong = errors.New("it was killed when its time was over")

// awaitPreparation returns the status if there is one, and an error unless that is success.
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

// notPrepared is the end of a tenure whose process was not to start.
func notPrepared(status supervise.Status, err error, crashed bool) lease.ChildExited {
	code := status.Code()
	if code == 0 {
		code = StartCode(err)
	}
	return lease.ChildExited{Code: code, Crashed: crashed, Reason: lease.ReasonPreActivateFailed}
}
