package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/test/bench/migration/row"
)

// Result is what became of one kind's migrations under one fault.
type Result struct {
	Fault string `json:"fault"`
	Kind  string `json:"kind"`
	// Migrations were begun, Complete of them are reported as complete.
	Migrations int `json:"migrations"`
	Complete   int `json:"complete"`
	// Twice counts steps that were done more than once, Never those that were not done.
	Twice int `json:"twice"`
	Never int `json:"never"`
	// Interleaved counts migrations in which a process wrote after a later one had written, Unordered those whose attempts or tokens
	// decreased.
	Interleaved int `json:"interleaved"`
	Unordered   int `json:"unordered"`
	// Executions are processes that wrote, Refused writes that the fence refused.
	Executions int `json:"executions"`
	Refused    int `json:"refused"`
	// Took is from the fault until each migration was reported as complete, in nanoseconds, sorted.
	Took []time.Duration `json:"took"`
}

// judge adds one migration's rows, in the order of their commits.
func (r *Result) judge(subject string, rows []row.Row) {
	r.Migrations++
	done, order := map[int]int{}, []string{}
	var last row.Row
	interleaved, unordered := false, false
	for _, is := range rows {
		if is.Subject != subject {
			continue
		}
		if is.Refused {
			r.Refused++
			continue
		}
		done[is.Step]++
		switch at := slices.Index(order, is.Process); {
		case at < 0:
			order = append(order, is.Process)
		case at < len(order)-1:
			interleaved = true
		}
		unordered = unordered || is.Attempt < last.Attempt || is.Token < last.Token
		last = is
	}
	for step := 1; step <= row.Steps; step++ {
		switch done[step] {
		case 0:
			r.Never++
		case 1:
		default:
			r.Twice++
		}
	}
	r.Executions += len(order)
	r.Interleaved += count(interleaved)
	r.Unordered += count(unordered)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// promised is an error where a SingletonJob did what it promises never to do.
func (r *Result) promised() error {
	if r.Kind == singleton && (r.Twice > 0 || r.Interleaved > 0 || r.Unordered > 0) {
		return fmt.Errorf("SAFETY: %s: %d steps were done twice, %d migrations interleaved, attempts of %d out of order", r.Fault, r.Twice, r.Interleaved, r.Unordered)
	}
	if r.Kind == singleton && (r.Never > 0 || r.Complete < r.Migrations) {
		return fmt.Errorf("%s: of %d migrations %d are complete, and %d steps were not done", r.Fault, r.Migrations, r.Complete, r.Never)
	}
	return nil
}

// table is the results for people.
func table(results []Result) string {
	var out strings.Builder
	out.WriteString("| fault | | migrations | complete | steps done twice | not done | two processes interleaved | processes | refused as stale | from the fault to complete, min / max |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		took := "–"
		if n := len(r.Took); n > 0 {
			took = fmt.Sprintf("%v / %v", r.Took[0].Round(time.Second), r.Took[n-1].Round(time.Second))
		}
		fmt.Fprintf(&out, "| %s | %s | %d | %d | %d | %d | %d | %d | %d | %s |\n", r.Fault, r.Kind, r.Migrations, r.Complete, r.Twice, r.Never, r.Interleaved, r.Executions, r.Refused, took)
	}
	return out.String()
}
