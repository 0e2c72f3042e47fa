package fencesql

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/singletonjob/operator/fence"
)

// Tx is a transaction of a driver without database/sql. Package fencepgx implements it for pgx.
type Tx interface {
	// Exec returns the number of rows that the statement has changed.
	Exec(ctx context.Context, statement string, args ...any) (rows int64, err error)
	// QueryToken returns the number in the first row, or sql.ErrNoRows if there is no row.
	QueryToken(ctx context.Context, query string, args ...any) (fence.Token, error)
}

// CheckIn is [Fence.Check] in a transaction of any driver.
func (f Fence) CheckIn(ctx context.Context, tx Tx, token fence.Token) error {
	if err := f.validate(); err != nil {
		return err
	}
	gate := fence.Gate{Resource: f.Resource, Strict: f.Strict}
	if _, err := (fence.Gate{Resource: f.Resource}).Accept(0, token); err != nil {
		return err // the token is not valid
	}
	mark, err := f.hold(ctx, tx, token)
	if err != nil {
		return fmt.Errorf("fence %s: hold the mark: %w", f.Resource, err)
	}
	_, err = gate.Accept(mark, token)
	return err
}

// AdvanceIn raises the mark in a transaction of any driver. Once it is committed, the guarantee of [Fence.Advance] holds. It waits for the
// transactions that hold the mark. On PostgreSQL, the transaction must be READ COMMITTED and do nothing else.
func (f Fence) AdvanceIn(ctx context.Context, tx Tx, to fence.Token) error {
	if err := f.validate(); err != nil {
		return err
	}
	gate := fence.Gate{Resource: f.Resource}
	if _, err := gate.Advance(0, to); err != nil {
		return err
	}
	s := f.statements()
	if _, err := tx.Exec(ctx, s.advance, string(f.Resource), int64(to)); err != nil {
		return fmt.Errorf("fence %s: advance to %d: %w", f.Resource, int64(to), err)
	}
	mark, err := tx.QueryToken(ctx, s.read, string(f.Resource))
	if err != nil {
		return fmt.Errorf("fence %s: advance to %d: %w", f.Resource, int64(to), err)
	}
	_, err = gate.Advance(mark, to)
	return err
}

// OnceIn is [Fence.Once] in a transaction of any driver.
func (f Fence) OnceIn(ctx context.Context, tx Tx, run, step string) (first bool, err error) {
	if err := f.validate(); err != nil {
		return false, err
	}
	for _, v := range []struct {
		what, value string
		most        int
	}{{"run", run, MaxRunLen}, {"step", step, MaxStepLen}} {
		if v.value == "" || len(v.value) > v.most {
			return false, fmt.Errorf("fencesql: the %s %.40q has %d bytes: from 1 to %d", v.what, v.value, len(v.value), v.most)
		}
	}
	rows, err := tx.Exec(ctx, f.statements().once, run, step)
	if err != nil {
		return false, fmt.Errorf("fence %s: record step %s: %w", f.Resource, step, err)
	}
	return rows == 1, nil
}

// standard is a transaction of database/sql.
type standard struct{ *sql.Tx }

func (t standard) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := t.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t standard) QueryToken(ctx context.Context, query string, args ...any) (token fence.Token, err error) {
	err = t.QueryRowContext(ctx, query, args...).Scan(&token)
	return token, err
}
