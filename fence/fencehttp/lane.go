package fencehttp

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence"
)

// lane orders the writes to one resource. All writes in progress carry the mark that the lane holds. To raise the mark, a write first makes
// them end (empty). It then releases the hold, raises the mark, and holds it again.
type lane struct {
	gate          fence.Gate
	store         Shared
	drain, settle time.Duration
	storeTime     time.Duration        // the timeout of one request to the store
	observeCut    func(fence.Resource) // nil: not observed

	users int       // how many requests have the lane from the Fence. The Fence's mutex guards users and used
	used  time.Time // when one of them last finished

	turn chan struct{} // has one value, which the goroutine takes that changes hold or empties the lane

	mu     sync.Mutex // guards the fields below
	known  fence.Token
	hold   *Hold // nil: the lane must ask the store, because others may raise the mark
	shut   bool  // no write begins, because the lane is being emptied
	writes map[*write]struct{}
	idle   chan struct{} // closed when writes becomes empty; nil: nothing waits for that
}

func newLane(gate fence.Gate, store Store) *lane {
	shared, ok := store.(Shared)
	if !ok {
		shared = exclusive{store}
	}
	l := &lane{gate: gate, store: shared, turn: make(chan struct{}, 1), writes: make(map[*write]struct{})}
	l.turn <- struct{}{}
	return l
}

// begin returns nil once a write has begun, or the reason why it must not begin.
func (l *lane) begin(ctx context.Context, token fence.Token, in *write) error {
	for ctx.Err() == nil {
		entered, err := l.enter(token, in)
		if entered || err != nil {
			return err
		}
		if err := l.prepare(ctx, token, l.gate.Accept); err != nil {
			return err
		}
	}
	return l.unavailable("let the write begin", ctx.Err())
}

// enter decides without the store. If the write is neither entered nor refused, the decision needs the store.
func (l *lane) enter(token fence.Token, in *write) (entered bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token < l.known {
		return false, &fence.StaleError{Resource: l.gate.Resource, Presented: token, Highest: l.known}
	}
	if l.hold == nil || l.shut || !l.hold.fresh() {
		return false, nil
	}
	mark, err := l.gate.Accept(l.known, token)
	if err != nil {
		return false, err
	}
	if mark != l.hold.Mark {
		return false, nil
	}
	in.hold = l.hold
	l.writes[in] = struct{}{}
	return true, nil
}

// accept is the decision of a gate on a token.
type accept func(mark, token fence.Token) (fence.Token, error)

// prepare holds the mark, raised to the token if the token may raise it. Once begun it continues after ctx ends, with its own timeout.
// Otherwise a tenure whose clients have short timeouts would abort the wait for earlier writes each time, and could never write.
func (l *lane) prepare(ctx context.Context, token fence.Token, gate accept) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer l.give()
		done <- l.move(context.WithoutCancel(ctx), token, gate)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return l.unavailable("wait for the mark; the wait continues in the background", ctx.Err())
	}
}

func (l *lane) advance(ctx context.Context, to fence.Token) error {
	if err := l.prepare(ctx, to, l.gate.Advance); err != nil {
		return err
	}
	_, err := l.gate.Advance(l.mark(), to) // another process may have raised the mark above it
	return err
}

// move holds the mark at the value that the gate returns for a token. The caller must have the turn.
func (l *lane) move(ctx context.Context, token fence.Token, gate accept) error {
	stored, err := l.held(ctx)
	if err != nil {
		return err
	}
	// If the mark is higher here than in the store, the store has lost it: move raises it there again.
	mark, err := gate(l.mark(), token)
	if err != nil || mark == stored {
		return err
	}
	return l.raise(ctx, mark)
}

// recall decides for Monitor without the store, if it can.
func (l *lane) recall(token fence.Token) (decided bool, err error) {
	known := l.mark()
	if token > known {
		return false, nil
	}
	_, err = l.gate.Accept(known, token)
	return true, err
}

// watch decides for Monitor with the mark from the store, which it does not hold.
func (l *lane) watch(ctx context.Context, token fence.Token) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	stored, err := l.store.Mark(ctx, l.gate.Resource)
	if err != nil {
		return l.unavailable("read the mark", err)
	}
	mark, err := l.gate.Accept(max(stored, l.mark()), token)
	if err == nil && mark > stored {
		if err := l.store.Raise(ctx, l.gate.Resource, mark); err != nil {
			return l.unavailable("raise the mark", err)
		}
	}
	l.learn(mark)
	return err
}

