//go:build linux

package supervise

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/timens"
)

// fakeKernel has clocks that run as they are told. Each look at one takes a while.
type fakeKernel struct {
	monotonic, slept int64
	looks            []int64 // how long the next ones take; 100 ns after these
}

func (k *fakeKernel) clock(id int32) int64 {
	took := int64(100)
	if len(k.looks) > 0 {
		took, k.looks = k.looks[0], k.looks[1:]
	}
	k.monotonic += took
	if id == unix.CLOCK_BOOTTIME {
		return k.monotonic + k.slept
	}
	return k.monotonic
}

func TestTimeAsleep(t *testing.T) {
	const slow = int64(80 * time.Millisecond) // one period of a CPU limit
	for name, k := range map[string]*fakeKernel{
		"never":                     {},
		"an hour":                   {slept: int64(time.Hour)},
		"a time namespace":          {slept: -int64(time.Hour)},
		"interrupted":               {slept: 7, looks: []int64{slow, slow, slow, 0, slow}},
		"interrupted in the middle": {slept: 7, looks: []int64{0, slow, 0, 0, 0, slow, 0, slow, 0}},
	} {
		s := neverSlept()
		for _, more := range []int64{0, int64(time.Minute), 0} {
			k.slept += more
			if got := s.read(k.clock); got > k.slept || got < k.slept-narrow {
				t.Errorf("%s: asleep for %d, want %d", name, got, k.slept)
			}
		}
		// However bad the next looks are, what is known stays known.
		k.looks = []int64{slow, slow, slow, slow, slow, slow, slow, slow, slow, slow, slow, slow, slow, slow, slow}
		if got := s.read(k.clock); got < k.slept-narrow {
			t.Errorf("%s: went back to %d", name, got)
		}
	}
}

func TestBootTime(t *testing.T) {
	t.Parallel()
	last := BootTime()
	for range 10000 {
		before, now := gettime(unix.CLOCK_MONOTONIC_RAW), BootTime()
		if now < last {
			t.Fatalf("went back by %d ns", last-now)
		}
		if off := now - before - asleep.known.Load(); off < 0 {
			t.Fatalf("%d ns before the time at which it was asked for", -off)
		}
		last = now
	}
}

// slowest and fastest are the rates of CLOCK_BOOTTIME that the kernel permits: see timersFor.
const (
	slowest = 1 - 0.10 - 0.0005 - 0.0005 - 0.125
	fastest = 1 + 0.10 + 0.0005 + 0.0005 + 0.125
)

// A stopped leash continues before its deadline, at every rate. A leash that cannot continue is killed by then, or soon after on a slow
// clock. A leash that runs wakes up close to the deadline, with enough time to get a CPU.
func TestTimersOfTheLeash(t *testing.T) {
	t.Parallel()
	for _, lead := range []int64{leadAlone, leadForAll} {
		for _, left := range []time.Duration{0, 1, time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 14 * time.Second, time.Hour, 24 * time.Hour} {
			for _, rate := range []float64{slowest, 0.9, 1 - 83e-3, 1, 1 + 83e-3, fastest} {
				checkTimers(t, lead, lead+1+int64(left), rate)
			}
		}
		for left := lead + 1; left < 10*lead; left += lead / 16 {
			for _, rate := range []float64{slowest, 1, fastest} {
				checkTimers(t, lead, left, rate)
			}
		}
	}
}

func checkTimers(t *testing.T, lead, left int64, rate float64) {
	t.Helper()
	looks := 0
	for begun := left; left > lead; looks++ {
		after := timersFor(left, lead)
		if late := int64(float64(after.goOn)/rate) - left; late >= 0 || after.goOn <= after.look {
			t.Fatalf("rate %v, %v left, %+v: a stopped leash goes on %v late", rate, time.Duration(left), after, time.Duration(late))
		}
		grace := int64(0)
		if left < 4*lead && rate < 1 {
			grace = lead * 6 / 10
		}
		if late := int64(float64(after.kill)/rate) - left; late > grace {
			t.Fatalf("rate %v, %v left, %+v: a leash that can't run is killed %v late", rate, time.Duration(left), after, time.Duration(late))
		}
		if after.look <= 0 || after.kill-after.look < lead {
			t.Fatalf("%v left, lead %v, %+v: one that waits for a CPU is killed", time.Duration(left), time.Duration(lead), after)
		}
		if looks > 64 {
			t.Fatalf("more than 64 looks in %v", time.Duration(begun))
		}
		left -= max(1, int64(float64(after.look)/rate))
	}
	if left < lead/2 {
		t.Fatalf("rate %v: it kills %v before the deadline, with a lead of %v", rate, time.Duration(left), time.Duration(lead))
	}
}

// aDayAhead starts an agent in a time namespace in which the machine has slept for a day.
func aDayAhead(t *testing.T) *agent {
	t.Helper()
	a := startAgent(t, nil, timens.Execute(t, "--boottime=86400")...)
	a.forked = true
	return a
}

// On a machine that has never slept, CLOCK_MONOTONIC in place of CLOCK_BOOTTIME changes nothing.
func TestDeadlineAfterASleep(t *testing.T) {
	t.Parallel()
	t.Run("clocks", func(t *testing.T) {
		t.Parallel()
		a := aDayAhead(t)
		a.must(command{Op: "start", Argv: program("clocks"), In: time.Hour})
		a.expectLine("right")
	})
	t.Run("the leash runs", func(t *testing.T) {
		t.Parallel()
		a := aDayAhead(t)
		withLaterDeadlines(t, 3*time.Second, func(in time.Duration) error {
			h, e := a.beating("beat", in)
			await(t, "exit", a.exited)
			a.expectGone()
			// By its alarm: where that does not ring, or the leash gets no CPU then, the kernel kills after three quarters.
			had := time.Duration(e.Deadline - h.first.Load()) // as beating may have given it more
			late := time.Duration(h.last.Load() - e.Deadline)
			if late > tolerance() {
				t.Errorf("the program wrote for the last time %v after its deadline", late)
			}
			if late < -had/5 {
				return fmt.Errorf("the program wrote for the last time %v before its deadline", -late)
			}
			return nil
		})
	})
	t.Run("the leash is stopped", func(t *testing.T) {
		t.Parallel()
		a := aDayAhead(t)
		h, e := a.beatingAlone(4 * time.Second)
		await(t, "exit", a.exited)
		if late := time.Duration(h.last.Load() - e.Deadline); late > tolerance() {
			t.Errorf("the program wrote for the last time %v after its deadline", late)
		}
	})
}
