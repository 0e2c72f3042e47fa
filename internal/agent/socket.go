//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/supervise"
)

// socketName is the socket's in whatever directory it is.
const socketName = "agent.sock"

// Listen opens the agent's socket: at the path in contract.SocketEnv if that is set, else beside the agent's binary,
// where processes that were not started by the agent look for it, else in the directory for temporary files, else in
// the kernel's own name space, where no file is needed.
func Listen(env func(string) string) (net.Listener, error) {
	if path := env(contract.SocketEnv); path != "" {
		return listen(path)
	}
	listener, err := listen(socketBeside())
	if err == nil {
		return listener, nil
	}
	own := fmt.Sprintf("singletonjob-%d-%s", os.Getpid(), socketName)
	for _, path := range []string{filepath.Join(os.TempDir(), own), "@" + own} {
		if listener, again := listen(path); again == nil {
			return listener, nil
		}
	}
	return nil, err
}

func socketBeside() string {
	exe, err := os.Executable()
	if err != nil {
		return filepath.Join(contract.AgentDir, socketName)
	}
	return filepath.Join(filepath.Dir(exe), socketName)
}

// listen takes the place of an agent that is gone, not of one that answers.
func listen(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another agent listens on %s", path)
	}
	if path[0] != '@' {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove the socket of an earlier agent: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil || path[0] == '@' {
		return l, err
	}
	// The socket only answers, and a process that gave up root must be able to ask.
	return l, errors.Join(os.Chmod(path, 0o666))
}

// ServeSocket writes the snapshot to each that connects, until the listener is closed.
func (a *Agent) ServeSocket(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond) // out of descriptors
			continue
		}
		go func() {
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			answer := *a.snapshot.Load()
			if answer.ValidUntil != 0 {
				answer.ValidUntilBoot = supervise.NoLater(answer.ValidUntil)
			}
			_ = json.NewEncoder(conn).Encode(answer)
		}()
	}
}

// Ask asks the agent of this container for its snapshot.
func Ask(env func(string) string, limit time.Duration) (Snapshot, error) {
	path := env(contract.SocketEnv)
	if path == "" {
		path = socketBeside()
	}
	var s Snapshot
	conn, err := net.DialTimeout("unix", path, limit)
	if err != nil {
		return s, fmt.Errorf("no agent answers on %s: %w", path, err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return s, err
	}
	if err := json.NewDecoder(conn).Decode(&s); err != nil {
		return s, fmt.Errorf("the agent on %s gives no answer: %w", path, err)
	}
	return s, nil
}
