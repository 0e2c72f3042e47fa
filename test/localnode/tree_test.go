//go:build linux

package localnode

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A shell that starts a program waits in the kernel until that is executed, and can't be stopped meanwhile; nor can it do
// anything. On a busy machine that takes long enough to be met.
func TestStopAllWhereProgramsAreStarted(t *testing.T) {
	t.Parallel()
	start := func(script string) int {
		shell := exec.Command("sh", "-c", script)
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
	for range 6 {
		start("while :; do :; done")
	}
	root := start(`sh -c "while :; do /bin/true; done" & wait`)
	for range 60 {
		if err := stopAll(root, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		resumeAll(root)
	}
}
