package fenceproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
	"github.com/singletonjob/operator/test/postgres"
)

// replica opens a store as a replica has it.
func replica(t *testing.T, p *postgres.Server, name string, drain, evict time.Duration) *Postgres {
	t.Helper()
	url := fmt.Sprintf("postgres://%s@127.0.0.1:%s/postgres?sslmode=disable&application_name=%s", postgres.User, p.Port, name)
	store, err := OpenPostgres(t.Context(), url, drain, evict, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// soon is a context for what is to come to pass.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func raise(t *testing.T, p *Postgres, r fence.Resource, to fence.Token) {
	t.Helper()
	if err := p.Raise(soon(t), r, to); err != nil {
		t.Fatalf("raise to %d: %v", to, err)
	}
}

func hold(t *testing.T, p *Postgres, r fence.Resource, want fence.Token) fencehttp.Hold {
	t.Helper()
	h, err := p.Hold(soon(t), r)
	if err != nil || h.Mark != want {
		t.Fatalf("hold of %s: mark %d, want %d: %v", r, h.Mark, want, err)
	}
	return h
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestPostgres plays two replicas on one server.
func TestPostgres(t *testing.T) {
	p := postgres.StartTCP(t)
	a, b := replica(t, p, "a", 0, 0), replica(t, p, "b", 0, 0)
	for name, test := range map[string]func(*testing.T, *postgres.Server, *Postgres, *Postgres){
		"a raise to the mark that stands": lateRaise,
		"a raise that another has done":   overtakenRaise,
		"a raiser that is killed":         killedRaiser,
		"many raises":                     manyRaises,
		"a hold that is given up":         abandonedHold,
		"a hold after a freeze":           staleHold,
		"a session's end":                 sessionsEnd,
		"a replica that does not let go":  evicted,
		"a replica that ended":            missedReplica,
	} {
		t.Run(name, func(t *testing.T) { test(t, p, a, b) })
	}
}

// lateRaise: it would cut writes of the present tenure.
func lateRaise(t *testing.T, _ *postgres.Server, a, b *Postgres) {
	raise(t, a, "late", 33)
	h := hold(t, a, "late", 33)
	defer h.Release()
	raise(t, b, "late", 33)
	raise(t, b, "late", 32)
	if closed(h.Wanted) || closed(h.Lost) {
		t.Error("the present tenure is asked to let go")
	}
	for payload, want := range map[want]bool{{"late", 33}: false, {"late", 32}: false, {"late", 34}: true, {"other", 34}: false} {
		if got := concerns(&held{resource: "late", mark: 33}, payload.String()); got != want {
			t.Errorf("asked for %v: %v, want %v", payload, got, want)
		}
	}
}

func overtakenRaise(t *testing.T, p *postgres.Server, a, b *Postgres) {
	raise(t, a, "overtaken", 33)
	h := hold(t, a, "overtaken", 33)
	defer h.Release()
	done := make(chan error, 1)
	go func() { done <- b.Raise(soon(t), "overtaken", 34) }()
	<-h.Wanted
	p.Says("UPDATE 1", "UPDATE fence_marks SET token = 34 WHERE resource = 'overtaken'")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// killedRaiser waits in the server for what its process asked for, and keeps all others out.
func killedRaiser(t *testing.T, _ *postgres.Server, a, b *Postgres) {
	raise(t, a, "killed", 33)
	h := hold(t, a, "killed", 33)
	defer h.Release()
	config, dead := b.config.Copy(), &atomic.Bool{}
	var dialer net.Dialer
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dead.Load() {
			return nil, net.ErrClosed
		}
		conn, err := dialer.DialContext(ctx, network, address)
		return &unnoticed{conn, dead}, err
	}
	conn, err := pgx.ConnectConfig(soon(t), config)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	dead.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := b.raise(ctx, tx, want{"killed", 34}); err == nil {
		t.Error("the mark was raised while it was held")
	}
	hold(t, b, "killed", 33).Release()
}

// unnoticed is a connection whose end its server does not see.
type unnoticed struct {
	net.Conn
	dead *atomic.Bool
}

func (u *unnoticed) Close() error {
	if u.dead.Load() {
		return nil
	}
	return u.Conn.Close()
}

func manyRaises(t *testing.T, p *postgres.Server, a, b *Postgres) {
	const many = maxRaises + 5
	done := make(chan error, many)
	var holds []fencehttp.Hold
	for i := range many {
		r := fence.Resource(fmt.Sprint("many/", i))
		raise(t, a, r, 33)
		holds = append(holds, hold(t, a, r, 33))
		go func() { done <- b.Raise(soon(t), r, 34) }()
	}
	p.Until(fmt.Sprint(maxRaises), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
	// The server may show a connection for a moment after its client has closed it, as a test before this one did.
	p.Until(fmt.Sprint(maxRaises+1), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'b'")
	for _, h := range holds {
		h.Release()
	}
	for range many {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// abandonedHold is let go of by itself.
func abandonedHold(t *testing.T, _ *postgres.Server, a, b *Postgres) {
	raise(t, a, "abandoned", 33)
	s, err := a.connected(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	busy := make(chan struct{})
	first := s.ask(soon(t), func(context.Context, *pgx.Conn) error { <-busy; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if _, err := s.hold(ctx, "abandoned"); !errors.Is(err, context.Canceled) {
		t.Errorf("while the session is busy: %v", err)
	}
	close(busy)
	<-first.done
	raise(t, b, "abandoned", 34)
}

// staleHold is of no worth before the server has answered.
func staleHold(t *testing.T, p *postgres.Server, a, _ *Postgres) {
	h := hold(t, a, "stale", 0)
	s, err := a.connected(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if !h.Fresh() {
		t.Error("a new hold is not fresh")
	}
	s.heard.Store(int64(boottime() - heartbeat - answerTimeout - time.Second))
	if h.Fresh() {
		t.Error("after a freeze it is fresh")
	}
	if err := h.Confirm(soon(t)); err != nil || !h.Fresh() {
		t.Errorf("the session lives: %v, fresh %v", err, h.Fresh())
	}
	p.Says("t", fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.conn.PgConn().PID()))
	<-h.Lost
	if err := h.Confirm(soon(t)); err == nil {
		t.Error("a hold of a session that ended was confirmed")
	}
}

// sessionsEnd: the server's kernel knows when to give up what is not acknowledged.
func sessionsEnd(t *testing.T, _ *postgres.Server, a, _ *Postgres) {
	for name, want := range map[string]string{
		"tcp_user_timeout": "20000", "tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "2",
		"idle_in_transaction_session_timeout": "10s",
	} {
		err := a.with(soon(t), func(conn *pgx.Conn) error {
			var got string
			err := conn.QueryRow(soon(t), "SHOW "+name).Scan(&got)
			if got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// evicted: its session is ended, and it learns about it.
func evicted(t *testing.T, p *postgres.Server, a, _ *Postgres) {
	raise(t, a, "evicted", 33)
	h := hold(t, a, "evicted", 33)
	raise(t, replica(t, p, "evicts", 0, time.Millisecond), "evicted", 34)
	<-h.Lost
}

// missedReplica may have left something under way, for which the others wait.
func missedReplica(t *testing.T, p *postgres.Server, _, _ *Postgres) {
	ends, stays := replica(t, p, "ends", 0, 0), replica(t, p, "stays", time.Hour, 0)
	raise(t, stays, "missed", 33) // there is none before it
	if waits(t, stays, "missed", 34) == nil {
		t.Error("a mark was raised just after the start")
	}
	hold(t, ends, "missed", 33).Release()
	stays.peers.mu.Lock()
	stays.peers.missed = time.Now().Add(-time.Hour) // that is long ago
	stays.peers.mu.Unlock()
	raise(t, stays, "missed", 34)
	ends.Close()
	p.Until("0", "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ends'")
	if waits(t, stays, "missed", 35) == nil {
		t.Error("a mark was raised just after the end of a replica")
	}
}

// waits is why a raise did not come to pass in a while.
func waits(t *testing.T, p *Postgres, r fence.Resource, to fence.Token) error {
	t.Helper()
	s, err := p.connected(soon(t)) // the session is there, which takes time on a busy machine
	if err == nil {
		err = s.confirm(soon(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return p.Raise(ctx, r, to)
}
