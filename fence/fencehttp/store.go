package fencehttp

import (
	"context"
	"sync"

	"github.com/singletonjob/operator/fence"
)

// Store keeps the marks of one process. It is as durable as what the fence guards: a mark that is lost lets the past tenure in
// until the present one has written again. Two processes must not have one unless it is [Shared].
type Store interface {
	// Mark returns the mark of a resource, zero for none.
	Mark(ctx context.Context, resource fence.Resource) (fence.Token, error)
	// Raise stores the mark if it is greater than the one that is there, which it never lowers. When it returns without an error, the mark
	// survives what the store is to survive; after an error it may be stored or not.
	Raise(ctx context.Context, resource fence.Resource, to fence.Token) error
}

// Shared is a store of several processes, any of which may have writes under way. A mark that one of them holds is not raised: Raise
// waits until nobody holds it.
type Shared interface {
	Store
	// Hold reads the mark and has it stay as it is until the hold ends. Many may hold one mark.
	Hold(ctx context.Context, resource fence.Resource) (Hold, error)
}

// Hold is a mark that stays as it is.
type Hold struct {
	Mark fence.Token
	// Wanted is closed when another process waits to raise the mark. nil: that can't be.
	Wanted <-chan struct{}
	// Lost is closed when the mark may be raised from now on, which Release does, too. nil: that can't be.
	Lost <-chan struct{}
	// Fresh reports whether the store was heard of lately enough that the mark is known to be held; it is asked before each write, and must not block.
	// Where it isn't, as in a process that was frozen, Confirm asks the store. An error of it means that the mark is held no more. nil: it always is.
	Fresh   func() bool
	Confirm func(context.Context) error
	// Release lets go of the mark. It may be called again.
	Release func()
}

func (h *Hold) fresh() bool { return h.Fresh == nil || h.Fresh() }

// exclusive makes a store of one process look like one of several.
type exclusive struct{ Store }

func (s exclusive) Hold(ctx context.Context, resource fence.Resource) (Hold, error) {
	mark, err := s.Mark(ctx, resource)
	return Hold{Mark: mark, Release: func() {}}, err
}

// Memory is a store that does NOT survive: after a restart the past tenure passes until the present one has written. It is for tests, and for
// what it guards being in the memory of the same process. Its zero value is ready.
type Memory struct {
	mu    sync.Mutex
	marks map[fence.Resource]fence.Token
}

// Mark implements [Store].
func (m *Memory) Mark(_ context.Context, resource fence.Resource) (fence.Token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.marks[resource], nil
}

// Raise implements [Store].
func (m *Memory) Raise(_ context.Context, resource fence.Resource, to fence.Token) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.marks == nil {
		m.marks = make(map[fence.Resource]fence.Token)
	}
	m.marks[resource] = max(m.marks[resource], to)
	return nil
}
