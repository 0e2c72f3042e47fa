//go:build linux

// Package machine runs one lab machine: a set of namespaces (processes, mounts, name, and for nodes the network) that
// live exactly as long as the init inside.
package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/test/lab/internal/initd"
	"github.com/singletonjob/operator/test/lab/internal/proc"
)

// InitCommand is the argument with which this program runs initd.Run.
const InitCommand = "machine-init"

// A Machine is a booted one.
type Machine struct {
	Name string
	Dir  string       // its directory on the host
	Init proc.Process // as the host counts
}

// A Spec says what to boot.
type Spec struct {
	Name  string
	Dir   string
	Setup initd.Setup // Socket is filled in
	// OwnNetwork gives the machine a network of its own; else it has the host's.
	OwnNetwork bool
	// Prepare runs when the machine's first process exists and waits: to put it into its control group, to hand it its
	// link, and to write down that it exists. Should this program end before Prepare has returned, the machine ends.
	Prepare func(Machine) error
}

// SocketOf is where the init of the machine with that directory takes requests.
func SocketOf(dir string) initd.Client { return initd.Client(filepath.Join(dir, "init.sock")) }

// Boot starts the machine and returns when its init takes requests.
func Boot(ctx context.Context, spec Spec) (Machine, error) {
	m := Machine{Name: spec.Name, Dir: spec.Dir}
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		return m, err
	}
	socket := SocketOf(spec.Dir)
	if err := os.RemoveAll(string(socket)); err != nil { // of the boot before
		return m, err
	}
	spec.Setup.Socket = string(socket)
	setup, err := json.Marshal(spec.Setup)
	if err != nil {
		return m, err
	}
	process, handOver, err := spawn(spec)
	if err != nil {
		return m, fmt.Errorf("start machine %s: %w", spec.Name, err)
	}
	defer func() { _ = handOver.Close() }()
	if m.Init, err = proc.Of(process.Pid); err != nil {
		return m, err
	}
	if err := spec.Prepare(m); err != nil {
		return m, fmt.Errorf("prepare machine %s: %w", spec.Name, err)
	}
	if _, err := handOver.Write(setup); err != nil {
		return m, err
	}
	if err := handOver.Close(); err != nil {
		return m, err
	}
	go func() { _, _ = process.Wait() }() // no zombie while this program continues
	return m, m.awaitInit(ctx)
}

func spawn(spec Spec) (*os.Process, *os.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	output, err := os.OpenFile(filepath.Join(spec.Dir, "init.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = output.Close() }()
	setup, handOver, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = setup.Close() }()
	flags := uintptr(syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC)
	if spec.OwnNetwork {
		flags |= syscall.CLONE_NEWNET
	}
	// The process is not tied to this one: it must outlive it once it has been set up, and until then it ends with the pipe.
	process, err := os.StartProcess(self, []string{self, InitCommand, spec.Dir}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
		Files: []*os.File{nil, output, output, initd.SetupFD: setup},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: flags},
	})
	if err != nil {
		_ = handOver.Close()
		return nil, nil, err
	}
	return process, handOver, nil
}

func (m Machine) awaitInit(ctx context.Context) error {
	for {
		_, err := m.Services().List(ctx)
		if err == nil {
			return nil
		}
		if !m.Init.Alive() {
			tail, _ := os.ReadFile(filepath.Join(m.Dir, "init.log"))
			return fmt.Errorf("machine %s ended at its start: %s", m.Name, bytes.TrimSpace(tail))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("machine %s does not answer: %w", m.Name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Services reaches the machine's init.
func (m Machine) Services() initd.Client { return SocketOf(m.Dir) }

// Path is where a file of the machine is found from outside.
func (m Machine) Path(inside string) string {
	return fmt.Sprintf("/proc/%d/root%s", m.Init.PID, inside)
}

// Crash ends the machine at once, as a power failure does: all its processes, its mounts, its network.
func (m Machine) Crash(ctx context.Context) error {
	if err := m.Init.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return m.Init.WaitGone(ctx)
}

// Command is one that runs inside the machine.
func (m Machine) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return m.enter(ctx, []string{"--mount", "--net", "--pid", "--uts", "--ipc"}, argv)
}

// NetworkCommand is a command of the host that runs in the machine's network.
func (m Machine) NetworkCommand(ctx context.Context, argv ...string) *exec.Cmd {
	return m.enter(ctx, []string{"--net"}, argv)
}

// InNetwork runs a command of the host in the machine's network, with the input, and returns an error with its output if
// it fails.
func (m Machine) InNetwork(ctx context.Context, input string, argv ...string) error {
	cmd := m.NetworkCommand(ctx, argv...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("on %s: %s: %w: %s", m.Name, strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

func (m Machine) enter(ctx context.Context, namespaces, argv []string) *exec.Cmd {
	args := append([]string{"--target", strconv.Itoa(m.Init.PID)}, namespaces...)
	return exec.CommandContext(ctx, "nsenter", append(append(args, "--"), argv...)...)
}
