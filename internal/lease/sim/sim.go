// Package sim runs the tenure state machine in a world made of faults, and judges what happens there.
//
// One seed is one episode: a few candidates, each with lease.Step, a clock, a process tree and a network of its own,
// contend for one Lease while an API server, an operator, and people with kubectl do what they do on bad days. Times of
// trouble alternate with times of calm. Nothing in it is concurrent and nothing reads a clock, so a seed replays exactly.
//
// What it judges, it judges by the world alone, in true time, which no part of the world can see: when which processes
// lived and were told to die, what the store was given and who gave it, what the sink took. It asks package lease nothing.
//
//   - At most one process tree acts.
//   - Both halves of the inequality that this follows from: when a leash runs out, what the margin pays for is left until
//     others may take the Lease; and no Lease is taken before its holder's time is up, as the holder itself wrote it.
//   - Tokens of started processes strictly grow, and the sink takes none that is lower than one that it took, and all of the
//     present tenure.
//   - Nobody of ours writes a Lease without our label.
//   - A tree is told to die as soon as its agent learns of another tenure, and does not begin to run after that.
//   - After an unclean end lockDelay passes.
//   - When all faults are over there is a holder within the bound, and it stays, and sends one write every retryPeriod;
//     nobody sends anything else.
//   - Replies that are merely lost, late or doubled end no tenure.
//   - Nothing is started and nothing released while a process lives, and no agent spins.
//   - Of a run that is to end no attempt begins after its last word, attempts are counted as they were, and what is stored of an end
//     is what it was. A tick has one run at most, and each is run, missed or skipped once, by what the Lease says alone. Once a restore
//     has forgotten runs this holds from what the snapshot knows.
//   - Nobody but the operator changes the schedule, and ticks of a new one begin when it is there.
//
// Three things make two trees act at once and are no broken promise. They are the world's doing and are counted apart: a
// tree that was frozen when it was to die; a tree that was told to die in time, and took longer than the margin and the
// lateness that its agent was told of pay for; a tree that is to run on while it is cut off. None excuses a Lease that was
// taken before its time.
//
// Two things that somebody may write are past telling from the truth: a whole release under a live holder, and a Lease from
// which every trace of a token is gone that somebody had raised. The first excuses that holder's tree until the time is up
// for which its own last write is good, the second one token that does not grow. What the sink takes is judged as ever.
package sim

import (
	"math/rand/v2"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
	"github.com/singletonjob/operator/internal/schedule"
)

// Options say how to run an episode. The zero value is right but for mutants.
type Options struct {
	// Step is the state machine; nil stands for lease.Step.
	Step mistake.Step
	// Profile, unless it is AnyProfile, is what the world is like.
	Profile Profile
	// Outcomes has only outcomes judged, not the two halves of the inequality that they follow from.
	Outcomes bool
	// Broken is what the agents' surroundings get wrong: for mutants.
	Broken mistake.Broken
	// NewSink makes the sink; nil stands for one that keeps to package fence.
	NewSink func() Sink
	// Slew, unless it is 0, bounds in ppm how much every kernel's timers are slewed.
	Slew int64
	// Timing, unless it is zero, is every candidate's leaseDuration, renewDeadline and retryPeriod.
	Timing Timing
}

// Result is what came of one episode.
type Result struct {
	Seed    uint64
	Profile Profile
	// Simulated is true time that passed in the episode.
	Simulated time.Duration
	// Tenures counts processes that were started, Takeovers those of them that another agent process preceded.
	Tenures, Takeovers int
	// Overlaps counts takeovers from holders that ran on while cut off, as KeepRunning has it, Frozen those from holders that
	// were frozen, Late those from holders that were told to die in time and took longer than is paid for.
	Overlaps, Frozen, Late int
	// Stolen counts Leases that a client-go elector took from a holder whose time was not up.
	Stolen int
	// Lowered counts Leases taken early by candidates that came after their duration was lowered by hand.
	Lowered int
	// Forged counts processes that began while another's lived whose Lease somebody had made to look released, Erased tokens
	// that did not grow because somebody had erased all that told of a higher one.
	Forged, Erased int
	// Writes counts what came to the sink, Stale those writes that came after one with a higher token, Refused those that the
	// sink refused.
	Writes, Stale, Refused int
	// Steps counts calls of the state machine.
	Steps int
	// Violation is the first one, nil if there is none. The episode ends with it.
	Violation *Violation
}

// Run runs the episode of a seed.
func Run(seed uint64, o Options) Result {
	p := draw(seed, o)
	return run(p, plan(p), o, nil)
}

// run runs an episode with faults of one's choice. trace, unless nil, is told what happens.
func run(p params, faults []Fault, o Options, trace func(line)) Result {
	w := newWorld(p, o, trace)
	w.build()
	w.schedule(faults)
	for w.check.violation == nil && w.next() {
	}
	r := w.check.result
	r.Seed, r.Profile, r.Simulated, r.Violation = p.seed, p.profile, w.now, w.check.violation
	return r
}

func newWorld(p params, o Options, trace func(line)) *world {
	w := &world{
		p:     p,
		o:     o,
		sink:  newFenced(),
		rng:   rand.New(rand.NewPCG(p.seed, 2)),
		step:  lease.Step,
		byID:  map[string]*agent{},
		trace: trace,
	}
	if o.Step != nil {
		w.step = o.Step
	}
	if o.NewSink != nil {
		w.sink = o.NewSink()
	}
	if p.runs != nil {
		w.wanted = p.runs.schedule
	}
	w.check = checker{w: w, outcomes: o.Outcomes, runs: newRunsSeen()}
	return w
}

// world is one episode under way. All times in it are true time since its beginning.
type world struct {
	p     params
	o     Options
	rng   *rand.Rand
	step  mistake.Step
	queue queue
	now   time.Duration
	trace func(line)

	api       *server
	slots     []*slot
	agents    []*agent // every agent process that ever was
	byID      map[string]*agent
	operators []*operator // they do not know of one another
	// base is spec.fencing.tokenBase.
	base    int64
	elector *elector // nil but in episodes with a foreign contender
	sink    Sink
	check   checker
	// handover is when the Lease was last written with a handover asked for.
	handover time.Duration
	// hiccups is the chance that an agent is paused between deciding and doing.
	hiccups float64
	// stubborn is whether no process heeds SIGTERM.
	stubborn bool
	// troubled is true from the first fault until all are over.
	troubled bool
	// healed counts the times at which all faults were ended.
	healed int
	// suspended is spec.suspend, wanted spec.schedule, requests how many runs were asked for.
	suspended bool
	wanted    *schedule.Schedule
	requests  int
}

func (w *world) build() {
	w.api = newServer(w)
	for i := range w.p.candidates {
		w.slots = append(w.slots, newSlot(w, i))
	}
	for range 1 + w.rng.IntN(2) {
		w.operators = append(w.operators, newOperator(w))
	}
	w.restartSinks()
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
