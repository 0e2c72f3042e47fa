package plan

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// switchover is a handover that a user requests (contract.SwitchoverAnnotation).
type switchover struct {
	// to is the requested standby that can take over now, empty if there is none.
	to string
	// blocked is why the request is not followed, empty if it is, or if there is no open request.
	blocked string
}

// switchoverOf reads the request. It names the tenure to end. So a request that was followed, or that another change of holder preceded,
// has no effect any more, and no component has to remember it.
func switchoverOf(j *job, t *tenure, m *members) switchover {
	text := j.Annotations[contract.SwitchoverAnnotation]
	if text == "" {
		return switchover{}
	}
	blocked := func(format string, args ...any) switchover {
		return switchover{blocked: fmt.Sprintf("the annotation %s=%s requests a handover, but ", contract.SwitchoverAnnotation, bounded(text, maxIdentity)) +
			fmt.Sprintf(format, args...)}
	}
	to, number, _ := strings.Cut(text, "@")
	token, err := strconv.ParseInt(number, 10, 64)
	switch {
	case to == "" || err != nil || token <= 0:
		return blocked("is not valid: write POD@TOKEN, or *@TOKEN for any standby, with the token in status.fencingToken")
	case token > max(t.Record.Token, j.Status.FencingToken): // the Lease may no longer exist
		return blocked("there was no tenure with that token yet: write the one in status.fencingToken")
	case token != t.Record.Token, !t.holder.ours, to == t.holder.Pod:
		return switchover{}
	}
	const until = ", or until the annotation is removed"
	if to == lease.AnyPod {
		if c := m.anyStandby(t.Record.Handover.To); c != nil {
			return switchover{to: c.pod.Name}
		}
		return blocked("no standby is ready: it waits for one%s", until)
	}
	switch c := m.first(func(c candidate) bool { return c.live() && c.pod.Name == to }); {
	case c == nil:
		return blocked("there is no such candidate")
	case !c.isStandby():
		return blocked("%s is not ready: it waits for that%s", to, until)
	default:
		return switchover{to: to}
	}
}

// anyStandby returns a standby that can take over, nil if there is none: first one that was asked before, then one on another node than the
// holder. In a rollout it prefers the new version, unless that failed or the rollout is paused, so that this handover is the one of the
// rollout.
func (m *members) anyStandby(asked string) *candidate {
	wanted := func(c candidate) bool { return c.isStandby() && c.updated != (m.fleet.Failed || m.fleet.Paused) }
	for _, fit := range []func(candidate) bool{
		func(c candidate) bool { return c.isStandby() && c.pod.Name == asked },
		func(c candidate) bool { return wanted(c) && !c.beside },
		wanted,
		func(c candidate) bool { return c.isStandby() && !c.beside },
		candidate.isStandby,
	} {
		if c := m.first(fit); c != nil {
			return c
		}
	}
	return nil
}

// waiting adds to a verdict that nothing is done the handover that waits for the same reason, if there is one.
func (s switchover) waiting(v verdict) verdict {
	switch {
	case s.blocked != "":
		v.message += "; " + s.blocked
	case s.to != "":
		v.message += fmt.Sprintf("; the handover to %s that the annotation %s requests waits for this, too", s.to, contract.SwitchoverAnnotation)
	}
	return v
}

// requestOf returns the handover to request: the user's, or else the rollout's. It is zero if there is none.
func requestOf(asked switchover, t *tenure, m *members, s Step) lease.Handover {
	if asked.to != "" {
		return lease.Handover{To: asked.to, Reason: lease.ReasonSwitchover}
	}
	if to := successor(t, m, s); to != "" {
		return lease.Handover{To: to, Reason: lease.ReasonRollout}
	}
	return lease.Handover{}
}
