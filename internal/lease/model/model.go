package model

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// model is what one search is about.
type model struct {
	step       mistake.Step
	candidates int
	// faults may happen, budget of them in a run, and slips clocks may slip.
	faults faults
	budget int
	slips  int
	// killTakes is how many ticks processes live at most once they are killed, late how many of them are known to the agent.
	killTakes int8
	late      int
	// pid1 says that agents start only when the last one's processes are dead.
	pid1 bool
	// onePod has all agents in one pod, as after a runtime that has lost containers which live.
	onePod      bool
	keepRunning bool
	lockDelay   int32
	// slow has longer settings, and API servers that were slow before.
	slow bool
	// noWatch has no watch open, so that candidates read again and again.
	noWatch bool
	// between has networks cut between what is sent at one instant, too, and not only before and after.
	between bool
	// lossless says that no fault may end a tenure.
	lossless bool
	// outage, unless it is 0, is for how many ticks the API server is out of reach.
	outage int8
	// quickRestore has the store's data go back while holders of the time since live.
	quickRestore bool
	// longer is by how many ticks the first candidate's duration is longer than that of others.
	longer  int
	history int
	// runs has processes run to completion, once, in two attempts at most.
	runs   bool
	base   int64
	digits int64
	broken mistake.Broken
	sink   Sink
}

// slewed is by how many ticks a clock may be off at the end of a lease that NTP slews.
const slewed = 3

// Settings of a candidate: the shortest lease that the API accepts. In ticks its duration is 6, of which the margin is 1, the
// renewDeadline 3, the retryPeriod 1; a process that is asked to end has 4.
const (
	grace         = 4
	duration      = 3 * time.Second
	renewDeadline = 1500 * time.Millisecond
	retryPeriod   = 500 * time.Millisecond
)

// With longer ones an answer is waited for longer than a tick, once answers were slow.
const (
	slowDuration      = 4500 * time.Millisecond
	slowRenewDeadline = 3 * time.Second
)

func (m *model) config(slot int) lease.Config {
	c := lease.Config{
		Duration: duration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, LockDelay: time.Duration(m.lockDelay) * tick,
		KeepRunning: m.keepRunning, GracePeriod: grace * tick, EndProvesDeath: m.pid1,
	}
	if m.runs {
		c.Runs = &lease.RunPolicy{UID: "job", BackoffLimit: mostAttempts - 1}
	}
	if m.slow {
		c.Duration, c.RenewDeadline = slowDuration, slowRenewDeadline
	}
	if slot == 0 {
		c.Duration += time.Duration(m.longer) * tick
	}
	return c
}

// longest is the longest duration of any candidate.
func (m *model) longest() time.Duration {
	if m.slow {
		return slowDuration
	}
	return duration + time.Duration(m.longer)*tick
}

const (
	// mostAttempts is how many a run has, betweenAttempts how long they are apart.
	mostAttempts    = 2
	betweenAttempts = 10 * time.Second
)

func (m *model) firstRevision() int64 {
	if m.digits > 0 {
		return m.digits
	}
	return 1000
}

// bound is how soon after the end of all faults there must be a holder: the tenure that was may have to be waited for, and a
// Lease that was made anew after that, and lockDelay; and a few requests may fail before.
func (m *model) bound() time.Duration {
	bound := 2*m.longest() + 2*time.Duration(m.lockDelay)*tick + renewDeadline + 2*retryPeriod
	if m.runs {
		bound += betweenAttempts
	}
	return bound
}
