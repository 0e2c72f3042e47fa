package tier

import "testing"

func TestSeedIsFixedInTheGate(t *testing.T) {
	t.Setenv(Variable, "")
	if got := Seed(t, 7); got != 7 {
		t.Errorf("the gate draws from %d, want 7", got)
	}
	t.Setenv(Variable, "1")
	seen := map[uint64]bool{}
	for range 3 {
		seen[Seed(t, 7)] = true
	}
	if len(seen) < 2 {
		t.Errorf("the deep tier draws from %v each time", seen)
	}
}

func TestDeep(t *testing.T) {
	for value, ran := range map[string]bool{"": false, "1": true} {
		t.Setenv(Variable, value)
		got := false
		t.Run("deep tier "+value, func(t *testing.T) {
			if value != "" {
				Deep(t, "is tested")
				got = true
				return
			}
			t.Cleanup(func() {
				if !t.Skipped() {
					t.Error("the gate runs it")
				}
			})
			Deep(t, "is tested")
			got = true
		})
		if got != ran {
			t.Errorf("with %q it ran: %t, want %t", value, got, ran)
		}
	}
}
