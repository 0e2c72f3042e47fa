//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/test/cgroup"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/stillness"
	"github.com/singletonjob/operator/test/subprocess"
	"github.com/singletonjob/operator/test/timens"
)

// deadline is the BootTime by which the process of a candidate must be dead if no renewal that arrived after cut was stored. Its own
// deadline counts from when it sent its last stored renewal, which is before that renewal arrived.
func (c *candidate) deadline(cut time.Time) int64 {
	c.w.t.Helper()
	stored := c.proxy.Seen(func(r faultproxy.Request) bool { return r.Method == http.MethodPut && !r.Time.After(cut) })
	if len(stored) == 0 {
		c.w.t.Fatalf("%s has written nothing before it was cut off; its log:\n%s", c.pod, c.lines)
	}
	sent := supervise.BootTime() - int64(time.Since(stored[len(stored)-1].Time))
	return sent + int64(leaseDuration()-lease.Margin(leaseDuration()))
}

// A frozen container cannot die; with version 1 of cgroups, not even from SIGKILL. A process that is thawed after its lease runs only for
// an instant, whichever process is thawed first.
func TestFrozenPastTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.prepare("a", testConfig())
	group := a.group("freezer")
	a.start("stubborn")
	w.acts(a)
	b := w.standby("b", testConfig())
	thaw := group.Freeze()
	defer thaw()
	w.acts(b)
	still := stillness.Watch(4, 2*time.Millisecond)
	woken := supervise.BootTime()
	thaw()
	a.await("lease held", "holder=b/")
	// The agent can read this before its process is dead, which takes a moment.
	w.eventually("nothing but the agent and a leash that waits lives", func() bool {
		all := strings.Fields(group.Read("cgroup.procs"))
		lives := slices.DeleteFunc(slices.Clone(all), func(pid string) bool {
			command, err := os.ReadFile("/proc/" + pid + "/cmdline")
			return err != nil || bytes.HasPrefix(command, []byte("singletonjob-leash"))
		})
		return len(lives) <= 1 && len(all) <= 2
	})
	late, paused := time.Duration(w.lives()[0].last-woken), still.Longest()
	t.Logf("the last sign of life came %v after the thaw; the machine paused for %v", late, paused)
	if late > 100*time.Millisecond+4*paused { // leash, agent and process die, each because of another
		t.Errorf("the process lived on for %v after it was thawed, and the machine paused for %v only", late, paused)
	}
	w.must(w.diary.read())
	if last := w.lives()[0].last; time.Duration(last-woken) > late {
		t.Errorf("the process wrote again %v after it was thawed", time.Duration(last-woken))
	}
}

// group runs the agent and all its descendants in a cgroup of their own.
func (c *candidate) group(controller string) *cgroup.Group {
	c.w.t.Helper()
	g := cgroup.New(c.w.t, controller)
	c.by = g.Execute("")
	return g
}

// Memory runs out, and the kernel chooses which process it kills. No process of the tenure survives, and the next tenure begins long before
// the lease expires.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for name, victim := range map[string]func(agent, leash, process int) int{
		"the agent":   func(agent, _, _ int) int { return agent },
		"the leash":   func(_, leash, _ int) int { return leash },
		"the process": func(_, _, process int) int { return process },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			config := steadyConfig()
			a := w.prepare("a", config)
			a.env = append(a.env, contract.RuntimeReapsEnv+"=true")
			group := a.group("memory")
			group.Set(map[string]string{"memory.limit_in_bytes": "160M", "memory.max": "160M"})
			a.start("hoard", "stubborn")
			w.acts(a)
			leash := onlyChild(t, a.agent.Pid())
			process := onlyChild(t, leash)
			chosen := victim(a.agent.Pid(), leash, process)
			held, err := subprocess.Hold(process)
			w.must(err)
			defer func() { _ = held.Close() }()
			w.must(os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", chosen), []byte("1000"), 0o600))
			w.must(syscall.Kill(process, syscall.SIGUSR1))
			if code := a.exit(); code != 128+9 {
				t.Errorf("exit code %d, want that of a process that was killed; log:\n%s", code, a.lines)
			}
			w.eventually("its process is dead", held.Ended)
			if !outOfMemory(group) {
				t.Error("the kernel has killed no process for lack of memory, so nothing was tested")
			}
			a.start("stubborn")
			w.acts(a)
			if lives := w.checkLives(); len(lives) != 2 {
				t.Errorf("%d processes, want 2: %+v", len(lives), lives)
			}
		})
	}
}

