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

// starvation estimates how late a due action gets a CPU. The leash, which kills the process, waits for a CPU like the agent.
type starvation struct {
	// limit returns the cgroup's CPU limit, as a share of one CPU, and its period. 0 means no limit.
	limit func() (share float64, period time.Duration)

	recent   time.Duration // the largest delay seen, which decays over time
	least    time.Duration // the delay to expect from the CPU limit alone
	at       lease.Instant // when recent was updated
	limitsAt lease.Instant // when least was updated
	recorded time.Duration
	logged   time.Duration
}

const (
	// fades is the half-life of an estimate. It is long because bursts of load recur.
	fades = time.Minute
	// punctual is the delay below which the estimate is 0. The margin is many times larger.
	punctual = 10 * time.Millisecond
)

// woke records the delay of a wake-up. It returns the estimate, and whether it has changed enough to matter.
func (s *starvation) woke(late time.Duration, now lease.Instant) (estimate time.Duration, changed bool) {
	if s.limit != nil && (s.limitsAt == 0 || now.Sub(s.limitsAt) >= fades) { // a Pod can be resized
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

// log logs how much earlier processes are killed because of an estimate.
func (s *starvation) log(log *Log, estimate, taken time.Duration) {
	if estimate < worthALine && s.logged < worthALine {
		return
	}
	s.logged = estimate
	log.Print("starved", "late", estimate.Round(time.Millisecond), "kills-earlier-by", taken.Round(time.Millisecond),
		"note", "the agent gets a CPU late: raise the container's CPU limit or request")
}

// worthALine is the minimum estimate for a log line. An estimate below it is logged only if the last logged one was not.
const worthALine = 100 * time.Millisecond

// longestExpected is the maximum delay that is expected from a CPU limit alone.
const longestExpected = 10 * time.Second

// CPULimit reads the CPU limit of the cgroup (version 2 or 1) that is mounted at a directory, as in containers.
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

// numbers returns the numbers in a file, or nil if the file has any other text ("max") or cannot be read.
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

// throttled returns, from cpu.stat, how often and for how long the cgroup's limit has kept threads from running.
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

// CgroupDir is the mount point of a container's cgroup.
const CgroupDir = "/sys/fs/cgroup"
