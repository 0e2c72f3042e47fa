// Package tier sorts tests into two tiers. The gate (.ci/run, make test) decides whether a commit lands, so a red test there must
// mean a fault. The deep tier (make deep) holds what needs a quiet machine, a random draw or a long time.
package tier

import (
	"math/rand/v2"
	"os"
	"testing"
)

// Variable is the environment variable that turns the deep tier on. Any value but the empty one does.
const Variable = "SINGLETONJOB_DEEP"

// Needs skips t, for want of something that a machine of continuous integration must have: root, packages, namespaces. There (CI is
// set) it fails t instead, or a test that ran nowhere would look green.
func Needs(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("CI is set, and "+format, args...)
	}
	t.Skipf(format, args...)
}

// IsDeep reports whether the deep tier runs, for a test of which the gate has a sample.
func IsDeep() bool { return os.Getenv(Variable) != "" }

// Deep skips t unless the deep tier runs. why says what the test needs that the gate can't promise.
func Deep(t testing.TB, why string) {
	t.Helper()
	if !IsDeep() {
		t.Skipf("deep tier, for it %s: make deep, or %s=1", why, Variable)
	}
}

// Seed is what a test's chances are drawn from. In the gate it is always the fixed one, because what another one finds is no fault of the
// commit that is judged. In the deep tier it is another one each time. The log says which. If a random seed finds a fault, give it to the
// test to replay it.
func Seed(t testing.TB, fixed uint64) uint64 {
	t.Helper()
	seed := fixed
	if IsDeep() {
		seed = rand.Uint64() >> 16 // room to count on from it
	}
	t.Logf("seed %d", seed)
	return seed
}

// Seeds are the numbers below gate in the gate. In the deep tier they are those below deep, and as many that are drawn.
func Seeds(t testing.TB, gate, deep uint64) []uint64 {
	t.Helper()
	var seeds []uint64
	if !IsDeep() {
		deep = gate
	}
	for i := range deep {
		seeds = append(seeds, i)
	}
	if IsDeep() {
		first := Seed(t, 0)
		for i := range deep {
			seeds = append(seeds, first+i)
		}
	}
	return seeds
}
