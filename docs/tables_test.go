package docs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/tier"
)

// rows are those of the tables of a document, below their heads, cut into cells. A "\|" in a cell is a "|".
func rows(document string) (all [][]string) {
	const bar = "\x00"
	inTable := false
	for line := range strings.Lines(strings.ReplaceAll(document, `\|`, bar)) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case strings.HasPrefix(line, "|---"):
			inTable = true
		case inTable:
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], bar, "|"))
			}
			all = append(all, cells)
		}
	}
	return all
}

var (
	// shown is a name or a case in a list of tests: `package`, `TestName`, or "a case of it".
	shown    = regexp.MustCompile("`([^`]+)`|\"([^\"]+)\"")
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)\w+$`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	// mutant is one that a test has to see: those that are harmless have a line more.
	mutant = regexp.MustCompile(`(?m)^mutant: (\S+)\nwhy: .*\n(?:file|test):`)
	// tested is a command that runs some tests or benchmarks of a package, those of the deep tier too or not.
	tested = regexp.MustCompile(`^(?:` + tier.Variable + `=1 )?go test (\./\S+?)(?:/\.\.\.)?((?: -(?:run|bench) (?:'[^']*'|\S+))*)$`)
	chosen = regexp.MustCompile(`-(run|bench) (?:'([^']*)'|(\S+))`)
)

// suite is the text of a package's tests, and the names that they have.
type suite struct {
	text  string
	names []string
}

// suites are those that were read.
var suites = map[string]suite{}

// testsOf is the text of a package's tests, and the names that they have.
func testsOf(dir string) (text string, names []string) {
	if s, read := suites[dir]; read {
		return s.text, s.names
	}
	files, _ := filepath.Glob(filepath.Join(top, dir, "*_test.go"))
	for _, file := range files {
		content, _ := os.ReadFile(file)
		text += string(content)
	}
	for _, match := range testFunc.FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	suites[dir] = suite{text, names}
	return text, names
}

// unshown are the names in a list of tests that are not there.
func unshown(t *testing.T, list string) (wrong []string) {
	t.Helper()
	dir, found := "", 0
	for _, match := range shown.FindAllStringSubmatch(list, -1) {
		word, example := match[1], match[2]
		text, names := testsOf(dir)
		switch {
		case example != "":
			if !strings.Contains(text, `"`+example+`"`) {
				wrong = append(wrong, example)
			}
		case testName.MatchString(word):
			if found++; !slices.Contains(names, word) {
				wrong = append(wrong, dir+" "+word)
			}
		case strings.HasPrefix(word, "make "):
			if found++; !target(t, strings.TrimPrefix(word, "make ")) {
				wrong = append(wrong, word)
			}
		default:
			if dir = word; !exists(dir) {
				wrong = append(wrong, word)
			}
		}
	}
	if found == 0 {
		wrong = append(wrong, "no test at all")
	}
	return wrong
}

// runsNothing reports whether a command can't be run, or some of what it chooses is not there.
func runsNothing(t *testing.T, command string) bool {
	t.Helper()
	if name, ok := strings.CutPrefix(command, "make "); ok {
		return !target(t, name)
	}
	parts := tested.FindStringSubmatch(command)
	if len(parts) == 0 || !exists(parts[1]) {
		return true
	}
	_, names := testsOf(parts[1])
	for _, match := range chosen.FindAllStringSubmatch(parts[2], -1) {
		for pattern := range strings.SplitSeq(match[2]+match[3], "|") {
			one, err := regexp.Compile(pattern)
			kind := map[string]string{"run": "Test", "bench": "Benchmark"}[match[1]]
			if err != nil || pattern != "^$" && !slices.ContainsFunc(names, func(name string) bool {
				return strings.HasPrefix(name, kind) && one.MatchString(name)
			}) {
				return true
			}
		}
	}
	return false
}

// isDeep reports whether a command chooses tests that only the deep tier runs: without its variable they are skipped, and look green.
func isDeep(command string) bool {
	parts := tested.FindStringSubmatch(command)
	if len(parts) == 0 {
		return false
	}
	text, names := testsOf(parts[1])
	bodies := testFunc.Split(text, -1)[1:]
	for _, match := range chosen.FindAllStringSubmatch(parts[2], -1) {
		one := regexp.MustCompile(match[2] + match[3])
		for i, name := range names {
			body, _, _ := strings.Cut(bodies[i], "\nfunc ")
			if one.MatchString(name) && strings.Contains(body, "\ttier.Deep(") {
				return true
			}
		}
	}
	return false
}

// mistakes are the names of the mutants, and of the mistakes that the simulation finds.
func mistakes(t *testing.T) words {
	t.Helper()
	all := words{}
	for pattern, name := range map[string]*regexp.Regexp{
		"test/mutants/mutants.txt":     mutant,
		"internal/lease/mistake/*.go":  regexp.MustCompile(`(?m)^\t"([^"]+)":`),
		"internal/lease/sim/*_test.go": regexp.MustCompile(`(?m)^\t"([^"]+)":`),
	} {
		files, _ := filepath.Glob(filepath.Join(top, pattern))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range name.FindAllStringSubmatch(string(text), -1) {
				all[match[1]] = true
			}
		}
	}
	return all
}

