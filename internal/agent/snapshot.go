//go:build linux

package agent

import (
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// Snapshot is what the agent says of itself. It stays true when it is old: whether a tenure is valid is for the
// reader to find out, by his own reading of the clock.
type Snapshot struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pod       string `json:"pod"`
	// Phase is where the agent stands: Waiting, Acquiring, Holding or Stopping.
	Phase string `json:"phase"`
	// Holder, Token and Tenure are the Lease's, as last seen.
	Holder string `json:"holder"`
	Token  int64  `json:"token"`
	Tenure int32  `json:"tenure"`
	// ValidUntil is the supervise.BootTime at which this agent's right to act ends unless it is renewed; 0 where it has
	// none. Token is then its own.
	ValidUntil int64 `json:"validUntilRaw"`
	// ValidUntilBoot is the same for those who read CLOCK_BOOTTIME. NTP may have that run slow, so it is as much earlier as
	// that may take; it is of when the agent was asked.
	ValidUntilBoot int64 `json:"validUntil"`

	// Ready: see lease.State.Synced.
	ready, watching bool
	late            time.Duration
	// wake is when the agent has something to do.
	wake lease.Instant
}

// Left is the time for which the process may act, by a reading of supervise.BootTime; 0 or less means that it may not.
func (s Snapshot) Left(boot int64) time.Duration {
	if s.ValidUntil == 0 {
		return 0
	}
	return time.Duration(s.ValidUntil - boot)
}

// snapshotOf is what a state has to show.
func snapshotOf(o Options, config lease.Config, s lease.State) *Snapshot {
	until, tenure := s.MayActUntil(config)
	shot := &Snapshot{
		Namespace:  o.Namespace,
		Name:       o.Config.Name,
		Pod:        o.Identity.Pod,
		Phase:      s.Phase.String(),
		Holder:     contract.Cut(s.Observed.Record.Holder, maxHolder),
		Token:      s.Observed.Record.Token,
		Tenure:     s.Observed.Record.Transitions,
		ValidUntil: int64(until),
		ready:      s.Synced() || tenure,
		watching:   s.WatchUp,
		late:       s.Late,
		wake:       s.Wake,
	}
	if tenure {
		shot.Token, shot.Tenure = s.Tenure.Token, s.Tenure.Transitions
	}
	return shot
}

// stuck reports whether the agent's goroutine has missed its wake-up by more than any busy machine explains.
func (s Snapshot) stuck(now lease.Instant) bool { return now > s.wake.Add(stuckAfter) }

const stuckAfter = 10 * time.Second
