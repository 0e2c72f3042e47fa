package sim

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/tier"
)

// Every test run repeats so many episodes of each profile, and tries so many that nobody has tried: a hundred in all.
const (
	fixedSeeds  = 6
	randomSeeds = 100 - fixedSeeds*uint64(profiles-Mixed)
)

func TestPromisesHold(t *testing.T) {
	for profile := Mixed; profile < profiles; profile++ {
		t.Run(profile.String(), func(t *testing.T) {
			t.Parallel()
			var sum Result
			for seed := uint64(1); seed <= fixedSeeds; seed++ {
				r := episode(t, seed, unmutated{profile: profile})
				sum.Takeovers += r.Takeovers
				sum.Stale += r.Stale
				sum.Overlaps += r.Overlaps
			}
			// An episode in which nothing was tried proves nothing.
			if sum.Takeovers < 10 && profile != Outages {
				t.Errorf("only %d takeovers", sum.Takeovers)
			}
			if profile != Replies && profile != FastRestore && profile != Outages && sum.Stale == 0 {
				t.Errorf("no stale write was offered")
			}
			if (sum.Overlaps > 0) != (profile == KeepRunning || profile == Settings) {
				t.Errorf("%d overlaps", sum.Overlaps)
			}
		})
	}
}

func TestPromisesHoldForRandomSeeds(t *testing.T) {
	t.Parallel()
	first := tier.Seed(t, 1<<32)
	for seed := first; seed < first+randomSeeds; seed++ {
		episode(t, seed, unmutated{})
	}
}

// TestPromisesHoldForSeedsThatFailedOnce replays the random seeds that failed once.
func TestPromisesHoldForSeedsThatFailedOnce(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{
		21135739498232, // two containers of one holder are lost: the two new agents had the same nonce
	} {
		episode(t, seed, unmutated{})
	}
}

// episode fails with the time-line of one that breaks a promise.
func episode(t *testing.T, seed uint64, o unmutated) Result {
	t.Helper()
	r := o.run(seed)
	if r.Violation != nil {
		t.Errorf("%s\nrun it again: go run ./internal/lease/sim/cmd -profile %v -seed %d", Explain(seed, o.options()), r.Profile, seed)
	}
	return r
}

func TestSeedReplays(t *testing.T) {
	t.Parallel()
	for profile := Mixed; profile < profiles; profile++ {
		first := Run(7, Options{Profile: profile})
		if diff := cmp.Diff(first, Run(7, Options{Profile: profile})); diff != "" {
			t.Errorf("%v: the same seed came out differently:\n%s", profile, diff)
		}
		p := draw(7, Options{Profile: profile})
		lines := 0
		traced := run(p, plan(p), Options{Profile: profile}, func(line) { lines++ })
		if diff := cmp.Diff(first, traced); diff != "" || lines == 0 {
			t.Errorf("%v: looking on changed what happened (%d lines):\n%s", profile, lines, diff)
		}
	}
}

func TestExplainPrintsTheViolation(t *testing.T) {
	t.Parallel()
	m := mutants["release marker ignored"]
	o := Options{Profile: m.profile, Step: m.Step, Outcomes: true}
	seed := uint64(1)
	for Run(seed, o).Violation == nil {
		seed++
	}
	text := Explain(seed, o)
	for _, want := range []string{fmt.Sprintf("seed %d", seed), TwoAtOnce, "holder cleared by hand", "process of token", "store "} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing of %q in:\n%s", want, text)
		}
	}
	if few := regexp.MustCompile(`(?m)^  \S+ to \S+: `).FindAllString(text, -1); len(few) < 1 || len(few) > 5 {
		t.Errorf("%d faults are left, but one edit by hand is enough:\n%s", len(few), text)
	}
	if text := Explain(seed, Options{Profile: m.profile}); text != "" {
		t.Errorf("the unmutated machine was found guilty:\n%s", text)
	}
}

func TestEveryFaultHasAKind(t *testing.T) {
	for profile := Mixed; profile < profiles; profile++ {
		for name := range (params{profile: profile}).weights() {
			kindOf(name) // panics
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a fault of no kind was accepted")
		}
	}()
	kindOf("nonsense")
}

func TestClocksShowEveryInstantOnTime(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	for n := range 30_000 {
		c := clock{offset: lease.Instant(rng.Int64N(int64(10 * horizon))), ppm: rng.Int64N(2*maxSlew+1) - maxSlew}
		i := c.offset + lease.Instant(rng.Int64N(int64(horizon)))
		at := c.when(i)
		if c.at(at) < i || at > 0 && c.at(at-1) >= i {
			t.Fatalf("%+v shows %d at %v, and %d a nanosecond before; asked for %d", c, c.at(at), at, c.at(at-1), i)
		}
		if c.lasts(time.Hour) < time.Hour*100/110 || c.lasts(time.Hour) > time.Hour*110/100 {
			t.Fatalf("%+v: an hour lasts %v", c, c.lasts(time.Hour))
		}
		// The one of the timers is the same with many rates.
		slewed := newTimers(uint64(n), 0, c, maxSlew)
		slewed.steps = 20 * time.Minute
		i = c.offset + lease.Instant(rng.Int64N(int64(3*time.Hour)))
		at = slewed.when(0, i)
		if slewed.at(at) < i || at > 1 && slewed.at(at-2) >= i {
			t.Fatalf("%+v: slewed, it shows %d at %v, and %d before; asked for %d", c, slewed.at(at), at, slewed.at(at-2), i)
		}
	}
	if at := (clock{}).when(lease.Never); at != forever {
		t.Errorf("never is at %v", at)
	}
}

func TestQueueKeepsOrder(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(2, 2))
	var q queue
	var got, want []int
	for i := range 1000 {
		q.push(0, func() { got = append(got, i) })
		want = append(want, i)
		q.push(time.Duration(1+rng.Int64N(int64(horizon))), func() {})
	}
	last := event{}
	for {
		e, ok := q.pop()
		if !ok {
			break
		}
		if e.before(last) {
			t.Fatalf("%v came after %v", e.at, last.at)
		}
		last = e
		e.do()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what is due at one time does not come in the order in which it was asked for:\n%s", diff)
	}
}

func BenchmarkEpisode(b *testing.B) {
	hours := 0.0
	for seed := range b.N {
		hours += Run(uint64(seed), Options{}).Simulated.Hours()
	}
	b.ReportMetric(hours/b.Elapsed().Minutes(), "hours/min")
}
