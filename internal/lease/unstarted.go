package lease

import (
	"time"

	"github.com/singletonjob/operator/internal/schedule"
)

// Unstarted says why this candidate starts no run though a tick is due by one of its clocks, or though due ticks were settled in
// advance. It is empty if nothing prevents a start. It is for people: no decision depends on it.
func (s State) Unstarted(c Config, t Time) schedule.Verdict {
	if !s.awaitsTicks(c, t) {
		return ""
	}
	m, runs := machine{c: c, s: s, t: t}, s.Observed.Record.Runs
	switch why := runs.Schedule.Decide(runs.facts(), m.clocks()).Verdict; why {
	case schedule.Ahead:
		return why
	case schedule.Start:
		if m.outdated() && s.askedInVain() {
			return schedule.NoServerClock
		}
	case schedule.ClocksDisagree, schedule.NoServerClock:
		if (why == schedule.ClocksDisagree || s.askedInVain()) && m.dueByOne(runs) {
			return why
		}
	default:
	}
	return ""
}

// awaitsTicks reports whether this agent would start a run whose tick is due.
func (s State) awaitsTicks(c Config, t Time) bool {
	runs := s.Observed.Record.Runs
	known := s.Observed.Known && !s.Observed.Absent && runs.Bad == ""
	return c.Runs != nil && known && runs.Schedule != nil && !runs.Now.Open() && t.Boot >= c.FreeAt(s)
}

// askedInVain reports whether the last answer contained no time.
func (s State) askedInVain() bool {
	return s.Server.Asked > s.Server.At && s.Read == nil && !s.MustRead && !s.Disconnected
}

// dueByOne reports whether a tick is due by at least one of the clocks.
func (m *machine) dueByOne(runs Runs) bool {
	due := func(at time.Time) bool {
		return !at.IsZero() && runs.Schedule.Decide(runs.facts(), schedule.Clocks{Wall: at, Server: at}).Verdict == schedule.Start
	}
	c := m.clocks()
	return due(c.Wall) || due(c.Server)
}

// Apart returns how far this machine's clock is ahead of the API server's; 0 if that is not known.
func (s State) Apart(t Time) time.Duration {
	m := machine{s: s, t: t}
	if c := m.clocks(); !c.Server.IsZero() {
		return c.Wall.Sub(c.Server)
	}
	return 0
}
