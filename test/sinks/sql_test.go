package sinks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/fence/fencetest"
)

// adapter is a table of entries behind the fence.
type adapter struct {
	db      *sql.DB
	dialect fencesql.Dialect
	level   sql.IsolationLevel
	strict  bool
	// deadlocks counts those that the database has ended; nil: they are not counted.
	deadlocks *atomic.Int64
}

func (k kind) adapter(t *testing.T, level sql.IsolationLevel) *adapter {
	t.Helper()
	a := &adapter{db: k.open(t), dialect: k.dialect, level: level}
	a.makeTables(t)
	return a
}

func (a *adapter) makeTables(t *testing.T) {
	t.Helper()
	schema, err := a.fence("any").Schema()
	must(t, err)
	number := map[fencesql.Dialect]string{
		fencesql.PostgreSQL: "bigserial PRIMARY KEY", fencesql.MySQL: "BIGINT AUTO_INCREMENT PRIMARY KEY", fencesql.SQLite: "INTEGER PRIMARY KEY",
	}[a.dialect]
	schema = append(schema, "CREATE TABLE IF NOT EXISTS entries (n "+number+", resource VARCHAR(200), payload VARCHAR(200))")
	making.Lock() // CREATE IF NOT EXISTS races with itself
	defer making.Unlock()
	for _, text := range schema {
		_, err := a.db.ExecContext(patience(t), text)
		must(t, err)
	}
}

var making sync.Mutex

func (a *adapter) fence(r fence.Resource) fencesql.Fence {
	return fencesql.Fence{Resource: r, Dialect: a.dialect, Strict: a.strict}
}

func (a *adapter) Verbatim() {}

func (a *adapter) Advance(ctx context.Context, r fence.Resource, text string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	return a.repeat(func() error { return a.fence(r).Advance(ctx, a.db, token) })
}

func (a *adapter) Strict() fencetest.Advancer {
	strict := *a
	strict.strict = true
	return &strict
}

func (a *adapter) sql(text string) string {
	if a.dialect == fencesql.PostgreSQL {
		for i := 1; strings.Contains(text, "?"); i++ {
			text = strings.Replace(text, "?", fmt.Sprint("$", i), 1)
		}
	}
	return text
}

// within repeats a transaction as its database asks.
func (a *adapter) within(ctx context.Context, do func(tx *sql.Tx) error) error {
	return a.repeat(func() error { return a.once(ctx, do) })
}

func (a *adapter) repeat(do func() error) error {
	for {
		err := do()
		if a.deadlocks != nil && isDeadlock(err) {
			a.deadlocks.Add(1)
		}
		if !asksForRetry(err) {
			return err
		}
	}
}

func isDeadlock(err error) bool {
	postgres, ok := errors.AsType[*pgconn.PgError](err)
	if ok {
		return postgres.Code == "40P01"
	}
	maria, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && maria.Number == 1213
}

func (a *adapter) once(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: a.level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func asksForRetry(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "40001" || e.Code == "40P01"
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number == 1213 || e.Number == 1020 // deadlock; record has changed since last read
	}
	return err != nil && strings.Contains(err.Error(), "SQLITE_BUSY")
}

const insertEntry = "INSERT INTO entries (resource, payload) VALUES (?, ?)"

func (a *adapter) append(ctx context.Context, tx *sql.Tx, r fence.Resource, payload string) error {
	_, err := tx.ExecContext(ctx, a.sql(insertEntry), string(r), payload)
	return err
}

func (a *adapter) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	return a.within(ctx, func(tx *sql.Tx) error {
		if err := a.fence(r).Check(ctx, tx, token); err != nil {
			return err // nothing more: where a deadlock has ended the transaction, MySQL would commit the next statement by itself
		}
		return a.append(ctx, tx, r, payload)
	})
}

func (a *adapter) Stored(ctx context.Context, r fence.Resource) (all []string, err error) {
	rows, err := a.db.QueryContext(ctx, a.sql("SELECT payload FROM entries WHERE resource = ? ORDER BY n"), string(r))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var payload string
		if err := rows.Scan(&payload); err != nil {
			return nil, err
		}
		all = append(all, payload)
	}
	return all, rows.Err()
}

// each runs a test for each database at each isolation level.
func each(t *testing.T, test func(t *testing.T, a *adapter)) {
	for _, k := range kinds {
		for _, level := range k.levels {
			t.Run(k.name+"/"+strings.ReplaceAll(level.String(), " ", ""), func(t *testing.T) {
				t.Parallel()
				test(t, k.adapter(t, level))
			})
		}
	}
}

