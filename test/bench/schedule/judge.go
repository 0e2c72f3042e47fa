package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/workload/book"
)

// An arrival is an entry that the ledger was offered.
type arrival struct {
	book.Entry
	// At is since the boot of this machine, Wall the same by its clock.
	At      time.Duration
	Wall    time.Time
	Refused bool
}

// Result is what became of the ticks of one kind's jobs.
type Result struct {
	Kind string `json:"kind"`
	// Ticks were due. Once of them were run to their end once, Twice more than once, and Never not at all. The jobs themselves report
	// Missed and Skipped.
	Ticks   int   `json:"ticks"`
	Once    int   `json:"once"`
	Twice   int   `json:"twice"`
	Never   int   `json:"never"`
	Missed  int64 `json:"missed"`
	Skipped int64 `json:"skipped"`
	// Executions are processes, Overlaps pairs of them at one time, Stale entries that the fence refused.
	Executions int `json:"executions"`
	Overlaps   int `json:"overlaps"`
	Stale      int `json:"stale"`
	// Delays are from each tick to the first process of it.
	Delays []time.Duration `json:"delays"`
	// Rows has one entry for each tick of each job.
	Rows []Row `json:"rows"`
}

// Row is what became of one tick.
type Row struct {
	Job        string    `json:"job"`
	Tick       time.Time `json:"tick"`
	Executions int       `json:"executions"`
	Ends       int       `json:"ends"`
}

// execution is one process's life as the ledger saw it.
type execution struct {
	tick        int64
	begin, last time.Duration
	ended       bool
}

// lives are a subject's processes, in the order of their begins, and first is when each tick was begun.
func lives(subject string, all []arrival) (inOrder []*execution, first map[int64]time.Time, stale int) {
	known := map[string]*execution{}
	first = map[int64]time.Time{}
	for _, a := range all {
		switch {
		case a.Subject != subject:
			continue
		case a.Refused:
			stale++
			continue
		}
		l := known[a.Process]
		if l == nil {
			l = &execution{tick: a.Tick, begin: a.At}
			known[a.Process] = l
			inOrder = append(inOrder, l)
		}
		l.last, l.ended = a.At, l.ended || a.Kind == book.End
		if _, begun := first[a.Tick]; !begun {
			first[a.Tick] = a.Wall
		}
	}
	slices.SortFunc(inOrder, func(a, b *execution) int { return cmp.Compare(a.begin, b.begin) })
	return inOrder, first, stale
}

// judge adds what became of a job's ticks.
func (r *Result) judge(subject string, ticks []int64, all []arrival) {
	inOrder, first, stale := lives(subject, all)
	r.Ticks += len(ticks)
	r.Stale += stale
	r.Executions += len(inOrder)
	ends, executions := map[int64]int{}, map[int64]int{}
	for i, l := range inOrder {
		executions[l.tick]++
		if l.ended {
			ends[l.tick]++
		}
		for _, later := range inOrder[i+1:] {
			if later.begin < l.last {
				r.Overlaps++
			}
		}
	}
	for _, tick := range ticks {
		switch ends[tick] {
		case 0:
			r.Never++
		case 1:
			r.Once++
		default:
			r.Twice++
		}
		due := time.Unix(tick, 0).UTC()
		r.Rows = append(r.Rows, Row{Job: subject, Tick: due, Executions: executions[tick], Ends: ends[tick]})
		if at, run := first[tick]; run {
			r.Delays = append(r.Delays, at.Sub(due))
		}
	}
	slices.Sort(r.Delays)
}

// ledger decides on entries: those with a token below the highest of their subject are refused.
type ledger struct {
	highest map[string]fence.Token
	all     []arrival
}

func (l *ledger) book(e book.Entry, at time.Duration, wall time.Time) (accepted bool) {
	a := arrival{Entry: e, At: at, Wall: wall}
	if e.Token != 0 {
		mark, err := fence.Gate{Resource: fence.Resource(e.Subject)}.Accept(l.highest[e.Subject], e.Token)
		a.Refused = err != nil
		l.highest[e.Subject] = mark
	}
	l.all = append(l.all, a)
	return !a.Refused
}

// table is the results for people.
func table(results []Result) string {
	var out strings.Builder
	out.WriteString("| | ticks | run once | run twice | not run (missed + skipped by its own count) | at one time | refused as stale | start after the tick, min / median / p90 / max |\n|---|---|---|---|---|---|---|---|\n")
	for i := range results {
		r := &results[i]
		fmt.Fprintf(&out, "| %s | %d | %d | %d | %d (%d + %d) | %d | %d | %s |\n", r.Kind, r.Ticks, r.Once, r.Twice, r.Never, r.Missed, r.Skipped,
			r.Overlaps, r.Stale, spread(r.Delays))
	}
	return out.String()
}

func spread(sorted []time.Duration) string {
	if len(sorted) == 0 {
		return "–"
	}
	at := func(share float64) time.Duration {
		return sorted[int(share*float64(len(sorted)-1)+0.5)].Round(10 * time.Millisecond)
	}
	return fmt.Sprintf("%v / %v / %v / %v", at(0), at(0.5), at(0.9), at(1))
}
