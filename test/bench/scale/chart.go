//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A figure is a row of the table, and a panel of the chart if its growth is drawn.
type figure struct {
	title string
	of    func(Result) float64
	drawn bool
}

func fact(phase, name string) func(Result) float64 {
	return in(phase, func(p *Phase) float64 { return p.Facts[name] })
}

// in returns NaN if a run ended before the phase.
func in(phase string, of func(*Phase) float64) func(Result) float64 {
	return func(r Result) float64 {
		if p := r.phase(phase); p != nil {
			return of(p)
		}
		return math.NaN()
	}
}

func figures() []figure {
	return []figure{
		{"all created, elected and with a standby, s", fact(created, "all settled"), true},
		{"operator's requests per created job", func(r Result) float64 {
			return in(created, func(p *Phase) float64 { return sum(p.Operator) / float64(r.Jobs) })(r)
		}, false},
		{"operator's memory while idle, MiB", in(atRest, func(p *Phase) float64 { return p.Memory["operator"] }), true},
		{"operator's peak memory, MiB", most(func(p *Phase) float64 { return p.OperatorPeak }), true},
		{"operator's CPU while idle, cores", in(atRest, func(p *Phase) float64 { return p.CPU["operator"] }), true},
		{"operator's requests per minute while idle", in(atRest, perMinute), false},
		{"1 % failovers per minute: longest time until the next process acts, s", fact(churn, "next acts, most"), false},
		{"operator's requests per failover", in(churn, func(p *Phase) float64 { return sum(p.Operator) / p.Facts["failovers"] }), false},
		{"operator restarted: time until it knows all jobs, s", fact(restarted, "all known"), true},
		{"operator restarted: writes it sends, which are repeated Events that the API server refuses", in(restarted, func(p *Phase) float64 { return writes(p.Operator) }), false},
		{"half of the holders cut off: time until the last successor acts, s", fact(half, "last acts"), true},
		{"half of the holders cut off: time until the last Pod is labelled active, s", fact(half, "last labelled"), true},
		{"API server killed: time until it is back, s", fact(outage, "away"), false},
		{"API server killed: starts until one succeeded", fact(outage, "starts"), false},
		{"API server killed: time until all jobs renew again, s", fact(outage, "all renewed"), true},
		{"API server killed: changes of holder", fact(outage, "changes of holder"), false},
		{"API server killed: time until all jobs have a process and a standby again, s", fact(outage, "all settled"), false},
		{"renewals per second while idle", in(atRest, func(p *Phase) float64 { return p.Renewals }), false},
		{"99th percentile of the duration of renewals, ms", in(atRest, func(p *Phase) float64 { return 1000 * p.RenewalP99 }), false},
		{"API server's CPU while idle, divided by renewals, ms", in(atRest, func(p *Phase) float64 { return 1000 * p.CPUPerRenewal }), false},
		{"API server's CPU while idle, cores", in(atRest, func(p *Phase) float64 { return p.CPU["kube-apiserver"] }), false},
		{"API server's memory while idle, MiB", in(atRest, func(p *Phase) float64 { return p.Memory["kube-apiserver"] }), false},
		{"etcd's CPU while idle, cores", in(atRest, func(p *Phase) float64 { return p.CPU["etcd"] }), false},
		{"Lease of a new job in etcd, bytes", func(r Result) float64 { return known(r.LeaseBytes[0] > 0, r.LeaseBytes[0]) }, false},
		{"Lease after its failovers, bytes", func(r Result) float64 { return known(r.LeaseBytes[1] > 0, r.LeaseBytes[1]) }, false},
		{"etcd's database at its largest, MiB", most(func(p *Phase) float64 { return p.Database }), true},
		{"two processes at the same time, tokens that did not grow, tenures missing from the history", func(r Result) float64 {
			return known(len(r.Faults) > 0 || r.phase(recovered) != nil, len(r.Faults))
		}, false},
		{"highest load of the machine", most(func(p *Phase) float64 { return p.Load }), false},
	}
}

// known is a number, or NaN if it was not looked at.
func known(looked bool, n int) float64 {
	if !looked {
		return math.NaN()
	}
	return float64(n)
}

func sum(of map[string]float64) (all float64) {
	for _, n := range of {
		all += n
	}
	return all
}

func writes(of map[string]float64) float64 { return sum(of) - of["GET"] }

func perMinute(p *Phase) float64 {
	if p.Took == 0 {
		return 0
	}
	return sum(p.Operator) / p.Took * 60
}

