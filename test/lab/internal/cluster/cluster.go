//go:build linux

// Package cluster brings a Kubernetes cluster of one Linux machine up and takes it down. The control plane is on a lab machine with the
// host's network, and each node on a lab machine of its own.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/singletonjob/operator/test/lab/internal/binaries"
	"github.com/singletonjob/operator/test/lab/internal/cgroup"
	"github.com/singletonjob/operator/test/lab/internal/machine"
	"github.com/singletonjob/operator/test/lab/internal/proc"
)

// A Lab is the one in its directory, whether it is up or not.
type Lab struct {
	dir      string
	tree     *cgroup.Tree
	progress io.Writer
	bin      binaries.Set // after ensureBinaries
	owned    bool         // after Own
	mu       sync.Mutex   // guards the state while machines boot at once
}

// Open takes the lab in the directory. Slow steps are reported to progress.
func Open(dir string, progress io.Writer) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a lab is made of namespaces and control groups: run this as root")
	}
	tree, err := cgroup.Open(Group)
	if err != nil {
		return nil, err
	}
	return &Lab{dir: dir, tree: tree, progress: progress}, nil
}

// Groups is the lab's tree of control groups.
func (l *Lab) Groups() *cgroup.Tree { return l.tree }

func (l *Lab) say(format string, args ...any) { _, _ = fmt.Fprintf(l.progress, format+"\n", args...) }

func (l *Lab) ensureBinaries(ctx context.Context) error {
	if l.bin != nil {
		return nil
	}
	var err error
	l.bin, err = binaries.Ensure(ctx, l.progress, binaries.Runtime...)
	return err
}

// A Machine of the lab, with the number of its node; the control plane's is 0.
type Machine struct {
	machine.Machine
	Node int
}

// Daemons is the control group of the machine's own processes; Group also holds those of its pods.
func (m Machine) Daemons() string { return daemons(m.Name) }

// Group holds every process of the machine.
func (m Machine) Group() string { return nodeGroup(m.Name) }

// Config reports what the lab was asked to be, or an error that says how to start one.
func (l *Lab) Config() (Config, error) {
	s, err := l.loadState()
	if err != nil {
		return Config{}, err
	}
	if s == nil {
		return Config{}, fmt.Errorf("there is no lab in %s: start one with 'lab up'", l.dir)
	}
	return s.Config, nil
}

// Machines lists the control plane's machine and then the nodes', alive or not.
func (l *Lab) Machines() ([]Machine, error) {
	s, err := l.loadState()
	if err != nil {
		return nil, err
	}
	if s == nil {
		_, err := l.Config()
		return nil, err
	}
	all := []Machine{l.machineOf(s, 0)}
	for i := 1; i <= s.Nodes; i++ {
		all = append(all, l.machineOf(s, i))
	}
	return all, nil
}

// Machine finds one by its name.
func (l *Lab) Machine(name string) (Machine, error) {
	all, err := l.Machines()
	if err != nil {
		return Machine{}, err
	}
	var names []string
	for _, m := range all {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return Machine{}, fmt.Errorf("no machine %q: there are %s", name, strings.Join(names, ", "))
}

func machineName(node int) string {
	if node == 0 {
		return Control
	}
	return NodeName(node)
}

func (l *Lab) machineOf(s *state, node int) Machine {
	name := machineName(node)
	return Machine{Node: node, Machine: machine.Machine{Name: name, Dir: l.path(name), Init: s.Machines[name]}}
}

// Down ends the lab, in whatever state it is, and removes everything it made but the built programs.
func (l *Lab) Down(ctx context.Context) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := l.loadState()
	if err != nil {
		l.say("%v; going on without it", err)
	}
	if s == nil {
		s = &state{}
	}
	// The init of every machine, and all that it started, is in the lab's control groups, whatever the state says.
	if err := l.tree.Remove(ctx); err != nil {
		return err
	}
	if err := l.removeLinks(ctx); err != nil {
		return err
	}
	if before, err := os.ReadFile(l.forwardBefore()); err == nil {
		if err := os.WriteFile(ipForward, before, 0); err != nil {
			return err
		}
	}
	// The rest of an incomplete machine ends by itself, because the pipe to its creator is closed.
	for name, init := range s.Machines {
		if err := init.WaitGone(ctx); err != nil {
			return fmt.Errorf("machine %s: %w", name, err)
		}
	}
	if err := os.RemoveAll(l.dir); err != nil {
		return err
	}
	return l.removeLock()
}

