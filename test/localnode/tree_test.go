//go:build linux

package localnode

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that starts a program by vfork waits in the kernel until that is executed, and can't be stopped meanwhile; nor
// can it do anything. Here that lasts.
func TestStopAllWhereAProgramIsStarted(t *testing.T) {
	t.Parallel()
	root := startShell(t, vforkEnv+`=1 "$0" & wait`, os.Args[0])
	waits := func() bool { // the one that was started, and its child
		all := below(root)
		return len(all) == 2 && all[0].State == 'D' && all[1].State == 'S'
	}
	for deadline := time.Now().Add(patience); !waits(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits: %+v", below(root))
		}
	}
	if err := stopAll(root); err != nil {
		t.Fatal(err)
	}
	if all := below(root); len(all) != 2 || all[0].State != 'D' || all[1].State != 'T' {
		t.Errorf("the child is not stopped, or nobody waits for it: %+v", all)
	}
}

// Processes come and go as fast as a shell makes them.
func TestStopAllWhereProgramsAreStarted(t *testing.T) {
	t.Parallel()
	root := startShell(t, `sh -c "while :; do /bin/true; done" & wait`)
	for range 10 {
		if err := stopAll(root); err != nil {
			t.Fatal(err)
		}
		resumeAll(root)
	}
}

func startShell(t *testing.T, script string, args ...string) (pid int) {
	t.Helper()
	shell := exec.Command("sh", append([]string{"-c", script}, args...)...)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		_ = shell.Wait()
	})
	return shell.Process.Pid
}

const vforkEnv = "LOCALNODE_TEST_VFORK"

// A test binary that is started so is such a process, on the thread that stands for all of it.
func init() {
	if os.Getenv(vforkEnv) != "" {
		vfork()
	}
}

// vfork waits for a child that executes nothing. In that child nothing but raw system calls work.
//
//go:norace
//go:nosplit
func vfork() {
	child, _, _ := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	for child == 0 {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}
