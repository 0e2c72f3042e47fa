//go:build linux

package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	dir := filepath.Join("/sys/fs/cgroup/freezer", fmt.Sprintf("singletonjob-%d-%d", os.Getpid(), pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no freezer of cgroups of version 1 here: %v", err)
	}
	set := func(name, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("cgroup.procs", strconv.Itoa(pid))
	set("freezer.state", "FROZEN")
	eventually(t, "it is frozen", func() bool {
		now, _ := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return strings.HasPrefix(string(now), "FROZEN")
	})
	return func() {
		if _, err := os.Stat(dir); err != nil {
			return // it was called before
		}
		set("freezer.state", "THAWED")
		_ = os.WriteFile(filepath.Join(dir, "../cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600) // it may be dead by now
		eventually(t, "the cgroup is empty", func() bool { return os.Remove(dir) == nil })
	}
}
