//go:build linux

package supervise

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/cgroup"
)

// Who came in from outside and does not die of SIGKILL, here because it is frozen, goes on when it is thawed: until it is dead
// the tenure is not over.
func TestGoneWaitsForAFrozenStranger(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may enter the namespace of the test's agent")
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

// freeze freezes a process in a cgroup of version 1, where SIGKILL waits for the thaw.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	group := cgroup.New(t, "freezer")
	if !group.IsVersion1() {
		t.Skip("no freezer of cgroups of version 1 here")
	}
	group.Add(pid)
	return group.Freeze()
}
