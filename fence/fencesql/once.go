package fencesql

import (
	"context"
	"database/sql"
)

// DefaultSteps is the table of the steps that runs have done, in the schema of the table of marks.
const DefaultSteps = "fence_steps"

// The longest run and step, in bytes, that all supported databases can tell apart.
const (
	MaxRunLen  = 128
	MaxStepLen = 200
)

// Once records a step of a run in the caller's transaction, and reports whether it is the first time. If not, an earlier attempt has
// committed the step: skip it. run is $SINGLETONJOB_RUN_ID, which is the same for all attempts of a run.
//
//	first, err := ledger.Once(ctx, tx, os.Getenv("SINGLETONJOB_RUN_ID"), "book-interest")
//
// Once waits for an open transaction that does the same step. It does not replace Check: Check refuses a past tenure, and Once makes it
// harmless to repeat an attempt. The caller must delete old runs.
func (f Fence) Once(ctx context.Context, tx *sql.Tx, run, step string) (first bool, err error) {
	return f.OnceIn(ctx, standard{tx}, run, step)
}
