//go:build linux

package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/cgroup"
)

func TestStarvation(t *testing.T) {
	s := starvation{limit: func() (float64, time.Duration) { return 0.1, 100 * time.Millisecond }}
	now := lease.Instant(time.Hour)
	expect := func(what string, late, want, slack time.Duration) {
		t.Helper()
		got, _ := s.woke(late, now)
		if got < want-slack || got > want+slack {
			t.Errorf("%s: estimate %v, want %v", what, got, want)
		}
	}
	expect("a limit alone", 0, 1500*time.Millisecond, 0)
	expect("later than that", 4*time.Second, 4*time.Second, 0)
	if _, changed := s.woke(4*time.Second, now); changed {
		t.Error("told twice")
	}
	for range 60 {
		now = now.Add(time.Second)
		s.woke(0, now)
	}
	expect("a minute later", 0, 2500*time.Millisecond, 600*time.Millisecond)
	now = now.Add(time.Hour)
	expect("an hour later", 0, 1500*time.Millisecond, 0)
	s.limit = func() (float64, time.Duration) { return 0, 0 }
	now = now.Add(time.Hour)
	expect("without a limit", 0, 0, 0)
	expect("on a machine in good order", punctual-1, 0, 0)
}

func TestCPULimit(t *testing.T) {
	for name, test := range map[string]struct {
		files  map[string]string
		share  float64
		period time.Duration
	}{
		"version 2":            {map[string]string{"cpu.max": "5000 100000\n"}, 0.05, 100 * time.Millisecond},
		"version 2, none":      {map[string]string{"cpu.max": "max 100000\n"}, 0, 0},
		"version 1":            {map[string]string{"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 4, 50 * time.Millisecond},
		"version 1, none":      {map[string]string{"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0, 0},
		"nothing to be read":   {nil, 0, 0},
		"nothing that we know": {map[string]string{"cpu.max": "99999999999999999999 -1\n"}, 0, 0},
		"no period":            {map[string]string{"cpu.max": "1 0\n"}, 0, 0},
	} {
		dir := t.TempDir()
		for path, text := range test.files {
			path = filepath.Join(dir, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if share, period := CPULimit(dir); share != test.share || period != test.period {
			t.Errorf("%s: %v of %v, want %v of %v", name, share, period, test.share, test.period)
		}
	}
}

// The agent reads the CPU limit of this machine's kernel, with either version of control groups.
func TestCPULimitOfThisMachine(t *testing.T) {
	group := cgroup.New(t, "cpu")
	group.LimitCPU(50)
	dir := group.Dir
	if group.IsVersion1() { // where a container finds it
		dir = t.TempDir()
		if err := os.Symlink(group.Dir, filepath.Join(dir, "cpu")); err != nil {
			t.Fatal(err)
		}
	}
	if share, period := CPULimit(dir); share != 0.05 || period != 100*time.Millisecond {
		t.Errorf("a limit of 50m is read as %v of %v", share, period)
	}
	spinning := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	if err := spinning.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = spinning.Wait() }) // killed by the end of the test's context
	group.Add(spinning.Process.Pid)
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if times, total := throttled(dir); times > 0 && total > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a process that spins under a limit of 50m is never throttled: %s", group.Read("cpu.stat"))
		}
	}
}

// A limit on the CPU makes the leash end earlier from the first moment on, and so do wake-ups that come late.
func TestStarvedAgent(t *testing.T) {
	limit := 0.1
	lasts := func(w *world, p *fakeProcess) time.Duration {
		w.Helper()
		deadline, _, _ := p.state()
		w.agent.Handler() // the snapshot says the same
		if s := w.agent.snapshot.Load(); s.ValidUntil > deadline {
			w.Errorf("said to be valid %v after the deadline", time.Duration(s.ValidUntil-deadline))
		}
		return time.Duration(deadline - int64(w.clock.Now().Boot))
	}
	inBubbleWith(t, func(o *Options) {
		o.CPULimit = func() (float64, time.Duration) { return limit, 100 * time.Millisecond }
	}, func(w *world) {
		p := w.holding()
		if got := lasts(w, p); got > 12500*time.Millisecond || got < 12400*time.Millisecond {
			t.Errorf("the leash lasts %v, want 14s less 1.5s", got)
		}
		w.clock.late(3 * time.Second)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := lasts(w, p); got > 11*time.Second {
			t.Errorf("the leash lasts %v after wake-ups that came 3s late", got)
		}
		// The leash has less time in any case when renewals are late.
		if got := w.agent.snapshot.Load().late; got < 2900*time.Millisecond || got > 3*time.Second {
			t.Errorf("counts on %v after wake-ups that came 3s late", got)
		}
		if !strings.Contains(w.log.String(), "starved") {
			t.Errorf("nothing is said of it:\n%s", w.log)
		}
	})
}
