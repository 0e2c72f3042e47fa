//go:build linux

// Command service measures what a client of a job's Service sees of handovers and failovers: how long it got no answer, and
// which process answered. It also measures how long the process itself was absent, and when the endpoint followed the Lease.
//
// It needs the lab of test/lab, up, with the operator's image loaded: 'make bench-service' does all that.
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

	handovers, failovers, crashes, out int
}

func main() {
	var o options
	o.Flags("dist/service.json")
	flag.IntVar(&o.handovers, "handovers", 50, "handovers: every tenth is a rollout, the others are switchovers")
	flag.IntVar(&o.failovers, "failovers", 15, "failovers on nodes that live: process, container or pod killed, in turns")
	flag.IntVar(&o.crashes, "crashes", 5, "failovers because the node loses power")
	flag.IntVar(&o.out, "out", 2, "changes while no operator runs: a pod deleted, a container killed, in turns")
	flag.Parse()
	onlab.Main("service", o.run)
}

func (o *options) run(ctx context.Context) error {
	c, err := o.Connect(ctx, "bench-service")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := o.Load(ctx, c); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &trial{cluster: c, progress: os.Stderr}
	if err := t.setUp(ctx, o.Image); err != nil {
		return err
	}
	failed := t.all(ctx, o)
	err = o.Write(t.result)
	fmt.Print(table(t.result.Changes))
	for _, r := range t.result.Outages {
		fmt.Println(r)
	}
	return errors.Join(failed, err, t.result.verdict())
}
