//go:build linux

package main

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/localnode"
)

var (
	minutes = flag.Float64("minutes", 0, "for how long TestTorture does faults")
	seed    = flag.Uint64("seed", 1, "what decides which")
)

func TestMain(m *testing.M) {
	localnode.Init()
	flag.Parse()
	os.Exit(m.Run())
}

// TestTorture is for mutants that only a run of minutes detects.
func TestTorture(t *testing.T) {
	if *minutes == 0 {
		t.Skip("make torture and make mutants give it minutes")
	}
	held, err := run("../..", time.Duration(*minutes*float64(time.Minute)), *seed, "", os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	if !held {
		t.Error("not all held")
	}
}
