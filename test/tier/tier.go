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

// IsDeep reports whether the deep tier runs, for a test of which the gate has a sample.
func IsDeep() bool { return os.Getenv(Variable) != "" }

// Deep skips t unless the deep tier runs. why says what the test needs that the gate can't promise.
func Deep(t testing.TB, why string) {
	t.Helper()
	if !IsDeep() {
		t.Skipf("deep tier, for it %s: make deep, or %s=1", why, Variable)
	}
}

// Seed is what a test's chances are drawn from: in the gate always the fixed one, since what another one finds is no fault of the commit
// that is judged; in the deep tier another one each time. The log says which. What a random one finds, its test is given to replay.
func Seed(t testing.TB, fixed uint64) uint64 {
	t.Helper()
	seed := fixed
	if IsDeep() {
		seed = rand.Uint64() >> 16 // room to count on from it
	}
	t.Logf("seed %d", seed)
	return seed
}
