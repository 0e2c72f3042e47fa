//go:build linux

// Package postgres starts a PostgreSQL for tests and benchmarks: the machine's own, or Debian's.
package postgres

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/debian"
)

// nobody is whom PostgreSQL sees itself run by where the tests are run by root, which it refuses. It may read what root may: the
// programs are in root's cache.
const nobody = 65534

// Server is one of the test's own.
type Server struct {
	testing.TB
	// Dir is the directory of its socket. Clients of the socket are User.
	Dir string
	// Port is of its socket, and of the address of StartTCP and StartOn.
	Port string
	programs
}

// User owns the database.
const User = "app"

// Start starts one, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, "", "5432")
}

// StartTCP starts one that is to be reached by TCP, too.
func StartTCP(t testing.TB) *Server {
	t.Helper()
	return StartOn(t, "127.0.0.1")
}

// StartOn starts one that is to be reached at an address of this machine, with settings as name=value.
func StartOn(t testing.TB, address string, settings ...string) *Server {
	t.Helper()
	port, err := controlplane.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, address, strconv.Itoa(port), settings...)
}

func start(t testing.TB, address, port string, settings ...string) *Server {
	t.Helper()
	p := &Server{TB: t, Dir: t.TempDir(), Port: port}
	var log bytes.Buffer
	server, err := p.server(t.Context(), p.Dir, address, append(settings, "port="+port)...)
	if err != nil {
		t.Fatal(err)
	}
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT)
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if p.Psql("SELECT 1").Run() == nil {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatal("the server takes no connection")
		}
	}
}

// Command makes a database in a folder, for a program that is no test, and returns the command of its server. The server is open to
// everybody who reaches the address and port of this machine. Settings are as name=value.
func Command(ctx context.Context, dir, host, port string, settings ...string) (*exec.Cmd, error) {
	return new(programs).server(ctx, dir, host, append([]string{"port=" + port, "max_connections=300"}, settings...)...)
}

// programs are those of one PostgreSQL.
type programs struct {
	dir string
	bin string
	env []string
}

// server makes a database, and the command of its server. Without an address that has only its socket.
func (p *programs) server(ctx context.Context, dir, host string, settings ...string) (*exec.Cmd, error) {
	if err := p.find(ctx); err != nil {
		return nil, err
	}
	p.dir = dir
	data := filepath.Join(dir, "data")
	if out, err := p.command(ctx, "initdb", "--pgdata="+data, "--username="+User, "--auth=trust", "--no-sync", "--no-instructions").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	args := []string{"-D", data, "-k", dir, "-c", "listen_addresses=" + host, "-c", "fsync=off"}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	if host != "" {
		hba := filepath.Join(dir, "hba")
		if err := os.WriteFile(hba, []byte("local all all trust\nhost all all all trust\n"), 0o644); err != nil {
			return nil, err
		}
		args = append(args, "-c", "hba_file="+hba)
	}
	return p.command(context.Background(), "postgres", args...), nil
}

// find takes the machine's own PostgreSQL, or else Debian's, as the tests on a cluster do.
func (p *programs) find(ctx context.Context) error {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) > 0 {
		p.bin = filepath.Dir(found[0])
		return nil
	}
	root, err := debian.Unpack(ctx, os.Stderr, debian.Packages{Release: "bookworm", Names: []string{"postgresql-15"}, Keep: "usr"})
	if err != nil {
		return fmt.Errorf("no PostgreSQL here (apt-get install postgresql), and none to be had: %w", err)
	}
	p.bin = filepath.Join(root, "usr/lib/postgresql/15/bin")
	libraries, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu"))
	if err != nil || len(libraries) != 1 {
		return fmt.Errorf("libraries in %s: %v, %w", root, libraries, err)
	}
	p.env = []string{"LD_LIBRARY_PATH=" + libraries[0]}
	return nil
}

func (p *programs) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, program), args...)
	cmd.Dir = p.dir
	cmd.Env = append([]string{"PATH=" + p.bin + ":/usr/bin:/bin", "HOME=" + p.dir, "LC_ALL=C", "TZ=UTC"}, p.env...)
	if os.Geteuid() == 0 {
		asNobody := []syscall.SysProcIDMap{{ContainerID: nobody, Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: asNobody, GidMappings: asNobody}
	}
	return cmd
}

// Client is the server's own psql for other programs to start, and what it needs in its environment.
func (p *Server) Client() (program string, env []string) { return filepath.Join(p.bin, "psql"), p.env }

// Psql is a program that runs SQL from its standard input, with variables.
func (p *Server) Psql(sql string, variables ...string) *exec.Cmd {
	args := []string{"--host=" + p.Dir, "--port=" + p.Port, "--username=" + User, "--dbname=postgres", "--no-psqlrc", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1"}
	for _, v := range variables {
		args = append(args, "-v", v)
	}
	cmd := p.command(p.Context(), "psql", append(args, "-f", "-")...)
	cmd.Stdin = strings.NewReader(sql)
	return cmd
}

// Says compares what it prints.
func (p *Server) Says(want, sql string, variables ...string) {
	p.Helper()
	if out, err := p.Psql(sql, variables...).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != want {
		p.Fatalf("%s\nsays %q, want %q: %v", sql, out, want, err)
	}
}

// Until asks until the answer is as it should be.
func (p *Server) Until(want, sql string) {
	p.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		out, err := p.Psql(sql).Output()
		if err == nil && strings.TrimSpace(string(out)) == want {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("%s says %q, not %q: %v", sql, out, want, err)
		}
	}
}
