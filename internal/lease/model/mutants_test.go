package model

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/singletonjob/operator/internal/lease/mistake"
)

// found says how the model finds a mistake: in which profile, and what it must see broken.
type found struct {
	profile string
	finds   []string
	broken  mistake.Broken
	sink    Sink
}

// mutants are the simulator's.
var mutants = map[string]found{
	"validity counted from the reply":                 {profile: "slow-answers", finds: []string{TwoAtOnce}},
	"waiting counted from the request":                {profile: "slow-requests", finds: []string{TwoAtOnce}},
	"no kill budget":                                  {profile: "messages", finds: []string{TwoAtOnce}},
	"start before reap":                               {profile: "blanked", finds: []string{StartedEarly}},
	"release before reap":                             {profile: "processes", finds: []string{ReleasedEarly}},
	"same identity keeps the token":                   {profile: "processes", finds: []string{TokenNotGrown}},
	"token from leaseTransitions":                     {profile: "operator", finds: []string{TokenNotGrown}},
	"go on after seeing another holder":               {profile: "blanked", finds: []string{RunsOn}},
	"keep running after seeing another holder":        {profile: "keep-running", finds: []string{RunsOn}},
	"ambiguous reply counted as success":              {profile: "messages", finds: []string{TwoAtOnce}},
	"ambiguous reply timed from the read":             {profile: "lost", finds: []string{TwoAtOnce}},
	"release marker ignored":                          {profile: "blanked", finds: []string{TwoAtOnce}},
	"release marker of another tenure believed":       {profile: "foreign", finds: []string{TwoAtOnce}},
	"stale watch event accepted":                      {profile: "watches", finds: []string{LostForNought}},
	"lockDelay not waited for":                        {profile: "lock-delay", finds: []string{LockDelayCut}},
	"restart taken for proof of death":                {profile: "not-pid-1", finds: []string{StartedEarly}},
	"restart proves death":                            {profile: "one-pod", finds: []string{TwoAtOnce}},
	"an answer is waited for as long as it is of use": {profile: "outages", finds: []string{LostForNought}},
	"restored data believed":                          {profile: "restored-at-once", finds: []string{TwoAtOnce}},
	"measured lateness ignored":                       {profile: "starved", finds: []string{TwoAtOnce}},
	"newest duration waited for, not the longest":     {profile: "lowered", finds: []string{TwoAtOnce}},
	"parts of a release left by renewals":             {profile: "edited", finds: []string{TwoAtOnce}},
	"history not heard":                               {profile: "history", finds: []string{TokenNotGrown}},
	"history believed":                                {profile: "forged", finds: []string{NoHolder}},
	"own duration waited for":                         {profile: "settings", finds: []string{TwoAtOnce}},
	"acquire without its time":                        {profile: "outdated", finds: []string{TokenNotGrown}},
	"acquire at the wall clock's time":                {profile: "outdated-standing", finds: []string{TokenNotGrown}},

	"start recorded after it":                        {profile: "runs", finds: []string{RunMistold, RunTwice}},
	"completion in a second write":                   {profile: "runs", finds: []string{RunMistold}},
	"exit 0 after SIGTERM is complete":               {profile: "runs", finds: []string{RunMistold}},
	"attempts counted in memory":                     {profile: "runs", finds: []string{RunMistold}},
	"an ignored attempt counts":                      {profile: "runs-ignored", finds: []string{RunMistold}},
	"an attempt that others end is ignored":          {profile: "runs-ignored", finds: []string{RunMistold}},
	"a code is ignored after SIGTERM":                {profile: "runs-ignored", finds: []string{RunMistold}},
	"the next attempt follows at once":               {profile: "runs", finds: []string{RunTooSoon}},
	"a retry under a new name":                       {profile: "runs", finds: []string{RunTwice}},
	"the last attempt's end is left to the next run": {profile: "runs", finds: []string{NoHolder}},

	"deadlines and waits on the slewed clock, 4 %":                  {profile: "clocks", finds: []string{TwoAtOnce}, broken: mistake.SlewedClock},
	"deadlines and waits on the slewed clock, 4 %, an hour's lease": {profile: "clocks", finds: []string{TwoAtOnce}, broken: mistake.SlewedClock},
	"leash's timer set once for all that is left":                   {profile: "processes", finds: []string{TwoAtOnce}, broken: mistake.LeashArmedOnce},
	"start blocks until exec is done":                               {profile: "hangs", finds: []string{RunsOn, TwoAtOnce}, broken: mistake.StartBlocks},
	"operator writes without a condition":                           {profile: "operator", finds: []string{ReleasedEarly}, broken: mistake.OperatorOverwrites},
	"operator takes absence for death":                              {profile: "operator", finds: []string{ReleasedEarly}, broken: mistake.OperatorBelievesAbsence},
	"operator makes a free Lease":                                   {profile: "operator", finds: []string{TwoAtOnce}, broken: mistake.OperatorCreatesFree},
	"API servers start from a snapshot at once":                     {profile: "restored", finds: []string{TwoAtOnce, TokenNotGrown}, broken: mistake.RestoreTooSoon},
	"agents heed no label":                                          {profile: "label", finds: []string{NotOurs}, broken: mistake.AgentsHeedNoLabel},
	"operator heeds no label":                                       {profile: "label", finds: []string{NotOurs}, broken: mistake.OperatorHeedsNoLabel},
	"sink checks before it writes":                                  {profile: "sink", finds: []string{StaleAccepted}, sink: ChecksThenWrites},
	"sink forgets its mark":                                         {profile: "sink", finds: []string{StaleAccepted}, sink: Forgets},
	"sink refuses equal tokens":                                     {profile: "sink", finds: []string{FreshRefused}, sink: RefusesEqual},
	"sink compares tokens as text":                                  {profile: "sink", finds: []string{StaleAccepted, FreshRefused}, sink: ComparesText},
}

