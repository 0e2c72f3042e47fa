//go:build linux

// Command scale makes many SingletonJobs on a real API server and etcd, with the real operator as its own process, and measures what
// they cost. Nodes are simulated in this process, without containers. The agents are the real ones. Each has its watch and its token, and its
// own connections if a process can have so many. make bench-scale JOBS=1000
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
	share       bool
	heap        string
	until       string
	show        bool
}

func main() {
	o := options{lease: usual}
	flag.Var(&o.lease, "lease", "`leaseDuration/renewDeadline/retryPeriod` of all jobs")
	flag.IntVar(&o.jobs, "jobs", 100, "how many jobs")
	flag.DurationVar(&o.rest, "rest", time.Minute, "for how long they are left alone")
	flag.DurationVar(&o.churn, "churn", 2*time.Minute, "for how long one process of a hundred crashes each minute")
	flag.DurationVar(&o.patience, "patience", time.Hour, "for how long anything is waited for")
	flag.StringVar(&o.file, "json", "dist/scale.json", "file with the results, one for each number of jobs and lease; this run's is put into it")
	flag.StringVar(&o.svg, "svg", "dist/scale.svg", "file for the chart of those with this lease")
	flag.BoolVar(&o.show, "show", false, "measure nothing: draw the chart, and print the table of the docs")
	flag.BoolVar(&o.share, "share", false, "have the agents share connections over HTTP/2, as they do if a process cannot have connections for all of them")
	flag.StringVar(&o.until, "until", recovered, "end after this `phase`, such as \""+restarted+"\"")
	flag.StringVar(&o.heap, "heap", "", "also write a profile of the idle operator's heap to this `file`, for go tool pprof")
	flag.Parse()
	onlab.Main("scale", func(ctx context.Context) error {
		return run(ctx, o)
	})
}

func run(ctx context.Context, o options) error {
	all, err := read(o.file)
	if err != nil {
		return err
	}
	var broken []error
	if !o.show {
		r, err := measure(ctx, o)
		for _, fault := range r.Faults {
			broken = append(broken, fmt.Errorf("SAFETY: %s", fault))
		}
		if err != nil {
			r.Ended = err.Error()
			broken = append(broken, err)
		}
		all = with(all, r)
		slices.SortStableFunc(all, func(a, b Result) int { return a.Jobs - b.Jobs })
		if err := write(o.file, all); err != nil {
			return errors.Join(append(broken, err)...)
		}
	}
	fmt.Print(markdown(all))
	curve := slices.DeleteFunc(all, func(r Result) bool { return r.Lease != o.lease.String() })
	return errors.Join(append(broken, onlab.WriteFile(o.svg, []byte(chart(curve))))...)
}

// with replaces an earlier result of the same kind. A run that ended early does not replace a complete one.
func with(all []Result, r Result) []Result {
	same := func(old Result) bool {
		return old.Jobs == r.Jobs && old.Lease == r.Lease && (old.Shared > 0) == (r.Shared > 0)
	}
	if len(r.Phases) == 0 || r.Ended != "" && slices.ContainsFunc(all, func(old Result) bool { return same(old) && old.Ended == "" }) {
		return all
	}
	return append(slices.DeleteFunc(all, same), r)
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

// connectionsEach is how many connections a job has at most: each of its two agents has one for a watch and one for other requests. They
// take open files here and in the API server, and ports here. A process has some for other things, too.
const connectionsEach, spare = 4, 2000

// eachShares is how many agents share a connection. They are few, because for each frame the API server looks at all requests of a connection,
// and each agent has an open watch. With 250, that was 7 % of the API server's CPU.
const eachShares = 25

// connections is how many connections all agents here can have.
func connections() (int, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, err
	}
	var low, high uint64
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(text), &low, &high)
	return int(min(files.Max, high-low)) - spare, err
}
