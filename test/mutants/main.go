//go:build linux

// Command mutants puts small faults into a copy of the tree, one at a time, and runs the tests that have to catch each. It
// prints the survivors: faults that a developer could make and no test would report.
//
// The faults are in mutants.txt. One that changes nothing a user could notice says so there, with its reason; all others
// must be caught. The exit status is 0 only if they were.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/singletonjob/operator/test/tier"
)

//go:embed mutants.txt
var list string

func main() {
	pattern := flag.String("run", "", "only mutants whose name or file matches this regular expression")
	part := flag.String("part", "1/1", "of those the first, second, … of so many parts, such as 2/4")
	show := flag.Bool("v", false, "print what the tests said of each mutant")
	limit := flag.Duration("timeout", 10*time.Minute, "the longest that one mutant's tests may take; longer counts as caught")
	workers := flag.Int("p", 1, "how many mutants are tried at once")
	alone := flag.String("alone", "", "packages, such as ./charts, whose tests have the machine to themselves whatever -p says")
	flag.Parse()
	b := &bench{show: *show, limit: *limit, controls: map[string]*control{}}
	if err := run(*pattern, *part, b, max(*workers, 1), strings.Fields(*alone)); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(pattern, part string, b *bench, workers int, alone []string) error {
	chosen, err := choose(pattern)
	if err != nil {
		return err
	}
	if chosen, err = partOf(chosen, part); err != nil {
		return err
	}
	beside, after := divide(chosen, alone)
	began, all := time.Now(), tally{counts: map[verdict]int{}}
	for _, part := range []struct {
		workers int
		mutants []mutant
	}{{workers, beside}, {1, after}} {
		if err := b.tryAll(part.mutants, part.workers, &all); err != nil {
			return err
		}
	}
	fmt.Printf("\n%d mutants in %s: %d caught, %d survived (%d of them harmless), %d do not compile, %d are not judged\n", len(chosen),
		time.Since(began).Round(time.Second), all.counts[caught], all.counts[survived]+all.counts[harmless], all.counts[harmless],
		all.counts[broken], all.counts[unjudged])
	if len(all.wrong) > 0 {
		return errors.New("\n" + strings.Join(all.wrong, "\n"))
	}
	return nil
}

// partOf is a part of some mutants, by a text such as "2/4": all parts together are all of them.
func partOf(mutants []mutant, text string) ([]mutant, error) {
	var k, n int
	if _, err := fmt.Sscanf(text, "%d/%d", &k, &n); err != nil || k < 1 || k > n {
		return nil, fmt.Errorf("-part %q: give it as 2/4, the second of four", text)
	}
	var chosen []mutant
	for i := k - 1; i < len(mutants); i += n {
		chosen = append(chosen, mutants[i])
	}
	return chosen, nil
}

// divide tells mutants whose tests bear others beside them from those whose tests start servers or measure time: they are in one of
// these packages, or in another module.
func divide(mutants []mutant, packages []string) (beside, alone []mutant) {
	for _, m := range mutants {
		if slices.ContainsFunc(m.tests, func(arg string) bool {
			return strings.HasPrefix(arg, "-C=") || slices.Contains(packages, strings.TrimRight(arg, "/"))
		}) {
			alone = append(alone, m)
		} else {
			beside = append(beside, m)
		}
	}
	return beside, alone
}

// tally is what became of all mutants. Its lock also keeps lines whole.
type tally struct {
	sync.Mutex
	counts map[verdict]int
	wrong  []string
}

func (t *tally) add(m *mutant, v verdict, took time.Duration, complaint string) {
	t.Lock()
	defer t.Unlock()
	fmt.Printf("%-9s %5.1f s  %s\n", v, took.Seconds(), m.name)
	t.counts[v]++
	if complaint != "" {
		t.wrong = append(t.wrong, complaint)
	}
}

// tryAll tries mutants, so many at once, each worker in a copy of its own.
func (b *bench) tryAll(mutants []mutant, workers int, all *tally) error {
	queue := make(chan *mutant, len(mutants))
	for i := range mutants {
		queue <- &mutants[i]
	}
	close(queue)
	var group errgroup.Group
	for range min(workers, len(mutants)) {
		group.Go(func() error { return b.work(queue, all) })
	}
	return group.Wait()
}

func (b *bench) work(queue <-chan *mutant, all *tally) error {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copyTree(dir); err != nil {
		return err
	}
	for m := range queue {
		began := time.Now()
		if err := b.control(dir, m.tests); err != nil {
			all.add(m, unjudged, 0, fmt.Sprintf("%s is not judged: %v", m.name, err))
			continue
		}
		v, err := b.try(dir, m)
		if err != nil {
			return fmt.Errorf("mutant %s: %w", m.name, err)
		}
		all.add(m, v, time.Since(began), v.complaint(m))
	}
	return nil
}

// verdict is what became of a mutant.
type verdict string

const (
	caught   verdict = "caught"
	survived verdict = "SURVIVED"
	harmless verdict = "harmless" // survived, and the list says why it may
	broken   verdict = "BROKEN"   // it does not stand in the tree or does not compile, so it shows nothing
	unjudged verdict = "UNJUDGED" // its tests fail without it too
)

// complaint is what is wrong with a verdict.
func (v verdict) complaint(m *mutant) string {
	switch {
	case v == survived:
		return fmt.Sprintf("%s survived go test %s: %s (%s)", m.name, strings.Join(m.tests, " "), m.why, m.file)
	case v == broken:
		return m.name + " does not stand in the tree or does not compile: mend it in the list"
	case v == caught && m.harmless != "":
		return fmt.Sprintf("%s was caught, and the list calls it harmless: %s", m.name, m.harmless)
	}
	return ""
}

func choose(pattern string) ([]mutant, error) {
	all, err := parse(list)
	if err != nil {
		return nil, fmt.Errorf("mutants.txt: %w", err)
	}
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-run %q: %w", pattern, err)
	}
	chosen := slices.DeleteFunc(all, func(m mutant) bool { return !wanted.MatchString(m.name) && !wanted.MatchString(m.file) })
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no mutant matches -run %q", pattern)
	}
	return chosen, nil
}

