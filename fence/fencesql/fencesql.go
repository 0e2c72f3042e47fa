// Package fencesql is the fence for databases: a write of a past tenure can't be committed.
//
// The check is one statement within the caller's own transaction. It holds a lock on the resource's mark until that
// transaction ends, so a later tenure can't raise the mark between the check and the commit, and a transaction that has checked
// before the mark was raised can't commit after it. This holds at every isolation level. A plain SELECT of the mark would not do:
// on PostgreSQL it lets the past tenure commit at READ COMMITTED, REPEATABLE READ and SERIALIZABLE alike.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	if err := ledger.Check(ctx, tx, token); err != nil { … } // then nothing of it is to be committed
//	_, err = tx.ExecContext(ctx, "INSERT INTO entries …")
//	…
//	err = tx.Commit()
//
// # What it guarantees
//
// Once a write with a token was committed, or [Fence.Advance] has returned, no transaction that checks a lower token commits. Writers
// with the same token run side by side.
//
// # What it can't
//
// It guards what is written in the same transaction, and only where every writer checks: see fence.sql for triggers that make
// them. A database that lost committed transactions (a failover to an asynchronous replica, a restore) may have lost the mark with
// them: advance it again. A transaction of a past tenure that is stalled holds the mark until it ends, as any lock: [Fence.Advance]
// can end it ([Fence.Evict]).
//
// # Errors
//
// Refusals are those of [fence.Gate]. Any other error is the database's. Like all errors within a transaction it ends that transaction;
// those that ask for a retry (a serialization failure, a deadlock) ask for the whole transaction again.
package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/singletonjob/operator/fence"
)

// Fence guards one resource.
type Fence struct {
	Resource fence.Resource
	Dialect  Dialect
	// Table holds the marks: DefaultTable if it is empty. It may name its schema: billing.fence_marks. See Dialect.Schema.
	Table string
	// Strict has only Advance raise the mark; see fence.Gate.
	Strict bool
	// Evict is how long Advance waits for the transactions of others that hold the mark before it ends their sessions. 0: for ever.
	// It needs PostgreSQL, and the same role as theirs or pg_signal_backend.
	Evict time.Duration
}

// DefaultTable is where the marks are.
const DefaultTable = "fence_marks"

// Check holds the mark until tx ends, and reports why what tx writes must not be committed, if so. It is one round trip, on MySQL two, and
// two more at the first write of a tenure. After an error nothing more is to be sent in tx: where MySQL has ended the transaction because of a
// deadlock, the next statement would be committed by itself.
func (f Fence) Check(ctx context.Context, tx *sql.Tx, token fence.Token) error {
	return f.CheckIn(ctx, standard{tx}, token)
}

// Advance raises the mark to a token in a transaction of its own. When it returns without an error every lower token is refused from then
// on, and no transaction that has checked one is open. It is for the beginning of a tenure (spec.preActivate), and may be repeated.
func (f Fence) Advance(ctx context.Context, db *sql.DB, to fence.Token) error {
	if err := f.validate(); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: advancing[f.Dialect]})
	if err != nil {
		return fmt.Errorf("fence %s: begin: %w", f.Resource, err)
	}
	defer func() { _ = tx.Rollback() }()
	stop, err := f.EvictFor(ctx, standard{tx}, func(ctx context.Context, statement string, args ...any) error {
		_, err := db.ExecContext(ctx, statement, args...)
		return err
	})
	if err != nil {
		return err
	}
	err = f.AdvanceIn(ctx, standard{tx}, to)
	stop()
	if err != nil {
		return err
	}
	return tx.Commit()
}

// advancing is the isolation that sees the mark as it is after the wait for it.
var advancing = map[Dialect]sql.IsolationLevel{PostgreSQL: sql.LevelReadCommitted}

// EvictFor ends, as [Fence.Evict] says and until it is stopped, the sessions that tx waits for. exec runs a statement on another
// connection. tx is to be the one of [Fence.AdvanceIn]: a pooler may give each transaction another session.
func (f Fence) EvictFor(ctx context.Context, tx Tx, exec func(ctx context.Context, statement string, args ...any) error) (stop func(), err error) {
	if f.Evict == 0 {
		return func() {}, nil
	}
	pid, err := tx.QueryToken(ctx, "SELECT pg_backend_pid()")
	if err != nil {
		return nil, fmt.Errorf("fence %s: prepare to evict: %w", f.Resource, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for again := time.NewTicker(f.Evict); ; {
			select {
			case <-ctx.Done():
				again.Stop()
				return
			case <-again.C:
				// That it fails is seen by what it does not do: Advance goes on waiting, as without it.
				_ = exec(ctx, "SELECT pg_terminate_backend(p) FROM unnest(pg_blocking_pids($1)) AS p", int64(pid))
			}
		}
	}()
	return func() { cancel(); <-done }, nil
}

// hold has the mark stand as it is until tx ends, raised to the token where that is higher, and returns it.
func (f Fence) hold(ctx context.Context, tx Tx, token fence.Token) (fence.Token, error) {
	s := f.statements()
	if s.firstAlways && !f.Strict {
		if _, err := tx.Exec(ctx, s.first, string(f.Resource)); err != nil {
			return 0, err
		}
	}
	mark, err := f.held(ctx, tx, s, token)
	if errors.Is(err, sql.ErrNoRows) { // the first write ever
		if f.Strict {
			return 0, nil
		}
		if _, err := tx.Exec(ctx, s.first, string(f.Resource)); err != nil {
			return 0, err
		}
		mark, err = f.held(ctx, tx, s, token)
	}
	if err != nil || f.Strict || mark >= token || s.raise == "" {
		return mark, err
	}
	if _, err := tx.Exec(ctx, s.raise, int64(token), string(f.Resource), int64(token)); err != nil {
		return 0, err
	}
	return f.held(ctx, tx, s, token)
}

// held is the mark, held; where one statement does both and the mark may be raised, raised before.
func (f Fence) held(ctx context.Context, tx Tx, s statements, token fence.Token) (fence.Token, error) {
	query, args := s.share, []any{string(f.Resource)}
	if s.both != "" && !f.Strict {
		query, args = s.both, append(args, int64(token))
	}
	return tx.QueryToken(ctx, query, args...)
}

// table is a name that needs no quotes, so that nothing else can be in it.
var table = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func (f Fence) validate() error {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return err
	}
	if f.Table != "" && !table.MatchString(f.Table) {
		return fmt.Errorf("fencesql: Table %q is not a name, nor one with its schema, of letters, digits and _", f.Table)
	}
	if f.Dialect < PostgreSQL || f.Dialect > SQLite {
		return fmt.Errorf("fencesql: Dialect %d is none: PostgreSQL, MySQL or SQLite", f.Dialect)
	}
	if f.Evict < 0 || f.Evict > 0 && f.Dialect != PostgreSQL {
		return fmt.Errorf("fencesql: Evict %v: only PostgreSQL can tell who holds a mark; elsewhere limit how long a transaction may idle", f.Evict)
	}
	return nil
}