func TestConformance(t *testing.T) {
	each(t, func(t *testing.T, a *adapter) {
		fencetest.Run(t, func(*testing.T) fencetest.Adapter { return a })
	})
}

func fresh() fence.Resource { return fence.Resource(fmt.Sprintf("test/%016x", rand.Uint64())) }

// TestAStaleTransactionCannotCommit: a transaction of the past tenure began, and has read, before the present one wrote. Frozen at
// each of its steps, it can't commit what it writes after the present one has written.
func TestAStaleTransactionCannotCommit(t *testing.T) {
	each(t, func(t *testing.T, a *adapter) {
		if a.dialect == fencesql.SQLite {
			t.Skip("it has one writer at a time, so no transaction that has begun to write can be overtaken")
		}
		ctx, r := patience(t), fresh()
		must(t, a.Write(ctx, r, "33", "before"))
		stale, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: a.level})
		must(t, err)
		defer func() { _ = stale.Rollback() }()
		var n int
		must(t, stale.QueryRowContext(ctx, a.sql("SELECT count(*) FROM entries WHERE resource = ?"), string(r)).Scan(&n)) // its snapshot
		written := make(chan error, 1)
		go func() { written <- a.Write(ctx, r, "34", "present") }()
		if a.level != sql.LevelSerializable || a.dialect == fencesql.PostgreSQL { // else its reads are locks, which the present one waits for
			must(t, <-written)
			written <- nil
		}
		if err = a.fence(r).Check(ctx, stale, 33); err == nil {
			must(t, a.append(ctx, stale, r, "stale"))
			err = stale.Commit()
		} else {
			_ = stale.Rollback()
		}
		must(t, <-written)
		stored, e := a.Stored(ctx, r)
		must(t, e)
		if want := "before present"; strings.Join(stored, " ") != want && !(err == nil && strings.Join(stored, " ") == "before stale present") {
			t.Errorf("SAFETY: stored is %q, want %q; the stale transaction ended with: %v", stored, want, err)
		}
		if err := a.Write(ctx, r, "33", "again"); !errors.Is(err, fence.ErrStale) {
			t.Errorf("a later stale write: %v", err)
		}
	})
}

// TestAdvanceWaitsForCheckedTransactions: a transaction that has checked its token holds the mark until it ends.
func TestAdvanceWaitsForCheckedTransactions(t *testing.T) {
	each(t, func(t *testing.T, a *adapter) {
		ctx, r := patience(t), fresh()
		must(t, a.Write(ctx, r, "33", "before"))
		tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: a.level})
		must(t, err)
		must(t, a.fence(r).Check(ctx, tx, 33))
		must(t, a.append(ctx, tx, r, "checked"))
		if a.dialect != fencesql.SQLite { // whose driver waits for the lock, whatever the context
			impatient, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			if err := a.fence(r).Advance(impatient, a.db, 34); err == nil {
				t.Error("the advance did not wait for a transaction that has checked")
			}
			cancel()
		}
		must(t, tx.Commit())
		must(t, a.fence(r).Advance(ctx, a.db, 34))
		if err := a.Write(ctx, r, "33", "stale"); !errors.Is(err, fence.ErrStale) {
			t.Errorf("after the advance: %v", err)
		}
		stored, err := a.Stored(ctx, r)
		must(t, err)
		if strings.Join(stored, " ") != "before checked" {
			t.Errorf("stored is %q", stored)
		}
	})
}

func TestStrict(t *testing.T) {
	each(t, func(t *testing.T, a *adapter) {
		ctx, r := patience(t), fresh()
		strict := a.fence(r)
		strict.Strict = true
		write := func(token fence.Token) error {
			return a.within(ctx, func(tx *sql.Tx) error { return strict.Check(ctx, tx, token) })
		}
		if err := write(33); !errors.Is(err, fence.ErrAhead) {
			t.Errorf("before any advance: %v", err)
		}
		must(t, strict.Advance(ctx, a.db, 33))
		must(t, strict.Advance(ctx, a.db, 33))
		must(t, write(33))
		if err := write(34); !errors.Is(err, fence.ErrAhead) {
			t.Errorf("ahead: %v", err)
		}
		must(t, write(33))
		must(t, strict.Advance(ctx, a.db, 34))
		if err := write(33); !errors.Is(err, fence.ErrStale) {
			t.Errorf("stale: %v", err)
		}
		if err := strict.Advance(ctx, a.db, 33); !errors.Is(err, fence.ErrStale) {
			t.Errorf("a stale advance: %v", err)
		}
		must(t, write(34))
	})
}

