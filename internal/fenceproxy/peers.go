package fenceproxy

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// peers are the sessions of all replicas, including this one, as last seen. Requests of a replica that ended may still be in progress in
// the service. Marks are therefore not raised for the duration drain after the start, and after a replica is first missing.
type peers struct {
	drain time.Duration

	mu     sync.Mutex // guards the fields below
	seen   []int
	missed time.Time
}

// look records which sessions are present, and returns how long no mark must be raised.
func (p *peers) look(present []int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.ContainsFunc(p.seen, func(pid int) bool { return !slices.Contains(present, pid) }) {
		p.missed = now
	}
	p.seen = present
	return p.missed.Add(p.drain).Sub(now)
}

// presence is the key of the lock that each session holds, shared, so that the others see it. No resource can have this name.
var presence = key("who is there")

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// present returns the sessions that hold the lock presence. pg_locks has the key of a lock in two halves.
func present(ctx context.Context, q querier) ([]int, error) {
	rows, err := q.Query(ctx, `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = (($1::bigint >> 32) & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid`, presence)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}