// outOfMemory reports whether the kernel has killed a process of a cgroup for lack of memory.
func outOfMemory(group *cgroup.Group) bool {
	for _, name := range []string{"memory.oom_control", "memory.events"} {
		for line := range strings.Lines(group.Read(name)) {
			if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "oom_kill" && fields[1] != "0" {
				return true
			}
		}
	}
	return false
}

// A Pod that was force-deleted while its node is cut off can have a successor with the same name. The successor has no part in its tenure,
// and does not prove that the tenure has ended.
func TestPodWithTheSameName(t *testing.T) {
	t.Parallel()
	mustGoOn(t, func(w *world) error {
		a := w.candidate("a", testConfig(), "stubborn")
		w.acts(a)
		a.proxy.Cut()
		next := w.prepare("a", testConfig())
		next.env = append(next.env, contract.PodUIDEnv+"=another", contract.RuntimeReapsEnv+"=true")
		next.start()
		second := next.acquired()
		w.awaitBeat(second)
		w.renewedTwice() // both have time to be seen at the same time
		if lives := w.checkLives(); len(lives) != 2 {
			return fmt.Errorf("%d processes, want 2: %+v", len(lives), lives)
		}
		return nil
	})
}

// hoard takes all available memory.
func hoard() {
	const piece = 1 << 20
	for kept := [][]byte{}; ; {
		kept = append(kept, slices.Repeat([]byte{1}, piece))
	}
}

// dieOfFaults gives SIGSEGV the effect that it has on programs that are not written in Go.
func dieOfFaults() {
	action := [32]byte{} // struct sigaction: SIG_DFL, nothing masked
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSEGV), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno != 0 {
		panic(errno)
	}
}

// sleptAhead is how much longer the machine has slept, from the view of this process, because of its time namespace.
func sleptAhead() int64 {
	offsets, _ := os.ReadFile("/proc/self/timens_offsets") // old kernels have no time namespaces
	for line := range strings.Lines(string(offsets)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "boottime" {
			seconds, _ := strconv.ParseInt(fields[1], 10, 64)
			return seconds * int64(time.Second)
		}
	}
	return 0
}

// Machines have slept for different times, and clocks in a time namespace have arbitrary offsets. All candidates still wait for each other
// correctly.
func TestDifferentClocks(t *testing.T) {
	t.Parallel()
	for name, offsets := range map[string][]string{
		"slept for a day":            {"--boottime=86400"},
		"a clock ahead of boot time": {"--monotonic=86400"},
		"both":                       {"--boottime=86400", "--monotonic=3600"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			by := timens.Execute(t, offsets...)
			mustGoOn(t, func(w *world) error {
				a := w.prepare("a", testConfig())
				a.by = by
				a.start("stubborn")
				w.acts(a)
				b := w.standby("b", testConfig())
				a.proxy.Cut()
				cut := time.Now()
				w.acts(b)
				if late := time.Duration(w.lives()[0].last - a.deadline(cut)); late > lease.Margin(leaseDuration()) {
					return fmt.Errorf("the process lived on for %v after its deadline, and so for longer than its lease", late)
				}
				healProxy(a)
				a.await("lease held", "holder=b/")
				b.signal(syscall.SIGKILL)
				w.acts(a)
				w.checkLives()
				return nil
			})
		})
	}
}
