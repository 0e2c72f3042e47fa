//go:build linux

// Command migration counts which steps of migrations were done, and how often, while what runs them is broken. SingletonJobs that run to
// completion write with the fence of package fencesql. Kubernetes Jobs run the same program side by side with them, under the same faults.
//
// The database is on the host, which stays. The program fails if a SingletonJob did a step twice or not at all, or if its processes or
// attempts were out of order.
//
// It needs the lab of test/lab, up, with the operator's image loaded: 'make bench-migration' does all that.
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

	each int
}

func main() {
	var o options
	o.Flags("dist/migration.json")
	flag.IntVar(&o.each, "each", 6, "migrations of each kind under each fault")
	flag.Parse()
	onlab.Main("migration", o.run)
}

func (o *options) run(ctx context.Context) error {
	c, err := o.Connect(ctx, "bench-migration")
	if err != nil {
		return err
	}
	defer c.Close()
	if len(c.Lab.Nodes) < nodes {
		return fmt.Errorf("the lab has %d nodes, and %d are needed: go run ./test/lab up -nodes=%[2]d", len(c.Lab.Nodes), nodes)
	}
	if err := o.Load(ctx, c); err != nil {
		return err
	}
	b := &bench{cluster: c, progress: os.Stderr, each: o.each}
	defer b.close()
	if err := b.setUp(ctx, o.Image); err != nil {
		return err
	}
	var results []Result
	var errs []error
	for _, f := range faults {
		found, err := b.trial(ctx, f)
		errs = append(errs, err)
		for i := range found {
			errs = append(errs, found[i].promised())
		}
		results = append(results, found...)
	}
	fmt.Print(table(results))
	return errors.Join(append(errs, o.Write(results))...)
}
