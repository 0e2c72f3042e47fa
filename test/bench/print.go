//go:build linux

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table prints the cells for a terminal, a block for each fault.
func table(r Result) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Kubernetes %s, %d nodes on one machine with %d cores, Linux %s. A write to the sink every 20 ms. Minimum / median / maximum.\n",
		r.Kubernetes, r.Nodes, r.Cores, r.Kernel)
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fault := ""
	for _, c := range r.Cells {
		if c.Fault != fault {
			fault = c.Fault
			_, _ = fmt.Fprintf(w, "\n%s\truns\tnext process after\tafter the last renewal\tnothing written for\ttwo processes for\tstale writes sent / stored\n", strings.ToUpper(r.Faults[fault]))
		}
		_, _ = fmt.Fprintf(w, "  %s\t%d\t%s\t%s\t%s\t%s\t%d / %d\n", r.Subjects[c.Subject], len(c.Runs),
			showTakeover(c), showSpread(c.AfterRenewal), showSpread(c.Gap), showOverlap(c.Overlap), c.StaleOffered, c.StaleAccepted)
	}
	_ = w.Flush()
	return text.String()
}

func showSpread(s Spread) string {
	switch s.Runs {
	case 0:
		return "-"
	case 1:
		return show(s.Median)
	}
	return show(s.Min) + " / " + show(s.Median) + " / " + show(s.Max)
}

func showTakeover(c *Cell) string {
	text := showSpread(c.Takeover)
	if missing := len(c.Runs) - c.Takeover.Runs; missing > 0 {
		text += fmt.Sprintf(" (none in %d)", missing)
	}
	return text
}

func showOverlap(s Spread) string {
	if s.Max == 0 {
		return "0"
	}
	return showSpread(s)
}

// The chart's measures, in pixels.
const (
	chartWidth = 900
	labelWidth = 300
	barHeight  = 14
	rowHeight  = 20
	headHeight = 34
	topHeight  = 70
	noteWidth  = 190
)

var colours = []string{"#0b6e4f", "#35b779", "#d1495b", "#edae49", "#8d6a9f"}

// chart draws the median gap of each cell on a logarithmic scale, with its spread, and says where two processes ran or stale
// writes were stored.
func chart(r Result) string {
	var body strings.Builder
	y, fault := topHeight, ""
	subjects := keys(subjects(), subject.name)
	for _, c := range r.Cells {
		if c.Fault != fault {
			fault = c.Fault
			y += headHeight
			fmt.Fprintf(&body, `<text x="12" y="%d" class="h">%s</text>`+"\n", y-10, r.Faults[fault])
		}
		drawCell(&body, r, c, colours[slices.Index(subjects, c.Subject)%len(colours)], y)
		y += rowHeight
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>Time without a write, by fault</title>
<style>text{font:12px system-ui,sans-serif;fill:#222}.h{font-weight:600;font-size:13px}.t{font-weight:600;font-size:16px}.n{fill:#b00020}.g{stroke:#ddd}.w{stroke:#222;stroke-width:1.5}</style>
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="12" y="24" class="t">Time without a write to the sink, by fault</text>
<text x="12" y="42">Median of the runs, whiskers from minimum to maximum, logarithmic scale. Red: two processes acted at once, which also hides a gap.</text>
`, chartWidth, y+20)
	for decade := scaleFrom; decade <= scaleTo; decade *= 10 {
		x := position(decade)
		fmt.Fprintf(&out, `<line x1="%[1]d" y1="%[2]d" x2="%[1]d" y2="%[3]d" class="g"/><text x="%[1]d" y="%[4]d" text-anchor="middle">%[5]s</text>`+"\n",
			x, topHeight, y, topHeight-6, tick(decade))
	}
	out.WriteString(body.String())
	out.WriteString("</svg>\n")
	return out.String()
}

// tick is a decade's label.
func tick(decade time.Duration) string {
	if decade < time.Second {
		return fmt.Sprintf("%d ms", decade.Milliseconds())
	}
	return fmt.Sprintf("%d s", int(decade.Seconds()))
}

const (
	scaleFrom = 10 * time.Millisecond
	scaleTo   = 1000 * time.Second
)

// position is where on the scale a duration lies.
func position(d time.Duration) int {
	d = min(max(d, scaleFrom), scaleTo)
	share := math.Log10(float64(d)/float64(scaleFrom)) / math.Log10(float64(scaleTo)/float64(scaleFrom))
	return labelWidth + int(share*(chartWidth-labelWidth-noteWidth))
}

func drawCell(out *strings.Builder, r Result, c *Cell, colour string, y int) {
	middle := y + barHeight/2
	fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labelWidth-8, y+barHeight-3, r.Subjects[c.Subject])
	fmt.Fprintf(out, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`, labelWidth, y, max(1, position(c.Gap.Median)-labelWidth), barHeight, colour)
	if c.Gap.Runs > 1 {
		fmt.Fprintf(out, `<line x1="%d" y1="%d" x2="%d" y2="%[2]d" class="w"/>`, position(c.Gap.Min), middle, position(c.Gap.Max))
	}
	note := show(c.Gap.Median)
	if slices.ContainsFunc(c.Runs, func(r Run) bool { return r.Unresolved }) {
		note = "> " + note
	}
	fmt.Fprintf(out, `<text x="%d" y="%d">%s`, position(c.Gap.Max)+8, y+barHeight-3, note)
	switch {
	case c.StaleAccepted > 0 && c.Overlap.Max > 0:
		fmt.Fprintf(out, ` <tspan class="n">two for %s, %d stale writes stored</tspan>`, show(c.Overlap.Max), c.StaleAccepted)
	case c.StaleAccepted > 0:
		fmt.Fprintf(out, ` <tspan class="n">%d stale writes stored</tspan>`, c.StaleAccepted)
	case c.StaleOffered > 0:
		fmt.Fprintf(out, `, %d stale writes refused`, c.StaleOffered)
	}
	out.WriteString("</text>\n")
}
