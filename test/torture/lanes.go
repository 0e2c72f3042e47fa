//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/torture/judge"
)

const (
	// two is how often, in a hundred, a subject gets two faults at once.
	two = 25
	// calm is the longest pause between two faults of the same lane.
	calm = 1500 * time.Millisecond
	// globalCalm is the longest pause between two faults of all subjects.
	globalCalm = 40 * time.Second
	// globalHolds is the longest duration of these faults.
	globalHolds = 8 * time.Second
	// recovers is how long a lane waits for a subject to act. After that it injects the next fault in any case.
	recovers = 30 * time.Second
)

// torment injects faults until ctx ends, and returns when all of them are healed. Each subject has its own lane, and another lane affects
// all subjects at once. The seed determines what a lane draws. The machine determines what follows from it.
func (w *world) torment(ctx context.Context, seed uint64) {
	var lanes sync.WaitGroup
	for i, s := range w.subjects {
		lanes.Go(func() { w.lane(ctx, s, rand.New(rand.NewPCG(seed, uint64(i+1)))) })
	}
	lanes.Go(func() { w.globalLane(ctx, rand.New(rand.NewPCG(seed, 0))) })
	lanes.Wait()
}

func (w *world) lane(ctx context.Context, s *subject, random *rand.Rand) {
	kinds := befalling()
	for ctx.Err() == nil {
		began := fencetest.Boottime()
		waiting, cancel := context.WithTimeout(ctx, recovers)
		_ = w.awaitWrite(waiting, s, began)
		cancel()
		pause(ctx, between(random, 0, calm))
		blows := 1
		if random.IntN(100) < two {
			blows = 2
		}
		var struck sync.WaitGroup
		for i := range blows {
			k := draw(kinds, s.Control, random)
			b := &blow{world: w, subject: s, random: rand.New(rand.NewPCG(random.Uint64(), 0)), holds: lasts(s, random)}
			after := time.Duration(i) * between(random, 0, s.lease.Duration/2)
			struck.Go(func() {
				pause(ctx, after)
				w.strike(ctx, k, b)
			})
		}
		struck.Wait()
	}
}

func (w *world) globalLane(ctx context.Context, random *rand.Rand) {
	kinds := common()
	for {
		pause(ctx, between(random, 0, globalCalm))
		if ctx.Err() != nil {
			return
		}
		w.strike(ctx, draw(kinds, false, random), &blow{world: w, random: random, holds: between(random, 0, globalHolds)})
	}
}

func draw(kinds []kind, control bool, random *rand.Rand) kind {
	const usual = 4
	sum, weights := 0, make([]int, len(kinds))
	for i, k := range kinds {
		weights[i] = k.weight
		if k.weight == 0 {
			weights[i] = usual
		}
		if control && k.product {
			weights[i] = 0
		}
		sum += weights[i]
	}
	chosen := random.IntN(sum)
	for i, weight := range weights {
		if chosen -= weight; chosen < 0 {
			return kinds[i]
		}
	}
	panic("the weights have another sum")
}

// lasts is the duration of a fault: usually longer than the lease, sometimes so short that it may have no effect.
func lasts(s *subject, random *rand.Rand) time.Duration {
	if random.IntN(3) == 0 {
		return between(random, 0, s.lease.Deadline)
	}
	return between(random, s.lease.Duration, s.lease.Duration*7/4)
}

// strike injects one fault, and heals it when its time or that of the run is over.
func (w *world) strike(ctx context.Context, k kind, b *blow) {
	f := judge.Fault{Kind: k.name, Begin: fencetest.Boottime()}
	if ctx.Err() != nil {
		return
	}
	var heal func() error
	var err error
	if b.subject != nil {
		f.Subject = b.Name
		b.pod, b.node, err = w.active(b.subject)
		f.Detail = b.pod
	}
	if err == nil {
		heal, err = k.do(ctx, b)
	}
	if heal != nil {
		if err == nil {
			pause(ctx, b.holds)
		}
		err = errors.Join(err, heal())
	}
	if err != nil {
		f.Failed = err.Error()
	}
	f.End = fencetest.Boottime()
	w.mu.Lock()
	w.faults = append(w.faults, f)
	w.mu.Unlock()
}
