package sim

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/lease/mistake"
)

// mutant is one mistake.
type mutant struct {
	mistake.Mistake
	profile Profile
	// options are what else is broken, or what the world is like.
	options Options
	// finds is the promise that must be seen broken. With LeashTooLong and Stolen the mistake is found before it does
	// harm; the others are judged by their outcome alone.
	finds string
}

// mutants are the mistakes that the simulator must find, each around the unchanged lease.Step.
var mutants = of(mistake.InStep, map[string]mutant{
	"validity counted from the reply":                 {profile: Mixed, finds: LeashTooLong},
	"waiting counted from the request":                {profile: Mixed, finds: Stolen},
	"no kill budget":                                  {profile: Mixed, finds: TwoAtOnce},
	"start before reap":                               {profile: Mixed, finds: TwoAtOnce},
	"release before reap":                             {profile: Mixed, finds: TwoAtOnce},
	"same identity keeps the token":                   {profile: Mixed, finds: TokenNotGrown},
	"token from leaseTransitions":                     {profile: Mixed, finds: TokenNotGrown},
	"go on after seeing another holder":               {profile: Mixed, finds: RunsOn},
	"keep running after seeing another holder":        {profile: KeepRunning, finds: RunsOn},
	"ambiguous reply counted as success":              {profile: Mixed, finds: TwoAtOnce},
	"ambiguous reply timed from the read":             {profile: Mixed, finds: LeashTooLong},
	"release marker ignored":                          {profile: Mixed, finds: TwoAtOnce},
	"release marker of another tenure believed":       {profile: Foreign, finds: Stolen},
	"stale watch event accepted":                      {profile: Replies, finds: LostForNought},
	"lockDelay not waited for":                        {profile: Mixed, finds: LockDelayCut},
	"restart taken for proof of death":                {profile: Mixed, finds: TwoAtOnce},
	"restart proves death":                            {profile: Mixed, finds: TwoAtOnce},
	"an answer is waited for as long as it is of use": {profile: Outages, finds: LostForNought},
	"restored data believed":                          {profile: FastRestore, finds: TwoAtOnce},
	"measured lateness ignored":                       {profile: Starved, finds: TwoAtOnce},
	"newest duration waited for, not the longest":     {profile: Edited, finds: Stolen},
	"parts of a release left by renewals":             {profile: Forged, finds: Stolen},
	"history not heard":                               {profile: History, finds: TokenNotGrown},
	"history believed":                                {profile: History, finds: NoHolder},
	"own duration waited for":                         {profile: Settings, finds: Stolen},
	"acquire without its time":                        {profile: Outdated, finds: TokenNotGrown},
	"acquire at the wall clock's time":                {profile: Outdated, finds: TokenNotGrown},
})

// inRuns are those of runs.
var inRuns = of(mistake.InRuns, map[string]mutant{
	"tick from memory":                               {profile: Runs, finds: RunTwice},
	"start recorded after it":                        {profile: Runs, finds: RunTwice},
	"completion in a second write":                   {profile: Runs, finds: RunMistold},
	"exit 0 after SIGTERM is complete":               {profile: Runs, finds: RunMistold},
	"the next replaces a run that still dies":        {profile: Runs, finds: ReleasedEarly},
	"a retry under a new name":                       {profile: Runs, finds: RunTwice},
	"attempts counted in memory":                     {profile: Runs, finds: RunMistold},
	"an ignored attempt counts":                      {profile: Runs, finds: RunMistold},
	"an attempt that others end is ignored":          {profile: Runs, finds: RunMistold},
	"a code is ignored after SIGTERM":                {profile: Runs, finds: RunMistold},
	"ticks counted when they are told":               {profile: Runs, finds: TickMiscount},
	"a backfill settles its tick":                    {profile: Runs, finds: TickMiscount},
	"the last attempt's end is left to the next run": {profile: Runs, finds: RunForgotten},
	"due by the wall clock alone":                    {profile: Runs, finds: TickEarly},
	"the next attempt follows at once":               {profile: Runs, finds: RunTooSoon},
	"a schedule from memory":                         {profile: Runs, finds: RunMistold},
	"what a restore forgot is remembered":            {profile: Runs, finds: TickMiscount},
	"operator believes one server's clock":           {profile: Runs, finds: TickEarly, options: Options{Broken: mistake.OperatorBelievesDate}},
	"operator settles nothing":                       {profile: Runs, finds: TickMiscount, options: Options{Broken: mistake.OperatorSettlesNothing}},
})

