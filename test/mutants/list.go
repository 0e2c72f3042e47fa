//go:build linux

package main

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// mutant is one small fault that the tests have to catch.
type mutant struct {
	name string
	// why is what the fault would do to a user.
	why string
	// file is what it is in, from the top of the repository.
	file string
	// tests are the arguments of go test that have to fail; the file's own package if the list names none. -C=folder, before
	// all others, is for tests of another module.
	tests []string
	// harmless is why it changes nothing that a user could notice; empty where the tests have to catch it.
	harmless string
	// old are the lines that it replaces, next what it puts in their place.
	old, next []string
}

// parse reads a list of mutants. Each begins with a line "mutant: name"; "why:", "file:", "test:" and "harmless:" follow,
// then the lines that it takes out, behind "-", and those that it puts in, behind "+". Blank lines, and lines behind "#",
// are for people.
func parse(list string) ([]mutant, error) {
	var all []mutant
	for i, line := range strings.Split(list, "\n") {
		key, text := split(line)
		if key == "" {
			continue
		}
		if key == "mutant" {
			all = append(all, mutant{name: text})
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("line %d: %q comes before the first \"mutant:\"", i+1, line)
		}
		if err := all[len(all)-1].set(key, text); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	names := map[string]bool{}
	for i := range all {
		if err := all[i].complete(); err != nil {
			return nil, fmt.Errorf("mutant %q: %w", all[i].name, err)
		}
		if names[all[i].name] {
			return nil, fmt.Errorf("mutant %q: the name stands twice", all[i].name)
		}
		names[all[i].name] = true
	}
	return all, nil
}

var field = regexp.MustCompile(`^([a-z]+): (.*)$`)

// split returns what a line sets, and to what; nothing for a line that is for people.
func split(line string) (key, text string) {
	if parts := field.FindStringSubmatch(line); parts != nil {
		return parts[1], strings.TrimSpace(parts[2])
	}
	if line = strings.TrimRight(line, " \t"); line == "" || line[0] == '#' {
		return "", ""
	}
	return line[:1], line[1:]
}

func (m *mutant) set(key, text string) error {
	switch key {
	case "why":
		m.why = text
	case "file":
		m.file = text
	case "test":
		m.tests = strings.Fields(text)
	case "harmless":
		m.harmless = text
	case "-":
		m.old = append(m.old, text)
	case "+":
		m.next = append(m.next, text)
	default:
		return fmt.Errorf("%q is neither of mutant, why, file, test, harmless, - and +", key)
	}
	return nil
}

func (m *mutant) complete() error {
	switch {
	case m.why == "":
		return fmt.Errorf("it has no \"why:\"")
	case m.file == "":
		return fmt.Errorf("it has no \"file:\"")
	case len(m.old) == 0:
		return fmt.Errorf("it takes out nothing: give the lines that it replaces, each behind \"-\"")
	}
	if len(m.tests) == 0 {
		m.tests = []string{"./" + path.Dir(m.file)}
	}
	return nil
}

// apply returns the file with the fault in it. Lines are compared without their indentation, so that a list outlives a
// reformatted file; they must stand there exactly once.
func (m *mutant) apply(content string) (string, error) {
	lines := strings.Split(content, "\n")
	at := -1
	for i := 0; i+len(m.old) <= len(lines); i++ {
		if !m.standsAt(lines[i:]) {
			continue
		}
		if at >= 0 {
			return "", fmt.Errorf("its lines stand twice in %s, at %d and %d: add a line that tells them apart", m.file, at+1, i+1)
		}
		at = i
	}
	if at < 0 {
		return "", fmt.Errorf("its lines do not stand in %s any more: the code has changed, so must the list", m.file)
	}
	mutated := append([]string{}, lines[:at]...)
	mutated = append(mutated, m.next...)
	return strings.Join(append(mutated, lines[at+len(m.old):]...), "\n"), nil
}

func (m *mutant) standsAt(lines []string) bool {
	for i, old := range m.old {
		if strings.TrimSpace(lines[i]) != strings.TrimSpace(old) {
			return false
		}
	}
	return true
}
