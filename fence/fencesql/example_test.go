package fencesql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencesql"
)

// A job writes entries to its ledger, each with the fence in the transaction of the write.
func ExampleFence_Check() {
	ledger := fencesql.Fence{Resource: fence.ResourceOf(os.Getenv(fence.EnvNamespace), os.Getenv(fence.EnvName)), Dialect: fencesql.PostgreSQL}
	token, err := fence.ParseToken(os.Getenv(fence.EnvToken))
	if err != nil {
		return // this program was not started by an agent
	}
	write := func(ctx context.Context, db *sql.DB, entry string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := ledger.Check(ctx, tx, token); err != nil {
			return err // send no more statements in tx
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO entries (entry) VALUES ($1)", entry); err != nil {
			return err
		}
		return tx.Commit()
	}
	var db *sql.DB // sql.Open of any driver
	if err := write(context.Background(), db, "interest"); errors.Is(err, fence.ErrStale) {
		os.Exit(1) // a later tenure has begun: no more writes of this process will be stored
	}
}

// In spec.preActivate, Advance locks out the past tenure before the new one starts.
func ExampleFence_Advance() {
	ledger := fencesql.Fence{
		Resource: "default/billing", Dialect: fencesql.PostgreSQL,
		Strict: true,            // no writer can raise the mark
		Evict:  5 * time.Second, // how long Advance waits for a stalled transaction
	}
	var db *sql.DB // under a role that the job's programs do not have
	token, err := fence.ParseToken(os.Getenv(fence.EnvToken))
	if err != nil {
		return
	}
	if err := ledger.Advance(context.Background(), db, token); err != nil {
		os.Exit(1) // the tenure does not begin
	}
}

// An attempt of a run skips the steps that an earlier attempt has committed.
func ExampleFence_Once() {
	ledger := fencesql.Fence{Resource: "default/billing", Dialect: fencesql.MySQL}
	step := func(ctx context.Context, tx *sql.Tx, token fence.Token) error {
		if err := ledger.Check(ctx, tx, token); err != nil {
			return err
		}
		first, err := ledger.Once(ctx, tx, os.Getenv("SINGLETONJOB_RUN_ID"), "book-interest")
		if err != nil || !first {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE account SET balance = balance * 1.01")
		return err
	}
	_ = step
}

// The owner of the tables creates them once.
func ExampleFence_Schema() {
	statements, err := fencesql.Fence{Resource: "default/billing", Dialect: fencesql.SQLite, Table: "billing_marks"}.Schema()
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(statements[0])
	// Output: CREATE TABLE IF NOT EXISTS billing_marks (resource TEXT PRIMARY KEY, token INTEGER NOT NULL CHECK (token >= 0)) STRICT, WITHOUT ROWID
}
