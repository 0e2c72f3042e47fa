package main

import (
	"fmt"
	"time"

	"github.com/singletonjob/operator/internal/lease/sim"
)

// recommended are leaseDuration, renewDeadline and retryPeriod.
var recommended = []sim.Timing{
	{3 * time.Second, 1500 * time.Millisecond, 500 * time.Millisecond},
	{5 * time.Second, 2500 * time.Millisecond, 500 * time.Millisecond},
	{15 * time.Second, 10 * time.Second, 2 * time.Second},
	{60 * time.Second, 40 * time.Second, 10 * time.Second},
	{300 * time.Second, 200 * time.Second, 100 * time.Second},
}

// steadies are the faults of the table's columns.
var steadies = []struct {
	name  string
	fault sim.Steady
}{
	{"1 % lost", sim.Steady{Lost: 0.01}},
	{"5 % lost", sim.Steady{Lost: 0.05}},
	{"10 % lost", sim.Steady{Lost: 0.10}},
	{"one of three servers dead", sim.Steady{DeadServer: true}},
	{"that, and 5 % lost", sim.Steady{Lost: 0.05, DeadServer: true}},
}

// printTable prints Markdown.
func printTable() {
	fmt.Print("| leaseDuration/renewDeadline/retryPeriod | longest outage survived |")
	for _, s := range steadies {
		fmt.Printf(" %s |", s.name)
	}
	fmt.Print("\n|---|---|")
	for range steadies {
		fmt.Print("---|")
	}
	fmt.Println()
	for _, t := range recommended {
		fmt.Printf("| %v/%v/%v | %.2f s |", t[0].Seconds(), t[1].Seconds(), t[2].Seconds(), sim.Survivable(1, t).Seconds())
		for _, s := range steadies {
			fmt.Printf(" %s |", survival(t, s.fault))
		}
		fmt.Println()
	}
}

// survival returns how long tenures last, measured in 30 000 leases or until 30 have ended. No episode is longer than clocks are
// kept for.
func survival(t sim.Timing, f sim.Steady) string {
	var sum sim.Survival
	most := 30_000 * t[0]
	for seed := uint64(1); sum.Simulated < most && sum.Lost < 30; seed++ {
		s := sim.Survive(seed, t, min(3000*t[0], 100*time.Hour), f)
		sum.Simulated += s.Simulated
		sum.Lost += s.Lost
	}
	hours := sum.Simulated.Hours()
	switch {
	case sum.Lost == 0:
		return fmt.Sprintf("none lost in %.0f h", hours)
	case sum.Mean() < time.Hour:
		return fmt.Sprintf("%.0f min (%d lost)", sum.Mean().Minutes(), sum.Lost)
	default:
		return fmt.Sprintf("%.0f h (%d lost)", sum.Mean().Hours(), sum.Lost)
	}
}
