package fenceproxy

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
	"github.com/singletonjob/operator/fence/fencesql"
)

// Postgres keeps marks for several replicas: docs/decisions/030-a-mark-held-by-replicas.md says why it is correct. A replica with writes in
// progress holds the mark by a shared advisory lock of its one session. To raise the mark, a replica takes the lock exclusively.
type Postgres struct {
	config *pgx.ConnConfig
	evict  time.Duration
	log    *slog.Logger
	peers  *peers
	raises chan struct{} // has room for as many as may raise at one time, each by a connection of its own

	mu      sync.Mutex // guards session
	session *session
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
}

const (
	connectTimeout = 5 * time.Second
	// tryAgain is how soon a lock that another replica is about to take is asked for again.
	tryAgain = 10 * time.Millisecond
	// askAgain is how often replicas are asked to let go of a mark.
	askAgain  = 200 * time.Millisecond
	maxRaises = 16
	// longestWait is for the lock of one whose context does not end.
	longestWait = time.Minute
)

// parameters are the settings that every session needs. The server ends the session of a lost replica after 20 s, even if it has sent data
// that is not acknowledged. The replica gives up its marks earlier, after heartbeat and answerTimeout. A replica that stops during a
// transaction does not block others.
var parameters = map[string]string{
	"default_transaction_isolation": "read committed",
	"tcp_keepalives_idle":           "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "2", // seconds
	"tcp_user_timeout": "20000", "idle_in_transaction_session_timeout": "10000", // milliseconds
	"statement_timeout": "0", "idle_session_timeout": "0", "lock_timeout": "0",
}

// OpenPostgres connects, and creates the table of marks (that of fencesql) if it does not exist. No mark is raised for the duration drain
// after the start, and after the end of another replica.
func OpenPostgres(ctx context.Context, url string, drain, evict time.Duration, log *slog.Logger) (*Postgres, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read the connection string of PostgreSQL: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	maps.Copy(config.RuntimeParams, parameters)
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "fence-proxy"
	}
	p := &Postgres{
		config: config, evict: evict, log: log, peers: &peers{drain: drain, missed: time.Now()}, raises: make(chan struct{}, maxRaises),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	schema, err := fencesql.Fence{Resource: "any", Dialect: fencesql.PostgreSQL}.Schema()
	if err != nil {
		return nil, err
	}
	return p, p.with(ctx, func(conn *pgx.Conn) error {
		var there bool
		query := "SELECT to_regclass('" + fencesql.DefaultTable + "') IS NOT NULL"
		if err := conn.QueryRow(ctx, query).Scan(&there); err != nil || there {
			return err
		}
		_, failed := conn.Exec(ctx, schema[0])
		if err := conn.QueryRow(ctx, query).Scan(&there); err != nil || there { // another replica may have been faster
			return err
		}
		return failed
	})
}

// with runs a function with a connection of its own, outside the session.
func (p *Postgres) with(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return do(conn)
}

// Close releases all marks.
func (p *Postgres) Close() error {
	p.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != nil {
		<-p.session.lost
	}
	return nil
}

const readQuery = "SELECT coalesce((SELECT token FROM " + fencesql.DefaultTable + " WHERE resource = $1), 0)"

// Mark implements fencehttp.Store.
func (p *Postgres) Mark(ctx context.Context, resource fence.Resource) (mark fence.Token, err error) {
	err = p.with(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, readQuery, string(resource)).Scan(&mark)
	})
	return mark, err
}

// key returns the key of a resource's lock. Two resources with the same key only wait for each other.
func key(resource fence.Resource) int64 {
	sum := sha256.Sum256([]byte("fence-proxy " + resource))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// errRaised ends a wait when the mark was raised by another replica.
var errRaised = errors.New("the mark is raised already")

// Raise implements fencehttp.Store. It asks the replicas repeatedly to release the mark, and waits until all have.
func (p *Postgres) Raise(ctx context.Context, resource fence.Resource, to fence.Token) error {
	w := want{resource, to}
	if mark, err := p.ask(ctx, readQuery, string(resource)); err != nil || mark >= to { // then there is nothing to wait in the queue for
		return err
	}
	select {
	case p.raises <- struct{}{}:
		defer func() { <-p.raises }()
	case <-ctx.Done():
		return fmt.Errorf("%d marks are being raised already: %w", maxRaises, ctx.Err())
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := p.with(ctx, func(conn *pgx.Conn) error {
		var asking sync.WaitGroup
		asking.Go(func() { p.askForIt(ctx, w, conn.PgConn().PID(), stop) })
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return p.raise(ctx, tx, w) })
		stop(nil)
		asking.Wait()
		return err
	})
	if errors.Is(context.Cause(ctx), errRaised) {
		return nil
	}
	return err
}

