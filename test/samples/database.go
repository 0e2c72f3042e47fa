//go:build linux

package samples

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/singletonjob/operator/test/postgres"
)

// Databases are those of a PostgreSQL that ends with the test.
type Databases struct {
	testing.TB
	server *postgres.Server
}

// NewDatabases starts it. It knows when each row was committed.
func NewDatabases(t testing.TB) *Databases {
	t.Helper()
	return &Databases{TB: t, server: postgres.StartOn(t, Host, "track_commit_timestamp=on")}
}

// New makes a database by a file of the samples, and returns its address.
func (d *Databases) New(name, schema string) (address string) {
	d.Helper()
	text, err := os.ReadFile(filepath.Join(Dir, schema))
	if err != nil {
		d.Fatal(err)
	}
	for _, sql := range []string{"CREATE DATABASE " + name, "\\connect " + name + "\n" + string(text)} {
		if out, err := d.server.Psql(sql).CombinedOutput(); err != nil {
			d.Fatalf("%s: %v\n%s", schema, err, out)
		}
	}
	return "postgresql://" + postgres.User + "@" + net.JoinHostPort(Host, d.server.Port) + "/" + name
}

// stored is when a row was committed.
const stored = "pg_xact_commit_timestamp(xmin)"

// Steps are the steps of a migration that were done.
func Steps(t testing.TB, address, migration string) []Event {
	t.Helper()
	return rows(t, address, "SELECT step::text, "+stored+" FROM steps WHERE migration = $1", migration)
}

// Booked are the ticks that were.
func Booked(t testing.TB, address string) []Event {
	t.Helper()
	return rows(t, address, "SELECT tick, "+stored+" FROM ledger")
}

// rows are events, from their unit and time.
func rows(t testing.TB, address, sql string, args ...any) (events []Event) {
	t.Helper()
	ask(t, address, func(ctx context.Context, db *pgx.Conn) error {
		found, err := db.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		events, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (e Event, err error) {
			err = row.Scan(&e.Unit, &e.At)
			return e, err
		})
		return err
	})
	return events
}

func one(t testing.TB, address, sql string, into ...any) {
	t.Helper()
	ask(t, address, func(ctx context.Context, db *pgx.Conn) error { return db.QueryRow(ctx, sql).Scan(into...) })
}

func ask(t testing.TB, address string, do func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := pgx.Connect(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	if err := do(ctx, db); err != nil {
		t.Fatal(err)
	}
}
