//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
)

// The agent is in every Pod. The shipped agent, with its leash, uses no more memory than the documentation tells users to allow for.
func TestMemoryInSteadyState(t *testing.T) {
	t.Parallel()
	const most = 16 // MiB
	w := newWorld(t)
	w.program = shipped(t)
	holder, standby := w.prepare("a", steadyConfig()), w.prepare("b", steadyConfig())
	holder.run("sleep", "infinity")
	holder.acquired()
	standby.run("sleep", "infinity")
	standby.await("lease held")
	w.renewedTwice()
	leash := onlyChild(t, holder.agent.Pid())
	active, waiting := rss(t, holder.agent.Pid())+rss(t, leash), rss(t, standby.agent.Pid())+rss(t, onlyChild(t, standby.agent.Pid()))
	t.Logf("a holder and its leash take %.1f MiB, a standby and its leash %.1f MiB", active, waiting)
	if active > most || waiting > most {
		t.Errorf("a holder and its leash take %.1f MiB, a standby and its leash %.1f MiB, want at most %d", active, waiting, most)
	}
}

// A check that runs a command starts a leash, too. The shipped agent, its leash and the command together use little more CPU than the
// command alone. A factor is the same on a slow machine.
func TestExecCheckUsesLittleCPU(t *testing.T) {
	t.Parallel()
	const checks, most = 40, 25
	w := newWorld(t)
	w.program = shipped(t)
	made := filepath.Join(t.TempDir(), "made")
	command := []string{"/bin/sh", "-c", "echo >> " + made}
	config := steadyConfig()
	config.Probes.Readiness = often(contract.Check{Exec: command})
	config.Probes.Readiness.Period = contract.Duration(50 * time.Millisecond)
	a := w.prepare("a", config)
	a.run("sleep", "infinity")
	a.acquired()
	count := func() int {
		lines, _ := os.ReadFile(made)
		return bytes.Count(lines, []byte{'\n'})
	}
	w.eventually("the first checks have run", func() bool { return count() > 3 })
	first, used := count(), cpuTimeOfAll(t, a.agent.Pid())
	w.eventually("checks have run", func() bool { return count() >= first+checks })
	check := (cpuTimeOfAll(t, a.agent.Pid()) - used) / time.Duration(count()-first)

	alone := exec.Command("/bin/sh", "-c", fmt.Sprintf(`for i in $(seq %d); do "$@"; done`, checks), "sh", command[0], command[1], command[2])
	w.must(alone.Run())
	direct := (alone.ProcessState.UserTime() + alone.ProcessState.SystemTime()) / checks
	t.Logf("an exec check takes %v of CPU, and its command alone %v", check, direct)
	if check > most*direct {
		t.Errorf("an exec check takes %v of CPU, more than %d times its command, which takes %v", check, most, direct)
	}
}

// cpuTimeOfAll is what a process, and the children that it has reaped, have used.
func cpuTimeOfAll(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	ticks := 0
	for _, field := range strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[11:15] { // utime stime cutime cstime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}