// TestTestsOfFaultsExist fails when a test that faults.md or differences.md names has gone.
func TestTestsOfFaultsExist(t *testing.T) {
	for _, page := range []string{"faults.md", "differences.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		all := rows(string(text))
		for _, row := range all {
			if len(row) != 3 && len(row) != 4 {
				t.Errorf("%s: a row has %d cells, want 3, or 4 with the history: %s", page, len(row), row)
				continue
			}
			for _, wrong := range unshown(t, row[len(row)-1]) {
				t.Errorf("%s, %q: there is no `%s`", page, row[0], wrong)
			}
		}
		if len(all) < 25 {
			t.Errorf("only %d rows are found in %s", len(all), page)
		}
	}
	const right, bad = "`internal/lease` `TestMargin`, `FuzzStep`, `internal/lease/sim` `TestMutantsAreCaught` \"no kill budget\"",
		"`internal/lease` `TestMargins`, `internal/lost` `TestCutOff`, `make nothing`, \"no such case\""
	if wrong := unshown(t, right); len(wrong) != 0 {
		t.Errorf("of tests that are there it misses %q", wrong)
	}
	if wrong := unshown(t, bad); len(wrong) != 5 {
		t.Errorf("of names that are nowhere it finds %q", wrong)
	}
}

// TestReasonsAreDocumented fails when the history may give a reason that faults.md does not have, or the other way round.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("faults.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| reason |")
	told := words{}
	for _, row := range rows("| reason |" + table) {
		for _, match := range quoted.FindAllStringSubmatch(row[1], -1) {
			told[match[1]] = true
		}
	}
	for _, r := range v1alpha1.ChangeReasons() {
		if !told[r.Reason] {
			t.Errorf("faults.md does not say what is told as %s", r.Reason)
		}
		delete(told, r.Reason)
	}
	for reason := range told {
		t.Errorf("faults.md: nothing is told as %s", reason)
	}
}

