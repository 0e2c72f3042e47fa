package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/singletonjob/operator/docs/commands"
)

// pagesForUsers are the README, all documents for users, and the READMEs of the samples.
func pagesForUsers(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for i := range pages {
		pages[i] = "docs/" + pages[i]
	}
	samples, err := filepath.Glob(filepath.Join(top, "config/samples/*/README.md"))
	if err != nil || len(samples) < 11 {
		t.Fatalf("%d samples, %v", len(samples), err)
	}
	for _, sample := range samples {
		page, err := filepath.Rel(top, sample)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, page)
	}
	return append(pages, "README.md", "SECURITY.md")
}

// shownCommands are those of pagesForUsers.
func shownCommands(t *testing.T) (all []commands.Command) {
	t.Helper()
	for _, page := range pagesForUsers(t) {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, commands.Of(page, string(text))...)
	}
	return all
}

// TestEveryCommandIsRun: each command that a document shows has a test that runs it, or a reason why none does. No row is left of a command
// that has gone. The test of a row exists, and knows the page.
func TestEveryCommandIsRun(t *testing.T) {
	all := shownCommands(t)
	for _, c := range all {
		n := 0
		for _, r := range commands.Rows {
			if r.Is(c) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s shows a command that has %d rows in docs/commands/rows.go, want 1: %s", c.Page, n, c.Text)
		}
	}
	ran := 0
	for _, r := range commands.Rows {
		if !slices.ContainsFunc(all, r.Is) {
			t.Errorf("%s shows no command that begins with %q", r.Page, r.Begin)
		}
		if (r.By == "") == (r.Why == "") {
			t.Errorf("%s, %q: either a test runs it, or there is a reason", r.Page, r.Begin)
		}
		if r.By == "" {
			continue
		}
		ran++
		dir, test, _ := strings.Cut(r.By, " ")
		text, names := testsOf(dir)
		if !slices.Contains(names, test) {
			t.Errorf("%s, %q: there is no test %s in %s", r.Page, r.Begin, test, dir)
		}
		if !strings.Contains(text, filepath.Base(r.Page)) && !types(text, r.By) {
			t.Errorf("%s, %q: the tests of %s do not know this page", r.Page, r.Begin, dir)
		}
	}
	t.Logf("%d commands, %d rows, %d of them with a test", len(all), len(commands.Rows), ran)
	if len(all) < 80 {
		t.Errorf("only %d commands are found", len(all))
	}
}

// TestEveryOutputIsCompared: the test that runs a command compares the output that the page shows with what the command prints. Rows whose
// commands are not run show none.
func TestEveryOutputIsCompared(t *testing.T) {
	compared := 0
	for _, c := range shownCommands(t) {
		i := slices.IndexFunc(commands.Rows, func(r commands.Row) bool { return r.Is(c) })
		if strings.TrimSpace(c.Output) == "" || i < 0 {
			continue
		}
		r := commands.Rows[i]
		dir, _, _ := strings.Cut(r.By, " ")
		if text, _ := testsOf(dir); r.By == "" || !types(text, r.By) {
			t.Errorf("%s shows an output below $ %s, and no Typist compares it", c.Page, c.Text)
		}
		compared++
	}
	t.Logf("%d outputs are compared", compared)
	if compared < 40 {
		t.Errorf("only %d outputs are found", compared)
	}
}

// TestProgressIsInTheSource: a Typist does not compare lines of progress, because they depend on when a command looks. So the words of those
// that a page shows must be in the source.
func TestProgressIsInTheSource(t *testing.T) {
	source, lines := "", 0
	for _, pattern := range []string{"../internal/*/*.go", "../api/v1alpha1/*.go"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && !strings.HasSuffix(file, "_test.go") {
				source += string(text)
			}
		}
	}
	names := regexp.MustCompile(`[;:] |\S+-\d\b|\b(?:app|ledger|poller)\b`)
	for _, c := range shownCommands(t) {
		for line := range strings.Lines(c.Output) {
			if !strings.HasPrefix(line, "waiting") {
				continue
			}
			lines++
			for _, part := range names.Split(strings.TrimSpace(line), -1) {
				if part = strings.TrimSpace(part); strings.Contains(part, " ") && !strings.Contains(source, part) {
					t.Errorf("%s shows %q, and no source says %q", c.Page, line, part)
				}
			}
		}
	}
	if lines < 10 {
		t.Errorf("only %d lines of progress are found", lines)
	}
}

// types reports whether tests have a Typist that runs the rows of one of them.
func types(text, by string) bool {
	_, test, _ := strings.Cut(by, " ")
	return regexp.MustCompile(`commands\.Typist\{[^}]*Test: +"`+regexp.QuoteMeta(by)+`"`).MatchString(text) ||
		strings.Contains(text, `.typist("`+by+`")`) && strings.Contains(text, "func "+test+"(")
}

