//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/test/workload/ask"
)

// rounding is what the client's and the sink's rhythm leave of precision.
const rounding = 10 * time.Millisecond

func round(d time.Duration) time.Duration { return d.Round(rounding) }

// spread is minimum, median, 90th percentile and maximum in milliseconds, each of them one that was measured.
func spread(values []time.Duration) string {
	if len(values) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(percent int) int64 { return sorted[(len(sorted)*percent+99)/100-1].Milliseconds() } // by the nearest rank
	return fmt.Sprintf("%d / %d / %d / %d", sorted[0].Milliseconds(), at(50), at(90), at(100))
}

// table is one of Markdown: a row for each kind of change.
func table(changes []Change) string {
	var text strings.Builder
	text.WriteString("minimum / median / 90 % / maximum, in milliseconds\n\n" +
		"| change | runs | no answer | the same, connection kept | no process | endpoint after the Lease | no endpoint | " +
		"client's node after both | endpoint later than 1 s | requests lost | wrong answers |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	var kinds []string
	for _, c := range changes {
		if !slices.Contains(kinds, c.Kind) {
			kinds = append(kinds, c.Kind)
		}
	}
	for _, kind := range kinds {
		text.WriteString(row(kind, slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.Kind != kind })))
	}
	return text.String()
}

func row(kind string, of []Change) string {
	columns := []func(Change) time.Duration{
		func(c Change) time.Duration { return c.Client }, func(c Change) time.Duration { return c.Kept },
		func(c Change) time.Duration { return c.Process }, func(c Change) time.Duration { return c.Endpoint },
		func(c Change) time.Duration { return c.Empty }, func(c Change) time.Duration { return c.Proxy },
	}
	var text strings.Builder
	fmt.Fprintf(&text, "| %s | %d |", kind, len(of))
	for _, column := range columns {
		values := make([]time.Duration, 0, len(of))
		for _, c := range of {
			values = append(values, column(c))
		}
		text.WriteString(" " + spread(values) + " |")
	}
	late, wrong, lost := 0, 0, map[ask.Failure]int{}
	for _, c := range of {
		if c.Endpoint > follows {
			late++
		}
		wrong += c.Wrong
		for failure, n := range c.Lost {
			lost[failure] += n
		}
	}
	var losses []string
	for _, failure := range []ask.Failure{ask.Refused, ask.TimedOut, ask.Broken} {
		if n := lost[failure]; n > 0 {
			losses = append(losses, fmt.Sprintf("%d %s", n, failure))
		}
	}
	fmt.Fprintf(&text, " %d | %s | %d |\n", late, strings.Join(losses, ", "), wrong)
	return text.String()
}
