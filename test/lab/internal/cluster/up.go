//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/singletonjob/operator/test/lab/internal/initd"
	"github.com/singletonjob/operator/test/lab/internal/proc"
)

// Up brings the lab up as configured. It leaves what runs as it is and starts what is missing. So it can be called again at any time:
// after a crash of this program, of a service or of a node.
func (l *Lab) Up(ctx context.Context, c Config) error {
	if err := c.validate(); err != nil {
		return err
	}
	if err := l.ensureBinaries(ctx); err != nil {
		return err
	}
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := l.begin(c)
	if err != nil {
		return err
	}
	if err := errors.Join(l.issueCertificates(s.Config), l.writeSystemImages(), l.startMissing(ctx, s, everything)); err != nil {
		return err
	}
	return l.finish(ctx, s)
}

// Resume starts what does not run of these machines of a lab that was up, and does not wait for the cluster to notice.
func (l *Lab) Resume(ctx context.Context, machines ...Machine) error {
	if err := l.ensureBinaries(ctx); err != nil {
		return err
	}
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := l.loadState()
	if err != nil || s == nil {
		return err
	}
	return l.startMissing(ctx, s, func(node int) bool {
		return slices.ContainsFunc(machines, func(m Machine) bool { return m.Node == node })
	})
}

// begin loads the state of the lab that is there, or writes that of a new one.
func (l *Lab) begin(c Config) (*state, error) {
	s, err := l.loadState()
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = &state{Config: c}
	}
	if s.ControlPlanes != c.ControlPlanes || s.Nodes > c.Nodes {
		return nil, fmt.Errorf("the lab in %s has %d nodes and %d control planes, and it can only get more nodes: run 'lab down' first",
			l.dir, s.Nodes, s.ControlPlanes)
	}
	if s.Machines == nil {
		s.Machines = map[string]proc.Process{}
	}
	s.Config, s.Owned = c, l.owned
	if err := os.MkdirAll(l.path("log"), 0o755); err != nil {
		return nil, err
	}
	return s, l.saveState(s)
}

func everything(int) bool { return true }

// startMissing starts what is chosen of control plane (0) and nodes side by side; the kubelets wait for the API servers.
func (l *Lab) startMissing(ctx context.Context, s *state, chosen func(node int) bool) error {
	if err := l.ensureBridge(ctx, s); err != nil {
		return err
	}
	work, ctx := errgroup.WithContext(ctx)
	apiReady := make(chan struct{})
	work.Go(func() error {
		if chosen(0) {
			if err := l.startControlPlane(ctx, s); err != nil {
				return err
			}
		}
		close(apiReady)
		return nil
	})
	for i := 1; i <= s.Nodes; i++ {
		if chosen(i) {
			work.Go(func() error { return l.startNode(ctx, s, i, apiReady) })
		}
	}
	return work.Wait()
}

func (l *Lab) startControlPlane(ctx context.Context, s *state) error {
	if err := os.WriteFile(l.path("audit-policy.yaml"), []byte(auditPolicy), 0o644); err != nil {
		return err
	}
	m, err := l.boot(ctx, s, 0)
	if err != nil {
		return err
	}
	if len(l.missing(ctx, s.Config, m)) == 0 {
		return nil
	}
	n := s.ControlPlanes
	for i := 1; i <= n; i++ {
		if err := m.Services().Start(ctx, l.etcdService(i, n)); err != nil {
			return err
		}
	}
	for i := 1; i <= n; i++ {
		if err := m.Services().Start(ctx, l.apiServerService(i, n)); err != nil {
			return err
		}
	}
	for i := 1; i <= n; i++ {
		if err := l.awaitAPI(ctx, m, i); err != nil {
			return err
		}
	}
	for _, service := range l.controllersServices() {
		if err := m.Services().Start(ctx, service); err != nil {
			return err
		}
	}
	return nil
}

// startNode boots the node and starts its daemons: the kubelet when it has its images and an API server to register with.
func (l *Lab) startNode(ctx context.Context, s *state, i int, apiReady <-chan struct{}) error {
	if err := l.writeNodeFiles(ctx, i); err != nil {
		return err
	}
	m, err := l.boot(ctx, s, i)
	if err != nil {
		return err
	}
	if len(l.missing(ctx, s.Config, m)) == 0 {
		return nil
	}
	if err := m.Services().Start(ctx, l.containerdService(i)); err != nil {
		return err
	}
	if err := l.awaitContainerd(ctx, m); err != nil {
		return err
	}
	for _, archive := range l.systemImages() {
		if err := l.importImage(ctx, m, archive); err != nil {
			return err
		}
	}
	select {
	case <-apiReady:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, service := range l.kubeletServices(i) {
		if err := m.Services().Start(ctx, service); err != nil {
			return err
		}
	}
	return nil
}

// StartService starts one of the machine's services if it does not run.
func (l *Lab) StartService(ctx context.Context, m Machine, name string) error {
	if err := l.ensureBinaries(ctx); err != nil {
		return err
	}
	c, err := l.Config()
	if err != nil {
		return err
	}
	for _, service := range l.services(c, m) {
		if service.Name == name {
			return m.Services().Start(ctx, service)
		}
	}
	return fmt.Errorf("%s has no service %q", m.Name, name)
}

// Missing names the services of the machine that should run and do not.
func (l *Lab) Missing(ctx context.Context, m Machine) ([]string, error) {
	if err := l.ensureBinaries(ctx); err != nil {
		return nil, err
	}
	c, err := l.Config()
	if err != nil {
		return nil, err
	}
	return l.missing(ctx, c, m), nil
}

func (l *Lab) missing(ctx context.Context, c Config, m Machine) []string {
	running := map[string]bool{}
	if m.Init.Alive() {
		statuses, _ := m.Services().List(ctx)
		for _, s := range statuses {
			running[s.Name] = s.PID != 0
		}
	}
	var missing []string
	for _, service := range l.services(c, m) {
		if !running[service.Name] {
			missing = append(missing, service.Name)
		}
	}
	return missing
}

// services lists what should run on the machine.
func (l *Lab) services(c Config, m Machine) []initd.Service {
	if m.Node > 0 {
		return append([]initd.Service{l.containerdService(m.Node)}, l.kubeletServices(m.Node)...)
	}
	var all []initd.Service
	for i := 1; i <= c.ControlPlanes; i++ {
		all = append(all, l.etcdService(i, c.ControlPlanes), l.apiServerService(i, c.ControlPlanes))
	}
	return append(all, l.controllersServices()...)
}

// Poll asks until the answer is yes, an error, or the context ends.
func Poll(ctx context.Context, every time.Duration, what string, done func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}
