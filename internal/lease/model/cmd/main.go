// Command cmd explores every state of small worlds around lease.Step and prints how many there were. It exits with 1 if a promise
// is broken, with the shortest path to it, or if a search did not end.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/singletonjob/operator/internal/lease/model"
)

func main() {
	o := model.Options{}
	flag.StringVar(&o.Profile, "profile", "", "explore only this world")
	flag.IntVar(&o.More, "more", 0, "number of faults in a run in addition to those that each world has")
	flag.IntVar(&o.States, "states", model.DefaultStates, "give up a search that has more states")
	flag.Parse()
	debug.SetGCPercent(200)
	var all model.Result
	fmt.Printf("%-16s %6s %8s %9s %5s %9s %8s  %s\n", "world", "faults", "states", "moves", "depth", "recovery", "took", "")
	err := model.Check(o, func(name, about string, faults int, r model.Result) {
		all = all.Sum(r)
		printRow(name, fmt.Sprint(faults), about, r)
	})
	printRow("all", "", "", all)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func printRow(name, faults, about string, r model.Result) {
	fmt.Printf("%-16s %6s %8d %9d %5d %9v %7.1fs  %s\n",
		name, faults, r.States, r.Moves, r.Depth, r.Recovery, r.Took.Round(100*time.Millisecond).Seconds(), about)
}