// copyTree copies what git tracks, as it is in the working tree: a fault must never stand in the tree that somebody edits.
func copyTree(dir string) error {
	out, err := exec.CommandContext(context.Background(), "git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("list the files of this checkout: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		content, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, and not committed yet
		} else if err != nil {
			return err
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, content, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// bench is how mutants are tried.
type bench struct {
	show  bool
	limit time.Duration

	lock     sync.Mutex
	controls map[string]*control
}

// control is what is wrong with a set of tests that nothing was done to, nil if nothing is.
type control struct {
	sync.Once
	wrong error
}

// control runs a set of tests without a fault, once for all their mutants: what fails by itself catches nothing, and nor does what is
// not there.
func (b *bench) control(dir string, tests []string) error {
	key := strings.Join(tests, " ")
	b.lock.Lock()
	c, known := b.controls[key]
	if !known {
		c = &control{}
		b.controls[key] = c
	}
	b.lock.Unlock()
	c.Do(func() {
		began, result := time.Now(), "control"
		switch v, out := b.test(dir, tests); {
		case v != survived:
			c.wrong, result = fmt.Errorf("go test %s fails without any mutant:\n%s", key, out), string(unjudged)
		case strings.Contains(out, "no tests to run"), strings.Contains(out, "no test files"):
			c.wrong, result = fmt.Errorf("go test %s runs no test", key), string(unjudged)
		}
		fmt.Printf("%-9s %5.1f s  go test %s\n", result, time.Since(began).Seconds(), key)
	})
	return c.wrong
}

// try runs a mutant's tests with its fault in a copy, and takes it out again.
func (b *bench) try(dir string, m *mutant) (v verdict, err error) {
	name := filepath.Join(dir, filepath.FromSlash(m.file))
	content, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	mutated, err := m.apply(string(content))
	if err != nil {
		fmt.Println(err)
		return broken, nil
	}
	if err := os.WriteFile(name, []byte(mutated), info.Mode().Perm()); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(name, content, info.Mode().Perm())) }()
	v, out := b.test(dir, m.tests)
	if b.show || v == broken {
		fmt.Println(out)
	}
	if v == survived && m.harmless != "" {
		v = harmless
	}
	return v, nil
}

func (b *bench) test(dir string, tests []string) (verdict, string) {
	ctx, cancel := context.WithTimeout(context.Background(), b.limit+time.Minute)
	defer cancel()
	args := []string{"test"}
	if strings.HasPrefix(tests[0], "-C=") { // of another module, and the first flag or none
		args, tests = append(args, tests[0]), tests[1:]
	}
	args = append(args, "-count=1", "-failfast", "-timeout="+b.limit.String())
	command := exec.CommandContext(ctx, "go", append(args, tests...)...)
	command.Dir, command.Env = dir, append(os.Environ(), tier.Variable+"=1") // some are seen by the deep tier alone
	// The tests' own children go with them.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Minute
	out, err := command.CombinedOutput()
	if command.Process != nil { // what a test binary leaves behind that its -timeout ended
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
	switch text := string(out); {
	case err == nil:
		return survived, text
	case strings.Contains(text, "[build failed]"), strings.Contains(text, "[setup failed]"):
		return broken, text
	default:
		return caught, text
	}
}
