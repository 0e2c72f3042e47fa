//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A Lab drives the lab's command on this machine.
type Lab struct {
	// Host is the address of the host that nodes and pods reach.
	Host string
	// Nodes are the nodes' names, Zones those of each zone.
	Nodes []string
	Zones map[string][]string
	// ControlPlanes is how many there are: each an API server and an etcd.
	ControlPlanes int

	binary   string
	mu       sync.Mutex
	programs map[string]string
}

// findLab returns nil if there is no lab on this machine, or the API server at that URL is not the lab's.
func findLab(ctx context.Context, apiServer string) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, nil // no lab could be driven
	}
	dir, err := os.MkdirTemp("", "cluster-lab-")
	if err != nil {
		return nil, err
	}
	l := &Lab{binary: filepath.Join(dir, "lab"), programs: map[string]string{}}
	if err := Build(ctx, "./test/lab", l.binary); err != nil {
		return nil, err
	}
	var status struct {
		Host       string
		APIServers []string
		Machines   []struct{ Name, Pods, Zone string }
	}
	// Without a lab the command fails, and the list of API servers stays empty.
	if text, err := exec.CommandContext(ctx, l.binary, "status", "-json").Output(); err == nil {
		if err := json.Unmarshal(text, &status); err != nil {
			return nil, fmt.Errorf("read the lab's status: %w", err)
		}
	}
	if !slices.Contains(status.APIServers, apiServer) {
		l.close()
		return nil, nil
	}
	l.Host, l.ControlPlanes, l.Zones = status.Host, len(status.APIServers), map[string][]string{}
	for _, m := range status.Machines {
		if m.Pods != "" {
			l.Nodes = append(l.Nodes, m.Name)
			l.Zones[m.Zone] = append(l.Zones[m.Zone], m.Name)
		}
	}
	return l, nil
}

func (l *Lab) close() { _ = os.RemoveAll(filepath.Dir(l.binary)) }

func (l *Lab) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, l.binary, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("lab %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), err
}

// Fault breaks or heals something: the arguments are those of 'lab fault'.
func (l *Lab) Fault(ctx context.Context, args ...string) error {
	_, err := l.run(ctx, append([]string{"fault"}, args...)...)
	return err
}

// Image loads images: the arguments are those of 'lab image'.
func (l *Lab) Image(ctx context.Context, args ...string) error {
	_, err := l.run(ctx, append([]string{"image"}, args...)...)
	return err
}

// Start starts a program inside a machine of the lab, one that ends with its standard input: when stop is called.
func (l *Lab) Start(machine string, argv ...string) (stop func() error, err error) {
	cmd := exec.CommandContext(context.Background(), l.binary, append([]string{"exec", machine}, argv...)...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%s on %s: %w: %s", argv[0], machine, err, strings.TrimSpace(said.String()))
		}
		return nil
	}, nil
}

// Program is where a program of the lab lies.
func (l *Lab) Program(ctx context.Context, name string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if path := l.programs[name]; path != "" {
		return path, nil
	}
	path, err := l.run(ctx, "program", name)
	if err == nil {
		l.programs[name] = path
	}
	return path, err
}
