//go:build linux

package agent

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
)

// metrics are written by the agent's goroutine and read by those who scrape them.
type metrics struct {
	renewals histogram
	writes   counts // by kind and outcome
	reads    counts // by outcome
	tenures  atomic.Int64
	ends     counts // by reason and whether the Lease was released
	stops    counts // by signal
	probes   counts // by probe and outcome
	attempts atomic.Int64
	runs     counts    // attempts that ended, by what that made of their runs
	delays   histogram // from ticks to the start of their runs
}

// runBegan counts an attempt of a run, if it is one. The first one of a run that is the tick's own tells how late it began.
func (m *metrics) runBegan(r lease.Run, wall int64) {
	if r.ID == "" {
		return
	}
	m.attempts.Add(1)
	if r.Attempt == 1 && r.Tick != 0 && strings.HasSuffix(r.ID, "/"+r.Tick.String()) {
		m.delays.observe(max(0, time.UnixMicro(wall).Sub(r.Tick.Time())))
	}
}

func (m *metrics) runEnded(r lease.Run, e lease.TenureEnded) {
	if r.ID != "" {
		m.runs.add(outcomeOf(e))
	}
}

func (m *metrics) wrote(kind lease.Kind, outcome lease.Outcome, took time.Duration) {
	m.writes.add(word(kind), outcomeLabels[outcome])
	if outcome == lease.Confirmed && kind == lease.Renew {
		m.renewals.observe(took)
	}
}

var outcomeLabels = map[lease.Outcome]string{
	lease.Unknown: "unknown", lease.Confirmed: "confirmed", lease.Conflict: "conflict", lease.Gone: "gone", lease.Refused: "refused",
}

func (m *metrics) read(answer kubelease.Answer, err error) {
	switch {
	case err != nil:
		m.reads.add("failed")
	case answer.Absent:
		m.reads.add("absent")
	default:
		m.reads.add("found")
	}
}

// counts is a counter for each combination of label values.
type counts struct {
	mu sync.Mutex
	n  map[[2]string]int64
}

func (c *counts) add(labels ...string) {
	var key [2]string
	copy(key[:], labels)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[[2]string]int64{}
	}
	c.n[key]++
}

func (c *counts) write(w io.Writer, name string, labels ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(c.n), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, key := range keys {
		var pairs []string
		for i, label := range labels {
			pairs = append(pairs, fmt.Sprintf("%s=%q", label, key[i]))
		}
		fmt.Fprintf(w, "%s{%s} %d\n", name, strings.Join(pairs, ","), c.n[key])
	}
}

// bounds of the histogram's buckets, in seconds.
var bounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

type histogram struct {
	mu      sync.Mutex
	buckets [len(bounds) + 1]int64 // the last one is above all bounds
	sum     float64
}

func (h *histogram) observe(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearch(bounds[:], d.Seconds())
	h.buckets[i]++
	h.sum += d.Seconds()
}

func (h *histogram) write(w io.Writer, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	total := int64(0)
	for i, n := range h.buckets {
		total += n
		bound := "+Inf"
		if i < len(bounds) {
			bound = fmt.Sprint(bounds[i])
		}
		fmt.Fprintf(w, "%s_bucket{le=%q} %d\n", name, bound, total)
	}
	fmt.Fprintf(w, "%s_sum %g\n%s_count %d\n", name, h.sum, name, total)
}

// write writes everything in the text format of Prometheus, with what is known at an instant besides.
func (m *metrics) write(w io.Writer, s *Snapshot, now lease.Instant, linesDropped int64) {
	header := func(name, kind, help string) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	number := func(name, kind, help string, value any) {
		header(name, kind, help)
		fmt.Fprintf(w, "%s %v\n", name, value)
	}
	left := max(0, s.Left(int64(now)).Seconds())
	number("singletonjob_agent_active", "gauge", "1 while this candidate holds the Lease and its process may act.", oneIf(left > 0))
	number("singletonjob_agent_lease_seconds_left", "gauge", "Time until the right to act ends unless it is renewed.", left)
	number("singletonjob_agent_fencing_token", "gauge", "Token of the Lease's present or last tenure.", s.Token)
	number("singletonjob_agent_watching", "gauge", "1 while changes of the Lease are watched.", oneIf(s.watching))
	number("singletonjob_agent_tenures_total", "counter", "Tenures that this agent began.", m.tenures.Load())
	header("singletonjob_agent_tenures_ended_total", "counter", "Tenures that ended, by reason and by whether the Lease was released or lost.")
	m.ends.write(w, "singletonjob_agent_tenures_ended_total", "reason", "lease")
	header("singletonjob_agent_stops_total", "counter", "Signals sent to end the process.")
	m.stops.write(w, "singletonjob_agent_stops_total", "signal")
	number("singletonjob_agent_ready", "gauge", "1 while a standby can take over, or the active process is ready by its own probes.", oneIf(s.ready))
	header("singletonjob_agent_probes_total", "counter", "Checks of the process by its own probes.")
	m.probes.write(w, "singletonjob_agent_probes_total", "probe", "outcome")
	number("singletonjob_agent_attempts_total", "counter", "Attempts of runs that this agent began.", m.attempts.Load())
	header("singletonjob_agent_attempts_ended_total", "counter", "Attempts that ended, by what is known of their runs then: Complete, Failed (another follows), GivenUp, Replaced, or unknown where the end could not be stored.")
	m.runs.write(w, "singletonjob_agent_attempts_ended_total", "outcome")
	header("singletonjob_agent_start_delay_seconds", "histogram", "Time from a tick to the start of its run, by this machine's clock.")
	m.delays.write(w, "singletonjob_agent_start_delay_seconds")
	header("singletonjob_agent_renew_duration_seconds", "histogram", "Time from before a renewal was sent to its confirmation.")
	m.renewals.write(w, "singletonjob_agent_renew_duration_seconds")
	header("singletonjob_agent_writes_total", "counter", "Writes of the Lease.")
	m.writes.write(w, "singletonjob_agent_writes_total", "kind", "outcome")
	header("singletonjob_agent_reads_total", "counter", "Reads of the Lease.")
	m.reads.write(w, "singletonjob_agent_reads_total", "outcome")
	times, throttledFor := throttled(CgroupDir)
	number("singletonjob_agent_starved_seconds", "gauge", "How late what is due gets a CPU, as estimated: processes are killed as much earlier.", s.late.Seconds())
	number("singletonjob_agent_cpu_throttled_total", "counter", "Periods in which the container's CPU limit was reached; 0 where the kernel does not tell.", times)
	number("singletonjob_agent_cpu_throttled_seconds_total", "counter", "Time for which the container's CPU limit kept threads from running.", throttledFor.Seconds())
	number("singletonjob_agent_log_lines_dropped_total", "counter", "Log lines that nobody took in time.", linesDropped)
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

func releasedLabel(released bool) string {
	if released {
		return "released"
	}
	return "lost"
}
