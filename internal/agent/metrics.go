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

// metrics are written by the agent's goroutine and read by the metrics handler.
type metrics struct {
	renewals histogram
	writes   counts // by kind and outcome
	reads    counts // by outcome
	tenures  atomic.Int64
	ends     counts // by reason and whether the Lease was released
	stops    counts // by signal
	probes   counts // by probe and outcome
	attempts atomic.Int64
	runs     counts    // ended attempts, by the resulting state of the run
	delays   histogram // time from a tick to the start of its run
}

// runBegan counts an attempt of a run, if there is a run. For the first attempt of a scheduled run it also records the delay since the
// tick.
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

// bounds are the upper bounds of the histogram's buckets, in seconds.
var bounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

type histogram struct {
	mu      sync.Mutex
	buckets [len(bounds) + 1]int64 // the last bucket is for values above all bounds
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

// write writes all metrics in the Prometheus text format, together with the values that depend on the current instant.
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
	number("singletonjob_agent_lease_seconds_left", "gauge", "Time until the process may no longer act, unless the Lease is renewed.", left)
	number("singletonjob_agent_fencing_token", "gauge", "Fencing token of the Lease's current or latest tenure.", s.Token)
	number("singletonjob_agent_watching", "gauge", "1 while the watch of the Lease is open.", oneIf(s.watching))
	number("singletonjob_agent_tenures_total", "counter", "Tenures that this agent has begun.", m.tenures.Load())
	header("singletonjob_agent_tenures_ended_total", "counter", "Tenures that have ended, by reason and by whether the Lease was released or lost.")
	m.ends.write(w, "singletonjob_agent_tenures_ended_total", "reason", "lease")
	header("singletonjob_agent_stops_total", "counter", "Signals sent to end the process.")
	m.stops.write(w, "singletonjob_agent_stops_total", "signal")
	number("singletonjob_agent_ready", "gauge", "1 while a standby can take over, or while the active process is ready according to its probes.", oneIf(s.ready))
	header("singletonjob_agent_probes_total", "counter", "Probe checks of the process.")
	m.probes.write(w, "singletonjob_agent_probes_total", "probe", "outcome")
	number("singletonjob_agent_attempts_total", "counter", "Attempts of runs that this agent has begun.", m.attempts.Load())
	header("singletonjob_agent_attempts_ended_total", "counter", "Attempts that have ended, by the resulting state of the run: Complete, Failed (another attempt follows), GivenUp, Replaced, or unknown if the end could not be stored.")
	m.runs.write(w, "singletonjob_agent_attempts_ended_total", "outcome")
	header("singletonjob_agent_start_delay_seconds", "histogram", "Time from a tick to the start of its run, by this machine's clock.")
	m.delays.write(w, "singletonjob_agent_start_delay_seconds")
	header("singletonjob_agent_renew_duration_seconds", "histogram", "Time from just before a renewal is sent until it is confirmed.")
	m.renewals.write(w, "singletonjob_agent_renew_duration_seconds")
	header("singletonjob_agent_writes_total", "counter", "Writes of the Lease.")
	m.writes.write(w, "singletonjob_agent_writes_total", "kind", "outcome")
	header("singletonjob_agent_reads_total", "counter", "Reads of the Lease.")
	m.reads.write(w, "singletonjob_agent_reads_total", "outcome")
	times, throttledFor := throttled(CgroupDir)
	number("singletonjob_agent_starved_seconds", "gauge", "Estimated delay until a due action gets a CPU; processes are killed earlier by this time.", s.late.Seconds())
	number("singletonjob_agent_cpu_throttled_total", "counter", "Periods in which the container reached its CPU limit; 0 if the kernel does not report it.", times)
	number("singletonjob_agent_cpu_throttled_seconds_total", "counter", "Time during which the CPU limit of the container kept threads from running.", throttledFor.Seconds())
	number("singletonjob_agent_log_lines_dropped_total", "counter", "Log lines that were dropped because the log was not read in time.", linesDropped)
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
