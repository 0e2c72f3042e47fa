package sinks

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/subprocess"
)

// crashing has a server of its own, which is killed.
type crashing struct {
	*adapter
	server *server
}

func (c crashing) Restart(context.Context) error {
	c.server.kill()
	c.db.SetMaxIdleConns(0) // those to it
	c.db.SetMaxIdleConns(connections)
	return c.server.start()
}

func survives(t *testing.T, a fencetest.Restarter) {
	t.Helper()
	for _, name := range []string{"RestartForgetsNothing", "CrashDuringWrites"} {
		if err := fencetest.Fault(patience(t), a, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAServerIsKilled while it is written to: what it has accepted is there, and the highest token.
func TestAServerIsKilled(t *testing.T) {
	for name, c := range map[string]struct {
		dialect fencesql.Dialect
		server  func() (*server, error)
	}{"PostgreSQL": {fencesql.PostgreSQL, newPostgres}, "MariaDB": {fencesql.MySQL, newMariaDB}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := c.server()
			must(t, err)
			a := &adapter{db: connect(t, s.driver, s.dsn), dialect: c.dialect, level: sql.LevelReadCommitted}
			a.makeTables(t)
			survives(t, crashing{a, s})
		})
	}
}

// crashingPgx and crashingScript have a server of their own, too.
type crashingPgx struct {
	byPgx
	server *server
}

func (c crashingPgx) Restart(ctx context.Context) error {
	err := crashing{c.adapter, c.server}.Restart(ctx)
	c.pool.Reset()
	return err
}

type crashingScript struct {
	byScript
	server *server
}

func (c crashingScript) Restart(ctx context.Context) error {
	return crashing{c.adapter, c.server}.Restart(ctx)
}

// TestAServerOfPgxIsKilled, and one of fence.sql, while they are written to.
func TestAServerOfPgxIsKilled(t *testing.T) {
	t.Parallel()
	s, err := newPostgres()
	must(t, err)
	own := kind{"own", fencesql.PostgreSQL, func() (*server, error) { return s, nil }, everyLevel}
	survives(t, crashingPgx{pgxAdapter(t, own), s})
}

func TestAServerOfTheScriptIsKilled(t *testing.T) {
	t.Parallel()
	s, err := newPostgres()
	must(t, err)
	a := &adapter{db: connect(t, s.driver, s.dsn), dialect: fencesql.PostgreSQL, level: sql.LevelReadCommitted}
	a.makeTables(t)
	_, err = a.db.ExecContext(t.Context(), fencesql.Script)
	must(t, err)
	survives(t, crashingScript{byScript{a, a.db}, s})
}

// crashingProxies are replicas that are killed, with the PostgreSQL that has their marks or without.
type crashingProxies struct {
	*replicas
	database *server // nil: it is not killed
	killed   []int
}

func (c crashingProxies) Restart(ctx context.Context) error {
	for _, i := range c.killed {
		c.processes[i].Stop(0)
	}
	if c.database != nil {
		c.database.kill()
		if err := c.database.start(); err != nil {
			return err
		}
	}
	for _, i := range c.killed {
		c.launch(i)
	}
	for i := range c.processes { // each has a session again, and has noticed the end of the last one
		if err := c.decided(i, fresh(), "1", "awaits"); err != nil {
			return err
		}
	}
	return nil
}

// Write repeats what was not forwarded, as the answer asks.
func (c crashingProxies) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	for {
		if err := c.replicas.Write(ctx, r, token, payload); !errors.Is(err, fencehttp.ErrUnavailable) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestProxiesAreKilled while clients write, and the PostgreSQL that has their marks: a replica that is left, or starts, knows the highest
// token, and the service has what was accepted.
func TestProxiesAreKilled(t *testing.T) {
	for name, killed := range map[string][]int{"PostgreSQL": nil, "one": {1}, "both": {0, 1}, "PostgreSQL and both": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own, err := newPostgres() // those of other tests would wait for what these left under way
			must(t, err)
			c := crashingProxies{on(t, own, 2, killable), nil, killed}
			if strings.HasPrefix(name, "PostgreSQL") {
				c.database = own
			}
			survives(t, c)
		})
	}
	t.Run("one with a file", func(t *testing.T) {
		t.Parallel()
		settings := map[string]any{"store": map[string]any{"bolt": filepath.Join(t.TempDir(), "marks")}}
		maps.Copy(settings, killable)
		survives(t, crashingProxies{behind(t, 1, settings), nil, []int{0}})
	})
}

