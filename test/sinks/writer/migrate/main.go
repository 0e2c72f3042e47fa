// Command migrate is the migration that bench-migration runs. It reads which step of its subject was done last, and does the others one
// after another, each in a transaction. The fence checks the token where there is one. It ends with an error at the first step that fails,
// as migrations do.
//
//	migrate            do the steps
//	migrate prepare    make the tables
//	migrate list       print the rows in the order of their commits
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/bench/migration/row"
	"github.com/singletonjob/operator/test/workload/load"
)

const (
	// patience is with one step, begins with the connection and the first transaction, which may wait for the past tenure's.
	patience = 5 * time.Second
	begins   = 30 * time.Second
	// evict is how long the past tenure's transactions may keep the next one waiting.
	evict = 2 * time.Second
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "migrate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	db, err := sql.Open("pgx", os.Getenv(row.AddressEnv))
	if err != nil {
		return err
	}
	switch {
	case len(args) == 0:
		return migrate(ctx, db)
	case args[0] == row.Prepare:
		return prepare(ctx, db)
	case args[0] == row.List:
		return list(ctx, db)
	}
	return fmt.Errorf("unknown argument %q", args[0])
}

func prepare(ctx context.Context, db *sql.DB) error {
	schema, err := fencesql.Fence{Resource: "any/resource", Dialect: fencesql.PostgreSQL}.Schema()
	if err != nil {
		return err
	}
	// No key: what is done twice is stored twice.
	for _, statement := range append(schema, `CREATE TABLE IF NOT EXISTS steps (id bigserial PRIMARY KEY, subject text NOT NULL, process text NOT NULL,
		step int NOT NULL, attempt int NOT NULL, token bigint NOT NULL, refused boolean NOT NULL)`) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func list(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SELECT subject, process, step, attempt, token, refused FROM steps ORDER BY pg_xact_commit_timestamp(xmin), id")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	all := []row.Row{}
	for rows.Next() {
		var r row.Row
		if err := rows.Scan(&r.Subject, &r.Process, &r.Step, &r.Attempt, &r.Token, &r.Refused); err != nil {
			return err
		}
		all = append(all, r)
	}
	return errors.Join(rows.Err(), json.NewEncoder(os.Stdout).Encode(all))
}

// migration is one execution.
type migration struct {
	db    *sql.DB
	row   row.Row
	fence *fencesql.Fence // nil in a Job's Pod
	every time.Duration
}

func migrate(ctx context.Context, db *sql.DB) error {
	m := migration{db: db, row: row.Row{Subject: os.Getenv(row.SubjectEnv), Process: fmt.Sprintf("%s@%d", load.Pod(), fencetest.Boottime().Milliseconds())}}
	var err error
	if m.every, err = time.ParseDuration(os.Getenv(row.EveryEnv)); err != nil {
		return err
	}
	if text := os.Getenv(fence.EnvToken); text != "" {
		if m.row.Token, err = fence.ParseToken(text); err != nil {
			return err
		}
		if m.row.Attempt, err = strconv.Atoi(os.Getenv("SINGLETONJOB_ATTEMPT")); err != nil {
			return err
		}
		m.fence = &fencesql.Fence{
			Resource: fence.ResourceOf(os.Getenv(fence.EnvNamespace), os.Getenv(fence.EnvName)), Dialect: fencesql.PostgreSQL, Evict: evict,
		}
	}
	done, err := m.begin(ctx)
	if err != nil {
		return err
	}
	for m.row.Step = done + 1; m.row.Step <= row.Steps; m.row.Step++ {
		time.Sleep(m.every)
		if err := m.step(ctx); err != nil {
			return fmt.Errorf("step %d: %w", m.row.Step, err)
		}
	}
	return nil
}

// begin returns the last step that was done.
func (m *migration) begin(ctx context.Context) (done int, err error) {
	ctx, cancel := context.WithTimeout(ctx, begins)
	defer cancel()
	if m.fence != nil {
		if err := m.fence.Advance(ctx, m.db, m.row.Token); err != nil {
			return 0, err
		}
	}
	err = m.db.QueryRowContext(ctx, "SELECT coalesce(max(step), 0) FROM steps WHERE subject = $1 AND NOT refused", m.row.Subject).Scan(&done)
	return done, err
}

func (m *migration) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tx, err := m.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if m.fence != nil {
		if err := m.fence.Check(ctx, tx, m.row.Token); err != nil {
			if errors.Is(err, fence.ErrStale) {
				err = errors.Join(err, m.refused(ctx))
			}
			return err
		}
	}
	if err := store(ctx, tx, m.row); err != nil {
		return err
	}
	return tx.Commit()
}

// refused counts a write of a past tenure, outside of its transaction.
func (m *migration) refused(ctx context.Context) error {
	r := m.row
	r.Refused = true
	return store(ctx, m.db, r)
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func store(ctx context.Context, e execer, r row.Row) error {
	_, err := e.ExecContext(ctx, "INSERT INTO steps (subject, process, step, attempt, token, refused) VALUES ($1, $2, $3, $4, $5, $6)",
		r.Subject, r.Process, r.Step, r.Attempt, int64(r.Token), r.Refused)
	return err
}
