// Package tier sorts tests into two tiers. The gate (.ci/run, make test) decides whether a commit lands, so a red test there must
// mean a fault. The deep tier (make deep) holds what needs a quiet machine, a random draw or a long time.
package tier

import (
	"os"
	"testing"
)

// Variable is the environment variable that turns the deep tier on. Any value but the empty one does.
const Variable = "SINGLETONJOB_DEEP"

// Deep skips t unless the deep tier runs. why says what the test needs that the gate can't promise.
func Deep(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(Variable) == "" {
		t.Skipf("deep tier, for it %s: make deep, or %s=1", why, Variable)
	}
}
