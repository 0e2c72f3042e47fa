// Package docs holds the documents to the code.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const top = ".."

// words are those of a text.
type words map[string]bool

// sources are the words of the files that names are looked for in, by path from the top.
func sources(t *testing.T) map[string]words {
	t.Helper()
	files := map[string]words{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (slices.Contains([]string{"dist", "node_modules"}, d.Name()) || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		ext := filepath.Ext(path)
		if !d.Type().IsRegular() || ext != ".go" && ext != ".yaml" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found := words{}
		for word := range strings.FieldsFuncSeq(string(text), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
			found[word] = true
		}
		files[strings.TrimPrefix(path, top+"/")] = found
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// declared are the names that a Go file declares: functions, methods, types, fields, variables and constants.
func declared(t *testing.T, path string) words {
	t.Helper()
	names := words{}
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top, path), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return names
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names[n.Name.Name] = true
			return false
		case *ast.TypeSpec:
			names[n.Name.Name] = true
		case *ast.Field:
			for _, name := range n.Names {
				names[name.Name] = true
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				names[name.Name] = true
			}
		}
		return true
	})
	return names
}

var (
	fence   = regexp.MustCompile("(?s)(?:^|\n)```.*?\n```")
	quoted  = regexp.MustCompile("`([^`\n]+)`")
	file    = regexp.MustCompile(`^\.?[A-Za-z0-9_-]+(/[A-Za-z0-9_.-]+)+$|^[A-Za-z.-]+\.(go|md|yaml|yml|txt|json)$`)
	name    = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)
	command = regexp.MustCompile(`^go (?:test|run) .*?(\./[a-z0-9/]+)|^make ([a-z0-9-]+)`)
	link    = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	// listed is a file and the names that it declares.
	listed = regexp.MustCompile("`([^`\n]+\\.go)`: ((?:`[A-Za-z0-9_]+`(?:, )?)+)")
)

// anywhere reports whether some file has a word; one with a dot in it has both its parts in one package or file.
func anywhere(files map[string]words, word string) bool {
	scope, member, dotted := strings.Cut(word, ".")
	for path, found := range files {
		switch {
		case !dotted && found[word]:
			return true
		case dotted && found[member] && (filepath.Base(filepath.Dir(path)) == scope || found[scope]):
			return true
		}
	}
	return false
}

// missing are the things that a document names and that are not there.
func missing(t *testing.T, files map[string]words, document string) (names []string) {
	t.Helper()
	document = fence.ReplaceAllString(document, "")
	for _, match := range quoted.FindAllStringSubmatch(document, -1) {
		if !isThere(t, files, match[1]) {
			names = append(names, match[1])
		}
	}
	for _, match := range listed.FindAllStringSubmatch(document, -1) {
		there := declared(t, match[1])
		for _, word := range quoted.FindAllStringSubmatch(match[2], -1) {
			if !there[word[1]] {
				names = append(names, match[1]+": "+word[1])
			}
		}
	}
	return names
}

// isThere reports whether a word is no command, file or name, or one that there is.
func isThere(t *testing.T, files map[string]words, word string) bool {
	t.Helper()
	switch {
	case command.MatchString(word):
		parts := command.FindStringSubmatch(word)
		return (parts[1] == "" || exists(strings.TrimSuffix(parts[1], "/"))) && (parts[2] == "" || target(t, parts[2]))
	case file.MatchString(word) && !strings.HasPrefix(word, "singletonjob.io/"):
		return exists(word) || slices.ContainsFunc(slices.Collect(maps.Keys(files)), func(path string) bool { return filepath.Base(path) == word })
	case name.MatchString(word):
		return anywhere(files, word)
	}
	return true
}

// target reports whether make has one of a name.
func target(t *testing.T, name string) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), "\n"+name+":")
}

func exists(path string) bool {
	_, err := os.Stat(filepath.Join(top, path))
	return err == nil
}

// TestArchitectureNamesExist fails when a file or a name has moved that ARCHITECTURE.md sends its readers to.
func TestArchitectureNamesExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	files := sources(t)
	for _, name := range missing(t, files, string(text)) {
		t.Errorf("ARCHITECTURE.md names `%s`, which is not there: rename or remove it", name)
	}
	if n := len(quoted.FindAllString(string(text), -1)); n < 100 {
		t.Errorf("only %d names are found in ARCHITECTURE.md", n)
	}
	const wrong = "`internal/lease/nothing.go` `lease.Nonesuch` `Stepp` `nothing.go` `make nothing` `go test ./internal/nothing` `internal/lease/decide.go`: `begin`, `NextToken`"
	if found := missing(t, files, wrong); len(found) != 7 {
		t.Errorf("of seven names that are nowhere it finds %q", found)
	}
	const right = "`internal/lease` `lease.Step` `State.Wake` `mustStop` `decide.go` `make sim` `go run ./internal/plan/steps -help` `sent ≤ seen` `internal/lease/decide.go`: `begin`"
	if found := missing(t, files, right); len(found) != 0 {
		t.Errorf("of names that are there it misses %q", found)
	}
}

// hasSection reports whether a document has a heading that a link names.
func hasSection(t *testing.T, document, anchor string) bool {
	t.Helper()
	_, ok := sectionOf(read(t, filepath.Join("docs", document)), anchor)
	return ok
}

// TestLinksExist checks links from one document to another file, and to a heading in it. Code has no links.
func TestLinksExist(t *testing.T) {
	documents := []string{
		filepath.Join(top, "README.md"), filepath.Join(top, "ARCHITECTURE.md"), filepath.Join(top, "SECURITY.md"),
		filepath.Join(top, "CONTRIBUTING.md"), filepath.Join(top, "internal/lease/sim/testdata/README.md"),
	}
	for _, pattern := range []string{"*.md", "*/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, more...)
	}
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range link.FindAllStringSubmatch(quoted.ReplaceAllString(fence.ReplaceAllString(string(text), ""), ""), -1) {
			target, anchor := filepath.Join(filepath.Dir(document), match[1]), strings.TrimPrefix(match[2], "#")
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", document, match[1], err)
			} else if anchor != "" && filepath.Ext(target) == ".md" && !hasSection(t, target, anchor) {
				t.Errorf("%s links to %s, which has no heading #%s", document, match[1], anchor)
			}
		}
	}
}