// hourLease has the settings in which a slewed clock does the most harm.
var hourLease = Timing{time.Hour, 40 * time.Minute, 10 * time.Minute}

// surroundings are mistakes around the state machine.
var surroundings = of(mistake.Around, map[string]mutant{
	"deadlines and waits on the slewed clock, 4 %":                  {profile: Mixed, finds: TwoAtOnce, options: Options{Broken: mistake.SlewedClock, Slew: 40_000, Timing: Timing{15 * time.Second, 10 * time.Second, 2 * time.Second}}},
	"deadlines and waits on the slewed clock, 4 %, an hour's lease": {profile: Mixed, finds: TwoAtOnce, options: Options{Broken: mistake.SlewedClock, Slew: 40_000, Timing: hourLease}},
	"leash's timer set once for all that is left":                   {profile: Mixed, finds: TwoAtOnce, options: Options{Broken: mistake.LeashArmedOnce, Slew: maxSlew}},
	"start blocks until exec is done":                               {profile: Starved, finds: RunsOn, options: Options{Broken: mistake.StartBlocks}},
	"operator writes without a condition":                           {profile: Mixed, finds: ReleasedEarly, options: Options{Broken: mistake.OperatorOverwrites}},
	"operator takes absence for death":                              {profile: Mixed, finds: ReleasedEarly, options: Options{Broken: mistake.OperatorBelievesAbsence}},
	"operator makes a free Lease":                                   {profile: Mixed, finds: TwoAtOnce, options: Options{Broken: mistake.OperatorCreatesFree}},
	"API servers start from a snapshot at once":                     {profile: Restore, finds: Forgotten, options: Options{Broken: mistake.RestoreTooSoon}},
	"agents heed no label":                                          {profile: Edited, finds: NotOurs, options: Options{Broken: mistake.AgentsHeedNoLabel}},
	"operator heeds no label":                                       {profile: Edited, finds: NotOurs, options: Options{Broken: mistake.OperatorHeedsNoLabel}},
	"sink checks before it writes":                                  {profile: Mixed, finds: StaleAccepted, options: Options{NewSink: func() Sink { return &checkThenWrite{} }}},
	"sink forgets its mark":                                         {profile: Mixed, finds: StaleAccepted, options: Options{NewSink: func() Sink { return &forgetful{} }}},
	"sink refuses equal tokens":                                     {profile: Mixed, finds: FreshRefused, options: Options{NewSink: func() Sink { return &strictlyGreater{} }}},
	"sink compares tokens as text":                                  {profile: Mixed, finds: StaleAccepted, options: Options{NewSink: func() Sink { return &textual{} }}},
})

// inClient are mistakes in how an agent reads.
var inClient = of(mistake.InClient, map[string]mutant{
	"one API server's old answer believed": {profile: KeepRunning, finds: LostForNought, options: Options{Broken: mistake.OneAnswerBelieved}},
})

// of are mistakes with how they are found.
func of(mistakes map[string]mistake.Mistake, found map[string]mutant) map[string]mutant {
	for name, m := range mistakes {
		with, ok := found[name]
		if !ok {
			panic("nobody says how the simulator finds: " + name)
		}
		with.Mistake = m
		found[name] = with
	}
	return found
}

// budget bounds the episodes in which a mutant must be found.
const budget = 200

