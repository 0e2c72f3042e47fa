//go:build linux

package supervise

import (
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/cgroup"
	"github.com/singletonjob/operator/test/tier"
)

// A process that came in from outside and does not die of SIGKILL, here because it is frozen, continues when it is thawed. The tenure is
// not over until that process is dead.
func TestGoneWaitsForAFrozenStranger(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		tier.Needs(t, "only root may enter the namespace of the test's agent")
	}
	a := modes["PID 1"](t)
	a.start(program("idle"))
	stranger := enterPIDNamespace(t, a.cmd.Process.Pid)
	thaw := freeze(t, stranger.Process.Pid)
	defer thaw()
	a.must(command{Op: "signal", Signal: unix.SIGKILL})
	await(t, "exit", a.exited)
	select {
	case <-a.gone:
		t.Fatal("Gone while a process of the namespace was only frozen")
	case <-time.After(300 * time.Millisecond): // no bound
	}
	thaw()
	await(t, "Gone", a.gone)
	if s := state(stranger.Process.Pid); s != "Z" {
		t.Errorf("Gone while a process of the namespace lived, in state %q", s)
	}
}

// A frozen process does not act. With version 2 of cgroups it also dies of SIGKILL, and so at the deadline, although neither agent nor
// leash runs. With version 1 it dies when it is thawed, and may act for an instant before.
func TestFrozenPastTheDeadline(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"beat", "beat-in-group"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			group := cgroup.New(t, "freezer")
			a := modes["PID 1"](t)
			group.Add(a.cmd.Process.Pid)
			h, deadline, thaw := a.frozenBefore(group, role)
			defer thaw()
			frozen := h.last.Load()
			eventually(t, "the deadline is over", func() bool { return BootTime() > deadline })
			if !group.IsVersion1() {
				eventually(t, "all but the agent is dead", func() bool {
					return !slices.ContainsFunc(a.processes(), func(p proc) bool { return p.pid != a.cmd.Process.Pid && state(p.pid) != "Z" })
				})
			}
			thaw()
			if got := await(t, "exit", a.exited); got.Signal != unix.SIGKILL {
				t.Errorf("status %+v, want SIGKILL", got)
			}
			a.expectGone()
			if after := h.last.Load(); after != frozen && !group.IsVersion1() {
				t.Errorf("the program wrote again after its deadline, %v after it was frozen", time.Duration(after-frozen))
			}
		})
	}
}

// frozenBefore freezes an agent with a program that is still to die. Where the machine is too busy for that, it tries again with
// a later deadline.
func (a *agent) frozenBefore(group *cgroup.Group, role string) (h *heartbeat, deadline int64, thaw func()) {
	a.t.Helper()
	for in := 5 * time.Second; ; in *= 2 {
		h, e := a.beating(role, in)
		thaw := group.Freeze()
		if BootTime() < NoLater(e.Deadline) && len(a.exited) == 0 {
			return h, e.Deadline, thaw
		}
		thaw()
		await(a.t, "exit", a.exited)
		a.expectGone()
	}
}

// freeze freezes a process in a cgroup of version 1, where SIGKILL waits for the thaw.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	if thaw = tryFreeze(t, pid); thaw == nil {
		t.Fatalf("there is no process %d to be frozen", pid)
	}
	return thaw
}

// tryFreeze is freeze for a process that may have ended, or was not found and is 0. Then it returns nil.
func tryFreeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	group := cgroup.New(t, "freezer")
	if !group.IsVersion1() {
		t.Skip("no freezer of cgroups of version 1 here")
	}
	if pid == 0 || group.TryAdd(pid) != nil {
		return nil
	}
	return group.Freeze()
}
