//go:build linux

// Package samples is what the programs of config/samples talk to in tests: each counts what is done to it. Its own tests run those programs
// twice without SingletonJob, and see that this is counted; those of test/stack run the samples themselves, and break what runs them.
package samples

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/debian"
)

// Dir has the samples, seen from the package of a test.
var Dir = "../../config/samples"

// Host is the address of all sinks. On the lab it is the one that Pods reach.
var Host = "127.0.0.1"

// serve serves a sink until the test ends. Long polls are broken off then.
func serve(t testing.TB, handler http.Handler) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(Host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}}
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// packages are Debian's, with all that they need.
var packages = debian.Packages{
	Release: "bookworm", Names: []string{"python3", "python3-apscheduler", "python3-celery", "python3-psycopg2", "python3-redis", "redis-server"},
	Without: []string{"perl*", "libperl*"},
}

var unpack = sync.OnceValues(func() (string, error) { return debian.Unpack(context.Background(), os.Stderr, packages) })

// Root has Debian's python3, and what the samples import, as unpacked packages.
func Root() (string, error) { return unpack() }

// Python puts Debian's python3, which has what the samples import, into a directory.
func Python(t testing.TB, dir string) {
	t.Helper()
	root, err := unpack()
	if err != nil {
		t.Fatal(err)
	}
	command := strings.Join(debian.Command(root, "/usr/bin/python3.11"), "' '")
	write(t, filepath.Join(dir, "python3"),
		fmt.Sprintf("#!/bin/sh\nexport PYTHONHOME='%s/usr' PYTHONDONTWRITEBYTECODE=1\nexec '%s' \"$@\"\n", root, command))
}

func python3(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	Python(t, dir)
	return filepath.Join(dir, "python3")
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// program is a process of a sample's program, without SingletonJob.
type program struct {
	*exec.Cmd
	output strings.Builder
	ended  chan struct{}
}

// start starts a program in a directory, this one if it is empty. It ends with the test at the latest.
func start(t testing.TB, dir string, env []string, name string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(name, args...), ended: make(chan struct{})}
	p.Dir, p.Env = dir, append(os.Environ(), env...)
	p.Stdout, p.Stderr = &p.output, &p.output
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			t.Logf("%v:\n%s", p.Args, &p.output)
		}
	})
	return p
}

// patience with a busy machine.
const patience = 2 * time.Minute

// awaitEnd waits until it has ended by itself.
func (p *program) awaitEnd(t testing.TB) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("%v does not end", p.Args)
	}
}

func (p *program) end() {
	_ = p.Process.Kill()
	<-p.ended
}
