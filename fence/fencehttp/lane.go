package fencehttp

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence"
)

// lane is the order of the writes to one resource. Those under way all carry the mark that its hold has: who is to raise the mark first has
// them end (empty), then lets go of the hold, then raises, then holds anew.
type lane struct {
	gate          fence.Gate
	store         Shared
	drain, settle time.Duration
	storeTime     time.Duration        // how long one question to the store may take
	observeCut    func(fence.Resource) // nil: nobody wants to know

	users int       // who has the lane from the Fence, by whose lock this is guarded, and the next
	used  time.Time // when one of them had done with it

	turn chan struct{} // has one value, which belongs to whoever changes hold, or empties the lane

	mu     sync.Mutex // guards what follows
	known  fence.Token
	hold   *Hold // nil: the store has to be asked, since others may raise the mark
	shut   bool  // nothing begins, since the lane is to be emptied
	writes map[*write]struct{}
	idle   chan struct{} // closed when writes gets empty; nil: nobody waits for it
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

// begin returns when a write is under way, or why it must not be.
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

// enter decides by what is known. Neither entered nor refused: it takes the store to decide.
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

// accept is how a gate decides on a token.
type accept func(mark, token fence.Token) (fence.Token, error)

// prepare has the mark held, and at the token where that may raise it. What has begun of it goes on when ctx ends, within bounds of its own: else a
// tenure whose clients are impatient would cut short the time that the writes before it have, and never get in.
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
		return l.unavailable("wait for the mark, which goes on", ctx.Err())
	}
}

func (l *lane) advance(ctx context.Context, to fence.Token) error {
	if err := l.prepare(ctx, to, l.gate.Advance); err != nil {
		return err
	}
	_, err := l.gate.Advance(l.mark(), to) // another process may have raised it further
	return err
}

// move has the mark held where the gate lets a token have it. Only who has the turn may call it.
func (l *lane) move(ctx context.Context, token fence.Token, gate accept) error {
	stored, err := l.held(ctx)
	if err != nil {
		return err
	}
	// A mark that is higher here than in the store was lost there. It is put right, too.
	mark, err := gate(l.mark(), token)
	if err != nil || mark == stored {
		return err
	}
	return l.raise(ctx, mark)
}

// recall decides for Monitor by what is known, where that is enough.
func (l *lane) recall(token fence.Token) (decided bool, err error) {
	known := l.mark()
	if token > known {
		return false, nil
	}
	_, err = l.gate.Accept(known, token)
	return true, err
}

// watch decides for Monitor by the store: it holds nothing.
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

// held has the mark held, and returns it. Only who has the turn may call it.
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
	// What was under way when a hold was lost has been cut, and must have ended before anything else begins.
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

// raise ends what is under way, and raises the mark. Only who has the turn may call it.
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
		err = l.unavailable(fmt.Sprintf("raise the mark to %d: the store has %d all the same", to, stored), ErrUnavailable)
	}
	return err
}

// empty waits for the writes under way, then cuts them. The lane is shut meanwhile.
func (l *lane) empty() bool {
	l.cut(func(w *write) bool { return w.stream })
	if l.ended(l.drain) {
		return true
	}
	l.cut(func(*write) bool { return true })
	return l.ended(l.settle)
}

// ended reports whether no write is under way, for which it waits.
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

// end is called when a write has come to its end.
func (l *lane) end(w *write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.writes, w)
	if len(l.writes) == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// streams notes that a write goes on for as long as its client likes from now on. One that does so while the lane is emptied is cut.
func (l *lane) streams(w *write) {
	l.mu.Lock()
	w.stream = true
	shut := l.shut
	l.mu.Unlock()
	if shut {
		l.cut(func(one *write) bool { return one == w })
	}
}

// followLoss cuts what is under way when the mark is held no more.
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

// followWant empties the lane and lets go when another process is to raise the mark. What does not end keeps the mark held.
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

// retire has the turn for ever, unless something is under way. Nobody may have the lane afterwards.
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
