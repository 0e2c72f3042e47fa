package fencepgx_test

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencepgx"
)

// A job writes an entry to its ledger. The pool is a *pgxpool.Pool.
func ExampleFence_Check() {
	ledger := fencepgx.Fence{Resource: "default/billing"}
	write := func(ctx context.Context, pool fencepgx.DB, token fence.Token, entry string) error {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if err := ledger.Check(ctx, tx, token); err != nil {
			return err // fence.ErrStale: a later tenure has begun
		}
		if _, err := tx.Exec(ctx, "INSERT INTO entries (entry) VALUES ($1)", entry); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	_ = write
}
