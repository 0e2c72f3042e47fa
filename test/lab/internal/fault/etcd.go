//go:build linux

package fault

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/singletonjob/operator/test/lab/internal/cluster"
)

func (j Injector) backup() string { return j.Lab.EtcdData(1) + ".backup" }

// BackUpEtcd copies what etcd has stored, for RestoreEtcd. etcd restarts meanwhile. The API server is ready when it returns.
func (j Injector) BackUpEtcd(ctx context.Context) error {
	err := j.withoutEtcd(ctx, func() error { return replaceDir(j.backup(), j.Lab.EtcdData(1)) })
	return errors.Join(err, j.Lab.AwaitAPI(ctx, 1))
}

// RestoreEtcd goes back to what BackUpEtcd has kept, as an administrator does who restores a backup without bumping its
// revisions: those given out since are given out again. Kubernetes' own programs restart with it, because a client that
// watches from a revision that is not reached yet learns about nothing until then. The API server is ready when it returns.
func (j Injector) RestoreEtcd(ctx context.Context) error {
	if _, err := os.Stat(j.backup()); err != nil {
		return fmt.Errorf("no backup of etcd: run 'lab fault backup-etcd' before: %w", err)
	}
	if err := j.StopService(ctx, cluster.Control, cluster.APIServer(1)); err != nil {
		return err
	}
	if err := j.withoutEtcd(ctx, func() error { return replaceDir(j.Lab.EtcdData(1), j.backup()) }); err != nil {
		return err
	}
	// The controller manager ends if it finds no API server for 10 s.
	if err := errors.Join(j.RestartService(ctx, cluster.Control, cluster.APIServer(1)), j.Lab.AwaitAPI(ctx, 1)); err != nil {
		return err
	}
	errs := []error{
		j.RestartService(ctx, cluster.Control, cluster.ControllerManager),
		j.RestartService(ctx, cluster.Control, cluster.Scheduler),
	}
	machines, err := j.Lab.Machines()
	for _, m := range machines {
		if m.Node > 0 {
			errs = append(errs, j.RestartService(ctx, m.Name, cluster.Kubelet), j.RestartService(ctx, m.Name, cluster.KubeProxy))
		}
	}
	return errors.Join(append(errs, err)...)
}

// withoutEtcd does something while etcd is stopped.
func (j Injector) withoutEtcd(ctx context.Context, do func() error) error {
	switch c, err := j.Lab.Config(); {
	case err != nil:
		return err
	case c.ControlPlanes != 1:
		return fmt.Errorf("the lab has %d control planes: a backup is of one etcd, and the others would not have it", c.ControlPlanes)
	}
	if err := j.StopService(ctx, cluster.Control, cluster.Etcd(1)); err != nil {
		return err
	}
	return errors.Join(do(), j.RestartService(ctx, cluster.Control, cluster.Etcd(1)))
}

func replaceDir(dir, by string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.CopyFS(dir, os.DirFS(by))
}
