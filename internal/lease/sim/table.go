package sim

import (
	"math/rand/v2"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// Steady is one constant fault, in an episode that has no other.
type Steady struct {
	// Lost is the share of lost requests, half of them lost in transit and half with their answers.
	Lost float64
	// DeadServer makes one of three API servers behind the Service silent. A connection stays with its server; a new connection
	// goes to any.
	DeadServer bool
	// Slow bounds the time of each direction of a request. There are no watches then, because they would show writes sooner.
	Slow time.Duration
	// Outage is the length of occasional outages, in any phase relative to the renewals.
	Outage time.Duration
}

// Timing are leaseDuration, renewDeadline and retryPeriod.
type Timing [3]time.Duration

// Survival is the result for tenures under a steady fault.
type Survival struct {
	Simulated time.Duration
	// Lost counts tenures that ended.
	Lost int
	// Outages counts the outages.
	Outages int
}

// Mean returns the mean duration of a tenure; if none was lost, the whole simulated time.
func (s Survival) Mean() time.Duration { return s.Simulated / time.Duration(max(1, s.Lost)) }

// Survive runs one episode.
func Survive(seed uint64, t Timing, length time.Duration, f Steady) Survival {
	return survive(seed, t, length, f, Options{})
}

func survive(seed uint64, t Timing, length time.Duration, f Steady, o Options) Survival {
	c := lease.Config{Duration: t[0], RenewDeadline: t[1], RetryPeriod: t[2], GracePeriod: time.Second}
	p := params{
		seed: seed, profile: Mixed, candidates: 2, config: c, configs: []lease.Config{c}, length: length,
		endProvesDeath: true, initialEvents: true,
	}
	w := newWorld(p, o, nil)
	w.build()
	out := Survival{Simulated: length}
	w.check.judgesNoEnd = true
	w.after(0, func() { w.steady(f) })
	if f.Outage > 0 {
		w.after(4*t[0], func() { w.outages(f.Outage, t, &out.Outages) })
	}
	for w.check.violation == nil && w.next() {
	}
	out.Lost = w.check.ended
	return out
}

// steady starts the fault. It affects both candidates, one of which acts.
func (w *world) steady(f Steady) {
	for _, s := range w.slots {
		s.agent.machine.link.lossUp, s.agent.machine.link.lossDown = f.Lost/2, f.Lost/2
	}
	w.api.dead[0] = f.DeadServer
	if w.api.slow = f.Slow; f.Slow > 0 {
		w.refuseWatches(Fault{})
	}
}

func (w *world) outages(lasts time.Duration, t Timing, count *int) {
	*count++
	w.api.set(blackHole)
	w.after(lasts, func() {
		w.api.set(up)
		w.after(4*t[0]+w.between(0, t[2]), func() { w.outages(lasts, t, count) })
	})
}

// Survivable returns the longest outage, to a tenth of retryPeriod, that ended no tenure in some hundred trials of each length.
func Survivable(seed uint64, t Timing) time.Duration {
	step := t[2] / 10
	longest := time.Duration(0)
	for lasts := step; lasts < t[0]; lasts += step {
		const outages = 200
		rng := rand.New(rand.NewPCG(seed, uint64(lasts)))
		s := Survive(rng.Uint64(), t, outages*(lasts+4*t[0]+t[2]), Steady{Outage: lasts})
		if s.Lost > 0 {
			break
		}
		longest = lasts
	}
	return longest
}
