//go:build linux

package cluster

import (
	"context"
	"strings"
)

// The release that Install makes.
const (
	Release         = "singletonjob"
	SystemNamespace = "singletonjob-system"
)

// Install installs or upgrades the operator from the chart, with an image given as name:tag and further settings given as
// key=value, and waits until it is ready.
func (c *Cluster) Install(ctx context.Context, chart, image string, settings ...string) error {
	helm, err := c.Program(ctx, "helm")
	if err != nil {
		return err
	}
	repository, tag, _ := strings.Cut(image, ":")
	args := []string{
		helm, "upgrade", "--install", Release, chart, "--namespace", SystemNamespace, "--create-namespace",
		"--set", "image.repository=" + repository, "--set", "image.tag=" + tag, "--wait", "--timeout", "10m",
	}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	_, err = c.Run(ctx, args...)
	return err
}

// Uninstall removes the release, if there is one, and waits until its pods are gone.
func (c *Cluster) Uninstall(ctx context.Context) error {
	helm, err := c.Program(ctx, "helm")
	if err != nil {
		return err
	}
	args := []string{helm, "uninstall", Release, "--namespace", SystemNamespace, "--wait", "--cascade=foreground", "--ignore-not-found"}
	if _, err = c.Run(ctx, args...); err != nil { // Helm's wait ends early where a watch does, as on an etcd that was restored
		_, err = c.Run(ctx, args...)
	}
	return err
}
