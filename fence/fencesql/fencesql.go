// Package fencesql is the fence for SQL databases: a past tenure can't commit a write.
//
// The check is one statement in the caller's own transaction. It holds a lock on the resource's mark until that transaction ends. A later
// tenure therefore can't raise the mark between the check and the commit. This holds at every isolation level. A plain SELECT of the mark
// would not be enough: on PostgreSQL it lets the past tenure commit at READ COMMITTED, REPEATABLE READ and SERIALIZABLE alike.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	if err := ledger.Check(ctx, tx, token); err != nil { … } // roll back
//	_, err = tx.ExecContext(ctx, "INSERT INTO entries …")
//	…
//	err = tx.Commit()
//
// # What it guarantees
//
// Once a write with a token was committed, or [Fence.Advance] has returned, no transaction that checks a lower token commits. Writers
// with the same token run concurrently.
//
// # What it does not guarantee
//
// It guards only writes in the same transaction, and only if every writer checks: fence.sql has triggers that enforce the check. A database
// that lost committed transactions (in a failover to an asynchronous replica, or a restore) may have lost the mark too: advance it again.
// A stalled transaction of a past tenure holds the mark until it ends, like any lock. On PostgreSQL, Check has the server end the session of
// a transaction that idles for 30 s, or for the session's idle_in_transaction_session_timeout if that is set. [Fence.Advance] can end it
// sooner ([Fence.Evict]). On MariaDB, set idle_transaction_timeout.
//
// # Errors
//
// Refusals are those of [fence.Gate]. All other errors come from the database, and end the transaction. After an error that asks for a retry
// (a serialization failure, a deadlock), retry the whole transaction.
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
	// Table holds the marks. Empty: DefaultTable. It can name its schema: billing.fence_marks. See [Fence.Schema].
	Table string
	// Strict lets only Advance raise the mark; see fence.Gate.
	Strict bool
	// Evict is how long Advance waits for other transactions that hold the mark before it ends their sessions. 0: it waits forever and ends
	// none. It needs PostgreSQL, and the same role as those sessions or pg_signal_backend.
	Evict time.Duration
}

// DefaultTable is the default table of the marks.
const DefaultTable = "fence_marks"

// Check holds the mark until tx ends. An error is the reason why tx must not be committed. It takes one round trip, two on MySQL, and two
// more at the first write of a tenure. After an error, send no more statements in tx: if MySQL has ended the transaction because of a
// deadlock, the next statement would be committed by itself.
func (f Fence) Check(ctx context.Context, tx *sql.Tx, token fence.Token) error {
	return f.CheckIn(ctx, standard{tx}, token)
}

// Advance raises the mark to a token in a transaction of its own. After it returns without an error, every lower token is refused, and no
// transaction that has checked a lower token is open. It is for the beginning of a tenure (spec.preActivate), and can be repeated.
func (f Fence) Advance(ctx context.Context, db *sql.DB, to fence.Token) error {
	if err := f.validate(); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: advancing[f.Dialect]})
	if err != nil {
		return fmt.Errorf("fence %s: begin: %w", f.Resource, err)
	}
	defer func() { _ = tx.Rollback() }()
	stop, err := f.EvictFor(ctx, standard{tx}, to, func(ctx context.Context, statement string, args ...any) error {
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

// advancing is the isolation level that reads the mark as it is after the wait for its lock.
var advancing = map[Dialect]sql.IsolationLevel{PostgreSQL: sql.LevelReadCommitted}

// EvictFor ends the sessions that tx waits for, as described at [Fence.Evict], until stop is called. The argument exec runs a statement on
// another connection. The argument tx must be the transaction of [Fence.AdvanceIn], because a pooler can give each transaction another
// session.
//
// An advance to a stale token ends no session: the mark that is committed is higher.
func (f Fence) EvictFor(ctx context.Context, tx Tx, to fence.Token, exec func(ctx context.Context, statement string, args ...any) error) (stop func(), err error) {
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
				// The error is ignored: if the statement fails, Advance continues to wait, as it does without Evict.
				_ = exec(ctx, f.statements().evict, int64(pid), string(f.Resource), int64(to))
			}
		}
	}()
	return func() { cancel(); <-done }, nil
}

// hold raises the mark to the token if that is higher, holds it until tx ends, and returns it.
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

// held holds the mark and returns it. If one statement can do both and the mark may be raised, it raises the mark before.
func (f Fence) held(ctx context.Context, tx Tx, s statements, token fence.Token) (fence.Token, error) {
	query, args := s.share, []any{string(f.Resource)}
	if s.both != "" && !f.Strict {
		query, args = s.both, append(args, int64(token))
	}
	return tx.QueryToken(ctx, query, args...)
}

// table matches a name that needs no quotes, so that it can't contain SQL.
var table = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func (f Fence) validate() error {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return err
	}
	if f.Table != "" && !table.MatchString(f.Table) {
		return fmt.Errorf("fencesql: Table %q must be a name of letters, digits and _, or schema.name", f.Table)
	}
	if f.Dialect < PostgreSQL || f.Dialect > SQLite {
		return fmt.Errorf("fencesql: Dialect %d is not valid: set PostgreSQL, MySQL or SQLite", f.Dialect)
	}
	if f.Evict < 0 || f.Evict > 0 && f.Dialect != PostgreSQL {
		return fmt.Errorf("fencesql: Evict %v needs PostgreSQL, because other databases can't report which sessions hold a mark: limit the idle time of transactions there", f.Evict)
	}
	return nil
}
