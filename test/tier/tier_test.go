package tier_test

import (
	"runtime"
	"testing"

	"github.com/singletonjob/operator/test/tier"
)

// recorder takes note of how a test would have ended.
type recorder struct {
	testing.TB
	end string
}

func (r *recorder) Helper()               {}
func (r *recorder) Skipf(string, ...any)  { r.end = "skipped"; runtime.Goexit() }
func (r *recorder) Fatalf(string, ...any) { r.end = "failed"; runtime.Goexit() }

func TestMissingRequirements(t *testing.T) {
	for name, row := range map[string]struct {
		variable, value string
		call            func(testing.TB)
		want            string
	}{
		"by hand":               {"CI", "", func(t testing.TB) { tier.Needs(t, "root is missing") }, "skipped"},
		"where CI is set":       {"CI", "true", func(t testing.TB) { tier.Needs(t, "root is missing") }, "failed"},
		"deep, in the gate":     {tier.Variable, "", func(t testing.TB) { tier.Deep(t, "takes an hour") }, "skipped"},
		"deep, in the deep one": {tier.Variable, "1", func(t testing.TB) { tier.Deep(t, "takes an hour") }, ""},
	} {
		t.Setenv(row.variable, row.value)
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			row.call(r)
		}()
		if <-done; r.end != row.want {
			t.Errorf("%s: %q, want %q", name, r.end, row.want)
		}
	}
}

func TestSeedIsFixedInTheGate(t *testing.T) {
	t.Setenv(tier.Variable, "")
	if got := tier.Seed(t, 7); got != 7 {
		t.Errorf("the gate draws from %d, want 7", got)
	}
	t.Setenv(tier.Variable, "1")
	seen := map[uint64]bool{}
	for range 3 {
		seen[tier.Seed(t, 7)] = true
	}
	if len(seen) < 2 {
		t.Errorf("the deep tier draws from %v each time", seen)
	}
}
