package v1alpha1

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// constants returns the string constants of a source file whose names begin with prefix, by name.
func constants(t *testing.T, source, prefix string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, prefix) {
			found[spec.Names[0].Name] = constant(t, spec)
		}
		return true
	})
	if len(found) == 0 {
		t.Fatalf("no constant begins with %s", prefix)
	}
	return found
}

// leaseRecord is the file that declares why tenures end.
const leaseRecord = "../../internal/lease/record.go"

// constant is a literal, or string(lease.Name).
func constant(t *testing.T, spec *ast.ValueSpec) string {
	t.Helper()
	switch value := spec.Values[0].(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(value.Value)
		if err != nil {
			t.Fatal(err)
		}
		return text
	case *ast.CallExpr:
		if of, ok := value.Args[0].(*ast.SelectorExpr); ok {
			return constants(t, leaseRecord, of.Sel.Name)[of.Sel.Name]
		}
	}
	t.Fatalf("%s is no literal", spec.Names[0].Name)
	return ""
}

// The table is complete: it contains every reason, and its rows are valid for the API and for documentation.
func TestConditionReasons(t *testing.T) {
	camelCase := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	type key struct{ condition, reason string }
	rows := map[key]metav1.ConditionStatus{}
	used := map[string]bool{}
	for _, row := range ConditionReasons() {
		k := key{row.Condition, row.Reason}
		if _, twice := rows[k]; twice {
			t.Errorf("%v stands twice", k)
		}
		rows[k], used[row.Reason], used[row.Condition] = row.Status, true, true
		if !camelCase.MatchString(row.Reason) || !camelCase.MatchString(row.Condition) {
			t.Errorf("%v is not in CamelCase", k)
		}
		checkMeaning(t, row.Condition+" "+row.Reason, row.Meaning)
	}
	for _, prefix := range []string{"Reason", "Condition"} {
		for name, value := range constants(t, "conditions.go", prefix) {
			if !used[value] {
				t.Errorf("%s is not in the table", name)
			}
		}
	}
	for _, condition := range []string{ConditionReady, ConditionActive, ConditionProtected, ConditionProgressing, ConditionTimely} {
		seen := map[metav1.ConditionStatus]bool{}
		for k, status := range rows {
			seen[status] = seen[status] || k.condition == condition
		}
		if !seen[metav1.ConditionTrue] || !seen[metav1.ConditionFalse] {
			t.Errorf("%s is never true, or never false", condition)
		}
	}
}

// TestReasonsOfAJob: Complete and Failed have the reasons of a Kubernetes Job.
func TestReasonsOfAJob(t *testing.T) {
	of := []string{
		batchv1.JobReasonCompletionsReached, batchv1.JobReasonBackoffLimitExceeded, batchv1.JobReasonDeadlineExceeded, batchv1.JobReasonPodFailurePolicy,
	}
	for _, r := range ConditionReasons() {
		if ended := r.Condition == ConditionComplete || r.Condition == ConditionFailed; ended && r.Status == metav1.ConditionTrue && !slices.Contains(of, r.Reason) {
			t.Errorf("%s has the reason %s, which a Job does not have", r.Condition, r.Reason)
		}
	}
}

func TestChangeReasons(t *testing.T) {
	rows := map[string]TenureChangeType{}
	for _, row := range ChangeReasons() {
		if _, twice := rows[row.Reason]; twice {
			t.Errorf("%s stands twice", row.Reason)
		}
		rows[row.Reason] = row.Type
		checkMeaning(t, row.Reason, row.Meaning)
	}
	for name, value := range constants(t, "conditions.go", "Change") {
		if _, found := rows[value]; !found {
			t.Errorf("%s is not in the table", name)
		}
	}
	// The reasons that the agents and the operator write into the Lease for the end of a tenure.
	ends := constants(t, leaseRecord, "Reason")
	delete(ends, "ReasonCreated") // not the end of a tenure
	for name, reason := range ends {
		if _, found := rows[reason]; !found {
			t.Errorf("a tenure may end by %s, %s, which is not in the table", name, reason)
		}
	}
}

func checkMeaning(t *testing.T, of, meaning string) {
	t.Helper()
	if meaning == "" || strings.Contains(meaning, "\n") || strings.HasSuffix(meaning, ".") {
		t.Errorf("%s: the meaning %q is not one line without a full stop", of, meaning)
	}
}

// TestDocumentedConditionsAreComplete: docs/status.md has one row for each declared combination, in order, and no other rows.
func TestDocumentedConditionsAreComplete(t *testing.T) {
	page, err := os.ReadFile("../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, r := range ConditionReasons() {
		want = append(want, fmt.Sprintf("| %s | %s | %#q | %s |", r.Condition, r.Status, r.Reason, r.Meaning))
	}
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.HasPrefix(strings.TrimSpace(cells[3]), "`") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the page has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
