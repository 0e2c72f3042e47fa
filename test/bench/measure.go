//go:build linux

package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/workload/load"
)

// A Run is what one fault did. Times are in nanoseconds.
type Run struct {
	// Takeover is the time from the fault to the first write of another process. It is nil if none came before the fault was healed, or
	// if the same process continues.
	Takeover *time.Duration `json:"takeover,omitempty"`
	// AfterRenewal is the time from the last stored renewal of the old holder to that write; nil without a Lease.
	AfterRenewal *time.Duration `json:"afterRenewal,omitempty"`
	// Gap is the longest time without a stored write, from the fault on.
	Gap time.Duration `json:"gap"`
	// Overlap is how long an older process was seen to act after a younger one had begun: from the first of its writes that
	// were sent then to the last. A single one counts as the time between two. While a process is frozen it does not act.
	Overlap time.Duration `json:"overlap"`
	// StaleOffered counts writes of an older process after a younger one had begun; StaleAccepted those that were stored.
	StaleOffered  int `json:"staleOffered"`
	StaleAccepted int `json:"staleAccepted"`
	// Unresolved says that nothing wrote any more when the watch ended, so that the gap was longer.
	Unresolved bool `json:"unresolved,omitempty"`
}

// measure tells what became of the resource between the fault and the end of the watch. renewed is when the last renewal
// before the takeover was seen, zero for none.
func measure(attempts []fencetest.Attempt, resource fence.Resource, fault, end, renewed time.Duration) Run {
	var run Run
	lives := observe.Lives(attempts, resource, true)
	for _, life := range lives {
		run.StaleOffered += life.Stale
		run.StaleAccepted += life.StaleAccepted
		if life.First > fault && run.Takeover == nil {
			run.Takeover = new(life.First - fault)
			if renewed > 0 && renewed < life.First {
				run.AfterRenewal = new(life.First - renewed)
			}
		}
	}
	run.Overlap = overlap(attempts, resource, lives)
	run.Gap, run.Unresolved = longestGap(attempts, resource, fault, end)
	return run
}

// overlap is that of the process that acted longest after a younger one had begun.
func overlap(attempts []fencetest.Attempt, resource fence.Resource, lives []observe.Life) time.Duration {
	var longest time.Duration
	for i := range lives[:max(0, len(lives)-1)] {
		younger := lives[i+1]
		var first, last time.Duration
		for _, a := range attempts {
			if a.Resource != resource || a.Writer != lives[i].Writer || a.Sent <= younger.First {
				continue
			}
			if first == 0 {
				first = a.Sent
			}
			last = a.Sent
		}
		if first > 0 {
			longest = max(longest, last-first, load.Every)
		}
	}
	return longest
}

// pause is how long before the end of the watch the last write can lie although the process continues to write.
const pause = 10 * load.Every

// longestGap is between two stored writes of whichever process, the second of them after the fault, or between the last one
// and the end of the watch.
func longestGap(attempts []fencetest.Attempt, resource fence.Resource, fault, end time.Duration) (gap time.Duration, unresolved bool) {
	var last time.Duration
	for _, a := range attempts {
		if a.Resource != resource || !a.Accepted || a.At > end {
			continue
		}
		if a.At > fault && last > 0 {
			gap = max(gap, a.At-last)
		}
		last = a.At
	}
	if rest := end - last; rest > max(gap, pause) {
		return rest, true
	}
	return gap, false
}

// A Spread sums up durations.
type Spread struct {
	Min    time.Duration `json:"min"`
	Median time.Duration `json:"median"`
	Max    time.Duration `json:"max"`
	Runs   int           `json:"runs"`
}

// spreadOf takes the lower of the two middle values for a median of an even number: one that was measured.
func spreadOf(values []time.Duration) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return Spread{Min: sorted[0], Median: sorted[(len(sorted)-1)/2], Max: sorted[len(sorted)-1], Runs: len(sorted)}
}

// A Cell is one subject under one fault.
type Cell struct {
	Subject string `json:"subject"`
	Fault   string `json:"fault"`
	Runs    []Run  `json:"runs"`

	Takeover     Spread `json:"takeover"`
	AfterRenewal Spread `json:"afterRenewal"`
	Gap          Spread `json:"gap"`
	Overlap      Spread `json:"overlap"`

	StaleOffered  int `json:"staleOffered"` // in all runs
	StaleAccepted int `json:"staleAccepted"`
}

// sum fills in what follows from the runs.
func (c *Cell) sum() {
	var takeovers, renewals, gaps, overlaps []time.Duration
	c.StaleOffered, c.StaleAccepted = 0, 0
	for _, r := range c.Runs {
		if r.Takeover != nil {
			takeovers = append(takeovers, *r.Takeover)
		}
		if r.AfterRenewal != nil {
			renewals = append(renewals, *r.AfterRenewal)
		}
		gaps, overlaps = append(gaps, r.Gap), append(overlaps, r.Overlap)
		c.StaleOffered += r.StaleOffered
		c.StaleAccepted += r.StaleAccepted
	}
	c.Takeover, c.AfterRenewal = spreadOf(takeovers), spreadOf(renewals)
	c.Gap, c.Overlap = spreadOf(gaps), spreadOf(overlaps)
}

// inOrder puts the cells in the order of the subjects within that of the faults.
func inOrder(cells []*Cell, subjects, faults []string) {
	slices.SortFunc(cells, func(a, b *Cell) int {
		return cmp.Or(
			cmp.Compare(slices.Index(faults, a.Fault), slices.Index(faults, b.Fault)),
			cmp.Compare(slices.Index(subjects, a.Subject), slices.Index(subjects, b.Subject)),
		)
	})
}
