package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// TestReasonsAreInTroubleshooting: an operator finds what to do about each reason that a condition or the history can show.
func TestReasonsAreInTroubleshooting(t *testing.T) {
	text := read(t, "docs/troubleshooting.md")
	// well are the conditions that report no trouble.
	well := words{"Ready True": true, "Active True": true, "Protected True": true, "Progressing True": true, "Timely True": true, "Complete True": true, "Scheduled True": true}
	missing := words{}
	for _, r := range v1alpha1.ConditionReasons() {
		if r.Reason != v1alpha1.ReasonUpToDate && !well[r.Condition+" "+string(r.Status)] && !strings.Contains(text, "`"+r.Reason+"`") {
			missing[r.Reason] = true
		}
	}
	for _, r := range v1alpha1.ChangeReasons() {
		if r.Reason != v1alpha1.ChangeElected && !strings.Contains(text, "`"+r.Reason+"`") {
			missing[r.Reason] = true
		}
	}
	for reason := range missing {
		t.Errorf("docs/troubleshooting.md does not say what to do about %s", reason)
	}
}

// TestLimitsAreThoseOfTheAPI compares limits.md with the constants of the API, or with the reference, and its figures with the pages from which
// they are.
func TestLimitsAreThoseOfTheAPI(t *testing.T) {
	const page = "docs/limits.md"
	constants := map[string][2]string{
		"spec.lease.leaseDuration": {fmt.Sprint(v1alpha1.MinLeaseDuration), fmt.Sprint(v1alpha1.MaxLeaseDuration)},
		"spec.lease.retryPeriod":   {fmt.Sprint(v1alpha1.MinRetryPeriod), "renewDeadline / 1.5"},
		"spec.lease.lockDelay":     {"0s", fmt.Sprint(v1alpha1.MaxLockDelay)},
		"spec.fencing.tokenBase":   {"0", fmt.Sprint(v1alpha1.MaxTokenBase) + " (2^52)"},
		"the name of a job":        {"1", fmt.Sprint(v1alpha1.MaxNameLength) + " characters, a DNS label"},
	}
	reference := read(t, "docs/api.md")
	number, target := regexp.MustCompile(`\d+(?:[. ]\d+)*`), regexp.MustCompile(`\]\(([^)#]+)`)
	fields, figures := 0, 0
	for _, row := range rows(read(t, page)) {
		switch of, linked := target.FindStringSubmatch(row[len(row)-1]), len(row) == 3; {
		case linked && of != nil && row[1] != "":
			figures++
			source, err := os.ReadFile(filepath.Join(top, "docs", of[1]))
			if err != nil {
				t.Fatal(err)
			}
			for _, figure := range number.FindAllString(row[1], -1) {
				if !strings.Contains(string(source), figure) {
					t.Errorf("%s: %s: %s has no %q", page, row[0], of[1], figure)
				}
			}
		case linked && of == nil:
			fields++
			field := strings.Trim(row[0], "`")
			if want, known := constants[field]; known {
				if got := [2]string{row[1], row[2]}; plainDuration(want) != got {
					t.Errorf("%s: %s is from %s to %s, and in the API %s", page, field, row[1], row[2], plainDuration(want))
				}
				continue
			}
			if _, line, _ := strings.Cut(reference, "| `"+field+"` |"); !isLimited(line, row[1], row[2]) {
				t.Errorf("%s: %s is not from %s to %s in the reference", page, field, row[1], row[2])
			}
		}
	}
	if fields < 10 || figures < 10 {
		t.Errorf("only %d fields and %d figures are found in %s", fields, figures, page)
	}
}

// isLimited reports whether the first line of a text has limits, as numbers or as words.
func isLimited(text, from, to string) bool {
	line, _, _ := strings.Cut(text, "\n")
	return strings.Contains(line, "maximum `"+to+"`, minimum `"+from+"`") || strings.Contains(line, from+" to "+to)
}

// plainDuration drops what time.Duration adds: 1h0m0s is 1h.
func plainDuration(limits [2]string) [2]string {
	for i := range limits {
		limits[i] = strings.TrimSuffix(strings.TrimSuffix(limits[i], "0s"), "0m")
		if limits[i] == "" {
			limits[i] = "0s"
		}
	}
	return limits
}

// setting is a value of the chart in a command, or in a message of the programs.
var setting = regexp.MustCompile(`--set[= ]'?"?([A-Za-z]+(?:\.[A-Za-z]+)*)(?:,[A-Za-z.=,]+)?=`)

// TestSettingsExist fails when a document, or what a program advises, sets a value that the chart does not have.
func TestSettingsExist(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(top, "charts/singletonjob/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(raw, &values); err != nil {
		t.Fatal(err)
	}
	// others are values of other charts.
	others := words{"replicaCount": true, "env.UPSTREAM": true}
	files := []string{"README.md", "charts/singletonjob/templates/NOTES.txt"}
	for _, pattern := range []string{"docs/*.md", "internal/show/*.go", "internal/plan/*.go", "internal/controller/*.go", "charts/singletonjob/templates/*.tpl"} {
		found, _ := filepath.Glob(filepath.Join(top, pattern))
		for _, file := range found {
			files = append(files, strings.TrimPrefix(file, top+"/"))
		}
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range setting.FindAllStringSubmatch(string(text), -1) {
			if others[match[1]] {
				continue
			}
			found++
			var at any = values
			for step := range strings.SplitSeq(match[1], ".") {
				of, _ := at.(map[string]any)
				next, ok := of[step]
				if !ok {
					t.Errorf("%s sets %s, which the chart does not have", file, match[1])
				}
				at = next
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d settings are found", found)
	}
}
