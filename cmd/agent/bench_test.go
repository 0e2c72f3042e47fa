//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/test/faultproxy"
)

// The benchmarks run the agent as it is shipped. Each one makes many rounds in one run and reports a distribution, so b.N is not used.

// shipped builds the agent with the flags of the image.
func shipped(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "agent")
	if out, err := gotool.Command(t.Context(), "", "build", "-ldflags=-s -w", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func newBench(b *testing.B) *world {
	w := newWorld(b)
	w.program = shipped(b)
	return w
}

// report prints a distribution. It drops the default metric, because the time of all rounds together has no meaning.
func report(b *testing.B, name string, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	at := func(p float64) float64 {
		return float64(took[min(len(took)-1, int(p*float64(len(took))))]) / float64(time.Millisecond)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(took)), "rounds")
	for quantile, p := range map[string]float64{"p50": 0.5, "p99": 0.99, "max": 1} {
		b.ReportMetric(at(p), name+"-"+quantile+"-ms")
	}
}

// BenchmarkHandover measures the time from the confirmed release at the old holder to the confirmed acquire at the new one, and from there
// to the start of the process.
func BenchmarkHandover(b *testing.B) {
	w := newBench(b)
	from, to := w.prepare("a", benchConfig()), w.prepare("b", benchConfig())
	from.run("sleep", "infinity")
	from.acquired()
	to.run("sleep", "infinity")
	to.await("lease held")
	const rounds = 200
	var took []time.Duration
	for range rounds {
		w.annotate(map[string]any{contract.HandoverToAnnotation: to.pod, contract.HandoverReasonAnnotation: string(lease.ReasonSwitchover)})
		_, released := from.awaitAt("released")
		_, acquired := to.awaitAt("acquired")
		took = append(took, time.Duration(acquired-released))
		from.await("lease held")
		from, to = to, from
	}
	report(b, "released-to-confirmed", took)
}

// benchConfig is the default configuration of a SingletonJob.
func benchConfig() contract.AgentConfig {
	c := testConfig()
	c.LeaseDuration, c.RenewDeadline, c.RetryPeriod, c.GracePeriod = seconds(15), seconds(10), seconds(2), seconds(30)
	return c
}

// BenchmarkProcessKilled measures the time from SIGKILL of the process to the confirmed acquire of a standby.
func BenchmarkProcessKilled(b *testing.B) {
	w := newBench(b)
	from, to := w.prepare("a", benchConfig()), w.prepare("b", benchConfig())
	from.run("sleep", "infinity")
	from.acquired()
	const rounds = 100
	var took []time.Duration
	for range rounds {
		to.run("sleep", "infinity")
		to.await("lease held")
		pid := processOf(b, from.agent.Pid())
		killed := supervise.BootTime()
		w.must(syscall.Kill(pid, syscall.SIGKILL))
		_, acquired := to.awaitAt("acquired")
		took = append(took, time.Duration(acquired-killed))
		if code := from.exit(); code != 128+9 {
			b.Fatalf("exit code %d", code)
		}
		from, to = to, from
	}
	report(b, "killed-to-confirmed", took)
}

// processOf finds the user's process: the child of the agent's leash.
func processOf(t testing.TB, agentPID int) int {
	t.Helper()
	leash := onlyChild(t, agentPID)
	return onlyChild(t, leash)
}

func onlyChild(t testing.TB, pid int) int {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		var children []string
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			children = append(children, strings.Fields(string(text))...)
		}
		if len(children) == 1 {
			var child int
			if _, err := fmt.Sscan(children[0], &child); err == nil {
				return child
			}
		}
	}
	t.Fatalf("process %d has not one child", pid)
	return 0
}

// BenchmarkExpiry measures the time that a standby adds to leaseDuration, counted from the last stored renewal of an agent that vanished.
func BenchmarkExpiry(b *testing.B) {
	w := newBench(b)
	config := benchConfig()
	config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = seconds(3), seconds(1.5), seconds(0.3)
	stored := w.lastStored()
	const rounds = 15
	var took []time.Duration
	from := w.prepare("pod-0", config)
	from.run("sleep", "infinity")
	from.acquired()
	for i := range rounds {
		to := w.prepare(fmt.Sprint("pod-", i+1), config)
		to.run("sleep", "infinity")
		to.await("lease held")
		from.signal(syscall.SIGKILL)
		from.exit()
		last := stored()
		_, acquired := to.awaitAt("acquired")
		took = append(took, time.Duration(acquired-last)-time.Duration(config.LeaseDuration))
		from = to
	}
	report(b, "beyond-leaseDuration", took)
}

// lastStored watches the Lease and returns when it saw the last change, once no other change can be in flight.
func (w *world) lastStored() func() int64 {
	w.t.Helper()
	watch, err := w.client.CoordinationV1().Leases(w.ns).Watch(w.t.Context(), metav1.ListOptions{})
	w.must(err)
	w.t.Cleanup(watch.Stop)
	var seen atomic.Int64
	go func() {
		for range watch.ResultChan() {
			seen.Store(supervise.BootTime())
		}
	}()
	return func() int64 {
		elapse(w.t, 200*time.Millisecond)
		return seen.Load()
	}
}

// BenchmarkIdle measures an idle agent, as a holder and as a standby: memory of the agent and its leash, CPU time and requests.
func BenchmarkIdle(b *testing.B) {
	w := newBench(b)
	holder, standby := w.prepare("a", benchConfig()), w.prepare("b", benchConfig())
	holder.run("sleep", "infinity")
	holder.acquired()
	standby.run("sleep", "infinity")
	standby.await("lease held")
	elapse(b, 10*time.Second)
	leash := onlyChild(b, holder.agent.Pid())
	used := func(pids ...int) (all time.Duration) {
		for _, pid := range pids {
			all += cpuTime(b, pid)
		}
		return all
	}
	began, byHolder, byStandby := time.Now(), used(holder.agent.Pid(), leash), used(standby.agent.Pid())
	elapse(b, time.Minute)
	byHolder, byStandby = used(holder.agent.Pid(), leash)-byHolder, used(standby.agent.Pid())-byStandby
	took := time.Since(began)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(rss(b, holder.agent.Pid()), "holder-MiB")
	b.ReportMetric(rss(b, leash), "leash-MiB")
	b.ReportMetric(rss(b, standby.agent.Pid()), "standby-MiB")
	b.ReportMetric(rss(b, onlyChild(b, standby.agent.Pid())), "waiting-leash-MiB")
	b.ReportMetric(byHolder.Seconds()/took.Seconds()*1000, "holder-and-leash-millicores")
	b.ReportMetric(byStandby.Seconds()/took.Seconds()*1000, "standby-millicores")
	since := func(r faultproxy.Request) bool { return r.Time.After(began) }
	b.ReportMetric(float64(len(holder.proxy.Seen(since)))/took.Seconds(), "holder-requests/s")
	b.ReportMetric(float64(len(standby.proxy.Seen(since))), "standby-requests")
	info, err := os.Stat(w.program)
	w.must(err)
	b.ReportMetric(float64(info.Size())/1e6, "binary-MB")
}

// rss is a process's resident memory in MiB, including shared memory.
func rss(t testing.TB, pid int) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kib float64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// cpuTime is the CPU time of all threads of a process, in nanoseconds, from the kernel's clock for this process.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	const scheduled = 2 // CPUCLOCK_SCHED, of the whole process
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Nano())
}
