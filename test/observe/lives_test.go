package observe

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

// attempt is one write, at a time in milliseconds.
func attempt(writer string, token fence.Token, at int, accepted bool) fencetest.Attempt {
	t := time.Duration(at) * time.Millisecond
	return fencetest.Attempt{Resource: "ns/job", Token: token, Writer: writer, At: t + time.Millisecond, Sent: t, Accepted: accepted}
}

func TestLivesAndTakeovers(t *testing.T) {
	attempts := []fencetest.Attempt{
		attempt("a", 5, 10, true), attempt("a", 5, 30, true),
		{Resource: "ns/other", Token: 9, Writer: "x", At: 1, Accepted: true},
		attempt("b", 8, 100, true), attempt("a", 5, 110, false), attempt("b", 8, 120, true),
	}
	lives := Lives(attempts, "ns/job", true)
	ms := time.Millisecond
	want := []Life{
		{Writer: "a", Tokens: []fence.Token{5}, First: 10 * ms, Last: 110 * ms, FirstStored: 10 * ms, LastStored: 30 * ms, Accepted: 2, Refused: 1, Stale: 1},
		{Writer: "b", Tokens: []fence.Token{8}, First: 100 * ms, Last: 120 * ms, FirstStored: 100 * ms, LastStored: 120 * ms, Accepted: 2},
	}
	if diff := cmp.Diff(want, lives); diff != "" {
		t.Fatalf("lives (-want +got):\n%s", diff)
	}
	steps := Takeovers(lives)
	if len(steps) != 1 || steps[0].Gap != 70*ms || steps[0].Overlap != 10*ms {
		t.Errorf("takeovers: %+v", steps)
	}
	if lives := Lives(attempts, "ns/job", false); lives[0].First != 11*ms {
		t.Errorf("without a common clock the first write is at %v, want the sink's time", lives[0].First)
	}
}

func TestViolations(t *testing.T) {
	for name, tc := range map[string]struct {
		attempts []fencetest.Attempt
		overlap  bool // expected
		want     []string
	}{
		"clean": {attempts: []fencetest.Attempt{attempt("a", 5, 10, true), attempt("b", 8, 20, true), attempt("c", 9, 30, true)}},
		"two at once": {
			attempts: []fencetest.Attempt{attempt("a", 5, 10, true), attempt("b", 8, 20, true), attempt("a", 5, 30, false)},
			want:     []string{"two processes for 10ms"},
		},
		"two at once, as after a freeze": {
			attempts: []fencetest.Attempt{attempt("a", 5, 10, true), attempt("b", 8, 20, true), attempt("a", 5, 30, false)},
			overlap:  true,
		},
		"not only neighbours overlap": {
			attempts: []fencetest.Attempt{attempt("a", 5, 10, true), attempt("b", 8, 20, true), attempt("c", 9, 30, true), attempt("a", 5, 40, false)},
			want:     []string{"two processes for 20ms", "two processes for 10ms"},
		},
		"a stale write was stored": {
			attempts: []fencetest.Attempt{attempt("a", 5, 10, true), attempt("b", 8, 20, true), attempt("a", 5, 30, true)},
			overlap:  true,
			want:     []string{"1 stale writes of a"},
		},
		"the token stays": {
			attempts: []fencetest.Attempt{attempt("a", 5, 10, true), attempt("b", 5, 20, true)},
			want:     []string{"does not grow"},
		},
		"one process, two tokens": {
			attempts: []fencetest.Attempt{attempt("a", 5, 10, true), attempt("a", 6, 20, true)},
			want:     []string{"tokens [5 6]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Violations(Lives(tc.attempts, "ns/job", true), tc.overlap)
			if len(got) != len(tc.want) {
				t.Fatalf("violations %q, want %d", got, len(tc.want))
			}
			all := strings.Join(got, "\n")
			for _, w := range tc.want {
				if !strings.Contains(all, w) {
					t.Errorf("violations %q lack %q", got, w)
				}
			}
		})
	}
}
