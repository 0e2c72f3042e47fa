package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// TestMetricsOfRuns: a run for an old tick does not count as late, because a user requested it, and each run is counted when its
// end is reported.
func TestMetricsOfRuns(t *testing.T) {
	tick := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	run := func(name, state string, began time.Duration) v1alpha1.RunStatus {
		return v1alpha1.RunStatus{
			ID: "uid/" + name, State: state, Tick: new(metav1.NewTime(tick.In(time.FixedZone("CET", 3600)))), StartTime: new(metav1.NewTime(tick.Add(began))),
		}
	}
	before := []v1alpha1.RunStatus{run("2026-01-02T03:00:00Z", "Running", 2*time.Second), run("by-hand", "Running", 1000*time.Hour)}
	m := newMetrics().runs
	m.count("ns", "job", nil, before)
	after := slices.Clone(before)
	after[0].State, after[0].EndTime, after[1].State = "Complete", new(metav1.NewTime(tick.Add(7*time.Second))), v1alpha1.RunUnknown
	m.count("ns", "job", before, after)
	m.count("ns", "job", after, after)
	want := []string{"run_seconds 1 of 5 s", "run_start_delay_seconds 1 of 2 s", "runs_total Complete 1", "runs_total Unknown 1"}
	if got := counted(t, m); !slices.Equal(got, want) {
		t.Errorf("metrics are %q, want %q", got, want)
	}
}

// counted are the series of histograms and counters.
func counted(t *testing.T, m runMetrics) (all []string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		name := strings.TrimPrefix(family.GetName(), "singletonjob_")
		for _, series := range family.GetMetric() {
			labels := series.GetLabel()
			if h := series.GetHistogram(); h != nil {
				all = append(all, fmt.Sprintf("%s %d of %v s", name, h.GetSampleCount(), h.GetSampleSum()))
			} else {
				all = append(all, fmt.Sprintf("%s %s %v", name, labels[len(labels)-1].GetValue(), series.GetCounter().GetValue()))
			}
		}
	}
	return all
}
