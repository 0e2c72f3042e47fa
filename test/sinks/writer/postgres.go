package main

import (
	"context"
	"database/sql"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

// evict is how long the past tenure's transactions may keep a successor from its first write.
const evict = 5 * time.Second

type postgres struct {
	offer.Target

	db       *sql.DB
	ledger   fencesql.Fence
	advanced bool
}

func openPostgres(t offer.Target) (*postgres, error) {
	db, err := sql.Open("pgx", t.Address)
	return &postgres{Target: t, db: db, ledger: fencesql.Fence{Resource: t.Log, Dialect: fencesql.PostgreSQL, Evict: evict}}, err
}

const insert = "INSERT INTO entries (log, entry) VALUES ($1, $2)"

// Write begins the tenure with an Advance, as a preActivate would.
func (p *postgres) Write(ctx context.Context, text string) error {
	if !p.Fenced {
		_, err := p.db.ExecContext(ctx, insert, string(p.Log), text)
		return err
	}
	if !p.advanced {
		if err := p.ledger.Advance(ctx, p.db, p.Token); err != nil {
			return err
		}
		p.advanced = true
	}
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := p.ledger.Check(ctx, tx, p.Token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, insert, string(p.Log), text); err != nil {
		return err
	}
	return tx.Commit()
}

// Prepare makes the tables.
func (p *postgres) Prepare(ctx context.Context) error {
	schema, err := fencesql.Fence{Resource: "any/resource", Dialect: fencesql.PostgreSQL}.Schema()
	if err != nil {
		return err
	}
	for _, statement := range append(schema, "CREATE TABLE IF NOT EXISTS entries (id bigserial PRIMARY KEY, log text NOT NULL, entry text NOT NULL)") {
		if _, err := p.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// Stored is in the order of the commits. The order of the IDs is that of the inserts, which does not show a late commit.
func (p *postgres) Stored(ctx context.Context) (all []string, err error) {
	rows, err := p.db.QueryContext(ctx, "SELECT entry FROM entries WHERE log = $1 ORDER BY pg_xact_commit_timestamp(xmin), id", string(p.Log))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, rows.Err()
}
