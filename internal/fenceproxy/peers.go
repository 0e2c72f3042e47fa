package fenceproxy

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// peers are the sessions of all replicas, this one's among them, as they were seen last. What a replica that ended has left under way in the service,
// nobody knows: so marks are not raised within drain of when one was missed first, nor of the start.
type peers struct {
	drain time.Duration

	mu     sync.Mutex // guards what follows
	seen   []int
	missed time.Time
}

// look takes in who is there, and returns for how long no mark is to be raised.
func (p *peers) look(present []int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.ContainsFunc(p.seen, func(pid int) bool { return !slices.Contains(present, pid) }) {
		p.missed = now
	}
	p.seen = present
	return p.missed.Add(p.drain).Sub(now)
}

// presence is the key of the lock that each session has, shared, for the others to see. No resource has such a name.
var presence = key("who is there")

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// present are the sessions that have the lock of presence. The key of a lock is in two halves there.
func present(ctx context.Context, q querier) ([]int, error) {
	rows, err := q.Query(ctx, `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = (($1::bigint >> 32) & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid`, presence)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}