func (p *Postgres) raise(ctx context.Context, tx pgx.Tx, w want) error {
	mark, err := lock(ctx, tx, w.resource)
	if err != nil || mark >= w.to {
		return err
	}
	if mark > 0 {
		if err := p.quiet(ctx, tx); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local')")
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO "+fencesql.DefaultTable+" AS m (resource, token) VALUES ($1, $2) "+
		"ON CONFLICT (resource) DO UPDATE SET token = GREATEST(m.token, excluded.token)", string(w.resource), int64(w.to))
	return err
}

// lock waits until no replica holds the mark, and reads it. The wait has a timeout on the server: a replica that is killed while it waits
// keeps its place in the queue, and blocks all others, no longer than that.
func lock(ctx context.Context, tx pgx.Tx, resource fence.Resource) (mark fence.Token, err error) {
	wait := longestWait
	if deadline, ends := ctx.Deadline(); ends {
		wait = max(time.Until(deadline), time.Millisecond)
	}
	if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", strconv.FormatInt(wait.Milliseconds(), 10)); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", key(resource)); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, readQuery, string(resource)).Scan(&mark)
	return mark, err
}

// quiet waits for requests that replicas which ended may have left in progress.
func (p *Postgres) quiet(ctx context.Context, tx pgx.Tx) error {
	now, err := present(ctx, tx)
	if err != nil {
		return err
	}
	if wait := p.peers.look(now, time.Now()); wait > 0 {
		_, err = tx.Exec(ctx, "SELECT pg_sleep($1)", wait.Seconds())
	}
	return err
}

// ask queries a number in the session.
func (p *Postgres) ask(ctx context.Context, query string, args ...any) (answer fence.Token, err error) {
	s, err := p.connected(ctx)
	if err != nil {
		return 0, err
	}
	got := make(chan fence.Token, 1)
	err = s.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var answer fence.Token
		err := conn.QueryRow(ctx, query, args...).Scan(&answer)
		got <- answer
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-got, nil
}

// askForIt notifies the holders of a mark that another replica waits for it. After evict, it ends the sessions of those that do not release
// it. It stops the wait if another replica has raised the mark.
func (p *Postgres) askForIt(ctx context.Context, w want, pid uint32, stop context.CancelCauseFunc) {
	const notify = "SELECT coalesce((SELECT token FROM " + fencesql.DefaultTable + " WHERE resource = $1), 0) FROM pg_notify($2, $3)"
	for began := time.Now(); ctx.Err() == nil; pause(ctx, askAgain) {
		mark, err := p.ask(ctx, notify, string(w.resource), channel, w.String())
		if err == nil && mark >= w.to {
			stop(errRaised)
			return
		}
		if err == nil && p.evict > 0 && time.Since(began) > p.evict {
			p.log.Warn("a replica does not release a mark: ending its session", "resource", w.resource, "after", p.evict)
			_, err = p.ask(ctx, "SELECT count(pg_terminate_backend(b)) FROM unnest(pg_blocking_pids($1)) AS b", pid)
		}
		if err != nil && ctx.Err() == nil {
			p.log.Warn("could not ask replicas to release a mark", "resource", w.resource, "error", err)
		}
	}
}

// Hold implements fencehttp.Shared.
func (p *Postgres) Hold(ctx context.Context, resource fence.Resource) (fencehttp.Hold, error) {
	s, err := p.connected(ctx)
	if err != nil {
		return fencehttp.Hold{}, err
	}
	for {
		h, err := s.hold(ctx, resource)
		if err != nil {
			return fencehttp.Hold{}, err
		}
		if h != nil {
			return fencehttp.Hold{
				Mark: h.mark, Wanted: h.wanted, Lost: h.lost, Fresh: s.fresh, Confirm: s.confirm,
				Release: func() { s.release(h) },
			}, nil
		}
		if !pause(ctx, tryAgain) {
			return fencehttp.Hold{}, fmt.Errorf("another replica is about to raise the mark: %w", ctx.Err())
		}
	}
}

// connected is the session, a new one if the last was lost.
func (p *Postgres) connected(ctx context.Context) (*session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != nil {
		select {
		case <-p.session.lost:
		default:
			return p.session, nil
		}
	}
	if p.ctx.Err() != nil {
		return nil, errors.New("it is closed")
	}
	conn, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, log: p.log, peers: p.peers, lost: make(chan struct{}), holds: make(map[*held]struct{})}
	if err := s.begin(ctx); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	p.session = s
	go s.run(p.ctx)
	return p.session, nil
}
