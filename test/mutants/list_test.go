//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/singletonjob/operator/test/tier"
)

const example = `# for people
mutant: off-by-one
why: the last one is lost
file: a/b.go
- for i := range n {
-	do(i)
+ for i := range n-1 {
+	do(i)
`

func TestApply(t *testing.T) {
	const once = "{\n\tfor i := range n {\n\t\tdo(i)\n\t}\n}"
	for name, test := range map[string]struct {
		content, want, err string
	}{
		"stands once":  {content: once, want: "{\n for i := range n-1 {\n\tdo(i)\n\t}\n}"},
		"stands twice": {content: once + "\n" + once, err: "stand twice"},
		"has gone":     {content: "{}", err: "do not stand"},
		"is cut short": {content: "\tfor i := range n {", err: "do not stand"},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := parse(example)
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			got, err := all[0].apply(test.content)
			if got != test.want || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q, %v; want %q, %q", got, err, test.want, test.err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, list := range map[string]string{
		"nothing taken out": "mutant: m\nwhy: w\nfile: f\n+x",
		"no file":           "mutant: m\nwhy: w\n-x",
		"no reason":         "mutant: m\nfile: f\n-x",
		"before the first":  "why: w",
		"a word misspelt":   "mutant: m\nwhat: w",
		"twice":             example + example,
	} {
		if all, err := parse(list); err == nil {
			t.Errorf("%s: %v and no error", name, all)
		}
	}
}

func TestDivide(t *testing.T) {
	var mutants []mutant
	for _, tests := range []string{"./pure -run=TestA", "./served -run=TestB", "./pure ./served/", "-C=other .", "./served/below"} {
		mutants = append(mutants, mutant{name: tests, tests: strings.Fields(tests)})
	}
	beside, alone := divide(mutants, []string{"./served"})
	if got := names(beside); !slices.Equal(got, []string{"./pure -run=TestA", "./served/below"}) {
		t.Errorf("beside others: %q", got)
	}
	if got := names(alone); !slices.Equal(got, []string{"./served -run=TestB", "./pure ./served/", "-C=other ."}) {
		t.Errorf("alone: %q", got)
	}
}

func TestPartsAreComplete(t *testing.T) {
	all := make([]mutant, 10)
	for i := range all {
		all[i].name = strconv.Itoa(i)
	}
	var parts []string
	for k := 1; k <= 4; k++ {
		part, err := partOf(all, strconv.Itoa(k)+"/4")
		if err != nil || len(part) > 3 {
			t.Errorf("part %d: %q, %v", k, names(part), err)
		}
		parts = append(parts, names(part)...)
	}
	slices.Sort(parts)
	if !slices.Equal(parts, names(all)) {
		t.Errorf("all parts are %q", parts)
	}
	for _, wrong := range []string{"", "4", "0/4", "5/4", "a/b", "-1/4"} {
		if part, err := partOf(all, wrong); err == nil {
			t.Errorf("%q is %q", wrong, names(part))
		}
	}
}

func names(mutants []mutant) []string {
	var names []string
	for _, m := range mutants {
		names = append(names, m.name)
	}
	return names
}

// The list itself stands in the tree as it is now. In the gate two good changes that meet would be red, where one moves a line that the
// other's mutant takes out.
func TestListMatchesTheTree(t *testing.T) {
	tier.Deep(t, "compares lines that other changes move")
	all, err := parse(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		content, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
			continue
		}
		if _, err := m.apply(string(content)); err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
		}
	}
}
