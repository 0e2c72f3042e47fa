package plan

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// rollout simulates the environment of a Fleet, one event at a time, whenever there is nothing to do.
type rollout struct {
	Fleet
	// broken: new candidates do not become ready. crashing: new processes end at once.
	broken, crashing bool
	// unplaceable: the mover can't be scheduled.
	unplaceable bool
	asked       bool
	// unready: the pod that has handed over is not reported as ready yet.
	unready   bool
	released  bool
	handovers int
	out       strings.Builder
}

func (r *rollout) say(format string, args ...any) {
	holder := "nobody"
	switch {
	case r.HolderOld:
		holder = "old"
	case r.HolderNew:
		holder = "new"
	}
	mover := ""
	if r.Mover {
		mover = ", one more for another node"
	}
	fmt.Fprintf(&r.out, "  %-38s holder %-6s standbys: old %d ready %d not, new %d ready %d not%s\n",
		fmt.Sprintf(format, args...), holder, r.OldReady, r.OldUnready, r.NewReady, r.NewUnready, mover)
}

func (s Step) String() string {
	var words []string
	for _, w := range []struct {
		n    int
		what string
	}{
		{s.OldUnready, "remove %d old, not ready"},
		{s.OldReady, "remove %d old"},
		{s.NewUnready, "remove %d new, not ready"},
		{s.NewReady, "remove %d new"},
		{s.Create, "create %d"},
	} {
		if w.n > 0 {
			words = append(words, fmt.Sprintf(w.what, w.n))
		}
	}
	if s.RemoveHolder {
		words = append(words, "remove the holder")
	}
	if s.HandOver {
		words = append(words, "hand over")
	}
	if s.Move {
		words = append(words, "create 1 for another node")
	}
	if s.GiveUpMove {
		words = append(words, "give up the one for another node")
	}
	return strings.Join(words, ", ")
}

// apply applies a step.
func (r *rollout) apply(s Step) {
	r.Fleet = r.less(s)
	r.NewUnready += s.Create
	if s.RemoveHolder {
		r.HolderOld, r.HolderNew = false, false
	}
	r.asked = s.HandOver
	if s.Move {
		r.Together, r.Mover, r.Awaited = false, true, true
	}
	if s.GiveUpMove {
		r.Mover, r.Awaited = false, false
	}
}

// happen lets one event happen that the operator does not cause; it returns false if there is none.
func (r *rollout) happen() bool {
	switch {
	case r.Silent:
		r.Silent = false
		r.say("the holder renews again")
	case r.asked, r.released, r.unready:
		r.handOver()
	case r.NewUnready > 0 && !r.broken:
		r.NewUnready--
		r.NewReady++
		r.say("one gets ready")
	case r.Mover && r.unplaceable:
		r.Awaited = false
		r.say("no node takes the one more for long")
	case r.Mover:
		r.Mover = false
		r.NewReady++
		r.say("the one more is ready")
	case r.nobody() && r.OldReady > 0:
		r.OldReady--
		r.HolderOld = true
		r.say("an old one is elected")
	case r.nobody() && r.NewReady > 0:
		r.NewReady--
		r.HolderNew = true
		r.say("a new one is elected")
	case r.HolderNew && !r.Soaked:
		r.Soaked = true
		r.say("the new one has outlasted its trial")
	default:
		return false
	}
	return true
}

// handOver does the next step of a handover.
func (r *rollout) handOver() {
	switch {
	case r.asked:
		r.asked, r.released, r.unready, r.HolderOld = false, true, true, false
		r.OldUnready++
		r.OldAble++
		r.handovers++
		r.say("the holder has released")
	case r.released && r.NewReady > 0:
		r.released, r.HolderNew = false, true
		r.NewReady--
		r.say("the new one has taken over")
	case r.crashing && !r.Failed:
		r.HolderOld, r.HolderNew, r.Failed, r.unready = true, false, true, false
		r.OldUnready--
		r.OldAble--
		r.NewReady++
		r.say("it ends at once; the old one takes over")
	default:
		r.released, r.unready = false, false
		if r.OldUnready > 0 {
			r.OldUnready--
			r.OldAble--
			r.OldReady++
			r.say("the old one is ready again")
		}
	}
}

func (f Fleet) nobody() bool { return !f.HolderOld && !f.HolderNew }

// run continues until nothing is done and nothing happens.
func (r *rollout) run() error {
	for range 100 {
		s := Next(r.Fleet)
		acts := s
		acts.HandOver = s.HandOver && !r.asked
		r.apply(s)
		if acts != (Step{}) {
			r.say("→ %s", acts)
			continue
		}
		if !r.happen() {
			return nil
		}
	}
	return fmt.Errorf("no end:\n%s", r.out.String())
}