// beyond are the mistakes that show in no world of the model, and why. The simulator finds them.
var beyond = map[string]string{
	"tick from memory":                        noSchedule,
	"the next replaces a run that still dies": noSchedule,
	"ticks counted when they are told":        noSchedule,
	"a backfill settles its tick":             noSchedule,
	"a schedule from memory":                  noSchedule,
	"what a restore forgot is remembered":     noSchedule,
	"due by the wall clock alone":             noSchedule,
	"operator believes one server's clock":    noSchedule,
	"operator settles nothing":                noSchedule,
	"one API server's old answer believed":    "every world has one API server",
}

// TestMutantsAreCaught has every mistake that the simulator must find give a counterexample here too.
func TestMutantsAreCaught(t *testing.T) {
	t.Parallel()
	all := map[string]mistake.Mistake{}
	for _, some := range []map[string]mistake.Mistake{mistake.InStep, mistake.Around, mistake.InRuns, mistake.InClient} {
		maps.Copy(all, some)
	}
	for name := range beyond {
		if _, known := all[name]; !known {
			t.Errorf("there is no mistake %q", name)
		}
		delete(all, name)
	}
	for name := range mutants {
		if _, known := all[name]; !known {
			t.Errorf("there is no mistake %q, or it is in no world", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			how, known := mutants[name]
			if !known {
				t.Fatal("nobody says how the model finds it")
			}
			m := *named(t, how.profile).model
			m.broken, m.sink = how.broken, how.sink
			if all[name].Step != nil {
				m.step = all[name].Step
			}
			m.addTo()
			switch r := m.explore(mostStates); {
			case r.Violation == nil:
				t.Errorf("not found in %d states (complete: %v), and it should be: %s", r.States, r.Complete, all[name].Why)
			case !slices.Contains(how.finds, r.Violation.Kind), !strings.Contains(r.Scenario, "checker    "+r.Violation.Kind):
				t.Errorf("found %q, want %q, told as such\n%s", r.Violation.Kind, how.finds, r.Scenario)
			case r.Faults >= m.budget && wide[how.profile] == "":
				t.Errorf("%q needs all of the %d faults in %q: a mistake that needs one more would be missed", name, m.budget, how.profile)
			default:
				t.Logf("found in %q with %d of %d faults, among %d states in %v: %s: %s\n%s",
					how.profile, r.Faults, m.budget, r.States, r.Took, r.Violation.Kind, r.Violation.Text, r.Scenario)
			}
		})
	}
}

// wide are the worlds that have no fault more than a known mistake needs, and why.
var wide = map[string]string{
	"slow-answers": large, "slow-requests": large, "lost": large, "lowered": large, "operator": large, "label": large,
	"clocks": large, "runs": large,
	"outages": "two outages in a row may end a tenure",
}

const large = `with one fault more it takes minutes and gigabytes; make model MODEL_ARGS="-profile=label -more=1 -states=9000000" tries that`

// addTo gives a broken world the fault in which it shows.
func (m *model) addTo() {
	if m.broken == mistake.OperatorBelievesAbsence {
		m.faults |= setOf(absence)
	}
}

func named(t *testing.T, name string) profile {
	t.Helper()
	i := slices.IndexFunc(profiles, func(p profile) bool { return p.name == name })
	if i < 0 {
		t.Fatalf("there is no profile %q", name)
	}
	return profiles[i]
}

// mostStates bounds a search in a test, which ends long before that.
const mostStates = DefaultStates
