package fencehttp

import (
	"context"
	"sync"

	"github.com/singletonjob/operator/fence"
)

// Store keeps the marks of one process. It must be as durable as the data that the fence guards: after a mark is lost, the past tenure
// passes until the current one writes again. Two processes must not use the same store unless it is [Shared].
type Store interface {
	// Mark returns the mark of a resource, zero for none.
	Mark(ctx context.Context, resource fence.Resource) (fence.Token, error)
	// Raise stores the mark if it is greater than the stored one. It never lowers a mark. After it returns without an error, the mark
	// survives everything that the store must survive. After an error, the mark may or may not be stored.
	Raise(ctx context.Context, resource fence.Resource, to fence.Token) error
}

// Shared is a store of several processes, each of which can have writes in progress. A mark that one of them holds is not raised: Raise
// waits until no process holds it.
type Shared interface {
	Store
	// Hold reads the mark and keeps it unchanged until the hold ends. Several holders can hold one mark.
	Hold(ctx context.Context, resource fence.Resource) (Hold, error)
}

// Hold is a mark that does not change while it is held.
type Hold struct {
	Mark fence.Token
	// Wanted is closed when another process waits to raise the mark. nil: that cannot happen.
	Wanted <-chan struct{}
	// Lost is closed when the mark is no longer held, also by Release: others can raise it from then on. nil: that cannot happen.
	Lost <-chan struct{}
	// Fresh reports whether the store answered recently enough that the mark is surely still held. It is called before each write, and must
	// not block. nil: always fresh. If it returns false, as after the process was frozen, Confirm asks the store; its error means that the
	// mark is no longer held.
	Fresh   func() bool
	Confirm func(context.Context) error
	// Release releases the mark. It can be called more than once.
	Release func()
}

func (h *Hold) fresh() bool { return h.Fresh == nil || h.Fresh() }

// exclusive adapts a store of one process to the interface Shared.
type exclusive struct{ Store }

func (s exclusive) Hold(ctx context.Context, resource fence.Resource) (Hold, error) {
	mark, err := s.Mark(ctx, resource)
	return Hold{Mark: mark, Release: func() {}}, err
}

// Memory is a store that does NOT survive a restart: afterwards the past tenure passes until the current one writes. It is for tests, and
// for data in the memory of the same process. Its zero value is ready to use.
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