const ipForward = "/proc/sys/net/ipv4/ip_forward"

// ensureBridge makes the link that joins nodes and host, and gives the host the API servers' addresses.
func (l *Lab) ensureBridge(ctx context.Context, s *state) error {
	if err := l.enableForwarding(); err != nil {
		return err
	}
	var batch strings.Builder
	if !linkExists(Bridge) {
		fmt.Fprintf(&batch, "link add %s type bridge\n", Bridge)
	}
	for i := 1; i <= s.ControlPlanes; i++ {
		fmt.Fprintf(&batch, "addr replace %s/24 dev %s\n", APIAddress(i), Bridge)
	}
	fmt.Fprintf(&batch, "link set %s up\n", Bridge)
	for i := 1; i <= s.Nodes; i++ {
		batch.WriteString(podRoute(i))
	}
	return ip(ctx, batch.String())
}

func (l *Lab) forwardBefore() string { return l.path("ip_forward.before") }

// enableForwarding first writes down what the host had, for 'down', unless an earlier call has.
func (l *Lab) enableForwarding() error {
	if _, err := os.Stat(l.forwardBefore()); errors.Is(err, fs.ErrNotExist) {
		before, err := os.ReadFile(ipForward)
		if err != nil {
			return err
		}
		partial := l.forwardBefore() + ".partial"
		if err := os.WriteFile(partial, before, 0o644); err != nil {
			return err
		}
		if err := os.Rename(partial, l.forwardBefore()); err != nil {
			return err
		}
	}
	return os.WriteFile(ipForward, []byte("1"), 0)
}

// connect makes the node's link: one end on the bridge, the other, eth0, in the network of the machine. It vanishes with
// either end.
func connect(ctx context.Context, node, initPID int) error {
	link := NodeLink(node)
	if linkExists(link) { // of the machine's last life, and about to vanish by itself
		if err := ip(ctx, "link del "+link+"\n"); err != nil && linkExists(link) {
			return err
		}
	}
	return ip(ctx, fmt.Sprintf("link add %s type veth peer name eth0 netns %d\nlink set %[1]s master %[3]s\nlink set %[1]s up\n", link, initPID, Bridge))
}

func (l *Lab) removeLinks(ctx context.Context) error {
	links := []string{Bridge}
	for i := 1; i <= maxNodes; i++ {
		links = append(links, NodeLink(i))
	}
	for _, link := range links {
		// A node's link may vanish between the question and the command: its network is being taken down.
		for linkExists(link) {
			err := ip(ctx, "link del "+link+"\n")
			if err != nil && ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

func linkExists(name string) bool {
	_, err := os.Stat("/sys/class/net/" + name)
	return err == nil
}

// ip runs a batch of commands of ip(8) in the host's network.
func ip(ctx context.Context, batch string) error {
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("set links up: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// boot returns the node's machine, or the control plane's for 0, and starts it unless it lives.
func (l *Lab) boot(ctx context.Context, s *state, node int) (Machine, error) {
	name := machineName(node)
	l.mu.Lock()
	m := l.machineOf(s, node)
	l.mu.Unlock()
	if m.Init.Alive() {
		return m, nil
	}
	if err := l.tree.Make(daemons(name)); err != nil {
		return m, err
	}
	spec := machine.Spec{Name: name, Dir: m.Dir, OwnNetwork: node > 0}
	spec.Setup.Dir = l.dir
	if node > 0 {
		spec.Setup = l.nodeSetup(node, s.Nodes)
	}
	spec.Prepare = func(booting machine.Machine) error {
		if err := l.tree.Join(daemons(name), booting.Init.PID); err != nil {
			return err
		}
		if node > 0 {
			if err := connect(ctx, node, booting.Init.PID); err != nil {
				return err
			}
		}
		return l.record(s, name, booting.Init)
	}
	var err error
	m.Machine, err = machine.Boot(ctx, spec)
	return m, err
}

// record writes down that the machine exists. Several boot at once.
func (l *Lab) record(s *state, name string, init proc.Process) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Machines[name] = init
	return l.saveState(s)
}

// Program is where a program of the lab, or one that its users need, lies. It is built if it is not there.
func (l *Lab) Program(ctx context.Context, name string) (string, error) {
	return binaries.Find(ctx, l.progress, name)
}
