package sinks

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencepgx"
	"github.com/singletonjob/operator/fence/fencetest"
)

// bouncer is PgBouncer before the shared PostgreSQL: each transaction gets any of a few sessions.
var bouncer = sync.OnceValues(func() (*server, error) {
	behind, err := postgres()
	if err != nil {
		return nil, err
	}
	starting.Lock()
	defer starting.Unlock()
	at, err := url.Parse(behind.dsn)
	if err != nil {
		return nil, err
	}
	pgbouncer, err := program("pgbouncer", "/usr/sbin")
	if err != nil {
		return nil, err
	}
	s := &server{driver: "pgx"}
	dir, port, err := install(s, func(string) (string, []string) { return "true", nil })
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
postgres = host=127.0.0.1 port=%[1]s user=test
scripted = host=127.0.0.1 port=%[1]s user=program
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[2]s
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 16
max_client_conn = 300
ignore_startup_parameters = extra_float_digits
`, at.Port(), port)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	s.dsn = strings.Replace(behind.dsn, ":"+at.Port()+"/", ":"+port+"/", 1) + "&default_query_exec_mode=exec"
	s.command = func() *exec.Cmd { return asNobody(exec.Command(pgbouncer, "--quiet", config)) }
	return s, s.start()
})

// byPgx writes with pgx alone.
type byPgx struct {
	*adapter // reads
	pool     *pgxpool.Pool
}

// pgxAdapter has as many connections as its writers: who waits for another's transaction does not keep that from its next statement.
func pgxAdapter(t *testing.T, k kind) byPgx {
	t.Helper()
	_, dsn := k.address(t)
	config, err := pgxpool.ParseConfig(dsn)
	must(t, err)
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	return byPgx{k.adapter(t, k.levels[0]), pool}
}

func (a byPgx) native(r fence.Resource) fencepgx.Fence {
	return fencepgx.Fence{Resource: r, Strict: a.strict}
}

func (a byPgx) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	return a.repeat(func() error {
		return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
			if err := a.native(r).Check(ctx, tx, token); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO entries (resource, payload) VALUES ($1, $2)", string(r), payload)
			return err
		})
	})
}

func (a byPgx) Advance(ctx context.Context, r fence.Resource, text string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	return a.repeat(func() error { return a.native(r).Advance(ctx, a.pool, token) })
}

func (a byPgx) Strict() fencetest.Advancer {
	strict := *a.adapter
	strict.strict = true
	return byPgx{&strict, a.pool}
}

// ways are those to one database: with statements that pgx prepares, and by a pooler.
var ways = []kind{
	{"prepared", kinds[0].dialect, postgres, kinds[0].levels},
	{"PgBouncer", kinds[0].dialect, bouncer, kinds[0].levels},
}

func TestPgxConforms(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			a := pgxAdapter(t, way)
			fencetest.Run(t, func(*testing.T) fencetest.Adapter { return a })
		})
	}
}

// TestConformanceThroughAPooler is about database/sql.
func TestConformanceThroughAPooler(t *testing.T) {
	t.Parallel()
	for _, level := range everyLevel {
		a := ways[1].adapter(t, level)
		t.Run(level.String(), func(t *testing.T) { fencetest.Run(t, func(*testing.T) fencetest.Adapter { return a }) })
	}
}

// TestPgxSharesItsMarks with who uses database/sql, evicts who stalls, and knows which steps are done.
func TestPgxSharesItsMarks(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			a, r, ctx := pgxAdapter(t, way), fresh(), patience(t)
			must(t, a.adapter.Write(ctx, r, "33", "a"))
			stalled, err := a.pool.Begin(ctx)
			must(t, err)
			must(t, a.native(r).Check(ctx, stalled, 33))
			evicts := a.native(r)
			evicts.Evict = 10 * time.Millisecond
			must(t, evicts.Advance(ctx, a.pool, 34))
			if err := stalled.Commit(ctx); err == nil {
				t.Error("the stalled transaction committed after the advance")
			}
			for name, write := range map[string]fencetest.Adapter{"pgx": a, "database/sql": a.adapter} {
				if err := write.Write(ctx, r, "33", "x"); !errors.Is(err, fence.ErrStale) {
					t.Errorf("%s: %v", name, err)
				}
			}
			for _, want := range []bool{true, false} {
				must(t, pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
					first, err := a.native(r).Once(ctx, tx, string(r), "step")
					if first != want {
						t.Errorf("it is the first time: %t, want %t", first, want)
					}
					return err
				}))
			}
		})
	}
}
