//go:build linux

// Command schedule counts what becomes of the ticks of schedules under faults. It compares SingletonJobs with warm standbys, others whose
// candidates are created on demand, and CronJobs, side by side and under the same faults.
//
// It needs the lab of test/lab, up, with the operator's image loaded: 'make bench-schedule' does all that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/singletonjob/operator/test/bench/onlab"
)

type options struct {
	onlab.Options

	ticks, jobs int
	quiet       bool
}

func main() {
	var o options
	o.Flags("dist/schedule.json")
	flag.IntVar(&o.ticks, "ticks", 9, "minutes: each is a tick of each job, and has its fault; three without one follow")
	flag.IntVar(&o.jobs, "jobs", 6, "jobs of each kind")
	flag.BoolVar(&o.quiet, "quiet", false, "without faults: only how late runs start")
	flag.Parse()
	onlab.Main("schedule", o.run)
}

func (o *options) run(ctx context.Context) error {
	c, err := o.Connect(ctx, "bench-schedule")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := o.Load(ctx, c); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newTrial(c, os.Stderr, o.jobs)
	if err := t.setUp(ctx, o.Image); err != nil {
		return err
	}
	results, failed := t.all(ctx, o)
	err = o.Write(results)
	fmt.Print(table(results))
	return errors.Join(failed, err, promised(results))
}

// promised is an error where a SingletonJob did what it promises never to do.
func promised(results []Result) error {
	var errs []error
	for i := range results {
		r := &results[i]
		if r.Kind == cronJob {
			continue
		}
		if r.Twice > 0 || r.Overlaps > 0 {
			errs = append(errs, fmt.Errorf("SAFETY: %s: %d ticks were run twice, %d pairs of processes at one time", r.Kind, r.Twice, r.Overlaps))
		}
		if accounted := int64(r.Once) + r.Missed + r.Skipped; accounted != int64(r.Ticks) {
			errs = append(errs, fmt.Errorf("%s: of %d ticks %d are accounted for", r.Kind, r.Ticks, accounted))
		}
	}
	return errors.Join(errs...)
}
