package fencesql

import (
	"context"
	"database/sql"
)

// DefaultSteps is the table of the steps that runs have done, beside that of the marks.
const DefaultSteps = "fence_steps"

// The longest run and step, in bytes, that every database here can tell apart.
const (
	MaxRunLen  = 128
	MaxStepLen = 200
)

// Once notes a step of a run in the caller's transaction, and reports whether it is the first time: if not, the step was committed by an
// earlier attempt, and is to be left out. run is $SINGLETONJOB_RUN_ID, which all attempts of one run share.
//
//	first, err := ledger.Once(ctx, tx, os.Getenv("SINGLETONJOB_RUN_ID"), "book-interest")
//
// It waits for a transaction under way that does the same step. It does not replace Check: that refuses a past tenure, this one makes the
// repetition of what an attempt has done harmless. Old runs are the caller's to delete.
func (f Fence) Once(ctx context.Context, tx *sql.Tx, run, step string) (first bool, err error) {
	return f.OnceIn(ctx, standard{tx}, run, step)
}
