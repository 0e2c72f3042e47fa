//go:build linux

package subprocess

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// KilledOwner runs this test binary again with variable set to an empty directory. That process must start count processes in the
// directory, write at least 8 bytes to its standard output, and wait. KilledOwner kills it with SIGKILL and fails the test if one of
// the processes survives.
func KilledOwner(t testing.TB, variable string, count int) {
	t.Helper()
	dir := t.TempDir()
	running := func() []int {
		t.Helper()
		found, err := In(dir)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), variable+"="+dir)
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadFull(out, make([]byte, len("https://")))
	found := running()
	_ = owner.Process.Kill()
	_ = owner.Wait()
	if err != nil || len(found) != count {
		t.Fatalf("want %d processes in %s, found %v; reading the owner's output: %v", count, dir, found, err)
	}
	for deadline := time.Now().Add(5 * time.Minute); len(running()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes of an owner that was killed still run: %v", running())
		}
	}
}
