package commands

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update-docs", false, "write what the commands print into the documents")

// A Typist runs the commands of the documents that are one test's. What they print must be what the documents show.
type Typist struct {
	testing.TB
	// Test is the By of its rows.
	Test string
	// Top is the path of the top of the checkout.
	Top string
	// Run runs a command, and returns what its reader sees.
	Run func(command string) string
	// Names are pairs: a name in the commands of the documents, and what the test types in its place.
	Names []string
	// Shows are pairs: what the commands print, and what the documents show in its place.
	Shows []string
	// Exactly: nothing in what the commands print varies.
	Exactly bool
	typed   map[Row]bool
}

// Page runs those commands of a page that are the test's, in their order. If beginnings are given, it runs the commands that begin so.
func (t *Typist) Page(page string, beginnings ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(t.Top, page))
	if err != nil {
		t.Fatal(err)
	}
	typed := 0
	for _, c := range Of(page, string(text)) {
		i := slices.IndexFunc(Rows, func(r Row) bool { return r.By == t.Test && r.Is(c) })
		if i < 0 || len(beginnings) > 0 && !slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(c.Text+"\n", b) }) {
			continue
		}
		if t.typed == nil {
			t.typed = map[Row]bool{}
		}
		t.typed[Rows[i]] = true
		typed++
		t.compare(c, t.Run(strings.NewReplacer(t.Names...).Replace(c.Text)))
	}
	if typed == 0 {
		t.Errorf("%s shows no command of this test that begins with one of %q", page, beginnings)
	}
}

func (t *Typist) compare(c Command, printed string) {
	t.Helper()
	if strings.TrimSpace(c.Output) == "" {
		return
	}
	printed = strings.NewReplacer(t.Shows...).Replace(printed)
	err := Same(c.Output, printed)
	switch {
	case t.Exactly && c.Output == printed, !t.Exactly && err == nil:
	case *update:
		t.write(c, printed)
	default:
		t.Errorf("%s, $ %s\n%v\nThe page shows\n%s\nand the command prints\n%s\n(go test -args -update-docs writes it)", c.Page, c.Text, err, c.Output, printed)
	}
}

// write writes what a command prints into its page.
func (t *Typist) write(c Command, printed string) {
	t.Helper()
	path := filepath.Join(t.Top, c.Page)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := "$ " + c.Text + "\n" + c.Output
	if strings.Count(string(text), old) != 1 {
		t.Errorf("%s: write by hand below $ %s\n%s", c.Page, c.Text, printed)
		return
	}
	written := strings.Replace(string(text), old, "$ "+c.Text+"\n"+printed, 1)
	if err := os.WriteFile(path, []byte(written), 0o644); err != nil {
		t.Fatal(err)
	}
}

// End fails the test if it has not run one of its rows.
func (t *Typist) End() {
	t.Helper()
	for _, r := range Rows {
		if r.By == t.Test && !t.typed[r] {
			t.Errorf("%s: the test does not run what begins with %q", r.Page, r.Begin)
		}
	}
}
