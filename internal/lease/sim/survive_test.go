package sim

import (
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/lease/mistake"
)

// The shortest leases that the docs' table names, and the default.
var (
	threeSeconds = Timing{3 * time.Second, 1500 * time.Millisecond, 500 * time.Millisecond}
	fiveSeconds  = Timing{5 * time.Second, 2500 * time.Millisecond, 500 * time.Millisecond}
	fifteen      = Timing{15 * time.Second, 10 * time.Second, 2 * time.Second}
)

// enduring is a steady fault that must end no tenure in so many leases.
type enduring struct {
	timing Timing
	fault  Steady
	leases int
}

var endurings = map[string]enduring{
	"3 s, a tenth lost":                     {threeSeconds, Steady{Lost: 0.1}, 1000},
	"3 s, one of three dead, a fifth lost":  {threeSeconds, Steady{Lost: 0.2, DeadServer: true}, 1000},
	"5 s, one of three dead, a fifth lost":  {fiveSeconds, Steady{Lost: 0.2, DeadServer: true}, 1000},
	"15 s, one of three dead, a fifth lost": {fifteen, Steady{Lost: 0.2, DeadServer: true}, 500},
	"15 s, answers come after up to 6 s":    {fifteen, Steady{Slow: 3 * time.Second}, 200},
}

func (e enduring) lost(o Options) int {
	return survive(1, e.timing, time.Duration(e.leases)*e.timing[0], e.fault, o).Lost
}

func TestTenuresSurviveLossesThatLast(t *testing.T) {
	t.Parallel()
	for name, e := range endurings {
		if lost := e.lost(Options{}); lost > 0 {
			t.Errorf("%s: %d tenures ended in %d leases", name, lost, e.leases)
		}
	}
}

// TestSurvivalDependsOnEveryMeasure has it fail without each of what it rests on.
func TestSurvivalDependsOnEveryMeasure(t *testing.T) {
	t.Parallel()
	for _, m := range []struct {
		what, under string
		step        mistake.Step
	}{
		{"patience", "3 s, one of three dead, a fifth lost", mistake.Patient},
		{"patience", "15 s, one of three dead, a fifth lost", mistake.Patient},
		{"writes beside the read", "3 s, one of three dead, a fifth lost", mistake.OneAfterAnother},
		{"writes beside the read", "5 s, one of three dead, a fifth lost", mistake.OneAfterAnother},
		{"late answers", "15 s, answers come after up to 6 s", mistake.LateIsLost},
	} {
		lost := endurings[m.under].lost(Options{Step: m.step})
		t.Logf("%s, without %s: %d tenures ended", m.under, m.what, lost)
		if lost < 3 {
			t.Errorf("%s: without %s %d tenures ended", m.under, m.what, lost)
		}
	}
}
