//go:build linux

package agent

import (
	"fmt"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/tenure"
)

// Snapshot is what the agent says of itself. It stays true when it is old: whether a tenure is valid is for the
// reader to find out, by his own reading of the clock.
type Snapshot struct {
	Namespace string
	Name      string
	Pod       string
	// Phase is where the agent stands: Waiting, Acquiring, Holding or Stopping.
	Phase string
	// Holder, Token and Tenure are the Lease's, as last seen; the latter two those of the agent's own tenure, if it has one.
	Holder string
	Token  int64
	Tenure int32
	// ValidUntil is the supervise.BootTime at which this agent's right to act ends unless it is renewed; 0 where it has none.
	ValidUntil int64
	// known says that the Lease was read, absent that there is none. stopping is why the tenure is coming to its end.
	known, absent bool
	stopping      lease.Reason

	// Ready: see lease.State.Synced.
	ready, watching bool
	// unready is what the process's probes have against its being ready.
	unready string
	late    time.Duration
	// run is that of the process, none without one.
	run lease.Run
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

// status is the snapshot as those who ask are told it, by a reading of supervise.BootTime.
func (s Snapshot) status(boot int64) tenure.Status {
	answer := tenure.Status{
		Version: tenure.Version, Namespace: s.Namespace, Name: s.Name, Pod: s.Pod, Phase: s.Phase,
		Holder: s.Holder, Token: s.Token, Tenure: s.Tenure, Run: s.run.ID, Tick: s.run.Tick.String(), Attempt: s.run.Attempt,
	}
	left := s.Left(boot)
	if left <= 0 {
		answer.Reason = s.whyNot()
		return answer
	}
	answer.Valid, answer.LeftMilliseconds = true, left.Milliseconds()
	answer.ValidUntil, answer.ValidUntilBoot = s.ValidUntil, supervise.NoLater(s.ValidUntil)
	return answer
}

// whyNot is why the process may not act, for people.
func (s Snapshot) whyNot() string {
	switch {
	case s.ValidUntil != 0:
		return "the tenure was not renewed in time: the API server does not answer, or the agent had no time"
	case s.Phase == lease.Stopping.String():
		return fmt.Sprintf("the tenure with token %d is ending: %s", s.Token, s.stopping)
	case s.Phase == lease.Acquiring.String():
		return "the agent is acquiring the Lease"
	case !s.known:
		return "the agent has just started, or can't reach the API server: it has not seen the Lease yet"
	case s.absent:
		return "there is no Lease; the operator makes it"
	case s.Holder == "":
		return "this pod is a standby, and nobody holds the Lease"
	}
	return fmt.Sprintf("this pod is a standby: the holder is %q", s.Holder)
}

// snapshotOf is what a state has to show.
func snapshotOf(o Options, config lease.Config, s lease.State) *Snapshot {
	until, tenured := s.MayActUntil(config)
	shot := &Snapshot{
		Namespace:  o.Namespace,
		Name:       o.Config.Name,
		Pod:        o.Identity.Pod,
		Phase:      s.Phase.String(),
		Holder:     contract.Cut(s.Observed.Record.Holder, maxHolder),
		Token:      s.Observed.Record.Token,
		Tenure:     s.Observed.Record.Transitions,
		ValidUntil: int64(until),
		known:      s.Observed.Known,
		absent:     s.Observed.Absent,
		stopping:   s.Stop.Reason,
		ready:      s.Synced() || tenured,
		watching:   s.WatchUp,
		late:       s.Late,
		wake:       s.Wake,
	}
	if tenured || s.Phase == lease.Stopping {
		shot.Token, shot.Tenure = s.Tenure.Token, s.Tenure.Transitions
	}
	return shot
}

// stuck reports whether the agent's goroutine has missed its wake-up by more than any busy machine explains.
func (s Snapshot) stuck(now lease.Instant) bool { return now > s.wake.Add(stuckAfter) }

const stuckAfter = 10 * time.Second
