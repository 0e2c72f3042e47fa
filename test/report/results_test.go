package main

import (
	"strings"
	"testing"
)

const pkg = `"Package":"github.com/singletonjob/operator/internal/lease"`

func line(rest string) string { return `{` + pkg + `,` + rest + "}\n" }

func output(test string, lines ...string) (events string) {
	for _, text := range lines {
		events += line(`"Action":"output","Test":"` + test + `","Output":"` + text + `\n"`)
	}
	return events
}

var (
	passes = line(`"Action":"run","Test":"TestA"`) + line(`"Action":"output","Test":"TestA","Output":"    a_test.go:1: noise\n"`) +
		line(`"Action":"pass","Test":"TestA","Elapsed":0.1`)
	skips = line(`"Action":"output","Test":"TestB/c","Output":"    a_test.go:7: needs root: to be\n"`) +
		line(`"Action":"output","Test":"TestB/c","Output":"--- SKIP: TestB/c (0.00s)\n"`) + line(`"Action":"skip","Test":"TestB/c","Elapsed":0`)
	fails = line(`"Action":"output","Test":"TestD","Output":"    a_test.go:9: it broke\n"`) + line(`"Action":"fail","Test":"TestD","Elapsed":1`)
	ok    = line(`"Action":"pass","Elapsed":2.5`)
	bad   = line(`"Action":"output","Output":"panic: no test ended\n"`) + line(`"Action":"fail","Elapsed":2.5`)
	// As the race detector writes: into what the test says that ran last.
	race = output("TestA", "==================", "WARNING: DATA RACE", "Write at 0x1 by goroutine 8:", "  lease.raced()", "==================") +
		line(`"Action":"pass","Test":"TestA","Elapsed":0.1`) +
		output("TestD", "    testing.go:1617: race detected during execution of test") + line(`"Action":"fail","Test":"TestD","Elapsed":1`) +
		output("TestD", "WARNING: DATA RACE", "a second one")
	// As the go command reports a package that does not compile.
	unbuilt = `{"ImportPath":"x [x.test]","Action":"build-output","Output":"x.go:1: undefined: y\n"}` + "\n" +
		`{"ImportPath":"x [x.test]","Action":"build-fail"}` + "\n" + line(`"Action":"fail","Elapsed":0,"FailedBuild":"x [x.test]"`)
)

func TestSummary(t *testing.T) {
	for name, c := range map[string]struct {
		input, skips string // no file of skips if empty
		says         []string
		silent       string
		wrong        string // in the error; none if empty
	}{
		"passed":          {input: passes + ok, says: []string{"ok     internal/lease", "2.5 s", "1 tests passed, 0 were skipped"}, silent: "noise"},
		"failed":          {input: passes + fails + bad, says: []string{"it broke", "panic: no test ended", "FAILED internal/lease"}, wrong: "internal/lease TestD"},
		"why, at the end": {input: fails + ok, wrong: "internal/lease TestD\n      a_test.go:9: it broke"},
		"stacks, at the end": {input: race + bad, wrong: "\n  internal/lease\n      WARNING: DATA RACE\n      Write at 0x1 by goroutine 8:\n" +
			"        lease.raced()\n      =================="},
		"no end":            {input: passes + line(`"Action":"output","Test":"TestE","Output":"panic: timed out\n"`) + bad, says: []string{"panic: timed out"}, wrong: "internal/lease"},
		"package failed":    {input: passes + bad, says: []string{"panic: no test ended"}, wrong: "failed:\n  internal/lease"},
		"not built":         {input: unbuilt, says: []string{"undefined: y"}, wrong: "internal/lease"},
		"nothing ran":       {input: ok, wrong: "no test ran"},
		"nothing came":      {wrong: "no test ran"},
		"skip told":         {input: passes + skips + ok, says: []string{"skipped  internal/lease TestB/c: needs root: to be"}},
		"skip expected":     {input: passes + skips + ok, skips: "internal/lease TestB/* for a reason"},
		"skips of one kind": {input: passes + skips + strings.ReplaceAll(skips, "TestB/c", "TestC") + ok, says: []string{"skipped  internal/lease TestB/c and 1 more: needs root: to be"}},
		"reason anywhere":   {input: passes + skips + ok, skips: "* * needs root"},
		"another reason":    {input: passes + skips + ok, skips: "* * needs roots", wrong: "internal/lease TestB/c"},
		"package's skips":   {input: passes + skips + ok, skips: "# all\n\ninternal/lease * for a reason"},
		"skip not expected": {input: passes + skips + ok, skips: "internal/leas TestB/c so\ninternal/lease TestB so", wrong: "internal/lease TestB/c"},
		"slow":              {input: line(`"Action":"pass","Test":"TestA","Elapsed":12.5`) + line(`"Action":"pass","Test":"TestB","Elapsed":9`) + ok, says: []string{"passed internal/lease                     12.5 s  TestA"}, silent: "TestB"},
		"no event":          {input: "ld: warning\n" + passes + ok, says: []string{"ld: warning"}},
	} {
		t.Run(name, func(t *testing.T) {
			expected, err := parseSkips(c.skips)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			r := newResults(&out)
			if err := r.read(strings.NewReader(c.input)); err != nil {
				t.Fatal(err)
			}
			err = r.summary(expected, c.skips != "")
			if (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("the error is %v, want %q", err, c.wrong)
			}
			for _, s := range c.says {
				if !strings.Contains(out.String(), s) {
					t.Errorf("does not say %q:\n%s", s, &out)
				}
			}
			if c.silent != "" && strings.Contains(out.String(), c.silent) {
				t.Errorf("repeats %q of a test that passed:\n%s", c.silent, &out)
			}
		})
	}
}

func TestSkipsNeedReasons(t *testing.T) {
	for _, text := range []string{"internal/lease", "internal/lease TestA", "internal/lease Test[ reason"} {
		if skips, err := parseSkips(text); err == nil {
			t.Errorf("%q was read as %v", text, skips)
		}
	}
}
