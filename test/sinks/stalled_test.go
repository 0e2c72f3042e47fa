package sinks

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencesql"
)

// transaction is one with a fence: of fencesql, fencepgx or fence.sql.
type transaction interface {
	check(ctx context.Context, r fence.Resource, token fence.Token) error
	exec(ctx context.Context, text string, args ...any) error
	read(ctx context.Context, text string, args ...any) (string, error)
	commit(ctx context.Context) error
	rollback(ctx context.Context)
}

// session begins transactions, one after another.
type session func(ctx context.Context) (transaction, error)

// standardTx is of database/sql, with the fence of fencesql or that of the script.
type standardTx struct {
	*sql.Tx
	a        *adapter
	scripted bool
}

func (x standardTx) check(ctx context.Context, r fence.Resource, token fence.Token) error {
	if x.scripted {
		_, err := x.ExecContext(ctx, "SELECT fence.assert($1, $2)", string(r), int64(token))
		return refusal(err, r, token.String())
	}
	return x.a.fence(r).Check(ctx, x.Tx, token)
}

func (x standardTx) exec(ctx context.Context, text string, args ...any) error {
	_, err := x.ExecContext(ctx, x.a.sql(text), args...)
	return err
}

func (x standardTx) read(ctx context.Context, text string, args ...any) (value string, err error) {
	err = x.QueryRowContext(ctx, x.a.sql(text), args...).Scan(&value)
	return value, err
}

func (x standardTx) commit(context.Context) error { return x.Commit() }
func (x standardTx) rollback(context.Context)     { _ = x.Rollback() }

type nativeTx struct {
	pgx.Tx
	a byPgx
}

func (x nativeTx) check(ctx context.Context, r fence.Resource, token fence.Token) error {
	return x.a.native(r).Check(ctx, x.Tx, token)
}

func (x nativeTx) exec(ctx context.Context, text string, args ...any) error {
	_, err := x.Exec(ctx, x.a.sql(text), args...)
	return err
}

func (x nativeTx) read(ctx context.Context, text string, args ...any) (value string, err error) {
	err = x.QueryRow(ctx, x.a.sql(text), args...).Scan(&value)
	return value, err
}

func (x nativeTx) commit(ctx context.Context) error { return x.Commit(ctx) }
func (x nativeTx) rollback(ctx context.Context)     { _ = x.Rollback(ctx) }

// stallable is a way to a database, and a session of it that has run a statement of its own first.
type stallable struct {
	nextTenure // the next one's
	session    func(t *testing.T, first string) session
	bound      string // the statement that bounds how long this session's transactions idle
}

// nextTenure is what the next tenure does.
type nextTenure interface {
	Write(ctx context.Context, r fence.Resource, token, payload string) error
	Advance(ctx context.Context, r fence.Resource, token string) error
	Stored(ctx context.Context, r fence.Resource) ([]string, error)
}

func onStandard(a *adapter, scripted bool) func(*testing.T, string) session {
	return func(t *testing.T, first string) session {
		t.Helper()
		conn, err := a.db.Conn(t.Context())
		must(t, err)
		// No other test gets a connection with this setting.
		t.Cleanup(func() { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) })
		_, err = conn.ExecContext(t.Context(), first)
		must(t, err)
		return func(ctx context.Context) (transaction, error) {
			tx, err := conn.BeginTx(ctx, nil)
			return standardTx{tx, a, scripted}, err
		}
	}
}

func onPgx(a byPgx) func(*testing.T, string) session {
	return func(t *testing.T, first string) session {
		t.Helper()
		conn, err := a.pool.Acquire(t.Context())
		must(t, err)
		t.Cleanup(func() { _ = conn.Hijack().Close(context.Background()) })
		_, err = conn.Exec(t.Context(), first)
		must(t, err)
		return func(ctx context.Context) (transaction, error) {
			tx, err := conn.Begin(ctx)
			return nativeTx{tx, a}, err
		}
	}
}

const idleSetting = "idle_in_transaction_session_timeout"

func stallables(t *testing.T) map[string]stallable {
	t.Helper()
	const soon = "SET " + idleSetting + " = '500ms'"
	standard, native, script := kinds[0].adapter(t, sql.LevelDefault), pgxAdapter(t, ways[0]), scriptedAdapter(t, sql.LevelDefault)
	strict := *standard
	strict.strict = true
	mariadb := kinds[1].adapter(t, sql.LevelDefault)
	return map[string]stallable{
		"database/sql": {standard, onStandard(standard, false), soon},
		"strict":       {&strict, onStandard(&strict, false), soon},
		"pgx":          {native, onPgx(native), soon},
		"fence.sql":    {script, onStandard(script.adapter, true), soon},
		"MariaDB":      {mariadb, onStandard(mariadb, false), "SET SESSION idle_transaction_timeout = 1"},
	}
}

// TestAStalledTransactionEnds: a process of the past tenure is frozen in a transaction that holds the mark. The server ends its session, so
// that the next tenure can write, and advance.
func TestAStalledTransactionEnds(t *testing.T) {
	for name, s := range stallables(t) {
		for _, how := range []string{"write", "advance"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				ctx, r := patience(t), fresh()
				must(t, s.Advance(ctx, r, "33"))
				tx, err := s.session(t, s.bound)(ctx)
				must(t, err)
				must(t, errors.Join(tx.check(ctx, r, 33), tx.exec(ctx, insertEntry, string(r), "stalled")))
				if how == "advance" || name == "strict" {
					must(t, s.Advance(ctx, r, "34"))
				}
				must(t, s.Write(ctx, r, "34", "next"))
				if err := tx.commit(ctx); err == nil {
					t.Error("SAFETY: the stalled transaction committed after the next tenure had written")
				}
				if stored, err := s.Stored(ctx, r); err != nil || len(stored) != 1 || stored[0] != "next" {
					t.Errorf("SAFETY: stored is %q, %v; want only what the next tenure has written", stored, err)
				}
			})
		}
	}
}

// TestTheCheckBoundsIdling: on PostgreSQL the check itself bounds how long its transaction idles. The bound ends with the transaction, and a
// session's own bound remains.
func TestTheCheckBoundsIdling(t *testing.T) {
	for name, s := range stallables(t) {
		if a, ok := s.nextTenure.(*adapter); ok && a.dialect != fencesql.PostgreSQL {
			continue // it has no setting for one transaction
		}
		for first, want := range map[string]string{"SELECT 1": "30s", "SET " + idleSetting + " = '7s'": "7s"} {
			t.Run(name+"/"+want, func(t *testing.T) {
				t.Parallel()
				ctx, r := patience(t), fresh()
				must(t, s.Advance(ctx, r, "33"))
				begin := s.session(t, first)
				expect := func(tx transaction, want string) {
					t.Helper()
					if got, err := tx.read(ctx, "SELECT current_setting(?)", idleSetting); err != nil || got != want {
						t.Errorf("%s is %q, %v; want %q", idleSetting, got, err, want)
					}
				}
				for range 2 { // the first raises the mark, or could
					tx, err := begin(ctx)
					must(t, err)
					if name != "strict" {
						must(t, tx.check(ctx, r, 34))
					} else {
						must(t, tx.check(ctx, r, 33))
					}
					expect(tx, want)
					must(t, tx.commit(ctx))
				}
				tx, err := begin(ctx)
				must(t, err)
				before := map[string]string{"30s": "0", "7s": "7s"}[want]
				expect(tx, before)
				must(t, tx.commit(ctx))
			})
		}
	}
}
