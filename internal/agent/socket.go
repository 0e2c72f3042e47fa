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

// socketName is the socket's in whatever directory it is: the base of tenure.DefaultSocket.
const socketName = "agent.sock"

// Listen opens the agent's socket: at the path in contract.SocketEnv if that names another than this, else beside the agent's binary,
// where processes that were not started by the agent look for it, else in the directory for temporary files, else in
// the kernel's own name space, where no file is needed.
func Listen(env func(string) string) (net.Listener, error) {
	if path := env(contract.SocketEnv); path != "" && path != socketBeside() {
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

// ServeSocket tells each that connects how things stand, until the listener is closed. It reads nothing, and answers one after
// the other: the answer goes into the socket's buffer, so that nobody waits for one who does not read, and any number of those
// take neither memory nor descriptors of the agent's.
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
		_ = conn.SetDeadline(time.Now().Add(time.Second)) // should a kernel have no room for so little
		_ = json.NewEncoder(conn).Encode(a.snapshot.Load().status(supervise.BootTime()))
		_ = conn.Close()
	}
}

// Local is the agent of this container as this program finds it: by the environment, else beside itself.
func Local(env func(string) string) tenure.Agent {
	return tenure.Agent{Socket: cmp.Or(env(contract.SocketEnv), socketBeside())}
}
