//go:build linux

package supervise

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slewEnv allows a test to change the rate of this machine's clocks, for seconds: not beside anything else.
const slewEnv = "SINGLETONJOB_TEST_SLEW"

// The kernel's clocks run 10 % slow, as adjtimex allows. Processes die at their deadlines by the hardware's clock all the
// same: those of a stopped leash, too, which continues before.
func TestDeadlineUnderASlewedClock(t *testing.T) {
	if os.Getenv(slewEnv) == "" || os.Getuid() != 0 {
		t.Skipf("slows this machine's clocks down for a quarter of a minute: set %s=1, as root", slewEnv)
	}
	for name, stop := range map[string]func(*agent){
		"agent stopped": func(a *agent) { a.signal(unix.SIGSTOP) },
		"leash stopped": func(a *agent) { a.stopLeash() },
	} {
		t.Run(name, func(t *testing.T) {
			a := startPID1(t, 0)
			slowDown(t)
			const lasts = 6 * time.Second
			began := gettime(unix.CLOCK_MONOTONIC_RAW)
			h, _ := a.beating("beat", lasts)
			stop(a)
			eventually(t, "the program is dead", func() bool { return len(a.processes()) == 1 })
			lived := time.Duration(gettime(unix.CLOCK_MONOTONIC_RAW) - began)
			t.Logf("dead after %v of %v", lived, lasts)
			if h.first.Load() == 0 || lived > lasts+100*time.Millisecond { // the first term: of its start
				t.Errorf("dead %v after its deadline", lived-lasts)
			}
			if lived < lasts-time.Second {
				t.Errorf("dead %v before its deadline", lasts-lived)
			}
		})
	}
}

// slowDown has the kernel's clocks lose 10 % until the test has ended.
func slowDown(t *testing.T) {
	t.Helper()
	now := unix.Timex{}
	if _, err := unix.Adjtimex(&now); err != nil {
		t.Skip(err)
	}
	set := func(tick int64) error {
		_, err := unix.Adjtimex(&unix.Timex{Modes: adjTick, Tick: tick})
		return err
	}
	t.Cleanup(func() {
		if err := set(now.Tick); err != nil {
			t.Error("the clocks stay slow: ", err)
		}
	})
	restoredByAnother(t, now.Tick)
	if err := set(9000); err != nil {
		t.Skipf("the rate of the clocks can't be changed: %v", err)
	}
}

// restoredByAnother has another process set the rate when this one has gone, however it went.
func restoredByAnother(t *testing.T, tick int64) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	argv := program("restore-tick", strconv.FormatInt(tick, 10))
	guard := exec.Command(argv[0], argv[1:]...)
	guard.Stdin = r
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() {
		w.Close()
		if err := guard.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// restoreTick waits until its parent has gone.
func restoreTick(tick int) int {
	_, _ = io.Copy(io.Discard, os.Stdin)
	if _, err := unix.Adjtimex(&unix.Timex{Modes: adjTick, Tick: int64(tick)}); err != nil {
		return 1
	}
	return 0
}

const adjTick = 0x4000 // ADJ_TICK
