package sinks

import (
	"context"
	"database/sql"
	"errors"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/singletonjob/operator/fence"
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
