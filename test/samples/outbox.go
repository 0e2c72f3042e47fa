//go:build linux

package samples

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/singletonjob/operator/test/postgres"
)

// Outbox is a source with an outbox, which several write to, and the target of what it holds.
type Outbox struct {
	testing.TB
	Source, Target string // addresses
	server         *postgres.Server
	// Committed is how many events were.
	Committed atomic.Int64
}

// NewOutbox starts a server, with both as the sample says.
func NewOutbox(t testing.TB) *Outbox {
	t.Helper()
	o := &Outbox{TB: t, server: postgres.Start(t)}
	for name, address := range map[string]*string{"source": &o.Source, "target": &o.Target} {
		schema, err := os.ReadFile(filepath.Join(Dir, "outbox", name+".sql"))
		if err != nil {
			t.Fatal(err)
		}
		o.must(o.server.Psql("CREATE DATABASE " + name).Run())
		o.must(o.server.Psql("\\connect " + name + "\n" + string(schema)).Run())
		*address = fmt.Sprintf("postgresql:///%s?host=%s&port=%s&user=%s", name, o.server.Dir, o.server.Port, postgres.User)
	}
	return o
}

func (o *Outbox) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

// Write has some write at a time, each for a while in a transaction, until the function that it returns is called. Some roll back.
func (o *Outbox) Write() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			db, err := pgx.Connect(ctx, o.Source)
			if err != nil {
				o.Error(err)
				return
			}
			defer func() { _ = db.Close(context.Background()) }()
			for ctx.Err() == nil {
				o.event(db)
			}
		})
	}
	return sync.OnceFunc(func() { cancel(); writers.Wait() })
}

func (o *Outbox) event(db *pgx.Conn) {
	ctx := context.Background()
	tx, err := db.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, "INSERT INTO outbox (payload) VALUES ($1)", strconv.FormatInt(rand.Int64(), 36))
	}
	time.Sleep(rand.N(100 * time.Millisecond))
	switch {
	case err != nil:
	case rand.N(10) == 0:
		err = tx.Rollback(ctx)
	default:
		if err = tx.Commit(ctx); err == nil {
			o.Committed.Add(1)
		}
	}
	if err != nil {
		o.Error(err)
	}
}

// Delivery is what the target has. Extra are rows beyond one for each event.
type Delivery struct{ Events, Extra, Tenures int }

// Delivered counts it.
func (o *Outbox) Delivered() (d Delivery) {
	o.Helper()
	o.one(o.Target, `SELECT count(DISTINCT id), count(*) - count(DISTINCT id), count(DISTINCT token) FROM events`, &d.Events, &d.Extra, &d.Tenures)
	return d
}

// Missing are the events of the source that the target lacks or has otherwise.
func (o *Outbox) Missing() (ids []string) {
	o.Helper()
	of := func(address, sql string) map[string]bool {
		var all string
		o.one(address, sql, &all)
		set := map[string]bool{}
		for line := range strings.FieldsSeq(all) {
			set[line] = true
		}
		return set
	}
	const list = "SELECT coalesce(string_agg(id || ':' || payload, ' '), '') FROM "
	delivered := of(o.Target, list+"events")
	for event := range of(o.Source, list+"outbox") {
		if !delivered[event] {
			ids = append(ids, event)
		}
	}
	return ids
}

func (o *Outbox) one(address, sql string, into ...any) {
	o.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := pgx.Connect(ctx, address)
	o.must(err)
	defer func() { _ = db.Close(ctx) }()
	o.must(db.QueryRow(ctx, sql).Scan(into...))
}
