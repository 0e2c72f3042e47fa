//go:build linux

// Package initd is process 1 of a lab machine. It sets the machine's mounts, name and network up, starts and stops its
// services on request, and reaps what is orphaned. When it ends, the kernel ends every process of the machine and takes
// its mounts and network with it: nothing of a machine can outlive its init.
package initd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// SetupFD is the file from which init reads its Setup. The program that starts init closes the other end without writing if
// it fails, and init then ends.
const SetupFD = 3

// A Setup is what makes the machine. The steps are taken in the order of the fields.
type Setup struct {
	Dir      string            // the lab's directory, visible at the same path from inside
	Private  []string          // directories that become empty, in memory, and the machine's own
	Binds    map[string]string // directory inside → directory of the host that appears there
	Hostname string            // empty: the host's
	IP       string            // a batch of commands for ip(8)
	Sysctls  map[string]string // path below /proc/sys → value
	Socket   string            // where requests are taken
}

// Run is init's main function. It returns only with an error.
func Run() error {
	var setup Setup
	from := os.NewFile(SetupFD, "setup")
	if err := json.NewDecoder(from).Decode(&setup); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("the one that started this machine gave it up")
		}
		return fmt.Errorf("read the machine's setup: %w", err)
	}
	_ = from.Close()
	if os.Getpid() != 1 {
		return errors.New("not process 1 of a machine: 'lab up' starts this")
	}
	if err := setup.apply(); err != nil {
		return err
	}
	listener, err := net.Listen("unix", setup.Socket)
	if err != nil {
		return err
	}
	s := newSupervisor()
	go s.reap()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go s.serve(conn)
	}
}

func (s Setup) apply() error {
	if err := s.mount(); err != nil {
		return err
	}
	if s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	if s.IP != "" {
		ip := exec.Command("ip", "-batch", "-")
		ip.Stdin = strings.NewReader(s.IP)
		if out, err := ip.CombinedOutput(); err != nil {
			return fmt.Errorf("set up the network: %w: %s", err, out)
		}
	}
	for name, value := range s.Sysctls {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// mount makes the machine's own view of the file system. Nothing propagates to the host.
func (s Setup) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("detach the mounts from the host: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// Held open, because the private directories may cover it.
	dir, err := unix.Open(s.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", s.Dir, err)
	}
	defer func() { _ = unix.Close(dir) }()
	for _, at := range s.Private {
		if err := unix.Mount("lab", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("mount a private %s: %w", at, err)
		}
	}
	if err := bind(fmt.Sprintf("/proc/self/fd/%d", dir), s.Dir); err != nil {
		return err
	}
	for at, source := range s.Binds {
		if err := bind(source, at); err != nil {
			return err
		}
	}
	// Volumes that ask for propagation need a shared parent.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the mounts within the machine: %w", err)
	}
	return nil
}

func bind(source, at string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, at, err)
	}
	return nil
}

func (s *supervisor) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	var q request
	if err := json.NewDecoder(conn).Decode(&q); err != nil {
		return // a probe for life, or a caller that went away
	}
	if err := json.NewEncoder(conn).Encode(s.handle(q)); err != nil {
		log.Printf("answer to %s %s: %v", q.Op, q.Service.Name, err)
	}
}
