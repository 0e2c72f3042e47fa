//go:build linux

package supervise

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/cgroup"
)

// BenchmarkDeadlineUnderCPULimit measures how late a program of 60 threads that never pause is dead, in a cgroup with a CPU limit. It is
// the time from the deadline to its last write, negative if it died before. It takes root and a cgroup that it may make children in.
func BenchmarkDeadlineUnderCPULimit(b *testing.B) {
	for _, milli := range []int{50, 100, 500, 0} {
		for _, lasts := range []time.Duration{2500 * time.Millisecond, 4 * time.Second, 14 * time.Second} { // leases of 3, 5 and 15 s
			for _, stopped := range []bool{true, false} {
				b.Run(fmt.Sprintf("cpu=%dm/lasts=%v/stopped=%t", milli, lasts, stopped), func(b *testing.B) {
					a := startPID1(b, 0)
					limitCPU(b, a, milli)
					var late []time.Duration
					notStarted := 0
					for b.Loop() {
						if after, ok := a.spinPastDeadline(b, lasts, stopped); ok {
							late = append(late, after)
						} else {
							notStarted++
						}
					}
					b.ReportMetric(float64(notStarted), "not-started")
					if len(late) > 0 {
						reportPercentiles(b, late)
					}
				})
			}
		}
	}
}

// spinPastDeadline says how long after its deadline a program wrote for the last time; not ok if it did not write at all.
func (a *agent) spinPastDeadline(b *testing.B, lasts time.Duration, stopped bool) (late time.Duration, ok bool) {
	b.Helper()
	path := filepath.Join(b.TempDir(), "heartbeat")
	h, err := openHeartbeat(path)
	if err != nil {
		b.Fatal(err)
	}
	e := a.must(command{Op: "start", Async: true, Argv: program("spin", path, "60"), In: lasts})
	eventually(b, "the program writes or ends", func() bool { return h.last.Load() != 0 || len(a.gone) > 0 })
	if stopped {
		a.signal(unix.SIGSTOP)
	}
	eventually(b, "the program is dead", func() bool { return len(a.processes()) == 1 })
	if stopped {
		a.signal(unix.SIGCONT)
	}
	if started := await(b, "started", a.started); started.Err == "" {
		await(b, "exit", a.exited)
	}
	await(b, "Gone", a.gone)
	return time.Duration(h.last.Load() - e.Deadline), h.last.Load() != 0
}

// limitCPU puts an agent into a cgroup of its own.
func limitCPU(t testing.TB, a *agent, milli int) {
	t.Helper()
	group := cgroup.New(t, "cpu")
	t.Cleanup(a.cleanUp) // before the group is removed
	if milli != 0 {
		group.LimitCPU(milli)
	}
	group.Add(a.cmd.Process.Pid)
}
