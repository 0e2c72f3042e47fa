package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// run is the events of one test's run, as the Go tool writes them.
func run(pkg, test, action string, said ...string) string {
	id := `"Package":"` + modulePath + pkg + `"`
	if test != "" {
		id += `,"Test":"` + test + `"`
	}
	text := `{"Action":"run",` + id + "}\n"
	if test == "" {
		text = `{"Action":"start",` + id + "}\n"
	}
	for _, s := range said {
		text += `{"Action":"output",` + id + `,"Output":"` + s + `\n"}` + "\n"
	}
	if action == "" {
		return text
	}
	return text + `{"Action":"` + action + `",` + id + "}\n"
}

func TestVerdict(t *testing.T) {
	passed := run("a", "TestGood", "pass")
	for name, tc := range map[string]struct {
		text string
		red  bool
		says []string
	}{
		"all passed": {text: passed + run("a", "", "pass"), says: []string{"1 tests passed, 0 flaky, 0 failed, 0 skipped"}},
		"a test failed": {
			text: passed + run("a", "TestBad", "fail", "no") + run("a", "", "fail"), red: true, says: []string{"FAILED   a TestBad\n", " 1 failed"},
		},
		"it passed in a rerun": {
			text: passed + run("a", "TestBad", "fail") + run("a", "", "fail") + run("a", "TestBad", "pass") + run("a", "", "pass"),
			says: []string{"flaky    a TestBad\n", " 1 flaky, 0 failed"},
		},
		"it failed in the rerun too": {
			text: passed + run("a", "TestBad", "fail") + run("a", "", "fail") + run("a", "TestBad", "fail") + run("a", "", "fail"), red: true,
			says: []string{"FAILED   a TestBad\n"},
		},
		"a rerun forgives no violation": {
			text: passed + run("a", "TestBad", "fail", "x.go:1: SAFETY: two") + run("a", "", "fail") + run("a", "TestBad", "pass") + run("a", "", "pass"),
			red:  true, says: []string{"UNSAFE   a TestBad: x.go:1: SAFETY: two"},
		},
		"a mutant that was caught is none": {text: run("a", "TestMutants", "pass", "caught: SAFETY: two") + run("a", "", "pass")},
		"a subtest's parent is not counted": {
			text: passed + run("a", "TestBad/sub", "fail") + run("a", "TestBad", "fail") + run("a", "", "fail") +
				run("a", "TestBad/sub", "pass") + run("a", "TestBad", "pass") + run("a", "", "pass"),
			says: []string{" 1 flaky"},
		},
		"a package that did not build":           {text: passed + run("b", "", "fail"), red: true, says: []string{"FAILED   b\n"}},
		"a package that died, and a rerun in it": {text: passed + run("b", "", "fail") + run("b", "TestGood", "pass") + run("b", "", "pass"), red: true},
		"a test that never ended": {
			text: passed + run("a", "TestLost", "") + run("a", "", "pass"), red: true, says: []string{"unended  a TestLost"},
		},
		"too many flaky tests": {
			text: passed + flake("TestA") + flake("TestB") + flake("TestC") + flake("TestD"), red: true, says: []string{"4 flaky tests, at most 3"},
		},
		"three flaky tests":   {text: passed + flake("TestA") + flake("TestB") + flake("TestC")},
		"nothing ran":         {text: run("a", "", "pass"), red: true},
		"a skip and its word": {text: passed + run("a", "TestRoot", "skip", "    a_test.go:7: needs root"), says: []string{"skipped  a TestRoot: needs root\n"}},
		"other lines":         {text: "# linker says\n" + passed + "warning {\n" + run("a", "", "pass")},
	} {
		t.Run(name, func(t *testing.T) {
			file, list := filepath.Join(t.TempDir(), "events.json"), filepath.Join(t.TempDir(), "flaky.txt")
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			red, err := verdict(&out, []string{file}, 3, list, false)
			if err != nil || red != tc.red {
				t.Errorf("red: %v, want %v (%v)\n%s", red, tc.red, err, out.String())
			}
			for _, s := range tc.says {
				if !strings.Contains(out.String(), s) {
					t.Errorf("it does not say %q:\n%s", s, out.String())
				}
			}
			if flaky, err := os.ReadFile(list); err != nil || strings.Count(out.String(), "flaky    ") != strings.Count(string(flaky), "\n") {
				t.Errorf("the list of flaky tests: %v, %q", err, flaky)
			}
		})
	}
}

func flake(test string) string {
	return run("a", test, "fail") + run("a", "", "fail") + run("a", test, "pass")
}

func TestMissingFileIsRed(t *testing.T) {
	var out strings.Builder
	if red, err := verdict(&out, []string{filepath.Join(t.TempDir(), "none")}, 3, "", false); !red || err == nil {
		t.Errorf("red: %v, %v", red, err)
	}
}