// held holds the mark and returns it. The caller must have the turn.
func (l *lane) held(ctx context.Context) (fence.Token, error) {
	l.mu.Lock()
	hold := l.hold
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.storeTime)
	defer cancel()
	if hold != nil && (hold.fresh() || hold.Confirm(ctx) == nil) {
		return hold.Mark, nil
	}
	if hold != nil {
		l.lose(hold)
		hold.Release()
	}
	// Writes that were in progress when a hold was lost were cut. They must end before any other write begins.
	if !l.ended(l.settle) {
		return 0, l.unavailable("wait for writes that were cut", ErrUnavailable)
	}
	h, err := l.store.Hold(ctx, l.gate.Resource)
	if err != nil {
		return 0, l.unavailable("hold the mark", err)
	}
	l.mu.Lock()
	l.hold, l.known = &h, max(l.known, h.Mark)
	l.mu.Unlock()
	if h.Lost != nil {
		go l.followLoss(&h)
	}
	if h.Wanted != nil {
		go l.followWant(&h)
	}
	return h.Mark, nil
}

// raise ends the writes in progress and raises the mark. The caller must have the turn.
func (l *lane) raise(ctx context.Context, to fence.Token) error {
	l.setShut(true)
	defer l.setShut(false)
	if !l.empty() {
		return l.unavailable("wait for writes of an earlier tenure, which were cut and have not ended", ErrUnavailable)
	}
	l.release()
	raising, cancel := context.WithTimeout(ctx, l.storeTime)
	defer cancel()
	if err := l.store.Raise(raising, l.gate.Resource, to); err != nil {
		return l.unavailable("raise the mark", err)
	}
	l.learn(to)
	stored, err := l.held(ctx)
	if err == nil && stored < to {
		err = l.unavailable(fmt.Sprintf("raise the mark to %d: the store still has %d", to, stored), ErrUnavailable)
	}
	return err
}

// empty waits for the writes in progress, then cuts them. The caller has shut the lane.
func (l *lane) empty() bool {
	l.cut(func(w *write) bool { return w.stream })
	if l.ended(l.drain) {
		return true
	}
	l.cut(func(*write) bool { return true })
	return l.ended(l.settle)
}

// ended waits until no write is in progress, and reports whether that happened in time.
func (l *lane) ended(most time.Duration) bool {
	l.mu.Lock()
	if len(l.writes) == 0 {
		l.mu.Unlock()
		return true
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	l.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}

func (l *lane) cut(which func(*write) bool) {
	l.mu.Lock()
	var cut []*write
	for w := range l.writes {
		if which(w) {
			cut = append(cut, w)
		}
	}
	l.mu.Unlock()
	for _, w := range cut {
		if w.cut() && l.observeCut != nil {
			l.observeCut(l.gate.Resource)
		}
	}
}

// end is called when a write has ended.
func (l *lane) end(w *write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.writes, w)
	if len(l.writes) == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// streams notes that a write has become a stream, which lasts as long as its client likes. While the lane is being emptied, the stream is
// cut at once.
func (l *lane) streams(w *write) {
	l.mu.Lock()
	w.stream = true
	shut := l.shut
	l.mu.Unlock()
	if shut {
		l.cut(func(one *write) bool { return one == w })
	}
}

// followLoss cuts the writes of a hold when the hold is lost.
func (l *lane) followLoss(h *Hold) {
	<-h.Lost
	l.lose(h)
}

func (l *lane) lose(h *Hold) {
	l.mu.Lock()
	if l.hold == h {
		l.hold = nil
	}
	l.mu.Unlock()
	l.cut(func(w *write) bool { return w.hold == h })
}

// followWant empties the lane and releases the mark when another process wants to raise it. A write that does not end keeps the mark held.
func (l *lane) followWant(h *Hold) {
	select {
	case <-h.Lost:
		return
	case <-h.Wanted:
	}
	for gone := false; !gone; {
		select {
		case <-h.Lost:
			return
		case <-l.turn:
		}
		gone = l.yield(h)
		l.give()
	}
}

func (l *lane) yield(h *Hold) bool {
	l.mu.Lock()
	mine := l.hold == h
	l.mu.Unlock()
	if !mine {
		return true
	}
	l.setShut(true)
	defer l.setShut(false)
	if !l.empty() {
		return false
	}
	l.release()
	return true
}

func (l *lane) release() {
	l.mu.Lock()
	hold := l.hold
	l.hold = nil
	l.mu.Unlock()
	if hold != nil {
		hold.Release()
	}
}

func (l *lane) close() {
	l.cut(func(*write) bool { return true })
	l.ended(l.settle)
	l.release()
}

// retire takes the turn forever if no write is in progress, and reports whether it did. The lane must not be used afterwards.
func (l *lane) retire() bool {
	select {
	case <-l.turn:
	default:
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.writes) > 0 {
		l.give()
		return false
	}
	return true
}

func (l *lane) mark() fence.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known
}

func (l *lane) learn(mark fence.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = max(l.known, mark)
}

func (l *lane) setShut(shut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = shut
}

func (l *lane) take(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case <-l.turn:
			return nil
		case <-ctx.Done():
		}
	}
	return l.unavailable("wait for its turn", ctx.Err())
}

func (l *lane) give() { l.turn <- struct{}{} }

func (l *lane) unavailable(doing string, err error) error {
	return fmt.Errorf("%w: %s: %s: %w", ErrUnavailable, l.gate.Resource, doing, err)
}
