//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/postgres"
	"github.com/singletonjob/operator/test/subprocess"
)

// A server is a store on the host.
type server struct {
	kind, address string // what its clients call it by
	writer        string // the program that reads it
	dir           string // its data
	said          bytes.Buffer
	process       *subprocess.Process
}

// serverStarts bounds how long one may take to answer.
const serverStarts = 3 * time.Minute

// newServer starts the server of a kind, if it is one that takes a server.
func newServer(ctx context.Context, kind, host, writer string) (*server, error) {
	command := commands[kind]
	if command == nil {
		return nil, nil
	}
	port, err := freePort(host)
	if err != nil {
		return nil, err
	}
	s := &server{kind: kind, writer: writer}
	if s.dir, err = os.MkdirTemp("", "bench-sinks-"); err != nil {
		return nil, err
	}
	cmd, address, err := command(ctx, s.dir, host, port)
	if err != nil {
		return s, fmt.Errorf("%s: %w", kind, err)
	}
	s.address, cmd.Stdout, cmd.Stderr = address, &s.said, &s.said
	if s.process, err = subprocess.Start(cmd); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, serverStarts)
	defer cancel()
	return s, observe.Await(ctx, kind+" to answer", func() (bool, any, error) {
		_, err := s.ask(ctx, offer.Prepare)
		return err == nil, nil, err
	})
}

func (s *server) close() {
	if s.process != nil {
		s.process.Stop(0)
	}
	_ = os.RemoveAll(s.dir)
}

// ask has the writers' program look after the store.
func (s *server) ask(ctx context.Context, what string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.writer, append([]string{what, s.kind}, args...)...)
	cmd.Env = append(os.Environ(), offer.AddressEnv+"="+s.address)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", what, s.kind, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

func (s *server) stored(ctx context.Context, log fence.Resource) (texts []string, err error) {
	out, err := s.ask(ctx, offer.List, string(log))
	if err == nil {
		err = json.Unmarshal(out, &texts)
	}
	return texts, err
}

// commands start the servers, and say what clients call them by. No fsync: nothing befalls this machine.
var commands = map[string]func(ctx context.Context, dir, host, port string) (cmd *exec.Cmd, address string, err error){
	"postgres": func(ctx context.Context, dir, host, port string) (*exec.Cmd, string, error) {
		cmd, err := postgres.Command(ctx, dir, host, port, "track_commit_timestamp=on")
		return cmd, fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable", postgres.User, net.JoinHostPort(host, port)), err
	},
	"mariadb": func(ctx context.Context, dir, host, port string) (*exec.Cmd, string, error) {
		data := filepath.Join(dir, "data")
		install := exec.CommandContext(ctx, "mariadb-install-db", "--no-defaults", "--datadir="+data, "--skip-test-db", "--user=root")
		if out, err := install.CombinedOutput(); err != nil {
			return nil, "", fmt.Errorf("mariadb-install-db: %w\n%s", err, out)
		}
		// The check can't have the server end a transaction that idles: idle_transaction_timeout is in seconds.
		address := fmt.Sprintf("root@tcp(%s)/mysql?idle_transaction_timeout=5", net.JoinHostPort(host, port))
		return exec.Command("mariadbd", "--no-defaults", "--user=root", "--datadir="+data, "--bind-address="+host, "--port="+port,
			"--socket="+filepath.Join(dir, "socket"), "--skip-grant-tables", "--skip-name-resolve", "--max-connections=300",
			"--innodb-flush-log-at-trx-commit=2"), address, nil
	},
	"etcd": func(ctx context.Context, dir, host, port string) (*exec.Cmd, string, error) {
		peerPort, err := freePort(host)
		if err != nil {
			return nil, "", err
		}
		programs, err := controlplane.Find(ctx, os.Stderr, "etcd")
		if err != nil {
			return nil, "", err
		}
		clients, peers := "http://"+net.JoinHostPort(host, port), "http://"+net.JoinHostPort(host, peerPort)
		return exec.Command(programs.Path("etcd"), "--name=only", "--data-dir="+dir, "--unsafe-no-fsync", "--log-level=error",
			"--listen-client-urls="+clients, "--advertise-client-urls="+clients,
			"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=only="+peers), clients, nil
	},
	"redis": func(_ context.Context, dir, host, port string) (*exec.Cmd, string, error) {
		return exec.Command("redis-server", "--bind", host, "--port", port, "--dir", dir, "--save", "", "--protected-mode", "no",
			"--appendonly", "yes", "--appendfsync", "always"), net.JoinHostPort(host, port), nil
	},
	"nats": func(ctx context.Context, dir, host, port string) (*exec.Cmd, string, error) {
		program, err := tool(ctx, "test/sinks/kv", "nats-server")
		if err != nil {
			return nil, "", err
		}
		return exec.Command(program, "--jetstream", "--store_dir="+dir, "--addr="+host, "--port="+port), "nats://" + net.JoinHostPort(host, port), nil
	},
	"s3": func(ctx context.Context, dir, host, port string) (*exec.Cmd, string, error) {
		const credential = "bench-sinks"
		program, err := tool(ctx, "test/sinks/kv/versitygw", "versitygw")
		if err != nil {
			return nil, "", err
		}
		address := net.JoinHostPort(host, port)
		return exec.Command(program, "--port="+address, "--access="+credential, "--secret="+credential, "--quiet", "--keep-alive",
			"posix", dir), credential + "@" + address, nil
	},
}

// tool builds a tool of the module in a directory.
func tool(ctx context.Context, dir, name string) (string, error) {
	build := exec.CommandContext(ctx, "go", "tool", "-n", name)
	build.Dir, build.Stderr = dir, os.Stderr
	out, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func freePort(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
