//go:build linux

package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/tenure"
)

// Listen opens the agent's socket. It uses the path in contract.SocketEnv, if that is set and differs from the default. Otherwise it tries
// the default first, where processes that the agent did not start look for it. Then it tries the directory for temporary files, and last
// an abstract socket, which needs no file.
func Listen(env func(string) string) (net.Listener, error) {
	if path := env(contract.SocketEnv); path != "" && path != tenure.DefaultSocket {
		return listen(path)
	}
	listener, err := listen(tenure.DefaultSocket)
	if err == nil {
		return listener, nil
	}
	own := fmt.Sprintf("singletonjob-%d-%s", os.Getpid(), filepath.Base(tenure.DefaultSocket))
	for _, path := range []string{filepath.Join(os.TempDir(), own), "@" + own} {
		if listener, again := listen(path); again == nil {
			return listener, nil
		}
	}
	return nil, err
}

// listen replaces the socket of an agent that has ended, but not of an agent that answers.
func listen(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another agent listens on %s", path)
	}
	if path[0] != '@' {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("cannot remove the socket of an earlier agent: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil || path[0] == '@' {
		return l, err
	}
	// All users may connect, because the socket only answers and a process that has given up root needs it.
	return l, errors.Join(os.Chmod(path, 0o666))
}

// ServeSocket sends the agent's status to every client that connects, until the listener is closed. It reads nothing and serves one client
// after the other. The answer fits into the socket's buffer, so a client that does not read delays no other client. Any number of such
// clients take neither memory nor descriptors of the agent.
func (a *Agent) ServeSocket(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond) // no descriptors left
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second)) // in case the kernel has no buffer space
		_ = json.NewEncoder(conn).Encode(a.snapshot.Load().status(supervise.BootTime()))
		_ = conn.Close()
	}
}

// Local returns the agent of this container: at the socket that the environment names, otherwise at the default.
func Local(env func(string) string) tenure.Agent {
	return tenure.Agent{Socket: cmp.Or(env(contract.SocketEnv), tenure.DefaultSocket)}
}
