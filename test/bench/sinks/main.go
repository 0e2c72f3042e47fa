//go:build linux

// Command sinks runs SingletonJobs that write to each kind of sink, with its fence and without, and breaks the nodes under their processes.
// It counts at the sinks which writes of past tenures arrived and which were stored.
//
// The sinks are on the host, which stays. The fence-proxy before the HTTP service is the chart's, on a node that stays. The program fails
// if a fenced sink stored a stale write or lost an acknowledged one, if none was offered, and if an unfenced one stored none.
//
// It needs the lab of test/lab, up, with the operator's image loaded: 'make bench-sinks-lab' does all that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/singletonjob/operator/test/bench/onlab"
)

type options struct {
	onlab.Options

	sinks, faults, markdown string
}

func main() {
	var o options
	o.Flags("dist/sinks-lab.json")
	flag.StringVar(&o.sinks, "sinks", strings.Join(kinds, ","), "kinds of sinks, comma-separated")
	flag.StringVar(&o.faults, "faults", "api,cut,freeze,crash", "faults, comma-separated")
	flag.StringVar(&o.markdown, "markdown", "dist/sinks-lab.md", "file for the tables")
	flag.Parse()
	onlab.Main("sinks", o.run)
}

func (o *options) run(ctx context.Context) error {
	faults, err := chosen(o.faults)
	if err != nil {
		return err
	}
	asked, err := chosenKinds(o.sinks)
	if err != nil {
		return err
	}
	c, err := o.Connect(ctx, "bench-sinks-lab")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := o.Load(ctx, c); err != nil {
		return err
	}
	b := &bench{cluster: c, progress: os.Stderr}
	defer b.close()
	if err := b.setUp(ctx, o.Image, asked); err != nil {
		return err
	}
	b.say("sinks, operator and proxies are up; the jobs start")
	following, stop := context.WithCancel(ctx)
	defer stop()
	if err := b.start(ctx, following); err != nil {
		return err
	}
	var results []Result
	var errs []error
	for _, f := range faults {
		found, err := b.trial(ctx, f)
		errs = append(errs, err)
		for _, r := range found {
			errs = append(errs, r.judge(f.silent()))
		}
		results = append(results, found...)
	}
	text := markdown(results)
	fmt.Print(text)
	return errors.Join(append(errs, o.Write(results), onlab.WriteFile(o.markdown, []byte(text)))...)
}
