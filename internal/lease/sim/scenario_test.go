package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

const scenarios = "testdata/scenarios"

// TestScenarios plays them. With -rewrite it writes down what happened as what is to happen.
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, scenarios, func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTestAny(t, path, s.block)
		if s.w == nil {
			t.Errorf(`%s has no command; begin it with one such as "candidates a b"`, path)
		} else if v := s.w.check.violation; v != nil {
			t.Errorf("%s breaks a promise: %v", path, v)
		}
	})
}

func (s *script) block(t testing.TB, d *datadriven.TestData) string {
	t.Helper()
	happened, err := s.play(d)
	if err != nil {
		t.Fatal(err)
	}
	return happened
}

// TestMistakesChangeScenarios has each scenario show the mistake that it is there to explain.
func TestMistakesChangeScenarios(t *testing.T) {
	t.Parallel()
	step := func(s mistake.Step) mutant { return mutant{Mistake: mistake.Mistake{Step: s}} }
	never := step(func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
		c.KeepRunning = true
		return lease.Step(c, s, t, e)
	})
	hasty := step(func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
		if s.Phase == lease.Waiting && s.Observed.Record.Holder != "" {
			c.Duration -= 2 * time.Second
		}
		return mistake.OwnDuration(c, s, t, e)
	})
	unfenced := mutant{options: Options{NewSink: func() Sink { return gullible{} }}}
	for _, c := range []struct {
		file    string
		mistake mutant
		shows   string
	}{
		{"01-first-acquire", mutants["token from leaseTransitions"], "starts token 1 "},
		{"02-release", mutants["release before reap"], ReleasedEarly},
		{"03-handover", mutants["release before reap"], ReleasedEarly},
		{"04-crash", mutants["lockDelay not waited for"], LockDelayCut},
		{"05-crash-without-operator", mutants["same identity keeps the token"], TokenNotGrown},
		{"06-node-lost", hasty, Stolen},
		{"07-partition", never, TwoAtOnce},
		{"07-partition", mutants["no kill budget"], LeashTooLong},
		{"08-lost-answer", mutants["ambiguous reply counted as success"], "starts token 1010 until 14.003s"},
		{"09-lease-deleted", surroundings["operator makes a free Lease"], `holder ""`},
		{"10-frozen-holder", unfenced, StaleAccepted},
		{"11-blanked-holder", mutants["release marker ignored"], Stolen},
		{"12-process-exits", mutants["lockDelay not waited for"], LockDelayCut},
	} {
		o := c.mistake.options
		o.Step = c.mistake.Step
		s, changed := &script{o: o}, ""
		datadriven.RunTestAny(t, filepath.Join(scenarios, c.file+".txt"), func(t testing.TB, d *datadriven.TestData) string {
			if happened := s.block(t, d); happened != d.Expected {
				changed += happened
			}
			return d.Expected
		})
		if !strings.Contains(changed, c.shows) {
			t.Errorf("%s: blocks that a mistake changed were to show %q, and show\n%s", c.file, c.shows, changed)
		}
	}
}

// gullible is a sink that looks at no token.
type gullible struct{}

func (gullible) Write(_ int64, _ func(time.Duration, func()), accepted, _ func()) { accepted() }
func (gullible) Restart()                                                         {}

// toFail is a test that is to fail.
type toFail struct {
	testing.TB
	text string
}

func (f *toFail) Helper()             {}
func (f *toFail) Logf(string, ...any) {}
func (f *toFail) Failed() bool        { return f.text != "" }
func (f *toFail) FailNow()            { runtime.Goexit() }
func (f *toFail) Fatal(args ...any)   { f.Fatalf("%s", fmt.Sprint(args...)) }
func (f *toFail) Fatalf(format string, args ...any) {
	f.text += fmt.Sprintf(format, args...)
	f.FailNow()
}

// failure is how a scenario fails; empty if it does not.
func failure(t *testing.T, scenario string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "new.txt")
	if err := os.WriteFile(path, []byte(scenario), 0o600); err != nil {
		t.Fatal(err)
	}
	f, over := &toFail{TB: t}, make(chan struct{})
	go func() {
		defer close(over)
		datadriven.RunTestAny(f, path, (&script{}).block)
	}()
	<-over
	return f.text
}

