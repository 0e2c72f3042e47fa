package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Sample is one connection. Times are in nanoseconds, from the beginning of the cut.
type Sample struct {
	Cut     time.Duration   `json:"cut"`               // its end
	Arrived []time.Duration `json:"arrived,omitempty"` // writes that arrived after their process was dead
}

// A row sums up the connections that were cut for about so long.
type row struct {
	from, to             time.Duration
	connections, arrived int
	least, median, most  time.Duration // of the arrivals, after the process's death
	latest               time.Duration // after the end of the cut
}

// rows are those of the lengths of cuts in steps of a time. Everything on a connection arrives at once, so the last one counts.
func rows(samples []Sample, dies, step time.Duration) (all []row) {
	byStep := map[time.Duration][]Sample{}
	for _, s := range samples {
		from := s.Cut.Truncate(step)
		byStep[from] = append(byStep[from], s)
	}
	for from, group := range byStep {
		r := row{from: from, to: from + step, connections: len(group)}
		var late []time.Duration
		for _, s := range group {
			if len(s.Arrived) > 0 {
				at := slices.Max(s.Arrived)
				late = append(late, at-dies)
				r.latest = max(r.latest, at-s.Cut)
			}
		}
		if r.arrived = len(late); r.arrived > 0 {
			slices.Sort(late)
			r.least, r.median, r.most = late[0], late[(len(late)-1)/2], late[len(late)-1]
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b row) int { return int(a.from - b.from) })
	return all
}

// passes counts the connections with a write that arrives when a successor that has waited so long after the lease is at work.
func passes(samples []Sample, lease, lockDelay time.Duration) (n int) {
	for _, s := range samples {
		if len(s.Arrived) > 0 && slices.Max(s.Arrived) >= lease+lockDelay {
			n++
		}
	}
	return n
}

var lockDelays = []time.Duration{0, 10 * time.Second, 30 * time.Second, time.Minute, 90 * time.Second, 2 * time.Minute}

// markdown is a table of the distribution, and one of what delays are worth.
func markdown(samples []Sample, dies, lease time.Duration) string {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
	var text strings.Builder
	text.WriteString("| cut off for | connections | a write of the dead process arrived | after its death: least | median | most | after the cut, at most |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, r := range rows(samples, dies, 15*time.Second) {
		fmt.Fprintf(&text, "| %.0f to %.0f s | %d | %d |", r.from.Seconds(), r.to.Seconds(), r.connections, r.arrived)
		if r.arrived == 0 {
			text.WriteString(" | | | |\n")
			continue
		}
		fmt.Fprintf(&text, " %s | %s | %s | %s |\n", seconds(r.least), seconds(r.median), seconds(r.most), seconds(r.latest))
	}
	text.WriteString("\n| lockDelay | connections with a write that came after the successor had begun |\n|---|---|\n")
	for _, d := range lockDelays {
		fmt.Fprintf(&text, "| %v | %d of %d |\n", d, passes(samples, lease, d), len(samples))
	}
	return text.String()
}
