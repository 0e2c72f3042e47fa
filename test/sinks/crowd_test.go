package sinks

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/test/rivals"
)

var crowds = rivals.Flags()

// bare is the same write without its fence.
type bare struct{ *adapter }

func (b bare) Write(ctx context.Context, r fence.Resource, _, payload string) error {
	return b.within(ctx, func(tx *sql.Tx) error { return b.append(ctx, tx, r, payload) })
}

// bareByPgx is that of pgx.
type bareByPgx struct{ byPgx }

func (b bareByPgx) Write(ctx context.Context, r fence.Resource, _, payload string) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO entries (resource, payload) VALUES ($1, $2)", string(r), payload)
		return err
	})
}

// bareService is a service that is asked without a fence before it.
type bareService struct {
	*replicas
	url string
}

func (b bareService) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	return sendTo(ctx, b.client, b.url, "/", r, token, payload)
}

// TestCrowd: 64 writers of 8 tenures, on one resource and on 1000.
func TestCrowd(t *testing.T) {
	fmt.Println(rivals.Header)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			a := k.adapter(t, k.levels[0])
			a.deadlocks = &atomic.Int64{}
			s := rivals.Subject{Name: k.name, Adapter: a, Unfenced: bare{a}, Deadlocks: a.deadlocks.Load}
			if k.dialect == fencesql.MySQL { // a tenure's first writes, side by side, are a deadlock else
				s.Advance = a.Advance
			}
			crowds.Test(t, s)
		})
	}
	t.Run("pgx", func(t *testing.T) {
		a := pgxAdapter(t, ways[0])
		a.deadlocks = &atomic.Int64{}
		crowds.Test(t, rivals.Subject{Name: "PostgreSQL, pgx", Adapter: a, Unfenced: bareByPgx{a}, Deadlocks: a.deadlocks.Load})
	})
	t.Run("script", func(t *testing.T) {
		a := scriptedAdapter(t, kinds[0].levels[0])
		a.deadlocks = &atomic.Int64{}
		crowds.Test(t, rivals.Subject{Name: "PostgreSQL, fence.sql", Adapter: a, Unfenced: bare{a.adapter}, Deadlocks: a.deadlocks.Load})
	})
	t.Run("fencehttp", func(t *testing.T) {
		s := newService(t)
		fenced := &fencehttp.Fence{Resource: fencehttp.FromHeader, Store: &fencehttp.Memory{}, Next: s, Drain: drains, Settle: settles, Patience: waits}
		t.Cleanup(fenced.Close)
		server := httptest.NewServer(fenced)
		t.Cleanup(server.Close)
		s.urls = []string{server.URL}
		crowds.Test(t, s.subject("HTTP, fencehttp"))
	})
	for name, c := range map[string]struct {
		replicas int
		store    func(t *testing.T) map[string]any
	}{
		"HTTP, fence-proxy with a file":         {1, func(t *testing.T) map[string]any { return map[string]any{"bolt": filepath.Join(t.TempDir(), "marks")} }},
		"HTTP, two fence-proxies on PostgreSQL": {2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			settings := map[string]any{"drain": "10s"}
			if c.store != nil {
				settings["store"] = c.store(t)
			}
			s := behind(t, c.replicas, settings)
			for replica := range s.urls { // after the start no mark is raised for as long as drain
				must(t, s.send(patience(t), replica, "/", fresh(), "1", "first"))
			}
			crowds.Test(t, s.subject(name))
		})
	}
}

func (s *replicas) subject(name string) rivals.Subject {
	upstream := httptest.NewServer(s)
	s.t.Cleanup(upstream.Close)
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: rivals.Writers}}
	s.t.Cleanup(s.client.CloseIdleConnections)
	return rivals.Subject{Name: name, Adapter: s, Unfenced: bareService{s, upstream.URL}}
}