// most is the largest of all phases.
func most(of func(*Phase) float64) func(Result) float64 {
	return func(r Result) (most float64) {
		for _, p := range r.Phases {
			most = max(most, of(p))
		}
		return most
	}
}

// markdown is the table of the docs: a column for each number of jobs.
func markdown(all []Result) string {
	var text strings.Builder
	text.WriteString("| jobs |")
	for _, r := range all {
		fmt.Fprintf(&text, " %d |", r.Jobs)
	}
	fmt.Fprintf(&text, "\n|---|%s\n", strings.Repeat("---|", len(all)))
	text.WriteString("| leaseDuration / renewDeadline / retryPeriod |")
	for _, r := range all {
		fmt.Fprintf(&text, " %s |", strings.ReplaceAll(r.Lease, "/", " / "))
	}
	text.WriteString("\n")
	text.WriteString("| connections that all agents share |")
	for _, r := range all {
		fmt.Fprintf(&text, " %s |", cmp.Or(strings.TrimPrefix(strconv.Itoa(r.Shared), "0"), "none"))
	}
	text.WriteString("\n")
	for _, f := range figures() {
		fmt.Fprintf(&text, "| %s |", f.title)
		for _, r := range all {
			fmt.Fprintf(&text, " %s |", digits(f.of(r)))
		}
		text.WriteString("\n")
	}
	return text.String()
}

// digits rounds to what a reader can use: three digits, and whole numbers from 100 on.
func digits(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.IsNaN(v):
		return "-"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// The chart's measures, in pixels.
const (
	panelsAcross = 3
	panelWidth   = 300
	panelHeight  = 200
	panelTop     = 44 // its title
	panelInset   = 40
	chartTop     = 50
)

// chart draws a panel for each figure whose growth matters: linear in both, so that what grows in proportion is a straight line.
func chart(all []Result) string {
	var drawn []figure
	for _, f := range figures() {
		if f.drawn {
			drawn = append(drawn, f)
		}
	}
	rows := (len(drawn) + panelsAcross - 1) / panelsAcross
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>What jobs cost, by their number</title>
<style>text{font:11px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:16px}.h{font-weight:600}.g{stroke:#bbb;fill:none}.l{stroke:#0b6e4f;fill:none;stroke-width:2}.p{fill:#0b6e4f}</style>
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="12" y="24" class="t">What jobs cost, by their number</text>
<text x="12" y="42">Both scales are linear and begin at 0: what grows in proportion is a straight line through the corner.</text>
`, panelsAcross*panelWidth, chartTop+rows*panelHeight)
	for i, f := range drawn {
		drawPanel(&out, f, all, i%panelsAcross*panelWidth, chartTop+i/panelsAcross*panelHeight)
	}
	out.WriteString("</svg>\n")
	return out.String()
}

func drawPanel(out *strings.Builder, f figure, all []Result, x, y int) {
	var most, jobs float64
	all = slices.DeleteFunc(slices.Clone(all), func(r Result) bool { return math.IsNaN(f.of(r)) })
	for _, r := range all {
		most, jobs = max(most, f.of(r)), max(jobs, float64(r.Jobs))
	}
	left, bottom := x+panelInset, y+panelHeight-panelInset/2
	height, width := float64(panelHeight-panelTop-panelInset/2), float64(panelWidth-2*panelInset)
	head, rest, _ := strings.Cut(f.title, ": ") // as long as two lines
	fmt.Fprintf(out, `<text x="%d" y="%d" class="h">%s<tspan x="%[1]d" dy="13">%[4]s</tspan></text><polyline class="g" points="%[5]d,%[6]d %[5]d,%[7]d %[8]d,%[7]d"/>`+"\n",
		x+12, y+panelTop/3, head, rest, left, y+panelTop, bottom, left+int(width))
	var line, points strings.Builder
	fmt.Fprintf(&line, "%d,%d", left, bottom)
	for _, r := range all {
		px, py := left+int(width*float64(r.Jobs)/max(jobs, 1)), bottom
		if most > 0 {
			py = bottom - int(height*f.of(r)/most)
		}
		fmt.Fprintf(&line, " %d,%d", px, py)
		fmt.Fprintf(&points, `<circle cx="%[1]d" cy="%[2]d" r="3" class="p"/><text x="%[1]d" y="%[3]d" text-anchor="middle">%[4]s</text><text x="%[1]d" y="%[5]d" text-anchor="middle">%[6]d</text>`+"\n",
			px, py, py-6, digits(f.of(r)), bottom+13, r.Jobs)
	}
	fmt.Fprintf(out, `<polyline class="l" points="%s"/>`+"\n%s", line.String(), points.String())
}
