//go:build linux

package samples

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Outbox is a source with an outbox, which several write to, and the target of what it holds.
type Outbox struct {
	testing.TB
	Source, Target string // addresses
	// Committed is how many events were.
	Committed atomic.Int64
}

// NewOutbox makes both databases as the sample says, on a server of their own.
func NewOutbox(t testing.TB) *Outbox {
	t.Helper()
	return NewDatabases(t).Outbox("")
}

// Outbox makes both, with names that end so.
func (d *Databases) Outbox(suffix string) *Outbox {
	d.Helper()
	return &Outbox{TB: d.TB, Source: d.New("source"+suffix, "outbox/source.sql"), Target: d.New("target"+suffix, "outbox/target.sql")}
}

// Events are those that the target has, expected those that were committed.
func (o *Outbox) Events() (events []Event, expected []string) {
	o.Helper()
	var all string
	o.one(o.Source, "SELECT coalesce(string_agg(id::text, ' '), '') FROM outbox", &all)
	return rows(o.TB, o.Target, "SELECT id::text, "+stored+" FROM events"), strings.Fields(all)
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

// Last is when the last event was delivered.
func (o *Outbox) Last() (at time.Time) {
	o.Helper()
	o.one(o.Target, "SELECT coalesce(max("+stored+"), 'epoch') FROM events", &at)
	return at
}

func (o *Outbox) one(address, sql string, into ...any) {
	o.Helper()
	one(o.TB, address, sql, into...)
}
