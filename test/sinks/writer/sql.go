package main

import (
	"context"
	"database/sql"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

// A database is a kind of SQL database. Both tables of entries show in which order transactions were committed. The order of the IDs is that
// of the inserts, which does not show a late commit.
type database struct {
	driver  string
	dialect fencesql.Dialect
	// evict is how long the past tenure's transactions may keep a successor from its first write. 0: the server ends those that idle.
	evict                time.Duration
	table, insert, query string
}

var databases = map[string]database{
	"postgres": {
		"pgx", fencesql.PostgreSQL, 5 * time.Second,
		"CREATE TABLE IF NOT EXISTS entries (id bigserial PRIMARY KEY, log text NOT NULL, entry text NOT NULL)",
		"INSERT INTO entries (log, entry) VALUES ($1, $2)",
		"SELECT entry FROM entries WHERE log = $1 ORDER BY pg_xact_commit_timestamp(xmin), id",
	},
	"mariadb": {
		"mysql", fencesql.MySQL, 0,
		`CREATE TABLE IF NOT EXISTS entries (id BIGINT AUTO_INCREMENT PRIMARY KEY, log VARCHAR(200) NOT NULL, entry VARCHAR(200) NOT NULL, KEY (log),
began BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, ended BIGINT UNSIGNED GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (began, ended)
) ENGINE=InnoDB WITH SYSTEM VERSIONING`,
		"INSERT INTO entries (log, entry) VALUES (?, ?)",
		"SELECT entry FROM entries JOIN mysql.transaction_registry ON transaction_id = began WHERE log = ? ORDER BY commit_id, id",
	},
}

// inSQL has a table with a row for each text.
type inSQL struct {
	offer.Target
	database

	db       *sql.DB
	ledger   fencesql.Fence
	advanced bool
}

func openSQL(t offer.Target) (*inSQL, error) {
	d := databases[t.Kind]
	db, err := sql.Open(d.driver, t.Address)
	return &inSQL{Target: t, database: d, db: db, ledger: fencesql.Fence{Resource: t.Log, Dialect: d.dialect, Evict: d.evict}}, err
}

// Write begins the tenure with an Advance, as a preActivate would.
func (s *inSQL) Write(ctx context.Context, text string) error {
	if !s.Fenced {
		_, err := s.db.ExecContext(ctx, s.insert, string(s.Log), text)
		return err
	}
	if !s.advanced {
		if err := s.ledger.Advance(ctx, s.db, s.Token); err != nil {
			return err
		}
		s.advanced = true
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := s.ledger.Check(ctx, tx, s.Token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, s.insert, string(s.Log), text); err != nil {
		return err
	}
	return tx.Commit()
}

// Prepare makes the tables.
func (s *inSQL) Prepare(ctx context.Context) error {
	schema, err := fencesql.Fence{Resource: "any/resource", Dialect: s.dialect}.Schema()
	if err != nil {
		return err
	}
	for _, statement := range append(schema, s.table) {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// Stored is in the order of the commits.
func (s *inSQL) Stored(ctx context.Context) (all []string, err error) {
	rows, err := s.db.QueryContext(ctx, s.query, string(s.Log))
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
