//go:build linux

package proc

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func sleeper(t *testing.T) Process {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRecycledPidIsLeftAlone(t *testing.T) {
	p := sleeper(t)
	recycled := Process{PID: p.PID, Start: p.Start - 1} // as recorded of an earlier bearer of the pid
	if recycled.Alive() {
		t.Error("another bearer of the pid counts as the process")
	}
	if err := recycled.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if !p.Alive() {
		t.Error("the signal reached the process that bears the pid now")
	}
}

func TestZombieIsDead(t *testing.T) {
	p := sleeper(t) // not waited for before the test ends: it becomes a zombie
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := p.WaitGone(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal to a dead process: %v", err)
	}
}

func TestStopped(t *testing.T) {
	p := sleeper(t)
	if p.Stopped() {
		t.Error("stopped before it was")
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Minute); !p.Stopped(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not seen as stopped")
		}
	}
}

func TestParseStat(t *testing.T) {
	for name, tc := range map[string]struct {
		text  string
		state byte
		start uint64
		fails bool
	}{
		"plain":               {text: "7 (sh) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0", state: 'S', start: 4711},
		"name like a status":  {text: "7 (a) Z 1 (b) R 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12 0 0", state: 'R', start: 12},
		"cut off":             {text: "7 (sh) S 1 7", fails: true},
		"empty":               {text: "", fails: true},
		"start is no number":  {text: "7 (sh) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 x 0 0", fails: true},
		"greatest start time": {text: "7 (sh) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 18446744073709551615 0", state: 'S', start: 1<<64 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parseStat(tc.text)
			if (err != nil) != tc.fails {
				t.Fatalf("error %v, want one: %v", err, tc.fails)
			}
			if s.state != tc.state || s.start != tc.start {
				t.Errorf("got %c %d, want %c %d", s.state, s.start, tc.state, tc.start)
			}
		})
	}
}
