// Package sim runs the tenure state machine in a simulated world with faults, and judges what happens there.
//
// One seed is one episode. A few candidates, each with lease.Step, a clock, a process tree and a network of its own, contend for
// one Lease. An API server, an operator and users with kubectl do what they do on bad days. Times of trouble alternate with times
// of calm. Nothing is concurrent and nothing reads a clock, so a seed replays exactly.
//
// The checker judges from the world alone, in true time, which no part of the world can see. It knows when which processes lived and were
// killed, which writes the store received and from which agent, and what the sink accepted. It does not use package lease for its
// judgements.
//
//   - At most one process tree acts.
//   - Both halves of the inequality that this follows from hold. When a leash runs out, the time that the margin pays for is left
//     until others can take the Lease. And no Lease is taken before its holder's time is over, as the holder itself wrote it.
//   - Tokens of started processes strictly grow. The sink accepts no token lower than one that it accepted, and accepts all
//     writes of the present tenure.
//   - No component of ours writes a Lease without our label.
//   - A tree is killed as soon as its agent learns of another tenure, and does not begin to run after that.
//   - After an unclean end lockDelay passes.
//   - When all faults are over there is a holder within the bound. It stays, and sends one write every retryPeriod; nobody sends
//     anything else.
//   - Replies that are merely lost, late or doubled end no tenure.
//   - Nothing is started and nothing released while a process lives, and no agent spins.
//   - No attempt of a run begins after the run's final state is stored, or before its delay is over. Attempts are counted correctly, and the stored end of a
//     run is its actual end. A tick has at most one run, and each tick is run, missed or skipped once, according to the Lease
//     alone. After a restore that has forgotten runs, this holds from the snapshot's state on.
//   - Nobody but the operator changes the schedule, and the ticks of a new schedule begin when it is written.
//
// In three cases two trees act at once and no promise is broken. The world causes them, and they are counted separately. The first is a
// tree that was frozen when it had to die. The second is a tree that keeps running while it is cut off, as KeepRunning allows. The third is
// a tree that was killed in time, but took longer to die than the margin and the lateness reported to its agent allow. None of them excuses
// a Lease that was taken before its time.
//
// Two edits by hand cannot be told from the truth: a whole release under a live holder, and a Lease from which every trace of a
// raised token was removed. The first excuses that holder's tree until the time of its own last write is over. The second excuses
// one token that does not grow. The sink is judged as always.
package sim

import (
	"math/rand/v2"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
	"github.com/singletonjob/operator/internal/schedule"
)

// Options say how to run an episode. The zero value is right for everything but mutants.
type Options struct {
	// Step is the state machine; nil stands for lease.Step.
	Step mistake.Step
	// Profile, unless it is AnyProfile, selects the world's kind of faults.
	Profile Profile
	// Outcomes makes the checker judge outcomes only, not the two halves of the inequality that they follow from.
	Outcomes bool
	// Broken is a mistake in the agents' surroundings: for mutants.
	Broken mistake.Broken
	// NewSink creates the sink; nil stands for one that follows package fence.
	NewSink func() Sink
	// Slew, unless it is 0, bounds in ppm how much every kernel's timers are slewed.
	Slew int64
	// Timing, unless it is zero, is every candidate's leaseDuration, renewDeadline and retryPeriod.
	Timing Timing
}

// Result is the result of one episode.
type Result struct {
	Seed    uint64
	Profile Profile
	// Simulated is the true time that passed in the episode.
	Simulated time.Duration
	// Tenures counts started processes. Takeovers counts those that followed a process of another agent process.
	Tenures, Takeovers int
	// Overlaps counts takeovers from holders that kept running while cut off, as KeepRunning has it. Frozen counts those from
	// frozen holders. Late counts those from holders that were killed in time and took longer to die than is paid for.
	Overlaps, Frozen, Late int
	// Stolen counts Leases that a client-go elector took from a holder before its time was over.
	Stolen int
	// Lowered counts Leases taken early by candidates that started after the duration was lowered by hand.
	Lowered int
	// Forged counts processes that began while another process lived whose Lease somebody had made to look released. Erased
	// counts tokens that did not grow because somebody had removed every trace of a higher one.
	Forged, Erased int
	// Writes counts the writes that arrived at the sink, Stale those that arrived after one with a higher token, Refused those
	// that the sink refused.
	Writes, Stale, Refused int
	// Steps counts calls of the state machine.
	Steps int
	// Violation is the first violation, nil if there is none. The episode ends with it.
	Violation *Violation
}

// Run runs the episode of a seed.
func Run(seed uint64, o Options) Result {
	p := draw(seed, o)
	return run(p, plan(p), o, nil)
}

// run runs an episode with given faults. trace, unless nil, receives a description of everything that happens.
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
	w.check = checker{w: w, outcomes: o.Outcomes, runs: newRunsSeen(), over: map[tenure]bool{}}
	return w
}

// world is one episode in progress. All times in it are true time since its beginning.
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
	agents    []*agent // every agent process of the episode
	byID      map[string]*agent
	operators []*operator // they do not know each other
	// base is spec.fencing.tokenBase.
	base    int64
	elector *elector // nil except in episodes with a foreign contender
	sink    Sink
	check   checker
	// handover is when the Lease was last written with a handover request.
	handover time.Duration
	// hiccups is the probability that an agent is paused between deciding and acting.
	hiccups float64
	// stubborn means that no process obeys SIGTERM.
	stubborn bool
	// troubled is true from the first fault until all faults are over.
	troubled bool
	// healed counts the times at which all faults were ended.
	healed int
	// suspended is spec.suspend, wanted spec.schedule, requests the number of requested runs.
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

// next carries out the next thing in the queue. It returns false at the end of the episode.
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
