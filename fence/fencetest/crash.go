package fencetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/singletonjob/operator/fence"
)

// Restarter is an [Adapter] whose sink can crash. The suite then tests what is stored after a crash.
type Restarter interface {
	Adapter
	// Restart ends the sink as a crash does, so that it loses its memory, and returns when the sink accepts writes again. A write in
	// progress can fail with any error.
	Restart(ctx context.Context) error
}

func restartForgetsNothing(s *subject) error {
	restarter, ok := s.Adapter.(Restarter)
	if !ok {
		return lack{"Restart", "a mark that the sink forgets"}
	}
	r := s.fresh()
	return errors.Join(
		s.accepted(r, "33", "a"), s.accepted(r, "34", "b"),
		restarter.Restart(s.ctx),
		s.stale(r, "33", "x", "34"), s.accepted(r, "34", "c"),
		s.stored(r, "a", "b", "c"),
	)
}

// crashes writes to one resource while the sink crashes repeatedly.
type crashes struct {
	*subject
	resource fence.Resource
	end      chan struct{}
	all      sync.WaitGroup
	highest  atomic.Int64 // the greatest token of a write that was acknowledged
	acks     atomic.Int64 // of writes with it
	mu       sync.Mutex   // guards the rest
	acked    map[string]bool
	unknown  map[string]bool // neither acknowledged nor refused
	faults   []error
}

// crashDuringWrites begins a new tenure before each crash. The earlier tenures continue to write.
func crashDuringWrites(s *subject) error {
	const tenures, writers, enough = 3, 4, 20
	restarter, ok := s.Adapter.(Restarter)
	if !ok {
		return lack{"Restart", "a crash during writes"}
	}
	c := &crashes{subject: s, resource: s.fresh(), end: make(chan struct{}), acked: map[string]bool{}, unknown: map[string]bool{}}
	var failures []error
	for token := int64(1); token <= tenures && len(failures) == 0; token++ {
		for i := range writers {
			c.all.Go(func() { c.write(token, i) })
		}
		for _, step := range []func() error{
			func() error { return c.await(token, enough) },
			func() error { return restarter.Restart(s.ctx) },
			func() error { return c.await(token, c.acks.Load()+enough) },
		} {
			if err := step(); err != nil {
				failures = append(failures, err)
				break
			}
		}
	}
	close(c.end)
	c.all.Wait()
	stored, err := s.Stored(s.ctx, c.resource)
	return errors.Join(append(append(failures, c.faults...), err, ascending(stored), c.accounted(stored))...)
}

// await waits until acks writes with a token are acknowledged.
func (c *crashes) await(token, acks int64) error {
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		c.mu.Lock()
		faults := len(c.faults)
		c.mu.Unlock()
		if faults > 0 || c.highest.Load() == token && c.acks.Load() >= acks {
			tick.Stop()
			return nil
		}
		select {
		case <-c.ctx.Done():
			return fmt.Errorf("awaiting %d writes with token %d: %w", acks, token, context.Cause(c.ctx))
		case <-tick.C:
		}
	}
}

// write continues until the test ends, even if its writes are refused.
func (c *crashes) write(token int64, writer int) {
	const pause = 2 * time.Millisecond
	for seq := 0; ; seq++ {
		select {
		case <-c.end:
			return
		case <-c.ctx.Done():
			return
		default:
		}
		payload := fmt.Sprintf("%d:%d:%d", token, writer, seq)
		before := c.highest.Load()
		err := c.Write(c.ctx, c.resource, strconv.FormatInt(token, 10), payload)
		c.note(token, before, payload, err)
		if err != nil {
			time.Sleep(pause)
		}
	}
}

func (c *crashes) note(token, before int64, payload string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stale, refused := errors.AsType[*fence.StaleError](err)
	switch {
	case err == nil && token < before:
		c.faults = append(c.faults, fmt.Errorf("write %s was stored although one with token %d had returned before it began", payload, before))
	case err == nil:
		c.acked[payload] = true
		if token > c.highest.Load() {
			c.highest.Store(token)
			c.acks.Store(0)
		}
		if token == c.highest.Load() {
			c.acks.Add(1)
		}
	case refused && int64(stale.Highest) <= token:
		c.faults = append(c.faults, fmt.Errorf("write %s was refused although no token is higher: %w", payload, err))
	case !refused:
		c.unknown[payload] = true
	}
}

// accounted checks that each acknowledged write is stored once, and no refused write is stored.
func (c *crashes) accounted(stored []string) error {
	want := make(map[string]bool, len(stored))
	for payload := range c.acked {
		want[payload] = true
	}
	for _, payload := range stored {
		if c.unknown[payload] {
			want[payload] = true
		}
	}
	return sameSet(stored, want)
}
