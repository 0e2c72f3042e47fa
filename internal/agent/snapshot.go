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

// Snapshot is the agent's published status. It stays true when it is old: the reader reads the clock to decide whether the tenure is still
// valid.
type Snapshot struct {
	Namespace string
	Name      string
	Pod       string
	// Phase is the agent's phase: Waiting, Acquiring, Holding or Stopping.
	Phase string
	// Holder, Token and Tenure are from the Lease as last seen. If the agent has a tenure, Token and Tenure are those of that tenure.
	Holder string
	Token  int64
	Tenure int32
	// ValidUntil is the supervise.BootTime at which this agent's right to act ends unless the Lease is renewed. It is 0 without such a
	// right.
	ValidUntil int64
	// known is true once the Lease was read, absent if there is no Lease. stopping is the reason why the tenure is ending.
	known, absent bool
	stopping      lease.Reason

	// Ready: see lease.State.Synced.
	ready, watching bool
	// unready is the reason why the process is not ready according to its probes. It can contain text from the process.
	unready string
	late    time.Duration
	// run is the run of the process. It is empty without a run.
	run lease.Run
	// wake is the time of the agent's next action.
	wake lease.Instant
}

// Left returns how long the process may act, given a reading of supervise.BootTime. 0 or less means that it may not act.
func (s Snapshot) Left(boot int64) time.Duration {
	if s.ValidUntil == 0 {
		return 0
	}
	return time.Duration(s.ValidUntil - boot)
}

// status returns the answer to a query, given a reading of supervise.BootTime.
func (s Snapshot) status(boot int64) tenure.Status {
	answer := tenure.Status{
		Version: tenure.Version, Namespace: s.Namespace, Name: s.Name, Pod: s.Pod, Phase: s.Phase,
		Holder: s.Holder, Token: s.Token, Tenure: s.Tenure, Run: s.run.ID, Tick: s.run.Tick.String(), Attempt: s.run.Attempt,
	}
	if !s.ready {
		answer.NotReady = contract.Cut(s.unready, maxUnready)
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

// maxUnready is the maximum number of bytes of unready in an answer, which has at most 4 KiB with all its text escaped.
const maxUnready = 150

// whyNot returns, for a human reader, the reason why the process may not act.
func (s Snapshot) whyNot() string {
	switch {
	case s.ValidUntil != 0:
		return "the tenure was not renewed in time: the API server does not answer, or the agent got no CPU"
	case s.Phase == lease.Stopping.String():
		return fmt.Sprintf("the tenure with token %d is ending: %s", s.Token, s.stopping)
	case s.Phase == lease.Acquiring.String():
		return "the agent is acquiring the Lease"
	case !s.known:
		return "the agent has not read the Lease yet: it has just started, or cannot reach the API server"
	case s.absent:
		return "there is no Lease; the operator creates it"
	case s.Holder == "":
		return "this Pod is a standby, and no Pod holds the Lease"
	}
	return fmt.Sprintf("this Pod is a standby: the holder is %q", s.Holder)
}

// snapshotOf returns the snapshot of a state.
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

// stuck reports whether the agent's goroutine has missed its wake-up by more than a busy machine can explain.
func (s Snapshot) stuck(now lease.Instant) bool { return now > s.wake.Add(stuckAfter) }

const stuckAfter = 10 * time.Second
