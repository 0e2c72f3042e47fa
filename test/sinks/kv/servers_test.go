package kv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/subprocess"
)

// kind is a sort of store under test.
type kind struct {
	name string
	// command runs a server of it on an address, with its data in a folder that survives it.
	command func(addr, dir string) (*exec.Cmd, error)
	// open is a client of the server at an address; ready, whether that answers.
	open  func(addr string) (sink, error)
	ready func(ctx context.Context, s sink) error
	// writes is in what a client sends when it writes, and not in what it reads before.
	writes string
	// each is how many of 64 writers write to one resource where there are many.
	each int
}

// sink is a store behind its fence, as the suite sees it.
type sink interface {
	fencetest.Stricter
	fencetest.Verbatim
	Close() error
}

// crashing is a sink whose server can be killed.
type crashing struct {
	sink
	server *server
}

// Restart kills the server and starts it again.
func (c crashing) Restart(context.Context) error {
	c.server.kill()
	return c.server.start()
}

var kinds = []kind{etcd, redisServer, s3Store, natsServer}

// server is a process with a store of this run.
type server struct {
	kind    kind
	addr    string
	dir     string
	process *subprocess.Process
}

func (s *server) start() error {
	c, err := s.kind.command(s.addr, s.dir)
	if err != nil {
		return err
	}
	if s.process, err = subprocess.Start(c); err != nil {
		return err
	}
	client, err := s.kind.open(s.addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	const lasts = 3 * time.Minute
	for deadline := time.Now().Add(lasts); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err = s.kind.ready(ctx, client)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Done():
			return fmt.Errorf("%s has ended: %w", s.kind.name, errors.Join(s.process.Err(), err))
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer: %w", s.kind.name, err)
		}
	}
}

// kill ends the server as a crash does.
func (s *server) kill() { s.process.Stop(0) }

// run starts a server that ends with the test. The port that it gets may be another's by then: it is tried again.
func run(t *testing.T, k kind) *server {
	t.Helper()
	const attempts = 3
	var err error
	for range attempts {
		var addr string
		if addr, err = free(); err != nil {
			t.Fatal(err)
		}
		s := &server{kind: k, addr: addr, dir: t.TempDir()}
		if err = s.start(); err == nil {
			t.Cleanup(s.kill)
			return s
		}
		if s.process != nil {
			s.kill()
		}
	}
	t.Fatal(err)
	return nil
}

// client opens one that ends with the test.
func (s *server) client(t *testing.T) sink {
	t.Helper()
	client, err := s.kind.open(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// root is the folder of the repository.
func root() string { return filepath.Join("..", "..", "..") }

// kubernetes is where etcd lies: beside the API server that other tests run.
var kubernetes = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	c := exec.Command("go", "run", "./test/controlplane/get")
	c.Dir, c.Stderr = root(), os.Stderr
	out, err := c.Output()
	return strings.TrimSpace(string(out)), err
})

func each(t *testing.T, test func(t *testing.T, k kind)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// patience is what a step may take on a busy machine.
func patience(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(asHolder) != "" {
		holder()
		return
	}
	os.Exit(m.Run())
}