// constants are the values of the constants whose names begin with a word, by the rest of their names.
func constants(t *testing.T, file, begin string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, file))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^\t`+begin+`(\w+)\s+(?:Reason )?= (?:string\(lease\.Reason(\w+)\)|"(\w+)")`).FindAllStringSubmatch(string(text), -1) {
		all[match[1]] = match[2] + match[3]
	}
	return all
}

var (
	// expected is what a case of a test demands of the history, behind the name of the case.
	expected = regexp.MustCompile(`(?s)^(?:, |: \{.{0,600}?reasons: )(?:\[\]string\{)?(lost|v1alpha1\.Change[^}\n]*)`)
	constant = regexp.MustCompile(`v1alpha1\.Change(\w+)`)
)

// demanded are the reasons that a case of a test accepts in the history; none if it does not look at the history.
func demanded(text, example string, values map[string]string) (reasons []string) {
	for _, body := range strings.Split(text, `"`+example+`"`)[1:] {
		list := expected.FindStringSubmatch(body)
		if list == nil {
			continue
		}
		if list[1] == "lost" {
			_, list[1], _ = strings.Cut(text, "\nvar lost = ")
			list[1], _, _ = strings.Cut(list[1], "\n")
		}
		for _, match := range constant.FindAllStringSubmatch(list[1], -1) {
			reasons = append(reasons, values[match[1]])
		}
	}
	return reasons
}

// TestFaultsInTheHistory fails when faults.md gives a reason that does not exist, or another one than the tests that cause the fault demand.
func TestFaultsInTheHistory(t *testing.T) {
	text, err := os.ReadFile("faults.md")
	if err != nil {
		t.Fatal(err)
	}
	values, ends := constants(t, "api/v1alpha1/conditions.go", "Change"), constants(t, "internal/lease/record.go", "Reason")
	for name, value := range values {
		if reason := ends[value]; reason != "" {
			values[name] = reason
		}
	}
	known := words{}
	for _, r := range v1alpha1.ChangeReasons() {
		known[r.Reason] = true
	}
	checked := 0
	for _, row := range rows(string(text)) {
		cell, list := row[len(row)-2], row[len(row)-1]
		var says []string
		for _, match := range quoted.FindAllStringSubmatch(cell, -1) {
			if says = append(says, match[1]); !known[match[1]] {
				t.Errorf("%s: the history gives no reason %s", row[0], match[1])
			}
		}
		if len(says) == 0 && !strings.HasPrefix(cell, "nothing") && !strings.HasPrefix(cell, "each change") {
			t.Errorf("%s: %q is neither a reason nor nothing", row[0], cell)
		}
		checked += compared(t, row[0], list, says, values)
	}
	if checked < 25 {
		t.Errorf("only %d cases are compared", checked)
	}
}

// compared fails the test if a fault has a case that demands none of these reasons, and returns how many of its cases demand one.
func compared(t *testing.T, fault, list string, says []string, values map[string]string) (checked int) {
	t.Helper()
	dir, test := "", ""
	for _, match := range shown.FindAllStringSubmatch(list, -1) {
		switch word, example := match[1], match[2]; {
		case testName.MatchString(word):
			test = word
		case example == "":
			dir = word
		case test == "TestTakeover" || test == "TestTheHistoryLosesNothing":
			tests, _ := testsOf(dir)
			want := demanded(tests, example, values)
			if checked++; !slices.ContainsFunc(want, func(reason string) bool { return slices.Contains(says, reason) }) {
				t.Errorf("%s: the history says %q, and %q in %s demands one of %q", fault, says, example, test, want)
			}
		}
	}
	return checked
}

// TestCommandsOfClaimsExist fails when a command or a mutant that claims.md names has gone.
func TestCommandsOfClaimsExist(t *testing.T) {
	text, err := os.ReadFile("claims.md")
	if err != nil {
		t.Fatal(err)
	}
	all, known := rows(string(text)), mistakes(t)
	for _, row := range all {
		if len(row) != 3 {
			t.Errorf("claims.md: a row has %d cells, want 3: %s", len(row), row)
			continue
		}
		for _, match := range quoted.FindAllStringSubmatch(row[1], -1) {
			if runsNothing(t, match[1]) {
				t.Errorf("claims.md, %q: `%s` runs nothing", row[0], match[1])
			} else if deep := strings.HasPrefix(match[1], tier.Variable); deep != isDeep(match[1]) {
				t.Errorf("claims.md, %q: `%s` runs tests of the deep tier: %v, has its variable: %v", row[0], match[1], !deep, deep)
			}
		}
		for _, match := range shown.FindAllStringSubmatch(row[2], -1) {
			if !known[match[1]+match[2]] {
				t.Errorf("claims.md, %q: there is no mutant %q", row[0], match[1]+match[2])
			}
		}
	}
	if len(all) < 15 {
		t.Errorf("only %d rows are found in claims.md", len(all))
	}
	for command, nothing := range map[string]bool{
		"make sim": false, "go test ./fence/...": false, "go test ./internal/lease -run 'Margin|FreeAt'": false,
		"go test ./cmd/agent -run '^$' -bench Idle": false,
		"make nothing": true, "go test ./internal/lost": true, "go test ./internal/lease -run 'Margin|Nonesuch'": true,
		"go test ./cmd/agent -run '^$' -bench CutOff": true,
	} {
		if runsNothing(t, command) != nothing {
			t.Errorf("`%s` runs nothing: %t, want %t", command, !nothing, nothing)
		}
	}
	if len(slices.Collect(maps.Keys(known))) < 100 {
		t.Errorf("only %d mutants are known", len(known))
	}
}

// TestTestsOfTheWeekExist fails when a test or a mutant that week.md names has gone.
func TestTestsOfTheWeekExist(t *testing.T) {
	text, err := os.ReadFile("week.md")
	if err != nil {
		t.Fatal(err)
	}
	all, known := rows(string(text)), mistakes(t)
	for _, row := range all {
		if len(row) != 3 {
			t.Errorf("week.md: a row has %d cells, want 3: %s", len(row), row)
			continue
		}
		for _, wrong := range unshown(t, row[1]) {
			t.Errorf("week.md, %q: there is no `%s`", row[0], wrong)
		}
		for _, match := range shown.FindAllStringSubmatch(row[2], -1) {
			if !known[match[1]+match[2]] {
				t.Errorf("week.md, %q: there is no mutant %q", row[0], match[1]+match[2])
			}
		}
	}
	if len(all) < 25 {
		t.Errorf("only %d rows are found in week.md", len(all))
	}
}
