// Command cmd simulates elections under faults and prints the results. It exits with 1 if a promise is broken, with the seed, the
// timeline and the command that repeats it.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/singletonjob/operator/internal/lease/sim"
)

func main() {
	hours := flag.Float64("hours", 1000, "simulated hours to run")
	seed := flag.Uint64("seed", 0, "run only this episode, and explain it if a promise is broken; 0: begin with a random one")
	name := flag.String("profile", sim.AnyProfile.String(), "profile of the simulated world; with any, the seed chooses it")
	table := flag.Bool("table", false, "print which outages and which losses tenures survive, by their settings")
	flag.Parse()
	if *table {
		printTable()
		return
	}
	profile, err := sim.ParseProfile(*name)
	if err != nil {
		fmt.Fprintln(os.Stderr, "-profile:", err)
		os.Exit(2)
	}
	o := sim.Options{Profile: profile}
	if *seed != 0 {
		os.Exit(one(*seed, o))
	}
	os.Exit(many(*hours, o))
}

// one runs one episode.
func one(seed uint64, o sim.Options) int {
	printResult(sim.Run(seed, o))
	if text := sim.Explain(seed, o); text != "" {
		fmt.Print(text)
		return 1
	}
	return 0
}

func printResult(r sim.Result) {
	fmt.Printf("seed %d: %v, %v, %d tenures, %d takeovers, %d overlaps while cut off, %d of %d writes stale, %d refused\n",
		r.Seed, r.Profile, r.Simulated.Round(time.Second), r.Tenures, r.Takeovers, r.Overlaps, r.Stale, r.Writes, r.Refused)
}

// processorTime returns the CPU time of this process on all cores, which does not depend on the load of the machine.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// many runs episodes until the given number of hours is simulated.
func many(hours float64, o sim.Options) int {
	debug.SetGCPercent(400) // An episode is small and creates much garbage.
	first := rand.Uint64() >> 16
	began := time.Now()
	var simulated time.Duration
	var sum sim.Result
	episodes := 0
	for seed := first; simulated.Hours() < hours; seed++ {
		r := sim.Run(seed, o)
		if r.Violation != nil {
			fmt.Print(sim.Explain(seed, o))
			fmt.Printf("run it again: go run ./internal/lease/sim/cmd -profile %v -seed %d\n", r.Profile, seed)
			return 1
		}
		episodes++
		simulated += r.Simulated
		sum.Tenures += r.Tenures
		sum.Takeovers += r.Takeovers
		sum.Overlaps += r.Overlaps
		sum.Writes += r.Writes
		sum.Refused += r.Refused
		sum.Stale += r.Stale
		sum.Frozen += r.Frozen
		sum.Late += r.Late
		sum.Stolen += r.Stolen
		sum.Forged += r.Forged
		sum.Erased += r.Erased
		sum.Steps += r.Steps
	}
	took := time.Since(began)
	fmt.Printf("seeds %d to %d: %.0f simulated hours in %v, %.0f hours a minute of one core, %d steps\n",
		first, first+uint64(episodes)-1, simulated.Hours(), took.Round(time.Millisecond), simulated.Hours()/processorTime().Minutes(), sum.Steps)
	fmt.Printf("tenures: %d, takeovers: %d, overlaps with holders that are cut off and keep running: %d\n", sum.Tenures, sum.Takeovers, sum.Overlaps)
	fmt.Printf("caused by the world: %d takeovers from a frozen process, %d from one that outlived its kill by more than the margin, %d by a client-go elector before its time\n", sum.Frozen, sum.Late, sum.Stolen)
	fmt.Printf("caused by other writers: %d takeovers from a process whose Lease was changed to look released, %d tokens below one of which every trace was erased\n", sum.Forged, sum.Erased)
	fmt.Printf("writes to the sink: %d, %d of them stale on arrival; %d refused\n", sum.Writes, sum.Stale, sum.Refused)
	fmt.Println("no promise broken")
	return 0
}
