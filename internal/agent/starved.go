//go:build linux

package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// starvation estimates how late what is due gets a CPU: what kills the process waits for one as the agent does.
type starvation struct {
	// limit is the cgroup's CPU limit, as a share of one CPU, and its period; 0 for none.
	limit func() (share float64, period time.Duration)

	recent   time.Duration // the latest wake-up seen, fading
	least    time.Duration // what the limit alone lets expect
	at       lease.Instant // of recent
	limitsAt lease.Instant // of least
	recorded time.Duration
	logged   time.Duration
}

const (
	// fades is how long it takes an estimate to halve: bursts of load come again.
	fades = time.Minute
	// punctual is what needs no mention: the margin has room for it many times.
	punctual = 10 * time.Millisecond
)

// woke takes note of a wake-up that came late. It returns the estimate, and whether it has changed by enough to matter.
func (s *starvation) woke(late time.Duration, now lease.Instant) (estimate time.Duration, changed bool) {
	if s.limit != nil && (s.limitsAt == 0 || now.Sub(s.limitsAt) >= fades) { // a pod can be resized
		s.least, s.limitsAt = min(lease.LateUnder(s.limit()), longestExpected), now
	}
	if passed := now.Sub(s.at); passed > 0 {
		s.recent -= time.Duration(float64(s.recent) * min(1, passed.Seconds()/(2*fades.Seconds())))
		s.at = now
	}
	s.recent = max(s.recent, late)
	estimate = max(s.recent, s.least)
	if estimate < punctual {
		estimate = 0
	}
	if estimate <= s.recorded && estimate > s.recorded/4*3 || estimate == s.recorded {
		return s.recorded, false
	}
	s.recorded = estimate
	return estimate, true
}

// log says what an estimate takes from each tenure.
func (s *starvation) log(log *Log, estimate, taken time.Duration) {
	if estimate < worthALine && s.logged < worthALine {
		return
	}
	s.logged = estimate
	log.Print("starved", "late", estimate.Round(time.Millisecond), "kills-earlier-by", taken.Round(time.Millisecond),
		"note", "what is due gets a CPU late: raise the container's CPU limit or request")
}

// worthALine is what an estimate must be, or have been when it was logged last, to be logged.
const worthALine = 100 * time.Millisecond

// longestExpected bounds what a limit alone is believed to take.
const longestExpected = 10 * time.Second

// CPULimit reads the CPU limit of the cgroup that is mounted at a directory, as containers find theirs: of version 2 or 1.
func CPULimit(dir string) (share float64, period time.Duration) {
	if fields := numbers(filepath.Join(dir, "cpu.max")); len(fields) == 2 {
		return ratio(fields[0], fields[1])
	}
	quota, every := numbers(filepath.Join(dir, "cpu/cpu.cfs_quota_us")), numbers(filepath.Join(dir, "cpu/cpu.cfs_period_us"))
	if len(quota) == 1 && len(every) == 1 {
		return ratio(quota[0], every[0])
	}
	return 0, 0
}

func ratio(quota, period int64) (float64, time.Duration) {
	if quota <= 0 || period <= 0 || period > int64(time.Hour/time.Microsecond) {
		return 0, 0
	}
	return float64(quota) / float64(period), time.Duration(period) * time.Microsecond
}

// numbers of a file; none of one that has anything else ("max") or can't be read.
func numbers(path string) []int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var out []int64
	for field := range strings.FieldsSeq(string(data)) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// throttled is for how long the cgroup's limit has kept threads from running, and how often, as cpu.stat has it.
func throttled(dir string) (times int64, total time.Duration) {
	for _, path := range []string{"cpu.stat", "cpu/cpu.stat"} {
		data, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				continue
			}
			switch name {
			case "nr_throttled":
				times = n
			case "throttled_usec":
				total = time.Duration(n) * time.Microsecond
			case "throttled_time":
				total = time.Duration(n)
			}
		}
		return times, total
	}
	return 0, 0
}

// CgroupDir is where containers find their cgroup.
const CgroupDir = "/sys/fs/cgroup"
