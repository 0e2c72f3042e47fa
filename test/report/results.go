package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// event is a line of `go test -json`, as `go doc test2json` describes it.
type event struct {
	Action     string
	Package    string
	ImportPath string // in place of Package, of what a build says
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// results gathers events. What a test prints is kept until its end, and forgotten if it passed.
type results struct {
	to       io.Writer
	verbose  bool                // all that tests say, as they say it
	output   map[string][]string // by package and test
	builds   map[string][]string // by import path
	races    map[string][]string // by package: how the first data race begins
	tests    int
	failures []string
	skipped  []skip
}

// skip is a test that did not run: one that was seen, or one that is expected. A "*" stands for all tests of a package, or
// for any package, and then the reason is what the test has to give.
type skip struct{ pkg, test, reason string }

func newResults(to io.Writer) *results {
	return &results{to: to, output: map[string][]string{}, builds: map[string][]string{}, races: map[string][]string{}}
}

// read takes events until the end. Lines that are none, such as those of a linker, are passed on.
func (r *results) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				r.say("%s\n", strings.TrimSuffix(line, "\n"))
			} else {
				r.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *results) say(format string, args ...any) { _, _ = fmt.Fprintf(r.to, format, args...) }

func (r *results) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
	case "build-fail":
		r.say("%s", strings.Join(r.builds[e.ImportPath], ""))
	case "output":
		r.output[key] = append(r.output[key], e.Output)
		r.race(e)
		if r.verbose {
			r.say("%s", e.Output)
		}
	case "pass", "fail", "skip":
		r.end(e, r.output[key])
		delete(r.output, key)
	}
}

func (r *results) end(e event, output []string) {
	pkg := short(e.Package)
	switch {
	case e.Test == "" && e.Action == "skip": // it has no tests
	case e.Test == "":
		if e.Action == "fail" {
			r.failures = append(r.failures, strings.Join(append([]string{pkg}, r.races[e.Package]...), "\n      "))
			r.say("%s", strings.Join(output, ""))
			r.unended(e.Package)
		}
		r.say("%-6s %-32s %6.1f s\n", map[string]string{"pass": "ok", "fail": "FAILED"}[e.Action], pkg, e.Elapsed)
	case e.Action == "skip":
		r.skipped = append(r.skipped, skip{pkg, e.Test, reason(output)})
	case e.Action == "fail":
		r.failures = append(r.failures, strings.Join(append([]string{pkg + " " + e.Test}, said(output)...), "\n      "))
		r.say("%s", strings.Join(output, ""))
	default:
		r.tests++
		if e.Elapsed >= slow && !strings.Contains(e.Test, "/") {
			r.say("passed %-32s %6.1f s  %s\n", pkg, e.Elapsed, e.Test)
		}
	}
}

// slow is how many seconds a test takes whose end is told: it shows how far a long run is, and what to make faster first.
const slow = 10

// unended prints what tests of a package had said when it came to its end before theirs, as with a panic.
func (r *results) unended(pkg string) {
	for _, key := range slices.Sorted(maps.Keys(r.output)) {
		if strings.HasPrefix(key, pkg+" ") && key != pkg+" " {
			r.say("%s", strings.Join(r.output[key], ""))
			delete(r.output, key)
		}
	}
}

// module is the part of an import path that says nothing new.
const module = "github.com/singletonjob/operator/"

func short(pkg string) string { return strings.TrimPrefix(pkg, module) }

// reason is what a test said when it skipped itself: its last line with a place in the code, without that.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		if text, ok := placed(line); ok {
			return text
		}
	}
	return "without a reason"
}

// placed is what a line with a place in the code says.
func placed(line string) (text string, ok bool) {
	place, text, found := strings.Cut(strings.TrimSpace(line), ": ")
	file, _, at := strings.Cut(place, ":")
	return text, found && at && strings.HasSuffix(file, ".go")
}

// said is what a failed test said first, to be repeated at the end: what follows, such as the logs of a cluster, may be so much that
// whoever keeps the end of it alone has nothing of why.
func said(output []string) []string {
	const lines, width = 6, 300
	var first []string
	for _, line := range output {
		if _, ok := placed(line); ok && len(first) < lines {
			line = strings.TrimSpace(line)
			first = append(first, line[:min(len(line), width)])
		}
	}
	return first
}

// race keeps the first stacks of a package's first data race, to be repeated at the end. They are in the output of the test that
// ran last when the detector wrote, which may be one that passes.
func (r *results) race(e event) {
	const begin, end, lines, width = "WARNING: DATA RACE", "====", 24, 300
	stacks := r.races[e.Package]
	begun := len(stacks) > 0
	switch {
	case begun && (len(stacks) == lines || strings.HasPrefix(stacks[len(stacks)-1], end)):
	case begun || strings.HasPrefix(e.Output, begin):
		line := strings.TrimRight(e.Output, "\n")
		r.races[e.Package] = append(stacks, line[:min(len(line), width)])
	}
}

// summary prints skips and failures. Its error is what has to be done about them.
func (r *results) summary(expected []skip, strict bool) error {
	var unexpected []string
	r.say("\n%d tests passed, %d were skipped\n", r.tests, len(r.skipped))
	for _, s := range r.skipped {
		if !slices.ContainsFunc(expected, s.is) {
			unexpected = append(unexpected, s.pkg+" "+s.test)
		}
	}
	r.tellSkips()
	switch {
	case len(r.failures) > 0:
		return fmt.Errorf("failed:\n  %s", strings.Join(r.failures, "\n  "))
	case r.tests == 0:
		return errors.New("no test ran")
	case strict && len(unexpected) > 0:
		return fmt.Errorf("skipped, and no line of the file of expected skips says why that is right:\n  %s", strings.Join(unexpected, "\n  "))
	}
	return nil
}

// tellSkips prints the tests of a package that were skipped for one reason as one.
func (r *results) tellSkips() {
	type group struct{ pkg, reason string }
	var groups []group
	tests := map[group][]string{}
	for _, s := range r.skipped {
		g := group{s.pkg, s.reason}
		if tests[g] == nil {
			groups = append(groups, g)
		}
		tests[g] = append(tests[g], s.test)
	}
	for _, g := range groups {
		names := tests[g][0]
		if more := len(tests[g]) - 1; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		r.say("skipped  %s %s: %s\n", g.pkg, names, g.reason)
	}
}

// is reports whether an expected skip is this one. Of one that is expected anywhere, it is the reason that must be the same.
func (s skip) is(expected skip) bool {
	if expected.pkg == "*" {
		return strings.HasPrefix(s.reason, expected.reason)
	}
	match, err := path.Match(expected.test, s.test)
	return expected.pkg == s.pkg && (expected.test == "*" || err == nil && match)
}

// parseSkips reads expected skips: a package, a test's name (with * and ? in it) and a reason a line. # begins a comment.
func parseSkips(text string) ([]skip, error) {
	var all []skip
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return nil, fmt.Errorf("line %d: %q: wants a package, a test and the reason why it may be skipped", i+1, line)
		}
		if _, err := path.Match(fields[1], ""); err != nil {
			return nil, fmt.Errorf("line %d: %q is no pattern of a test's name: %w", i+1, fields[1], err)
		}
		all = append(all, skip{fields[0], fields[1], strings.Join(fields[2:], " ")})
	}
	return all, nil
}
