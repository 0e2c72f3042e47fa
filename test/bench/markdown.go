//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

func showFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var r Result
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	fmt.Print(markdown(r))
	return nil
}

// markdown is the table of docs/measured.md: a row for each fault, a column for each subject, and the worst of the runs in each cell.
func markdown(r Result) string {
	columns := slices.DeleteFunc(keys(subjects(), subject.name), func(key string) bool { return r.Subjects[key] == "" })
	rows := slices.DeleteFunc(keys(faultCases(), faultCase.name), func(key string) bool { return r.Faults[key] == "" })
	var text strings.Builder
	text.WriteString("| nothing written for |")
	for _, key := range columns {
		fmt.Fprintf(&text, " %s |", r.Subjects[key])
	}
	fmt.Fprintf(&text, "\n|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, fault := range rows {
		fmt.Fprintf(&text, "| %s |", r.Faults[fault])
		for _, subject := range columns {
			cell := "not run"
			if i := slices.IndexFunc(r.Cells, func(c *Cell) bool { return c.Subject == subject && c.Fault == fault }); i >= 0 {
				cell = worst(r.Cells[i])
			}
			if strings.HasPrefix(subject, "singletonjob") {
				cell = "**" + cell + "**"
			}
			fmt.Fprintf(&text, " %s |", cell)
		}
		text.WriteString("\n")
	}
	return text.String()
}

// worst is what a cell comes to: how long nothing was written, for how long two processes wrote, and what of that was stored.
func worst(c *Cell) string {
	text := brief(c.Gap.Max)
	if slices.ContainsFunc(c.Runs, func(r Run) bool { return r.Unresolved }) {
		text = "over " + text
	}
	if c.Overlap.Max > 0 {
		text += ", 2 × for " + brief(c.Overlap.Max)
	}
	if c.StaleAccepted > 0 {
		text += fmt.Sprintf(", %d stale stored", c.StaleAccepted)
	}
	return text
}

// brief rounds to two digits, or to the second.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f min", d.Minutes())
}
