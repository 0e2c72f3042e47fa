//go:build linux

package main

import (
	"encoding/xml"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

const ms = time.Millisecond

// write is one, sent and decided at a time in milliseconds.
func write(writer string, token fence.Token, at int, accepted bool) fencetest.Attempt {
	t := time.Duration(at) * ms
	return fencetest.Attempt{Resource: "ns/x", Writer: writer, Token: token, Sent: t, At: t, Accepted: accepted}
}

func TestMeasure(t *testing.T) {
	for name, tc := range map[string]struct {
		attempts []fencetest.Attempt
		renewed  time.Duration
		want     Run
	}{
		"clean takeover": {
			attempts: []fencetest.Attempt{write("a", 1, 80, true), write("a", 1, 95, true), write("b", 2, 150, true), write("b", 2, 995, true)},
			renewed:  90 * ms,
			want:     Run{Takeover: new(50 * ms), AfterRenewal: new(60 * ms), Gap: 845 * ms},
		},
		"two writers, no fence": {
			attempts: []fencetest.Attempt{write("a", 1, 95, true), write("b", 1, 150, true), write("a", 1, 170, true), write("b", 1, 990, true)},
			want:     Run{Takeover: new(50 * ms), Gap: 820 * ms, Overlap: 20 * ms, StaleOffered: 1, StaleAccepted: 1},
		},
		"two writers, fenced": {
			attempts: []fencetest.Attempt{write("a", 1, 95, true), write("b", 2, 150, true), write("a", 1, 170, false), write("b", 2, 990, true)},
			want:     Run{Takeover: new(50 * ms), Gap: 840 * ms, Overlap: 20 * ms, StaleOffered: 1},
		},
		"frozen, and acts for a while when it is thawed": {
			attempts: []fencetest.Attempt{write("a", 1, 95, true), write("b", 2, 150, true), write("a", 1, 800, false), write("a", 1, 830, false), write("b", 2, 990, true)},
			want:     Run{Takeover: new(50 * ms), Gap: 840 * ms, Overlap: 30 * ms, StaleOffered: 2},
		},
		"a write that was long on its way is no sign of life": {
			attempts: []fencetest.Attempt{write("a", 1, 95, true), write("b", 2, 150, true), {Resource: "ns/x", Writer: "a", Token: 1, Sent: 99 * ms, At: 700 * ms}, write("b", 2, 990, true)},
			want:     Run{Takeover: new(50 * ms), Gap: 840 * ms, StaleOffered: 1},
		},
		"the same process goes on": {
			attempts: []fencetest.Attempt{write("a", 1, 95, true), write("a", 1, 600, true), write("a", 1, 990, true)},
			want:     Run{Gap: 505 * ms},
		},
		"goes on as the watch ends": {
			attempts: []fencetest.Attempt{
				write("a", 1, 95, true), write("b", 2, 150, true), write("b", 2, 200, true), write("b", 2, 250, true), write("b", 2, 300, true),
				write("b", 2, 350, true), write("b", 2, 400, true), write("b", 2, 450, true), write("b", 2, 500, true), write("b", 2, 550, true),
				write("b", 2, 600, true), write("b", 2, 650, true), write("b", 2, 700, true), write("b", 2, 750, true), write("b", 2, 800, true),
				write("b", 2, 850, true), write("b", 2, 900, true),
			},
			want: Run{Takeover: new(50 * ms), Gap: 55 * ms},
		},
		"never": {
			attempts: []fencetest.Attempt{write("a", 1, 95, true)},
			want:     Run{Gap: 905 * ms, Unresolved: true},
		},
		"a gap before the fault is not the fault's": {
			attempts: []fencetest.Attempt{write("a", 1, 1, true), write("a", 1, 99, true), write("a", 1, 110, true), write("a", 1, 995, true)},
			want:     Run{Gap: 885 * ms},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := measure(tc.attempts, "ns/x", 100*ms, 1000*ms, tc.renewed)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("run (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSpread(t *testing.T) {
	for name, tc := range map[string]struct {
		values []time.Duration
		want   Spread
	}{
		"none": {},
		"one":  {values: []time.Duration{7}, want: Spread{Min: 7, Median: 7, Max: 7, Runs: 1}},
		"even": {values: []time.Duration{4, 1, 3, 2}, want: Spread{Min: 1, Median: 2, Max: 4, Runs: 4}},
		"odd":  {values: []time.Duration{9, 1, 3}, want: Spread{Min: 1, Median: 3, Max: 9, Runs: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, spreadOf(tc.values)); diff != "" {
				t.Errorf("spread (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChartAndTable(t *testing.T) {
	cell := &Cell{Subject: "deployment", Fault: "slow-stop", Runs: []Run{{Takeover: new(2 * time.Second), Gap: 225 * ms, Overlap: 3480 * ms, StaleOffered: 164, StaleAccepted: 164}, {Gap: 100 * time.Second, Unresolved: true}}}
	cell.sum()
	r := Result{Subjects: map[string]string{"deployment": "Deployment of 1"}, Faults: map[string]string{"slow-stop": "slow stop"}, Cells: []*Cell{cell}}
	for what, text := range map[string]string{"chart": chart(r), "table": table(r)} {
		for _, want := range []string{"Deployment of 1", "164", "3.48s"} {
			if !strings.Contains(text, want) {
				t.Errorf("the %s lacks %q:\n%s", what, want, text)
			}
		}
	}
	if err := xml.Unmarshal([]byte(chart(r)), new(struct{ XMLName xml.Name })); err != nil {
		t.Errorf("the chart is no XML: %v", err)
	}
	if text := table(r); !strings.Contains(text, "none in 1") || !strings.Contains(text, "1m40s") {
		t.Errorf("the table hides that nothing took over:\n%s", text)
	}
}