func TestRolloutStepByStep(t *testing.T) {
	var all strings.Builder
	for _, c := range []struct {
		why string
		rollout
	}{
		{"a job is made: 2 candidates", rollout{Fleet: Fleet{Desired: 2}}},
		{"a new template: 1 candidate, replaced plainly", rollout{Fleet: Fleet{Desired: 1, InPlace: true, HolderOld: true}}},
		{"a new template: 2 candidates", rollout{Fleet: Fleet{Desired: 2, HolderOld: true, OldReady: 1}}},
		{"a new template: 3 candidates", rollout{Fleet: Fleet{Desired: 3, HolderOld: true, OldReady: 2}}},
		{"a new template whose pods do not get ready: 3 candidates", rollout{Fleet: Fleet{Desired: 3, HolderOld: true, OldReady: 2}, broken: true}},
		{"a new template whose process ends at once: 2 candidates", rollout{Fleet: Fleet{Desired: 2, HolderOld: true, OldReady: 1}, crashing: true}},
		{"another template while the last one is stuck: 2 candidates", rollout{Fleet: Fleet{Desired: 2, HolderOld: true, OldReady: 1, OldUnready: 1}}},
		{"a standby is lost", rollout{Fleet: Fleet{Desired: 2, HolderNew: true, Soaked: true}}},
		{"from 4 candidates to 2", rollout{Fleet: Fleet{Desired: 2, HolderNew: true, Soaked: true, NewReady: 3}}},
		{"from 2 candidates to 1", rollout{Fleet: Fleet{Desired: 1, InPlace: true, HolderNew: true, Soaked: true, NewReady: 1}}},
		{"from 1 candidate to 3", rollout{Fleet: Fleet{Desired: 3, HolderNew: true, Soaked: true}}},
		{"a new template and fewer candidates at once: from 4 to 2", rollout{Fleet: Fleet{Desired: 2, HolderOld: true, OldReady: 3}}},
		{"a new template while nobody holds the Lease", rollout{Fleet: Fleet{Desired: 2, OldReady: 2}}},
		{"a standby on the holder's node, and another node takes it", rollout{Fleet: Fleet{Desired: 2, HolderNew: true, Soaked: true, NewReady: 1, Together: true}}},
		{"a standby on the holder's node, and no other node takes it", rollout{Fleet: Fleet{Desired: 2, HolderNew: true, Soaked: true, NewReady: 1, Together: true}, unplaceable: true}},
		{"a standby on the holder's node is lost while it is moved", rollout{Fleet: Fleet{Desired: 2, HolderNew: true, Soaked: true, Mover: true, Awaited: true}}},
		{"a new template while a standby is moved", rollout{Fleet: Fleet{Desired: 2, HolderOld: true, OldReady: 1, Mover: true, Awaited: true}}},
	} {
		r := c.rollout
		r.say("at first")
		if err := r.run(); err != nil {
			t.Errorf("%s: %v", c.why, err)
		}
		fmt.Fprintf(&all, "%s\n%s\n", c.why, r.out.String())
	}
	compareGolden(t, "testdata/rollouts.txt", all.String())
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll("testdata", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (go test -update rewrites it; -want +got):\n%s", file, diff)
	}
}

// fleets returns all small fleets. Of the old standbys that are not ready, all could act, or all but one, or none.
func fleets(visit func(Fleet)) {
	const most = 3
	for want := 1; want <= 4; want++ {
		for n := range (most + 1) * (most + 1) * (most + 1) * (most + 1) {
			for holder := range 3 {
				for flags := range 16 {
					f := Fleet{
						Desired: want, OldReady: n % 4, OldUnready: n / 4 % 4, NewReady: n / 16 % 4, NewUnready: n / 64 % 4,
						HolderOld: holder == 1, HolderNew: holder == 2, Soaked: holder == 2 && flags&1 != 0, Failed: flags&2 != 0,
						InPlace: flags&4 != 0, NoRoom: flags&8 != 0, Silent: holder == 1 && flags&1 != 0,
					}
					f.Unplaced = f.NoRoom && f.NewUnready > 0
					for move := range 4 {
						f.Together, f.Mover, f.Awaited = move == 1, move >= 2, move == 3
						for f.OldAble = max(0, f.OldUnready-1); f.OldAble <= f.OldUnready; f.OldAble++ {
							visit(f)
						}
					}
				}
			}
		}
	}
}

