//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/cgroup"
	"github.com/singletonjob/operator/test/tier"
)

// Memory runs out, and the kernel chooses the process that it kills. Whichever it chooses, no process of the tree is left.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for name, victim := range map[string]func(*agent, event) int{
		"the agent":   func(a *agent, _ event) int { return a.cmd.Process.Pid },
		"the leash":   func(a *agent, _ event) int { return a.find(leashName) },
		"the process": func(a *agent, _ event) int { return a.find(rolePrefix + "hoard") },
		"all at once": nil, // as the kubelet has it with control groups of version 2
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			group := cgroup.New(t, "memory")
			if victim == nil {
				if group.IsVersion1() {
					t.Skip("no memory.oom.group in cgroups of version 1")
				}
				group.Set(map[string]string{"memory.oom.group": "1"})
			}
			const limit = "256M" // of a race detector's processes, too
			group.Set(map[string]string{"memory.limit_in_bytes": limit, "memory.max": limit})
			group.Set(map[string]string{"memory.swappiness": "0", "memory.swap.max": "0"})
			a := modes["PID 1"](t)
			group.Add(a.cmd.Process.Pid)
			started := a.start(program("hoard"))
			a.expectLine("ready") // its daemon
			chosen := 0
			if victim != nil {
				chosen = victim(a, started)
				if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", chosen), []byte("1000"), 0o600); errors.Is(err, os.ErrPermission) {
					tier.Needs(t, "this user may not tell the kernel whom to kill: %v", err)
				} else if err != nil {
					t.Fatal(err)
				}
			}
			a.must(command{Op: "signal", Signal: unix.SIGUSR1})
			if victim == nil || chosen == a.cmd.Process.Pid {
				await(t, "the agent's end", a.waited)
				eventually(t, "nothing is left", func() bool { return len(a.processes()) == 0 })
			} else {
				if got := await(t, "exit", a.exited); got.Signal != unix.SIGKILL {
					t.Errorf("status %+v, want SIGKILL", got)
				}
				a.expectGone()
			}
			if !ranOut(group) {
				t.Error("the kernel has killed nobody for want of memory, so nothing was tested")
			}
		})
	}
}

// ranOut reports whether the kernel has killed somebody of a group for want of memory.
func ranOut(group *cgroup.Group) bool {
	said := strings.Fields(group.Read("memory.oom_control") + group.Read("memory.events"))
	i := slices.Index(said, "oom_kill")
	if i < 0 || i+1 == len(said) {
		return false
	}
	n, _ := strconv.Atoi(said[i+1])
	return n > 0
}