// killable replicas do not wait long for what the ones before may have left under way: the service answers at once.
var killable = map[string]any{"drain": "2s"}

// TestAStoreThatForgetsIsFound: PostgreSQL empties an unlogged table when it was killed, and the proxies behind that fail the test above.
func TestAStoreThatForgetsIsFound(t *testing.T) {
	t.Parallel()
	own, err := newPostgres()
	must(t, err)
	schema, err := fencesql.Fence{Resource: "any", Dialect: fencesql.PostgreSQL}.Schema()
	must(t, err)
	_, err = connect(t, own.driver, own.dsn).ExecContext(t.Context(), strings.Replace(schema[0], "CREATE TABLE", "CREATE UNLOGGED TABLE", 1))
	must(t, err)
	err = fencetest.Fault(patience(t), crashingProxies{on(t, own, 2, killable), own, []int{0, 1}}, "RestartForgetsNothing")
	if err == nil || !strings.Contains(err.Error(), "SAFETY") {
		t.Errorf("a mark was lost, and the suite finds: %v", err)
	}
}

// Remote is the program with the SQLite in it, which is killed.
type Remote struct{ a *adapter }

// Call is a write.
type Call struct {
	Resource       fence.Resource
	Token, Payload string
}

// Answer is what became of it.
type Answer struct {
	Stale *fence.StaleError
	Error string
}

// Write does a fenced write.
func (r *Remote) Write(c Call, answer *Answer) error {
	err := r.a.Write(context.Background(), c.Resource, c.Token, c.Payload)
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		answer.Stale = stale
	} else if err != nil {
		answer.Error = err.Error()
	}
	return nil
}

// duplex is what a process reads and writes.
type duplex struct{ in, out *os.File }

func (d duplex) Read(p []byte) (int, error)  { return d.in.Read(p) }
func (d duplex) Write(p []byte) (int, error) { return d.out.Write(p) }
func (d duplex) Close() error                { return errors.Join(d.in.Close(), d.out.Close()) }

func serveSQLite() {
	db, err := sql.Open("sqlite", os.Getenv(orderEnv))
	if err != nil {
		panic(err)
	}
	server := rpc.NewServer()
	if err := server.Register(&Remote{&adapter{db: db, dialect: fencesql.SQLite}}); err != nil {
		panic(err)
	}
	server.ServeConn(duplex{os.Stdin, os.Stdout})
}

// killed is an adapter whose writes are made by a process that is killed.
type killed struct {
	*adapter
	dsn     string
	mu      sync.RWMutex // guards the two below
	process *subprocess.Process
	client  *rpc.Client
}

func (k *killed) Write(_ context.Context, r fence.Resource, token, payload string) error {
	k.mu.RLock()
	client := k.client
	k.mu.RUnlock()
	var answer Answer
	err := client.Call("Remote.Write", Call{r, token, payload}, &answer)
	switch {
	case err != nil:
		return err
	case answer.Stale != nil:
		return answer.Stale
	case answer.Error != "":
		return errors.New(answer.Error)
	}
	return nil
}

func (k *killed) Restart(context.Context) error {
	if k.process != nil {
		k.process.Stop(0)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), roleEnv+"=sqlite", orderEnv+"="+k.dsn), os.Stderr
	theirIn, in, err := os.Pipe()
	if err != nil {
		return err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	process, err := subprocess.Start(cmd)
	_ = errors.Join(theirIn.Close(), theirOut.Close())
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.process, k.client = process, rpc.NewClient(duplex{out, in})
	return nil
}

// TestAProgramWithSQLiteIsKilled while it writes.
func TestAProgramWithSQLiteIsKilled(t *testing.T) {
	t.Parallel()
	driver, dsn := kinds[2].address(t)
	k := &killed{adapter: &adapter{db: connect(t, driver, dsn), dialect: fencesql.SQLite}, dsn: dsn}
	k.makeTables(t)
	must(t, k.Restart(t.Context()))
	t.Cleanup(func() { k.process.Stop(0) })
	survives(t, k)
}
