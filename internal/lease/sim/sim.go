// Package sim runs the tenure state machine in a world made of faults, and judges what happens there.
//
// One seed is one episode: a few candidates, each with lease.Step, a clock, a process tree and a network of its own,
// contend for one Lease while an API server, an operator, and people with kubectl do what they do on bad days. Times of
// trouble alternate with times of calm. Nothing in it is concurrent and nothing reads a clock, so a seed replays exactly.
//
// What it judges in true time, which no part of the world can see:
//
//   - At most one process tree acts (frozen ones do not act).
//   - Both halves of the inequality that this follows from: no leash is longer than the last stored write allows, and no
//     Lease is taken before its holder's time is up.
//   - Tokens of started processes strictly grow.
//   - A tree does not outlive its agent's sight of another tenure by more than it takes to kill it.
//   - After an unclean end lockDelay passes.
//   - When all faults are over there is a holder within the bound, and it stays.
//   - Replies that are merely lost, late or doubled end no tenure.
//   - The machine sends one write at a time, starts nothing and releases nothing while a process lives, and does not spin.
package sim

import (
	"math/rand/v2"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// StepFunc is lease.Step or a mutant of it.
type StepFunc func(lease.Config, lease.State, lease.Time, lease.Event) (lease.State, []lease.Action)

// Options say how to run an episode. The zero value is right but for mutants.
type Options struct {
	// NewStep makes the state machine of one episode; nil stands for lease.Step.
	NewStep func() StepFunc
	// Profile, unless it is AnyProfile, is what the world is like.
	Profile Profile
	// Outcomes has only outcomes judged, not the two halves of the inequality that they follow from.
	Outcomes bool
}

// Result is what came of one episode.
type Result struct {
	Seed    uint64
	Profile Profile
	// Simulated is true time that passed in the episode.
	Simulated time.Duration
	// Tenures counts processes that were started, Takeovers those of them that another agent process preceded.
	Tenures, Takeovers int
	// Overlaps counts takeovers from holders that ran on while cut off, as KeepRunning has it.
	Overlaps int
	// Writes counts what the processes wrote to the sink, Refused those of them that it refused for a stale token.
	Writes, Refused int
	// Steps counts calls of the state machine.
	Steps int
	// Violation is the first one, nil if there is none. The episode ends with it.
	Violation *Violation
}

// Run runs the episode of a seed.
func Run(seed uint64, o Options) Result {
	p := draw(seed, o.Profile)
	return run(p, plan(p), o, nil)
}

// run runs an episode with faults of one's choice. trace, unless nil, is told what happens.
func run(p params, faults []Fault, o Options, trace func(line)) Result {
	w := &world{
		p:     p,
		rng:   rand.New(rand.NewPCG(p.seed, 2)),
		step:  lease.Step,
		byID:  map[string]*agent{},
		trace: trace,
	}
	if o.NewStep != nil {
		w.step = o.NewStep()
	}
	w.check = checker{w: w, outcomes: o.Outcomes}
	w.build()
	w.schedule(faults)
	for w.check.violation == nil && w.next() {
	}
	r := w.check.result
	r.Seed, r.Profile, r.Simulated, r.Violation = p.seed, p.profile, w.now, w.check.violation
	return r
}

// world is one episode under way. All times in it are true time since its beginning.
type world struct {
	p     params
	rng   *rand.Rand
	step  StepFunc
	queue queue
	now   time.Duration
	trace func(line)

	api      *server
	slots    []*slot
	agents   []*agent // every agent process that ever was
	byID     map[string]*agent
	operator *operator
	elector  *elector // nil but in episodes with a foreign contender
	check    checker
	// hiccups is the chance that an agent is paused between deciding and doing.
	hiccups float64
	// healed counts the times at which all faults were ended.
	healed int
}

func (w *world) build() {
	w.api = newServer(w)
	for i := range w.p.candidates {
		w.slots = append(w.slots, newSlot(w, i))
	}
	w.operator = newOperator(w)
	if w.p.profile == Foreign {
		w.elector = newElector(w)
	}
}

// next lets the next thing happen. It returns false at the end of the episode.
func (w *world) next() bool {
	e, ok := w.queue.pop()
	if !ok || e.at > w.p.length {
		w.now = w.p.length
		return false
	}
	w.now = e.at
	e.do()
	return true
}

func (w *world) at(t time.Duration, do func()) { w.queue.push(max(t, w.now), do) }

func (w *world) after(d time.Duration, do func()) { w.queue.push(w.now+d, do) }

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

func (w *world) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)))
}
