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
	namespace, name, pod string
	phase                lease.Phase
	// holder, token and tenure are the Lease's, as last seen; the latter two those of the agent's own tenure, if it has one.
	holder string
	token  int64
	tenure int32
	// validUntil is the supervise.BootTime at which this agent's right to act ends unless it is renewed; 0 where it has none.
	validUntil int64
	// known says that the Lease was read, absent that there is none. stopping is why the tenure is coming to its end.
	known, absent bool
	stopping      lease.Reason

	// Ready: see lease.State.Synced.
	ready, watching bool
	late            time.Duration
	// wake is when the agent has something to do.
	wake lease.Instant
}

// Left is the time for which the process may act, by a reading of supervise.BootTime; 0 or less means that it may not.
func (s Snapshot) Left(boot int64) time.Duration {
	if s.validUntil == 0 {
		return 0
	}
	return time.Duration(s.validUntil - boot)
}

// status is the snapshot as those who ask are told it, by a reading of supervise.BootTime.
func (s Snapshot) status(boot int64) tenure.Status {
	answer := tenure.Status{
		Version: tenure.Version, Namespace: s.namespace, Name: s.name, Pod: s.pod, Phase: s.phase.String(),
		Holder: s.holder, Token: s.token, Tenure: s.tenure,
	}
	left := s.Left(boot)
	if left <= 0 {
		answer.Reason = s.whyNot()
		return answer
	}
	answer.Valid, answer.LeftMilliseconds = true, left.Milliseconds()
	answer.ValidUntil, answer.ValidUntilBoot = s.validUntil, supervise.NoLater(s.validUntil)
	return answer
}

// whyNot is why the process may not act, for people.
func (s Snapshot) whyNot() string {
	switch {
	case s.validUntil != 0:
		return "the tenure was not renewed in time: the API server does not answer, or the agent had no time"
	case s.phase == lease.Stopping:
		return fmt.Sprintf("the tenure with token %d is ending: %s", s.token, s.stopping)
	case s.phase == lease.Acquiring:
		return "the agent is acquiring the Lease"
	case !s.known:
		return "the agent has just started, or can't reach the API server: it has not seen the Lease yet"
	case s.absent:
		return "there is no Lease; the operator makes it"
	case s.holder == "":
		return "this pod is a standby, and nobody holds the Lease"
	}
	return fmt.Sprintf("this pod is a standby: the holder is %q", s.holder)
}

// snapshotOf is what a state has to show.
func snapshotOf(o Options, config lease.Config, s lease.State) *Snapshot {
	until, tenured := s.MayActUntil(config)
	shot := &Snapshot{
		namespace:  o.Namespace,
		name:       o.Config.Name,
		pod:        o.Identity.Pod,
		phase:      s.Phase,
		holder:     contract.Cut(s.Observed.Record.Holder, maxHolder),
		token:      s.Observed.Record.Token,
		tenure:     s.Observed.Record.Transitions,
		validUntil: int64(until),
		known:      s.Observed.Known,
		absent:     s.Observed.Absent,
		stopping:   s.Stop.Reason,
		ready:      s.Synced() || tenured,
		watching:   s.WatchUp,
		late:       s.Late,
		wake:       s.Wake,
	}
	if tenured || s.Phase == lease.Stopping {
		shot.token, shot.tenure = s.Tenure.Token, s.Tenure.Transitions
	}
	return shot
}

// stuck reports whether the agent's goroutine has missed its wake-up by more than any busy machine explains.
func (s Snapshot) stuck(now lease.Instant) bool { return now > s.wake.Add(stuckAfter) }

const stuckAfter = 10 * time.Second
