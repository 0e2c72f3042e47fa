// Package model checks lease.Step, the function that the agents run, in every state of small worlds. A world has an API server
// with one Lease, two or three candidates with clocks, processes and a leash, a sink and an operator. A bounded number of faults can
// come at any moment. The simulator (internal/lease/sim) draws long episodes at random. This package covers short ones completely.
// docs/model.md lists the bounds.
package model

import (
	"fmt"
	"slices"
)

// Options say what to explore.
type Options struct {
	// Profile is the name of one world, empty for all.
	Profile string
	// More is the number of faults in a run beyond the profile's own.
	More int
	// States is the greatest number of states of each search.
	States int
}

// DefaultStates is enough for each search. Such a search takes about 300 MiB of memory.
const DefaultStates = 400_000

// Profiles returns the names of the worlds.
func Profiles() (names []string) {
	for _, p := range profiles {
		names = append(names, p.name)
	}
	return names
}

// Check explores worlds. It passes each result to tell, with the world's name, its description, and the number of faults in a
// run. It returns an error if a promise is broken, if a search did not end within its bounds, or if there is no such world.
func Check(o Options, tell func(name, about string, faults int, r Result)) error {
	if o.Profile != "" && !slices.Contains(Profiles(), o.Profile) {
		return fmt.Errorf("-profile: no world is called %q; there are %v", o.Profile, Profiles())
	}
	for _, p := range profiles {
		if o.Profile != "" && o.Profile != p.name {
			continue
		}
		m := *p.model
		m.budget += o.More
		r := m.explore(o.States)
		tell(p.name, p.about, m.budget, r)
		switch {
		case r.Violation != nil:
			return fmt.Errorf("SAFETY: %s: %s: %s\n%s", p.name, r.Violation.Kind, r.Violation.Text, r.Scenario)
		case !r.Complete:
			return fmt.Errorf("%s: %d states are not all; raise -states, and see that there is memory for it", p.name, r.States)
		}
	}
	return nil
}

// Sum adds up the figures of two searches.
func (r Result) Sum(o Result) Result {
	r.States += o.States
	r.Moves += o.Moves
	r.Depth = max(r.Depth, o.Depth)
	r.Recovery = max(r.Recovery, o.Recovery)
	r.Took += o.Took
	return r
}