// TestEveryRowIsTyped: the test of a row runs the text of the page. A Typist does that; the others take it from the page in their own way.
func TestEveryRowIsTyped(t *testing.T) {
	own := map[string]string{
		"build/release TestReleaseTwice":   "commands.Of(",
		"build/release TestSeal":           "commands.Of(",
		"cmd/agent TestDocumentedExamples": "docs/tenure.md",
	}
	for _, r := range commands.Rows {
		dir, _, _ := strings.Cut(r.By, " ")
		if text, _ := testsOf(dir); r.By != "" && !types(text, r.By) && (own[r.By] == "" || !strings.Contains(text, own[r.By])) {
			t.Errorf("%s, %q: %s does not run the text of the page", r.Page, r.Begin, r.By)
		}
	}
}

// TestEveryQuotation: a block of a page that is a message or a part of a log has a test that compares it with what a program says.
func TestEveryQuotation(t *testing.T) {
	found := map[commands.Quote]bool{}
	for _, page := range pagesForUsers(t) {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, quote := range commands.Quotes(string(text)) {
			i := slices.IndexFunc(commands.QuoteRows, func(r commands.Quote) bool { return r.Page == page && strings.HasPrefix(quote, r.Begin) })
			if i < 0 {
				t.Errorf("%s has a block without a language that has no row in docs/commands/rows.go:\n%s", page, quote)
				continue
			}
			found[commands.QuoteRows[i]] = true
		}
	}
	for _, r := range commands.QuoteRows {
		if !found[r] || (r.By == "") == (r.Why == "") {
			t.Errorf("%s, %q: no block begins with it, or it has neither a test nor a reason", r.Page, r.Begin)
		}
		if dir, test, ok := strings.Cut(r.By, " "); ok {
			text, names := testsOf(dir)
			if _, body, _ := strings.Cut(text, "func "+test+"("); !slices.Contains(names, test) || !strings.Contains(body, "commands.Quoted(") || !strings.Contains(body, r.Page) {
				t.Errorf("%s, %q: %s does not compare it", r.Page, r.Begin, r.By)
			}
		}
	}
}

// e2eArgs chooses tests of the cluster.
var e2eArgs = regexp.MustCompile(`^make e2e E2E_ARGS=-run=(\w+)$`)

// choosesNothing reports whether what a command of go or make names does not exist.
func choosesNothing(t *testing.T, line string) bool {
	t.Helper()
	words, chosen := strings.Fields(line), e2eArgs.FindStringSubmatch(line)
	switch {
	case chosen != nil:
		_, names := testsOf("test/e2e")
		return !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, chosen[1]) })
	case words[0] == "make":
		return !target(t, words[1])
	case tested.MatchString(line):
		return runsNothing(t, line)
	}
	return slices.ContainsFunc(words, func(word string) bool {
		return strings.HasPrefix(word, "./") && !exists(strings.TrimSuffix(word, "/..."))
	})
}

// TestInlineCommands: what sentences and tables tell a reader to run with go or make exists, and chooses a test.
func TestInlineCommands(t *testing.T) {
	pages, found := []string{"README.md", "SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md"}, 0
	for _, pattern := range []string{"*.md", "*/*.md"} {
		more, _ := filepath.Glob(pattern)
		for _, page := range more {
			pages = append(pages, "docs/"+page)
		}
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range commands.Inline(string(text)) {
			if strings.HasPrefix(line, "kubectl ") || strings.HasPrefix(line, "helm ") {
				continue // charts TestDocumentedCommands
			}
			if found++; choosesNothing(t, line) {
				t.Errorf("%s: `%s` runs nothing", page, line)
			}
		}
	}
	if found < 200 {
		t.Errorf("only %d commands are found", found)
	}
}

func TestCommandsOfABlock(t *testing.T) {
	const document = "a\n\n```\n$ one --a \\\n  --b\nprinted\n$ two\n```\n```yaml\nkubectl: no\n```\n```sh\nif x; then\ny\nfi\n```\n\n    kubectl a   # b\n    helm c\n\ntext\n\n" +
		"1. item\n\n   ```\n   kubectl get x | while read -r y; do\n     z\n   done\n   kubectl b\n   ```\n2. more\n\n```\nonly printed\nkubectlish\n```\n"
	var got []string
	for _, c := range commands.Of("p", document) {
		got = append(got, c.Text+" → "+c.Output)
	}
	want := []string{
		"one --a \\\n  --b → printed\n", "two → ", "if x; then\ny\nfi → ", "kubectl a   # b → ", "helm c → ",
		"kubectl get x | while read -r y; do\n  z\ndone → ", "kubectl b → ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
