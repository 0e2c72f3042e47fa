package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// line is one line of a timeline.
type line struct {
	at        time.Duration
	who, what string
}

func (w *world) note(who, format string, args ...any) {
	w.trace(line{w.now, who, fmt.Sprintf(format, args...)})
}

// noteAction records an action in the timeline, unless it is routine.
func (w *world) noteAction(a *agent, action lease.Action) {
	switch action := action.(type) {
	case lease.SendWrite:
		r := action.Attempt.Record
		w.note(a.id, "sends %v on revision %d, token %d", action.Attempt.Kind, r.Revision, r.Token)
	case lease.SendRead:
		w.note(a.id, "reads")
	case lease.StartChild:
		w.note(a.id, "starts token %d until %v", action.Token, w.local(a, action.Deadline))
	case lease.ExtendLeash:
		w.note(a.id, "leash until %v", w.local(a, action.Deadline))
	case lease.TenureEnded:
		w.note(a.id, "tenure %d ended: %s, released: %v", action.Token, action.Reason, action.Released)
	case lease.SignalChild:
		w.note(a.id, "asks its process to end")
	case lease.KillTree:
		w.note(a.id, "kills its processes")
	case lease.RestartWatch:
		w.note(a.id, "asks for a fresh watch")
	case lease.Exit:
		w.note(a.id, "exits with %d", action.Code)
	}
}

func (w *world) local(a *agent, i lease.Instant) string {
	if i == lease.Never {
		return "forever"
	}
	return a.machine.when(i).String()
}

// Explain runs the episode of a seed again, with as few of its faults as still break the same promise, and describes what
// happened before it broke. It returns the empty string if nothing breaks.
func Explain(seed uint64, o Options) string {
	p := draw(seed, o)
	faults := plan(p)
	first := run(p, faults, o, nil).Violation
	if first == nil {
		return ""
	}
	faults = minimal(p, faults, o, first.Kind)
	var lines []line
	found := run(p, faults, o, func(l line) { lines = append(lines, l) }).Violation
	var b strings.Builder
	c := p.config
	fmt.Fprintf(&b, "seed %d (%v): %v\n", seed, p.profile, *first)
	fmt.Fprintf(&b, "leaseDuration %v, renewDeadline %v, retryPeriod %v, lockDelay %v, %d candidates, restart proves death: %v\n",
		c.Duration, c.RenewDeadline, c.RetryPeriod, c.LockDelay, p.candidates, p.endProvesDeath)
	fmt.Fprintf(&b, "with only these faults: %v\n", *found)
	const longest = 200
	slices.SortFunc(faults, func(f, g Fault) int { return cmp.Compare(f.At, g.At) })
	for _, f := range faults[max(0, len(faults)-longest/10):] {
		fmt.Fprintf(&b, "  %v\n", f)
	}
	lines = slices.DeleteFunc(lines, func(l line) bool { return l.at < found.At-4*c.Duration })
	lines = withoutRoutine(lines, found.At-c.Duration)
	for _, l := range lines[max(0, len(lines)-longest):] {
		fmt.Fprintf(&b, "%12.4fs  %-14s %s\n", l.at.Seconds(), l.who, l.what)
	}
	return b.String()
}

// withoutRoutine leaves out successful renewals, except those near the end.
func withoutRoutine(lines []line, end time.Duration) []line {
	routine := func(i int) bool {
		l := lines[i]
		return l.at < end && (strings.HasPrefix(l.what, "sends Renew") && i+1 < len(lines) && lines[i+1].who == l.who && leashed(lines[i+1]) || leashed(l))
	}
	var out []line
	for i, l := range lines {
		if !routine(i) {
			out = append(out, l)
		}
	}
	return out
}

func leashed(l line) bool { return strings.HasPrefix(l.what, "leash until") }

// minimal leaves out every fault that is not needed to break the same promise.
func minimal(p params, faults []Fault, o Options, kind string) []Fault {
	breaks := func(faults []Fault) bool {
		v := run(p, faults, o, nil).Violation
		return v != nil && v.Kind == kind
	}
	// Halves first, then one by one, repeatedly: a fault that was needed beside others may not be needed without them.
	for size := len(faults) / 2; size > 0; {
		before := len(faults)
		for i := 0; i < len(faults); {
			fewer := slices.Concat(faults[:i], faults[min(len(faults), i+size):])
			if breaks(fewer) {
				faults = fewer
			} else {
				i += size
			}
		}
		if size > 1 || len(faults) == before {
			size /= 2
		}
	}
	return faults
}
