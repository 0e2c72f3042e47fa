//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// The numbers that docs/sizing.md and the alert use.
const (
	kept     = 600     // seconds of versions in etcd
	renewal  = 1100    // bytes for each
	quota    = 2 << 30 // etcd's by default
	thousand = 1000    // jobs
)

// TestSettings: the settings that docs/sizing.md compares are accepted, and cost what it says.
func TestSettings(t *testing.T) {
	document := textOf(t, "../../../docs/sizing.md")
	for _, s := range [][3]int{{15, 10, 2}, {60, 40, 20}, {300, 200, 100}} {
		seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
		job := job(0, usual)
		job.Spec.Lease = v1alpha1.LeaseSpec{LeaseDuration: seconds(s[0]), RenewDeadline: seconds(s[1]), RetryPeriod: seconds(s[2])}
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		if errs := v1alpha1.Validate(job); len(errs) > 0 {
			t.Errorf("%v is not accepted: %v", s, errs)
		}
		row := fmt.Sprintf("| %d s / %d s / %d s | %d | %.0f MiB | %d | %d s to %d s | %d s |\n", s[0], s[1], s[2],
			thousand/s[2], float64(thousand*kept*renewal)/float64(s[2])/mib, quota/2*s[2]/kept/renewal, s[0]-s[2], s[0], s[1]-s[2])
		if !strings.Contains(document, row) {
			t.Errorf("docs/sizing.md has no line\n%s", row)
		}
	}
}

// TestAlertMatchesTheDocs: the alert and docs/sizing.md use the same numbers.
func TestAlertMatchesTheDocs(t *testing.T) {
	rules := textOf(t, "../../../charts/singletonjob/monitoring/rules.yaml")
	for _, part := range []string{fmt.Sprintf("* %d * %d", kept, renewal), fmt.Sprintf("vector(%d)", quota)} {
		if !strings.Contains(rules, part) {
			t.Errorf("no rule has %q", part)
		}
	}
}

// TestRowsOfTheDocs: the table of docs/sizing.md has the rows that the benchmark prints.
func TestRowsOfTheDocs(t *testing.T) {
	document := textOf(t, "../../../docs/sizing.md")
	for line := range strings.Lines(markdown(nil)) {
		if row := strings.TrimSpace(line); strings.HasPrefix(row, "| ") && !strings.Contains(document, "\n"+row+" ") {
			t.Errorf("docs/sizing.md has no row %s", row)
		}
	}
}

func textOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
