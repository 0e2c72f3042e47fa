//go:build linux

package controlplane

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/singletonjob/operator/test/subprocess"
)

// serverGrace is how long a restarted API server may take to finish its requests.
const serverGrace = 10 * time.Second

// ControlPlane is a running etcd with one or more kube-apiservers, and the processes that they are. Its methods may be called from any
// goroutine.
type ControlPlane struct {
	*APIServer
	progress io.Writer

	mu          sync.Mutex // guards the processes
	etcd        *subprocess.Process
	servers     []*subprocess.Process
	controllers map[string]*subprocess.Process // by name
	revive      map[string]func() (*subprocess.Process, error)
}

// Start starts a control plane on loopback and returns when its API answers and RBAC's own roles exist. Its processes end
// with Stop, and with the calling process however that ends.
func Start(ctx context.Context, o Options) (c *ControlPlane, err error) {
	err = o.prepared(ctx, func(a *APIServer) error {
		c = &ControlPlane{
			APIServer: a, progress: o.Progress,
			servers:     make([]*subprocess.Process, len(a.ports)),
			controllers: map[string]*subprocess.Process{}, revive: map[string]func() (*subprocess.Process, error){},
		}
		if err := c.start(ctx); err != nil {
			c.Stop()
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *ControlPlane) start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.startEtcd(); err != nil {
		return err
	}
	for i := range c.servers {
		if err := c.startServer(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *ControlPlane) startEtcd() (err error) {
	c.etcd, err = c.run(c.binaries.Path("etcd"), c.etcdFlags()...)
	return err
}

func (c *ControlPlane) startServer(ctx context.Context, i int) (err error) {
	server, err := c.run(c.binaries.Path("kube-apiserver"), c.serverFlags(i)...)
	if err != nil {
		return err // the one that ended remains
	}
	c.servers[i] = server
	return c.waitReady(ctx, c.URLs()[i], func() error {
		for name, p := range map[string]*subprocess.Process{"etcd": c.etcd, "kube-apiserver": c.servers[i]} {
			select {
			case <-p.Done():
				return c.ended(name, p.Err())
			default:
			}
		}
		return nil
	})
}

func (c *ControlPlane) run(program string, args ...string) (*subprocess.Process, error) {
	cmd, log, err := c.command(program, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	// A terminal's Ctrl-C is for the program that owns the control plane; it decides in which order to stop.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return subprocess.Start(cmd)
}

// Stop ends all programs at once and removes the temporary directory. It may be called twice.
func (c *ControlPlane) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range append(append(slices.Collect(maps.Values(c.controllers)), c.servers...), c.etcd) {
		if p != nil {
			p.Stop(0) // the data is thrown away, so there is nothing to finish
		}
	}
	c.remove()
}

// StopAPIServer ends the API server, or all of them; clients are refused until StartAPIServer.
func (c *ControlPlane) StopAPIServer() { c.stopServers(serverGrace, c.all()...) }

// KillAPIServer ends it at once: one that is asked to end waits for its watches, for a minute at most.
func (c *ControlPlane) KillAPIServer() { c.stopServers(0, c.all()...) }

// StopServer ends one of several API servers, as StopAPIServer does. Each is known by its place in URLs.
func (c *ControlPlane) StopServer(i int) { c.stopServers(serverGrace, i) }

// KillServer ends one of several API servers, as KillAPIServer does.
func (c *ControlPlane) KillServer(i int) { c.stopServers(0, i) }

func (c *ControlPlane) all() []int {
	all := make([]int, len(c.ports))
	for i := range all {
		all[i] = i
	}
	return all
}

func (c *ControlPlane) stopServers(grace time.Duration, which ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ending sync.WaitGroup
	for _, i := range which {
		ending.Go(func() { c.servers[i].Stop(grace) })
	}
	ending.Wait()
}

// runs reports whether an API server does. The caller holds c.mu.
func (c *ControlPlane) runs(i int) bool {
	select {
	case <-c.servers[i].Done():
		return false
	default:
		return true
	}
}

// StartAPIServer starts the stopped API server, or all of them that are, on the address and with the data that each had. It returns
// when they are ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var starting errgroup.Group
	started := false
	for i := range c.servers {
		if !c.runs(i) {
			started = true
			starting.Go(func() error { return c.startServer(ctx, i) })
		}
	}
	if !started {
		return errors.New("the API server runs already")
	}
	return starting.Wait()
}

// StopEtcd kills etcd, and StartEtcd starts it again with the data that it had.
func (c *ControlPlane) StopEtcd() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.etcd.Stop(0)
}

// StartEtcd starts a stopped etcd; it does not wait for it.
func (c *ControlPlane) StartEtcd() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.etcd.Done():
		return c.startEtcd()
	default:
		return errors.New("etcd runs already")
	}
}

// SignalEtcd sends sig to etcd: SIGSTOP pauses it, SIGCONT lets it continue.
func (c *ControlPlane) SignalEtcd(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.etcd.Signal(sig)
}

// SignalAPIServer sends sig to the API server, or to all of them, as SignalEtcd does to etcd. A killed one stays down until StartAPIServer.
func (c *ControlPlane) SignalAPIServer(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, server := range c.servers {
		errs = append(errs, server.Signal(sig))
	}
	return errors.Join(errs...)
}

// SignalServer sends sig to one of several API servers.
func (c *ControlPlane) SignalServer(i int, sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[i].Signal(sig)
}

// EtcdPid is etcd's process.
func (c *ControlPlane) EtcdPid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.etcd.Pid()
}

// ServerPids are the processes of all API servers, in the order of URLs.
func (c *ControlPlane) ServerPids() (pids []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, server := range c.servers {
		pids = append(pids, server.Pid())
	}
	return pids
}