func TestAWrongScenarioFails(t *testing.T) {
	t.Parallel()
	const right = "# c\ncandidates a\nrun 1s quiet\nlease\n----\n   1.000s  Lease    holder a, token 1010, revision 1020, duration 15s\n"
	if text := failure(t, right); text != "" {
		t.Errorf("what is right failed: %s", text)
	}
	for _, wrong := range []string{"token 1011", "holder b", "holder a, token 1010\n"} {
		text := failure(t, strings.Replace(right, "holder a, token 1010", wrong, 1))
		if !strings.Contains(text, "new.txt:2") || !strings.Contains(text, wrong) {
			t.Errorf("%q was to fail, with file and line; it said: %s", wrong, text)
		}
	}
}

func TestBadCommandsNameTheRemedy(t *testing.T) {
	t.Parallel()
	for command, says := range map[string][]string{
		"rum 5s":                        {`"rum"`, "write one of", "run DURATION"},
		"run 5":                         {`"5"`, "such as 5s"},
		"run -5s":                       {`"-5s"`, "such as 5s"},
		"run 9000h":                     {`"9000h"`, "to 24h0m0s"},
		"run":                           {"takes 1 plain arguments and has 0", "write run DURATION"},
		"run 5s 6s":                     {"takes 1 plain arguments and has 2", "write run DURATION"},
		"run 5s al":                     {"takes 1 plain arguments and has 2", "[all]"},
		"run 5s all=yes":                {`"all=yes"`, "[all]"},
		"lease\nrun 5s all=(":           {"no command reads like this"},
		"crash d":                       {`"d"`, "there are a, b"},
		"crash a\ncrash a":              {"a runs no agent at 0s", "run on"},
		"exit a":                        {"a runs no process at 0s", "take the holder"},
		"freeze a":                      {"takes 2 plain arguments and has 1"},
		"freeze a b":                    {`"b"`, "such as 5s"},
		"candidates c":                  {"there are candidates already"},
		"lease now":                     {"takes 0 plain arguments and has 1"},
		"delete-lease a":                {"takes 0 plain arguments and has 1"},
		"handover everyone":             {`"everyone"`, "there are a, b"},
		"lose-answers a " + "1000000h0": {"such as 5s"},
	} {
		text := failure(t, "\n# c\ncandidates a b\n----\n   0.000s  a        agent starts\n   0.000s  b        agent starts\n\n"+command+"\n----\n")
		for _, want := range append(says, "new.txt:8: ", fmt.Sprintf("%q", command[strings.LastIndex(command, "\n")+1:])) {
			if !strings.Contains(text, want) {
				t.Errorf("%q: nothing of %q in: %s", command, want, text)
			}
		}
	}
	for first, says := range map[string]string{
		"run 5s":                           `begin the file with one, such as "candidates a b"`,
		"candidates":                       "takes 1 plain arguments and has 0",
		"candidates a a":                   `"a"`,
		"candidates A":                     `"A"`,
		"candidates a1":                    `"a1" is not a name for a candidate`,
		"candidates a lease=15s":           "write them like lease=15s/10s/2s",
		"candidates a lease=":              "write them like lease=15s/10s/2s",
		"candidates a lease=1s/1s/1s":      `"1s" is not a duration from 3s`,
		"candidates a lease=15s/14s/2s":    "write 13s or less",
		"candidates a lease=15s/10s/8s":    "write 6.666666666s or less",
		"candidates a lock-delay=forever":  `"forever"`,
		"candidates a keep-running=please": `"keep-running=please"`,
		"candidates a leese=15s/10s/2s":    `"leese=15s/10s/2s"`,
	} {
		if text := failure(t, first+"\n----\n"); !strings.Contains(text, says) || !strings.Contains(text, "new.txt:1: ") {
			t.Errorf("%q: want the line and %q, got: %s", first, says, text)
		}
	}
}

func TestReadmeHasEveryCommand(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("testdata/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands() {
		if !strings.Contains(string(readme), "| `"+c.usage+"` |") {
			t.Errorf("testdata/README.md has no line for `%s`", c.usage)
		}
	}
	if lines, all := strings.Count(string(readme), "\n| `"), len(commands()); lines != all {
		t.Errorf("testdata/README.md has %d commands, and there are %d", lines, all)
	}
}

func TestMiddleDrawsTheMean(t *testing.T) {
	t.Parallel()
	w := &world{rng: rand.New(theMiddle{})}
	for n := int64(2); n < int64(horizon); n = n*3/2 + 1 {
		if got := w.rng.Int64N(n); n&(n-1) != 0 && got != (n-1)/2 {
			t.Errorf("of %d it takes %d", n, got)
		}
	}
	if w.chance(0.999999) || !w.chance(1) {
		t.Error("what may happen was not to, and what is certain was")
	}
}
