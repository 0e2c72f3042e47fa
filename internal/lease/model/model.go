package model

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// model holds the settings of one search.
type model struct {
	step       mistake.Step
	candidates int
	// faults are the possible kinds of faults, budget is their number in a run, and slips is how many times clocks can slip.
	faults faults
	budget int
	slips  int
	// killTakes is the greatest number of ticks that processes live after a kill. The agent knows about late of them.
	killTakes int8
	late      int
	// pid1 means that an agent starts only when the previous agent's processes are dead.
	pid1 bool
	// onePod puts all agents in one pod, as after a runtime that has lost track of containers that still run.
	onePod      bool
	keepRunning bool
	lockDelay   int32
	// slow selects longer settings, and API servers that were slow before.
	slow bool
	// noWatch keeps watches closed, so that candidates read repeatedly.
	noWatch bool
	// between also cuts networks between the messages of one instant, and not only before and after them.
	between bool
	// lossless means that no fault may end a tenure.
	lossless bool
	// outage, unless it is 0, is how many ticks the API server is unreachable.
	outage int8
	// standing makes wall clocks show one time. Otherwise they advance like the others.
	standing bool
	// prepares runs preActivate before each process, for any length of time.
	prepares bool
	// quickRestore sets the store's data back while later holders live.
	quickRestore bool
	// longer is by how many ticks the first candidate's duration exceeds that of the others.
	longer  int
	history int
	// runs makes processes run to completion: one run, in at most two attempts.
	runs bool
	// ignores makes an attempt that fails by itself not count.
	ignores bool
	base    int64
	digits  int64
	broken  mistake.Broken
	sink    Sink
}

// slewed is by how many ticks a clock that NTP slews can be off at the end of a lease.
const slewed = 3

// Settings of a candidate: the shortest lease that the API accepts. In ticks, the duration is 6 with a margin of 1, the
// renewDeadline is 3, and the retryPeriod is 1. A process that is asked to end has 4.
const (
	grace         = 4
	duration      = 3 * time.Second
	renewDeadline = 1500 * time.Millisecond
	retryPeriod   = 500 * time.Millisecond
)

// With these longer settings, a candidate waits longer than a tick for an answer once answers were slow.
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
	if m.ignores {
		c.Runs.IgnoreCodes = []int32{1}
	}
	if m.slow {
		c.Duration, c.RenewDeadline = slowDuration, slowRenewDeadline
	}
	if slot == 0 {
		c.Duration += time.Duration(m.longer) * tick
	}
	return c
}

// longest returns the longest duration of any candidate.
func (m *model) longest() time.Duration {
	if m.slow {
		return slowDuration
	}
	return duration + time.Duration(m.longer)*tick
}

const (
	// mostAttempts is the number of attempts of a run, betweenAttempts the time between the first two.
	mostAttempts    = 2
	betweenAttempts = 10 * time.Second
)

func (m *model) firstRevision() int64 {
	if m.digits > 0 {
		return m.digits
	}
	return 1000
}

// bound returns the time after the end of all faults within which there must be a holder. It may have to wait for the old tenure,
// then for a Lease that was recreated, and for lockDelay. A few requests can fail before.
func (m *model) bound() time.Duration {
	bound := 2*m.longest() + 2*time.Duration(m.lockDelay)*tick + renewDeadline + 2*retryPeriod
	if m.runs {
		bound += m.delay()
	}
	return bound
}

// delay returns the longest time between two attempts. With attempts that do not count there are three.
func (m *model) delay() time.Duration {
	if m.ignores {
		return 2 * betweenAttempts
	}
	return betweenAttempts
}