// TestMutantsAreCaught runs the unmutated machine through the same episodes as a control.
func TestMutantsAreCaught(t *testing.T) {
	all := maps.Clone(mutants)
	maps.Copy(all, surroundings)
	maps.Copy(all, inRuns)
	maps.Copy(all, inClient)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all[name].isCaught(t)
		})
	}
}

func (m mutant) isCaught(t *testing.T) {
	t.Helper()
	mutated := m.options
	mutated.Profile, mutated.Step = m.profile, m.Step
	mutated.Outcomes = m.finds != LeashTooLong && m.finds != Stolen
	same := unmutated{profile: m.profile, slew: m.options.Slew, timing: m.options.Timing}
	var simulated time.Duration
	for seed := uint64(1); seed <= budget; seed++ {
		if same.run(seed).Violation != nil {
			t.Fatalf("the unmutated machine breaks a promise:\n%s", Explain(seed, same.options()))
		}
		r := Run(seed, mutated)
		simulated += r.Simulated
		switch {
		case r.Violation == nil:
			continue
		case r.Violation.Kind != m.finds && !slices.Contains(alsoFinds[m.finds], r.Violation.Kind):
			t.Fatalf("seed %d found %q, want %q", seed, r.Violation, m.finds)
		}
		t.Logf("caught by seed %d after %v: %v", seed, simulated.Round(time.Minute), r.Violation)
		return
	}
	t.Errorf("not caught within %v, but it should be: %s", simulated, m.Why)
}

// unmutated is what the episodes of many tests have in common: they run once. All is judged in them.
type unmutated struct {
	profile Profile
	slew    int64
	timing  Timing
}

func (u unmutated) options() Options {
	return Options{Profile: u.profile, Slew: u.slew, Timing: u.timing}
}

// unmutatedRuns are those that have been begun, each a function that waits for its end.
var unmutatedRuns sync.Map

func (u unmutated) run(seed uint64) Result {
	type key struct {
		unmutated
		seed uint64
	}
	once, _ := unmutatedRuns.LoadOrStore(key{u, seed}, sync.OnceValue(func() Result { return Run(seed, u.options()) }))
	return once.(func() Result)()
}

// alsoFinds are promises that break of the same mistake, now one first and now another.
var alsoFinds = map[string][]string{
	TwoAtOnce:     {ReleasedEarly, StartedEarly, LockDelayCut, Forgotten, RunsOn},
	Forgotten:     {TwoAtOnce, TokenNotGrown},
	StaleAccepted: {FreshRefused},
	TickMiscount:  {TickEarly},
	TickEarly:     {TickMiscount},
	RunsOn:        {LockDelayCut, TwoAtOnce},
	ReleasedEarly: {TwoAtOnce, TokenNotGrown},
}

// checkThenWrite looks at the mark when a write arrives, and writes a little later.
type checkThenWrite struct{ mark int64 }

func (s *checkThenWrite) Write(token int64, later func(time.Duration, func()), accepted, refused func()) {
	if token < s.mark {
		refused()
		return
	}
	later(200*time.Millisecond, func() {
		s.mark = max(s.mark, token)
		accepted()
	})
}

func (s *checkThenWrite) Restart() {}

// forgetful keeps the mark in memory.
type forgetful struct{ fenced }

func (s *forgetful) Restart() { s.mark = 0 }

// strictlyGreater is off by one.
type strictlyGreater struct{ mark int64 }

func (s *strictlyGreater) Write(token int64, _ func(time.Duration, func()), accepted, refused func()) {
	if token <= s.mark {
		refused()
		return
	}
	s.mark = token
	accepted()
}

func (s *strictlyGreater) Restart() {}

// textual compares the tokens' digits.
type textual struct{ mark string }

func (s *textual) Write(token int64, _ func(time.Duration, func()), accepted, refused func()) {
	text := strconv.FormatInt(token, 10)
	if text < s.mark {
		refused()
		return
	}
	s.mark = text
	accepted()
}

func (s *textual) Restart() {}