// TestAStalledTransactionIsEvicted: a transaction of the past tenure holds the mark and does nothing more.
func TestAStalledTransactionIsEvicted(t *testing.T) {
	k := kinds[0]
	for _, level := range k.levels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			a, ctx, r := k.adapter(t, level), patience(t), fresh()
			tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			must(t, err)
			must(t, errors.Join(a.fence(r).Check(ctx, tx, 33), a.append(ctx, tx, r, "stalled")))
			evicts := a.fence(r)
			evicts.Evict = 1e6
			must(t, evicts.Advance(ctx, a.db, 34))
			if err := tx.Commit(); err == nil {
				t.Error("the stalled transaction committed after the advance")
			}
			if stored, err := a.Stored(ctx, r); err != nil || len(stored) > 0 {
				t.Errorf("stored is %q, %v", stored, err)
			}
		})
	}
}

// TestStaleAdvanceEvictsNoSession: a process of the past tenure begins its advance while the present tenure writes.
func TestStaleAdvanceEvictsNoSession(t *testing.T) {
	k := kinds[0]
	for _, level := range k.levels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			a, ctx, r := k.adapter(t, level), patience(t), fresh()
			stale := a.fence(r)
			must(t, stale.Advance(ctx, a.db, 34))
			stale.Evict = 1e6
			tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			must(t, err)
			must(t, errors.Join(a.fence(r).Check(ctx, tx, 34), a.append(ctx, tx, r, "written")))
			advanced := make(chan error, 1)
			go func() { advanced <- stale.Advance(ctx, a.db, 33) }()
			select {
			case err := <-advanced:
				t.Errorf("it did not wait: %v", err)
			case <-time.After(200 * time.Millisecond): // no bound: a hundred chances to evict
			}
			must(t, tx.Commit())
			if err := <-advanced; !errors.Is(err, fence.ErrStale) {
				t.Errorf("the stale advance returned %v, want ErrStale", err)
			}
		})
	}
}

func TestOnce(t *testing.T) {
	each(t, func(t *testing.T, a *adapter) {
		ctx, r := patience(t), fresh()
		run := string(r)
		do := func(step string, fail error) (first bool, err error) {
			err = a.within(ctx, func(tx *sql.Tx) error {
				if first, err = a.fence(r).Once(ctx, tx, run, step); err != nil || !first {
					return err
				}
				return errors.Join(a.append(ctx, tx, r, step), fail)
			})
			return first, err
		}
		failed := errors.New("failed")
		if first, err := do("a", failed); !first || !errors.Is(err, failed) {
			t.Fatal(first, err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for _, step := range []string{"a", "A", "b"} {
					if _, err := do(step, nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if first, err := do("a", nil); first || err != nil {
			t.Error(first, err)
		}
		stored, err := a.Stored(ctx, r)
		must(t, err)
		if strings.Count(strings.Join(stored, ""), "a") != 1 || len(stored) != 3 {
			t.Errorf("steps done: %q", stored)
		}
	})
}

// TestManyFirstWrites: all writers begin on a new resource at the same time.
func TestManyFirstWrites(t *testing.T) {
	each(t, func(t *testing.T, a *adapter) {
		for range 5 {
			ctx, r := patience(t), fresh()
			var all sync.WaitGroup
			for i := range 32 {
				all.Go(func() {
					if err := a.Write(ctx, r, "7", fmt.Sprint(i)); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if stored, err := a.Stored(ctx, r); err != nil || len(stored) != 32 {
				t.Errorf("%d of 32 are stored, %v", len(stored), err)
			}
		}
	})
}

// TestAdvanceOfTheSameTenureEvictsNoSession: it is repeated while the tenure's own transaction is open.
func TestAdvanceOfTheSameTenureEvictsNoSession(t *testing.T) {
	t.Parallel()
	a, ctx, r := kinds[0].adapter(t, sql.LevelReadCommitted), patience(t), fresh()
	f := a.fence(r)
	must(t, f.Advance(ctx, a.db, 34))
	f.Evict = 1e6
	tx, err := a.db.BeginTx(ctx, nil)
	must(t, err)
	must(t, errors.Join(a.fence(r).Check(ctx, tx, 34), a.append(ctx, tx, r, "written")))
	advanced := make(chan error, 1)
	go func() { advanced <- f.Advance(ctx, a.db, 34) }()
	time.Sleep(200 * time.Millisecond) // no bound: a hundred chances to evict
	must(t, tx.Commit())
	must(t, <-advanced)
}
