//go:build linux

// Command scale makes many SingletonJobs on a real API server and etcd, with the real operator as its own process, and measures what
// they cost. Nodes and agents are simulated in this process: the agents are the real ones, each with its connections, its watch and its
// token; there are no containers. make bench-scale JOBS=1000
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/bench/onlab"
)

type options struct {
	jobs        int
	lease       leaseFlag
	rest, churn time.Duration
	patience    time.Duration
	file, svg   string
	show        bool
}

func main() {
	o := options{lease: usual}
	flag.Var(&o.lease, "lease", "`leaseDuration/renewDeadline/retryPeriod` of all jobs")
	flag.IntVar(&o.jobs, "jobs", 100, "how many jobs")
	flag.DurationVar(&o.rest, "rest", time.Minute, "for how long they are left alone")
	flag.DurationVar(&o.churn, "churn", 2*time.Minute, "for how long one process of a hundred crashes each minute")
	flag.DurationVar(&o.patience, "patience", time.Hour, "for how long anything is waited for")
	flag.StringVar(&o.file, "json", "dist/scale.json", "file with the results, one for each number of jobs; this run's is put into it")
	flag.StringVar(&o.svg, "svg", "dist/scale.svg", "file for the chart of all of them")
	flag.BoolVar(&o.show, "show", false, "measure nothing: draw the chart, and print the table of the docs")
	flag.Parse()
	onlab.Main("scale", func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) error {
	all, err := read(o.file)
	if err != nil {
		return err
	}
	var broken []error
	if !o.show {
		if err := room(o.jobs); err != nil {
			return err
		}
		r, err := measure(ctx, o)
		if err != nil {
			return err
		}
		all = append(slices.DeleteFunc(all, func(old Result) bool { return old.Jobs == r.Jobs }), r)
		slices.SortFunc(all, func(a, b Result) int { return a.Jobs - b.Jobs })
		if err := write(o.file, all); err != nil {
			return err
		}
		for _, fault := range r.Faults {
			broken = append(broken, fmt.Errorf("SAFETY: %s", fault))
		}
	}
	fmt.Print(markdown(all))
	return errors.Join(append(broken, onlab.WriteFile(o.svg, []byte(chart(all))))...)
}

func read(path string) (all []Result, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func write(path string, all []Result) error {
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return onlab.WriteFile(path, append(text, '\n'))
}

// room makes sure that the machine has the files and ports that so many agents need: each job has two watches and a connection for
// renewals.
func room(jobs int) error {
	const spare = 4000
	connections := 3*jobs + spare
	need := uint64(connections) // here, and as many in the API server
	limit := unix.Rlimit{Cur: need, Max: need}
	var present unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &present); err != nil {
		return err
	}
	limit.Max = max(limit.Max, present.Max)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("-jobs=%d takes %d open files, and the limit is %d: raise it (ulimit -n): %w", jobs, need, present.Max, err)
	}
	var low, high int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		return err
	}
	if high-low < connections {
		return fmt.Errorf("-jobs=%d takes %d connections to one address, and net.ipv4.ip_local_port_range is %d to %d: widen it (sysctl -w net.ipv4.ip_local_port_range='15000 65000')",
			jobs, connections, low, high)
	}
	return nil
}
