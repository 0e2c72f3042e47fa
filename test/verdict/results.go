package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// safetyWord is what every judge of exclusivity, tokens and stale writes says of a violation.
const safetyWord = "SAFETY"

// modulePath is left out of the names that people read.
const modulePath = "github.com/singletonjob/operator/"

// event is a line of `go test -json`, as `go doc test2json` describes it.
type event struct {
	Action, Package, Test, Output string
}

// results are what tests became, in all their runs.
type results struct {
	tests map[name]*runs
}

// name is of a test, or of a package where test is empty.
type name struct{ pkg, test string }

func (n name) String() string {
	return strings.TrimSpace(strings.TrimPrefix(n.pkg, modulePath) + " " + n.test)
}

// runs are those of one test. A package counts as failed where no test of it explains that: it did not build, or it died.
type runs struct {
	passed, failed int
	last           string // pass, fail, skip, or run while it runs
	said           []string
	unsafe         []string // what failed runs said of safety
	explained      bool     // of a package: a test of it has failed since the package's last end
}

func (r *results) readFile(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return r.read(f)
}

// read takes events until the end. A line that is not an event is skipped: linkers and vet write such lines.
func (r *results) read(from io.Reader) error {
	in := bufio.NewReader(from)
	for {
		line, err := in.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) == nil && e.Package != "" {
			r.add(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *results) of(n name) *runs {
	if r.tests == nil {
		r.tests = map[name]*runs{}
	}
	if r.tests[n] == nil {
		r.tests[n] = &runs{}
	}
	return r.tests[n]
}

func (r *results) add(e event) {
	n := name{e.Package, e.Test}
	t := r.of(n)
	switch e.Action {
	case "run":
		t.last = e.Action
	case "output":
		t.said = append(t.said, e.Output)
	case "pass", "skip":
		t.end(e.Action)
		t.passed++
	case "fail":
		r.fail(n, t)
	}
}

func (r *results) fail(n name, t *runs) {
	for _, line := range t.said {
		if strings.Contains(line, safetyWord) {
			t.unsafe = append(t.unsafe, strings.TrimSpace(line))
		}
	}
	if n.test != "" {
		r.of(name{pkg: n.pkg}).explained = true
	} else if t.explained {
		t.explained = false
		t.end("pass") // its tests tell
		return
	}
	t.end("fail")
	t.failed++
}

func (t *runs) end(as string) {
	t.last = as
	if as != "skip" {
		t.said = nil
	}
}

// summary is what the results come to, each list in order.
type summary struct {
	passed                                  int
	failed, flaky, unsafe, skipped, unended []string
}

func (r *results) sum() summary {
	var s summary
	for _, n := range slices.SortedFunc(maps.Keys(r.tests), func(a, b name) int { return strings.Compare(a.String(), b.String()) }) {
		t := r.tests[n]
		for _, line := range t.unsafe {
			s.unsafe = append(s.unsafe, n.String()+": "+line)
		}
		switch {
		case t.last == "run":
			s.unended = append(s.unended, n.String())
		case t.last == "fail", n.test == "" && t.failed > 0: // a rerun of some tests says nothing of what ended a package
			s.failed = append(s.failed, n.String())
		case t.failed > 0:
			s.flaky = append(s.flaky, n.String())
		case n.test == "":
		case t.last == "skip":
			s.skipped = append(s.skipped, n.String()+": "+reason(t.said))
		case t.passed > 0:
			s.passed++
		}
	}
	s.flaky = withoutParents(s.flaky)
	return s
}

// withoutParents drops a test of which a subtest is in the list: it failed since that did.
func withoutParents(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(other, n+"/") })
	})
}

// reason is what a skipped test said, without the file and line.
func reason(said []string) string {
	for _, line := range slices.Backward(said) {
		line = strings.TrimSpace(line)
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			_, text, _ = strings.Cut(text, ": ")
			return text
		}
	}
	return "no reason given"
}

// tell prints the summary and reports whether it is red.
func (s summary) tell(to io.Writer, mayFlake int, quiet bool) (red bool) {
	say := func(what string, names []string) {
		for _, n := range names {
			_, _ = fmt.Fprintf(to, "%-8s %s\n", what, n)
		}
	}
	if !quiet {
		say("skipped", s.skipped)
	}
	say("flaky", s.flaky)
	say("unended", s.unended)
	say("FAILED", s.failed)
	say("UNSAFE", s.unsafe)
	if len(s.flaky) > mayFlake {
		_, _ = fmt.Fprintf(to, "%d flaky tests, at most %d are forgiven\n", len(s.flaky), mayFlake)
	}
	_, _ = fmt.Fprintf(to, "%d tests passed, %d flaky, %d failed, %d skipped\n", s.passed, len(s.flaky), len(s.failed)+len(s.unended), len(s.skipped))
	return len(s.failed)+len(s.unended)+len(s.unsafe) > 0 || len(s.flaky) > mayFlake || s.passed == 0
}

func lines(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return strings.Join(names, "\n") + "\n"
}
