//go:build linux

// Command bench runs the same workload, a write to a sink every 20 ms, under SingletonJob and under its usual alternatives.
// It injects faults and reports how long no process wrote, whether two did, and what became of the stale writes.
//
// It needs the lab of test/lab, up, with the operator's image loaded: 'make bench' does all that.
package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/test/bench/onlab"
)

type options struct {
	onlab.Options

	runs, slowRuns   int
	budget           time.Duration
	subjects, faults string
	svg, show        string
}

func main() {
	var o options
	o.Flags("dist/bench.json")
	flag.IntVar(&o.runs, "runs", 5, "runs of each subject under each fault")
	flag.IntVar(&o.slowRuns, "slow-runs", 1, "runs of those that take minutes: a Deployment whose node has vanished; 0 leaves them out")
	flag.DurationVar(&o.budget, "budget", 90*time.Minute, "begin no run that may end later; every round is over all subjects and faults, so a short budget costs runs first")
	flag.StringVar(&o.subjects, "subjects", "", "only these, comma-separated: "+strings.Join(keys(subjects(), subject.name), ", "))
	flag.StringVar(&o.faults, "faults", "", "only these, comma-separated: "+strings.Join(keys(faultCases(), faultCase.name), ", "))
	flag.StringVar(&o.svg, "svg", "dist/bench.svg", "file for the chart")
	flag.StringVar(&o.show, "show", "", "measure nothing: print the table of docs/measured.md from the figures in this file")
	flag.Parse()
	onlab.Main("bench", func(ctx context.Context) error { return run(ctx, o) })
}

func (s subject) name() string   { return s.key }
func (f faultCase) name() string { return f.key }

func keys[T any](all []T, key func(T) string) []string {
	names := make([]string, 0, len(all))
	for _, one := range all {
		names = append(names, key(one))
	}
	return names
}

// choose returns those that the comma-separated list names, in their own order; all for an empty list.
func choose[T any](all []T, key func(T) string, list string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	for _, w := range wanted {
		if !slices.Contains(keys(all, key), w) {
			return nil, fmt.Errorf("no %q: there are %s", w, strings.Join(keys(all, key), ", "))
		}
	}
	return slices.DeleteFunc(all, func(one T) bool { return !slices.Contains(wanted, key(one)) }), nil
}

func run(ctx context.Context, o options) error {
	if o.show != "" {
		return showFile(o.show)
	}
	b := &bench{options: o, begun: time.Now()}
	var err error
	if b.subjects, err = choose(subjects(), subject.name, o.subjects); err != nil {
		return fmt.Errorf("-subjects: %w", err)
	}
	if b.faults, err = choose(faultCases(), faultCase.name, o.faults); err != nil {
		return fmt.Errorf("-faults: %w", err)
	}
	if b.cluster, err = o.Connect(ctx, "bench"); err != nil {
		return err
	}
	defer b.cluster.Close()
	if err := b.setUp(ctx); err != nil {
		return err
	}
	failed := b.rounds(ctx)
	if err := b.report(ctx); err != nil {
		return err
	}
	return failed
}
