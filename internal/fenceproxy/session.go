package fenceproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/singletonjob/operator/fence"
)

// channel is the channel on which replicas are asked to release marks.
const channel = "fence_proxy"

// pgerrcodeOutOfMemory is PostgreSQL's out_of_memory, which a full table of locks is, too.
const pgerrcodeOutOfMemory = "53200"

// A session that has not answered for this long is given up, with all marks that it holds. Together these times are shorter than the time
// after which the server gives up a silent replica.
const (
	heartbeat     = 2 * time.Second
	answerTimeout = 5 * time.Second
)

// session is one connection that holds marks by its locks. One goroutine uses it, and listens whenever nothing else is to be done, so
// that its end is seen at once.
type session struct {
	conn  *pgx.Conn
	log   *slog.Logger
	peers *peers
	lost  chan struct{} // closed when it has ended
	heard atomic.Int64  // boottime when the last question was sent that was answered

	mu        sync.Mutex // guards the fields below
	queue     []*command
	interrupt context.CancelFunc // of listening
	holds     map[*held]struct{}
}

type command struct {
	ctx  context.Context // of who waits for it
	do   func(context.Context, *pgx.Conn) error
	err  error
	done chan struct{}
}

// held is a mark that the session holds.
type held struct {
	resource fence.Resource
	mark     fence.Token
	wanted   chan struct{}
	lost     chan struct{}
	want     func() // closes wanted
	lose     func() // closes lost
}

var errSessionLost = errors.New("the session with PostgreSQL has ended")

// begin registers the session on the server, and records the other sessions.
func (s *session) begin(ctx context.Context) error {
	sent := boottime()
	if _, err := s.conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, "SELECT pg_advisory_lock_shared($1)", presence); err != nil {
		return err
	}
	s.heard.Store(int64(sent))
	return s.beat(ctx, s.conn)
}

// beat checks that the server answers, and records the other sessions.
func (s *session) beat(ctx context.Context, conn *pgx.Conn) error {
	now, err := present(ctx, conn)
	if err == nil {
		s.peers.look(now, time.Now())
	}
	return err
}

// fresh reports whether the server has answered recently. The clock also runs while this process or its machine is suspended.
func (s *session) fresh() bool {
	return boottime()-time.Duration(s.heard.Load()) <= heartbeat+answerTimeout
}

// confirm asks whether the session lives.
func (s *session) confirm(ctx context.Context) error { return s.do(ctx, s.beat) }

// run serves commands and handles notifications until the session ends.
func (s *session) run(ctx context.Context) {
	defer s.end()
	for {
		listening, cancel := context.WithTimeout(ctx, heartbeat)
		s.listens(cancel)
		asked, err := s.conn.WaitForNotification(listening)
		interrupted := listening.Err() != nil
		cancel()
		if err == nil {
			s.asked(asked.Payload)
		} else if ctx.Err() != nil || !interrupted || s.conn.IsClosed() {
			return
		}
		if !s.serve(ctx, err != nil) { // also after what was asked, of which there may be no end
			return
		}
	}
}

// listens lets commands end the listening, at once if there is one already.
func (s *session) listens(cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt = cancel
	if len(s.queue) > 0 {
		cancel()
	}
}

// serve runs the waiting commands, or sends a heartbeat if one is due. It reports whether the session is alive.
func (s *session) serve(ctx context.Context, due bool) bool {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	s.mu.Unlock()
	if due = due || boottime()-time.Duration(s.heard.Load()) > heartbeat; len(queue) == 0 && due {
		queue = []*command{{ctx: ctx, do: s.beat, done: make(chan struct{})}}
	}
	for _, c := range queue {
		c.err = c.ctx.Err()
		switch {
		case s.conn.IsClosed():
			c.err = errSessionLost
		case c.err == nil:
			c.err = s.carryOut(ctx, c)
		}
		close(c.done)
	}
	return !s.conn.IsClosed()
}

func (s *session) carryOut(ctx context.Context, c *command) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	sent := boottime()
	err := c.do(ctx, s.conn)
	if err == nil {
		s.heard.Store(int64(sent))
	}
	return err
}