// rules are the rules that every step follows, whatever the fleet.
var rules = map[string]func(f Fleet, s Step, left Fleet) bool{
	"removes no more than exist": func(_ Fleet, _ Step, left Fleet) bool {
		return min(left.OldReady, left.OldUnready, left.NewReady, left.NewUnready) >= 0
	},
	"removes nothing by a negative number": func(_ Fleet, s Step, _ Fleet) bool {
		return min(s.Create, s.OldReady, s.OldUnready, s.NewReady, s.NewUnready) >= 0
	},
	"removes the holder only if there is no standby": func(f Fleet, s Step, _ Fleet) bool {
		return !s.RemoveHolder || f.Desired == 1 && f.InPlace && f.HolderOld
	},
	"leaves the desired number of ready standbys, or one fewer if there is no room": func(f Fleet, s Step, left Fleet) bool {
		should := f.Desired - f.holders()
		if f.InPlace || f.NoRoom {
			should--
		}
		before, after := f.OldReady+f.NewReady, left.OldReady+left.NewReady
		return f.Desired == 1 && f.InPlace || after >= min(before, should) || s.OldReady == 0 && left.updated() >= f.Desired
	},
	"has at most one more than desired": func(f Fleet, s Step, left Fleet) bool {
		return alive(f, s, left) <= max(f.Desired+1, alive(f, Step{}, f))
	},
	"has no more than desired, in place": func(f Fleet, s Step, left Fleet) bool {
		return !f.InPlace || s.RemoveHolder || alive(f, s, left) <= max(f.Desired, f.total())
	},
	"creates none while another one is unplaced": func(f Fleet, s Step, left Fleet) bool {
		return !f.Unplaced || left.total()+s.Create <= f.Desired || s.Create == 0
	},
	"does nothing to a rollout that is paused": func(f Fleet, _ Step, _ Fleet) bool {
		f.Paused = true
		return f.updated() == f.total() || Next(f) == Step{GiveUpMove: f.Mover}
	},
	"moves a standby only if there is nothing else to do, and removes none for it": func(f Fleet, s Step, _ Fleet) bool {
		return !s.Move || s == Step{Move: true} && f.HolderNew != f.HolderOld && f.NewReady == f.Desired-1 && f.updated() == f.total() && !f.Mover && f.Together
	},
	"does the same without the mover, and never waits for it": func(f Fleet, s Step, _ Fleet) bool {
		without := f
		without.Mover, without.Awaited = false, false
		s.GiveUpMove = false
		return f.Together || s == Next(without)
	},
	"keeps no mover in a rollout, in place, without a standby, or after the wait for it": func(f Fleet, s Step, _ Fleet) bool {
		return s.GiveUpMove == (f.Mover && (!f.Awaited || f.updated() < f.total() || f.InPlace || f.Failed || f.Desired == 1))
	},
	"pauses nothing else": func(f Fleet, s Step, _ Fleet) bool {
		f.Paused = true
		return f.updated() != f.total() || Next(f) == s
	},
	"never lacks one": func(f Fleet, s Step, left Fleet) bool {
		return s.RemoveHolder || left.total()+s.Create >= f.Desired
	},
	"hands over to a ready new one, when no old standby is left": func(f Fleet, s Step, _ Fleet) bool {
		return !s.HandOver || f.HolderOld && f.NewReady > 0 && f.OldReady+f.OldUnready == 0
	},
	"does not hand over to a failed version": func(f Fleet, s Step, _ Fleet) bool { return !(s.HandOver && f.Failed) },
	"keeps an old one as a fallback until the new one has outlasted its trial": func(f Fleet, _ Step, left Fleet) bool {
		inTheWay := f.OldReady == 0 && f.NoRoom && !f.HolderNew && f.NewReady == 0
		return f.Desired == 1 && f.InPlace || f.HolderOld && !f.Silent || f.Soaked || inTheWay || f.OldReady+f.OldAble == 0 ||
			left.OldReady > 0 || f.OldReady == 0 && left.OldAble > 0
	},
	"does not create what it removes": func(_ Fleet, s Step, _ Fleet) bool { return s.Create == 0 || s.NewReady+s.NewUnready == 0 },
}

// alive returns how many candidates exist after a step.
func alive(f Fleet, s Step, left Fleet) int {
	n := left.total() + s.Create
	if f.Mover && !s.GiveUpMove || s.Move {
		n++
	}
	return n
}

func TestEveryStepKeepsTheRules(t *testing.T) {
	broken := map[string]bool{}
	fleets(func(f Fleet) {
		s := Next(f)
		for rule, holds := range rules {
			if !holds(f, s, f.less(s)) && !broken[rule] {
				broken[rule] = true
				t.Errorf("%s: not so for %+v: %+v", rule, f, s)
			}
		}
	})
}

func TestEveryFleetReachesItsSpec(t *testing.T) {
	fleets(func(f Fleet) {
		if f.Failed || t.Failed() {
			return
		}
		r := rollout{Fleet: f}
		if err := r.run(); err != nil {
			t.Fatalf("%+v: %v", f, err)
		}
		if r.total() != f.Desired || r.updated() != f.Desired || r.NewUnready > 0 || !r.HolderNew || r.Mover {
			t.Fatalf("%+v ends as %+v\n%s", f, r.Fleet, r.out.String())
		}
		if f.Desired > 1 && r.handovers > 1 {
			t.Fatalf("%+v: %d handovers\n%s", f, r.handovers, r.out.String())
		}
	})
}

func TestABrokenVersionNeverTakesOver(t *testing.T) {
	fleets(func(f Fleet) {
		if f.Desired == 1 || !f.HolderOld || f.NewReady > 0 || t.Failed() {
			return
		}
		r := rollout{Fleet: f, broken: true}
		gives := 0
		if f.InPlace || f.NoRoom {
			gives = 1
		}
		if err := r.run(); err != nil {
			t.Fatalf("%+v: %v", f, err)
		}
		if !r.HolderOld || r.OldReady < min(f.OldReady, f.Desired-1-gives) {
			t.Fatalf("%+v ends as %+v\n%s", f, r.Fleet, r.out.String())
		}
	})
}
