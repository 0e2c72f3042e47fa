// Package rivals has writers of several tenures write to one sink at a time, and says whether a fence allows what became of it.
package rivals

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

// Sizes of a crowd.
const (
	Writers = 64
	Tenures = 8
)

// A Subject is a sink that a crowd writes to.
type Subject struct {
	Name string
	fencetest.Adapter
	// Unfenced is the same write without its fence, for the comparison. It may store what it likes.
	Unfenced fencetest.Adapter
	// Advance, if there is one, is called for a tenure before its first write to a resource.
	Advance func(ctx context.Context, r fence.Resource, token string) error
	// Deadlocks, if there is one, tells how many the sink has ended.
	Deadlocks func() int64
}

// place is a resource that a crowd writes to.
type place struct {
	resource fence.Resource
	highest  atomic.Int64 // the greatest token of a write that was acknowledged
	mu       sync.Mutex   // guards acked
	acked    []string
}

type crowd struct {
	fencetest.Adapter
	advances         func(ctx context.Context, r fence.Resource, token string) error
	places           []*place
	accepted, stale  atomic.Int64
	mu               sync.Mutex // guards faults
	faults           []error
	deadline, begins time.Time
	written          [Writers]int // by writer, in all turns: no two writes are the same
}

func newCrowd(a fencetest.Adapter, resources int) *crowd {
	c := &crowd{Adapter: a}
	for range resources {
		c.places = append(c.places, &place{resource: fence.Resource(fmt.Sprintf("crowd/%016x", rand.Uint64()))})
	}
	return c
}

// write runs all writers until the time is over. One after the other the tenures begin, and none ends.
func (c *crowd) write(ctx context.Context, d time.Duration, tenures int) {
	c.begins = time.Now()
	c.deadline = c.begins.Add(d)
	var all sync.WaitGroup
	for i := range Writers {
		tenure := i % tenures
		all.Go(func() {
			time.Sleep(d * time.Duration(tenure) / time.Duration(tenures))
			for first := true; first || time.Now().Before(c.deadline); first = false { // once at least
				c.one(ctx, int64(tenure+1), fmt.Sprintf("%d:%d:%d", tenure+1, i, c.written[i]))
				c.written[i]++
			}
		})
	}
	all.Wait()
}

func (c *crowd) one(ctx context.Context, token int64, payload string) {
	p := c.places[rand.IntN(len(c.places))]
	before := p.highest.Load()
	text := strconv.FormatInt(token, 10)
	var err error
	if c.advances != nil && before < token {
		err = c.advances(ctx, p.resource, text)
	}
	if err == nil {
		err = c.Write(ctx, p.resource, text, payload)
	}
	refused, isStale := errors.AsType[*fence.StaleError](err)
	switch {
	case err == nil && token >= before:
		c.accepted.Add(1)
		for seen := p.highest.Load(); token > seen && !p.highest.CompareAndSwap(seen, token); seen = p.highest.Load() {
		}
		p.mu.Lock()
		p.acked = append(p.acked, payload)
		p.mu.Unlock()
		return
	case err == nil:
		err = fmt.Errorf("SAFETY: write %s was stored after one with token %d", payload, before)
	case isStale && int64(refused.Highest) > token:
		c.stale.Add(1)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Errorf("write %s: %w", payload, err))
}

// judge compares the stored writes with the reported ones. They must be the same, in the order of the tenures.
func (c *crowd) judge(ctx context.Context) error {
	faults := c.faults
	for _, p := range c.places {
		stored, err := c.Stored(ctx, p.resource)
		faults = append(faults, err)
		acked := make(map[string]bool, len(p.acked))
		for _, payload := range p.acked {
			acked[payload] = true
		}
		var highest int64
		for _, payload := range stored {
			text, _, _ := strings.Cut(payload, ":")
			token, _ := strconv.ParseInt(text, 10, 64)
			if token < highest || !acked[payload] {
				faults = append(faults, fmt.Errorf("SAFETY: %s is stored, after token %d, acknowledged: %t", payload, highest, acked[payload]))
			}
			highest = max(highest, token)
			delete(acked, payload)
		}
		if len(acked) > 0 {
			faults = append(faults, fmt.Errorf("acknowledged and not stored: %v", acked))
		}
	}
	return errors.Join(faults...)
}

// Figures are what became of one sink.
type Figures struct {
	Sink      string  `json:"sink"`
	Resources int     `json:"resources"`
	Seconds   float64 `json:"secondsOfEightTenures"`
	Accepted  int64   `json:"acceptedOfEightTenures"`
	Refused   int64   `json:"refusedOfEightTenures"`
	Deadlocks int64   `json:"deadlocks"`
	Unfenced  float64 `json:"unfencedPerSecond,omitempty"`
	Fenced    float64 `json:"fencedPerSecond,omitempty"`
	Ratio     float64 `json:"timeFencedToUnfenced,omitempty"`
}

// Run has writers of 8 tenures write for so long. If compare is set, writers of one tenure then write for as long, by turns with the fence
// and without. The error says what no fence may do: a stale write stored, one of the highest tenure refused, an acknowledged one lost, a
// deadlock.
func Run(ctx context.Context, s Subject, resources int, d time.Duration, compare bool) (Figures, error) {
	f := Figures{Sink: s.Name, Resources: resources}
	c := newCrowd(s.Adapter, resources)
	c.advances = s.Advance
	c.write(ctx, d, Tenures)
	err := c.judge(ctx)
	f.Seconds = c.deadline.Sub(c.begins).Seconds()
	f.Accepted, f.Refused = c.accepted.Load(), c.stale.Load()
	if compare {
		err = errors.Join(err, besideUnfenced(ctx, &f, s, d))
	}
	if s.Deadlocks != nil {
		f.Deadlocks = s.Deadlocks()
	}
	if f.Deadlocks > 0 {
		err = errors.Join(err, fmt.Errorf("%d deadlocks", f.Deadlocks))
	}
	return f, err
}

// besideUnfenced writes by turns with and without the fence, so that both see the same machine.
func besideUnfenced(ctx context.Context, f *Figures, s Subject, d time.Duration) error {
	const turns = 10
	with, without := newCrowd(s.Adapter, f.Resources), newCrowd(s.Unfenced, f.Resources)
	var took [2]time.Duration
	for turn := range 2 * turns {
		c := []*crowd{with, without}[turn%2]
		c.write(ctx, d/2/turns, 1)
		took[turn%2] += time.Since(c.begins)
	}
	f.Fenced, f.Unfenced = float64(with.accepted.Load())/took[0].Seconds(), float64(without.accepted.Load())/took[1].Seconds()
	f.Ratio = f.Unfenced / f.Fenced
	return errors.Join(append(with.faults, without.faults...)...)
}
