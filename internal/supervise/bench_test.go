//go:build linux

package supervise

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkStart times Start until the program executes: with a leash that waits, and with one that is forked then, whose set-up takes
// longer than the exec of the program.
func BenchmarkStart(b *testing.B) {
	for _, waits := range []bool{false, true} {
		b.Run(fmt.Sprintf("waits=%t", waits), func(b *testing.B) {
			a := startAgent(b, nil)
			var took []time.Duration
			for b.Loop() {
				if waits {
					a.prepare()
					time.Sleep(100 * time.Millisecond) // for its set-up
				}
				took = append(took, a.must(command{Op: "start", Argv: []string{"/bin/true"}, In: time.Hour}).Took)
				await(b, "exit", a.exited)
				await(b, "Gone", a.gone)
			}
			reportPercentiles(b, took)
		})
	}
}

// BenchmarkDeadline measures how late the kernel stops a program that never pauses,
// with the agent stopped: from the deadline to the program's last write.
func BenchmarkDeadline(b *testing.B) {
	for _, role := range []string{"beat-hard", "beat-hard-in-group"} {
		b.Run(role, func(b *testing.B) {
			a := startAgent(b, nil)
			var late []time.Duration
			for b.Loop() {
				h, e := a.beating(role, 150*time.Millisecond)
				a.signal(unix.SIGSTOP)
				late = append(late, h.lastWrite(a, e.Deadline))
				a.signal(unix.SIGCONT)
				await(b, "exit", a.exited)
				await(b, "Gone", a.gone)
			}
			reportPercentiles(b, late)
		})
	}
}

// BenchmarkLeashMemory measures the leash's resident memory, in this test binary.
func BenchmarkLeashMemory(b *testing.B) {
	a := startAgent(b, nil)
	a.start(program("idle"))
	leash := a.find(leashName)
	for b.Loop() {
		a.must(command{Op: "extend", In: time.Hour})
	}
	b.ReportMetric(float64(residentKiB(b, leash)), "KiB")
}

// reportPercentiles replaces the time per loop by the distribution of what was measured.
func reportPercentiles(b *testing.B, samples []time.Duration) {
	slices.Sort(samples)
	at := func(share float64) float64 {
		return float64(samples[int(share*float64(len(samples)-1))]) / float64(time.Microsecond)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(at(0.50), "p50-µs")
	b.ReportMetric(at(0.99), "p99-µs")
	b.ReportMetric(at(1), "max-µs")
}

// residentKiB is VmRSS of /proc/PID/status.
func residentKiB(t testing.TB, pid int) int {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}
