package model

import (
	"strings"
	"testing"
)

// TestNothingBreaks explores every world with one fault fewer than `make model`, but at least one. It is the control of the mutants:
// where worlds are small, that is as many faults as a mutant takes to be found.
func TestNothingBreaks(t *testing.T) {
	t.Parallel()
	for _, p := range profiles {
		m := *p.model
		m.budget = max(1, m.budget-1)
		switch r := m.explore(mostStates); {
		case r.Violation != nil:
			t.Errorf("SAFETY: %s: %s: %s\n%s", p.name, r.Violation.Kind, r.Violation.Text, r.Scenario)
		case !r.Complete:
			t.Errorf("%s: %d states are not all", p.name, r.States)
		case m.budget == 1 && r.ByFaults[1] < 10:
			t.Errorf("%s: a fault leads to %d states only", p.name, r.ByFaults[1])
		}
	}
}

// TestSearchIsReproducible has figures that can be written down.
func TestSearchIsReproducible(t *testing.T) {
	t.Parallel()
	m := *profiles[0].model
	first := m.explore(mostStates)
	again := m.explore(mostStates)
	if first.States != again.States || first.Moves != again.Moves || first.Depth != again.Depth || first.States < 1000 {
		t.Errorf("%d states by %d moves, then %d by %d", first.States, first.Moves, again.States, again.Moves)
	}
}

func TestCheckRefusesUnsupportedWorlds(t *testing.T) {
	t.Parallel()
	none := func(string, string, int, Result) {}
	if err := Check(Options{Profile: "nowhere"}, none); err == nil || !strings.Contains(err.Error(), "everything") {
		t.Errorf("an unknown world: %v", err)
	}
	if err := Check(Options{Profile: "foreign", States: 5}, none); err == nil || !strings.Contains(err.Error(), "-states") {
		t.Errorf("too little room: %v", err)
	}
	if err := Check(Options{Profile: "forged", States: 5000}, none); err != nil {
		t.Error(err)
	}
}