// ask queues a function for the session's goroutine.
func (s *session) ask(ctx context.Context, f func(context.Context, *pgx.Conn) error) *command {
	c := &command{ctx: ctx, do: f, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, c)
	if s.interrupt != nil {
		s.interrupt()
	}
	return c
}

// do runs a function in the session's goroutine and waits for it. If ctx ends before, the function may still run.
func (s *session) do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	c := s.ask(ctx, f)
	select {
	case <-c.done:
		return c.err
	case <-s.lost:
		return errSessionLost
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hold holds a mark. nil: another replica is about to raise it.
func (s *session) hold(ctx context.Context, resource fence.Resource) (*held, error) {
	var h *held
	c := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		h, err = s.take(ctx, conn, resource)
		return err
	})
	select {
	case <-c.done:
		return h, c.err
	case <-s.lost:
		return nil, errSessionLost
	case <-ctx.Done():
	}
	go func() { // nobody has it
		select {
		case <-c.done:
			if h != nil {
				s.release(h)
			}
		case <-s.lost:
		}
	}()
	return nil, ctx.Err()
}

func (s *session) take(ctx context.Context, conn *pgx.Conn, resource fence.Resource) (*held, error) {
	var locked bool
	err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock_shared($1)", key(resource)).Scan(&locked)
	if full, is := errors.AsType[*pgconn.PgError](err); is && full.Code == pgerrcodeOutOfMemory {
		return nil, fmt.Errorf("the server has no room for the locks of so many resources: raise its max_locks_per_transaction: %w", err)
	}
	if err != nil || !locked {
		return nil, err
	}
	// A statement of its own: one that does both sees the mark as it was before the lock.
	var mark fence.Token
	if err := conn.QueryRow(ctx, readQuery, string(resource)).Scan(&mark); err != nil {
		return nil, errors.Join(err, unlock(ctx, conn, resource))
	}
	wanted, lost := make(chan struct{}), make(chan struct{})
	h := &held{
		resource: resource, mark: mark, wanted: wanted, lost: lost,
		want: sync.OnceFunc(func() { close(wanted) }), lose: sync.OnceFunc(func() { close(lost) }),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[h] = struct{}{}
	return h, nil
}

func unlock(ctx context.Context, conn *pgx.Conn, resource fence.Resource) error {
	_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock_shared($1)", key(resource))
	return err
}

// release releases a mark.
func (s *session) release(h *held) {
	s.mu.Lock()
	_, held := s.holds[h]
	delete(s.holds, h)
	s.mu.Unlock()
	h.lose()
	if !held {
		return
	}
	if err := s.do(context.Background(), func(ctx context.Context, conn *pgx.Conn) error { return unlock(ctx, conn, h.resource) }); err != nil {
		s.log.Warn("a mark was released by ending its session", "resource", h.resource, "error", err)
	}
}

// want is the request of a replica that waits to raise a mark.
type want struct {
	resource fence.Resource
	to       fence.Token
}

func (w want) String() string { return fmt.Sprintf("%d %d %s", key(w.resource), w.to, w.resource) }

// concerns reports whether a hold blocks the replica that asks. A request for a mark that is already reached is late: releasing the hold
// for it would cut writes of the current tenure.
func concerns(h *held, payload string) bool {
	var asked int64
	var w want
	if _, err := fmt.Sscan(payload, &asked, &w.to, &w.resource); err != nil || key(h.resource) != asked {
		return false
	}
	return h.resource != w.resource || h.mark < w.to // two resources may share a lock
}

// asked notifies the holders of a mark that another replica waits to raise it.
func (s *session) asked(payload string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.holds {
		if concerns(h, payload) {
			h.want()
		}
	}
}

// end first marks all holds as lost.
func (s *session) end() {
	s.mu.Lock()
	for h := range s.holds {
		h.lose()
		delete(s.holds, h)
	}
	s.mu.Unlock()
	close(s.lost)
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	_ = s.conn.Close(ctx)
}
