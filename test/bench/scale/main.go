//go:build linux

// Command scale makes many SingletonJobs on a real API server and etcd, with the real operator as its own process, and measures what
// they cost. Nodes and agents are simulated in processes of this program: the agents are the real ones, each with its connections, its watch and its
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
	leastShards int
	share       bool
	heap        string
	shard       string
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
	flag.IntVar(&o.leastShards, "shards", 1, "divide the jobs into at least so many shards, each with an API server and a process of agents")
	flag.BoolVar(&o.share, "share", false, "have agents share connections, so that one API server suffices for more of them than a process can have connections")
	flag.StringVar(&o.heap, "heap", "", "also write a profile of the idle operator's heap to this `file`, for go tool pprof")
	flag.StringVar(&o.shard, "shard", "", "for the program itself: run the agents of this `place`, and answer on standard input and output")
	flag.Parse()
	onlab.Main("scale", func(ctx context.Context) error {
		if o.shard != "" {
			return serveShard(ctx, o.shard, o.patience)
		}
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
			if len(r.Phases) == 0 {
				return errors.Join(append(broken, err)...)
			}
			r.Ended = err.Error()
			broken = append(broken, err)
		}
		all = append(slices.DeleteFunc(all, func(old Result) bool { return old.Jobs == r.Jobs && old.Lease == r.Lease }), r)
		slices.SortStableFunc(all, func(a, b Result) int { return a.Jobs - b.Jobs })
		if err := write(o.file, all); err != nil {
			return err
		}
	}
	fmt.Print(markdown(all))
	curve := slices.DeleteFunc(all, func(r Result) bool { return r.Lease != o.lease.String() })
	return errors.Join(append(broken, onlab.WriteFile(o.svg, []byte(chart(curve))))...)
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

// eachShares is how many agents share a connection with -share: an API server takes 1000 requests at a time on one, and an agent has two.
const eachShares = 250

// shardsFor is into how many shards so many jobs must be divided, where a process can have so many connections.
func shardsFor(jobs int, connections uint64) (int, error) {
	if connections < spare+connectionsEach {
		return 0, fmt.Errorf("a process can have only %d connections: raise the limit of open files (ulimit -n) or net.ipv4.ip_local_port_range", connections)
	}
	share := int((connections - spare) / connectionsEach)
	return max(1, (jobs+share-1)/share), nil
}

// connections is how many a process here can have.
func connections() (uint64, error) {
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
	return min(files.Max, high-low), err
}
