// Package fencepgx is package fencesql for programs that use pgx without database/sql: a past tenure can't commit a write.
//
//	ledger := fencepgx.Fence{Resource: fence.ResourceOf(namespace, name)}
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := ledger.Check(ctx, tx, token); err != nil {
//			return err
//		}
//		_, err := tx.Exec(ctx, "INSERT INTO entries …")
//		return err
//	})
//
// Statements, tables, guarantees and limits are those of fencesql. Programs with either package can write to one resource.
//
// # Poolers
//
// No state of the fence outlives its transaction, so it works with a pooler that gives each transaction another session (PgBouncer's
// transaction mode). By default, pgx itself prepares statements in one session and uses them in another. Behind such a pooler, set
// QueryExecModeExec, unless the pooler tracks prepared statements (PgBouncer from 1.21, max_prepared_statements).
package fencepgx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencesql"
)

// Fence guards one resource. Its fields are those of [fencesql.Fence].
type Fence struct {
	Resource fence.Resource
	Table    string
	Strict   bool
	Evict    time.Duration
}

// DB runs transactions and statements: a *pgxpool.Pool.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error)
}

func (f Fence) sql() fencesql.Fence {
	return fencesql.Fence{Resource: f.Resource, Dialect: fencesql.PostgreSQL, Table: f.Table, Strict: f.Strict, Evict: f.Evict}
}

// Schema returns the statements that create the tables of marks and steps if they do not exist. They can be run again.
func (f Fence) Schema() ([]string, error) { return f.sql().Schema() }

// Check holds the mark until tx ends. An error is the reason why tx must not be committed: see [fencesql.Fence.Check].
func (f Fence) Check(ctx context.Context, tx pgx.Tx, token fence.Token) error {
	return f.sql().CheckIn(ctx, native{tx}, token)
}

// Once notes a step of a run in the caller's transaction, and reports whether it is the first time: see [fencesql.Fence.Once].
func (f Fence) Once(ctx context.Context, tx pgx.Tx, run, step string) (first bool, err error) {
	return f.sql().OnceIn(ctx, native{tx}, run, step)
}

// Advance raises the mark to a token in a transaction of its own: see [fencesql.Fence.Advance]. With Evict, it needs a second connection of
// the pool.
func (f Fence) Advance(ctx context.Context, db DB, to fence.Token) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return fmt.Errorf("fence %s: begin: %w", f.Resource, err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	stop, err := f.sql().EvictFor(ctx, native{tx}, to, func(ctx context.Context, statement string, args ...any) error {
		_, err := db.Exec(ctx, statement, args...)
		return err
	})
	if err != nil {
		return err
	}
	err = f.sql().AdvanceIn(ctx, native{tx}, to)
	stop()
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// native is a transaction of pgx.
type native struct{ tx pgx.Tx }

func (n native) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := n.tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (n native) QueryToken(ctx context.Context, query string, args ...any) (token fence.Token, err error) {
	err = n.tx.QueryRow(ctx, query, args...).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		err = sql.ErrNoRows
	}
	return token, err
}
