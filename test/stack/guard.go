//go:build linux

package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/test/controlplane"
)

// ApplyGuard applies what the chart in the checkout root has for the guard. Each API server enforces it some moments later.
func ApplyGuard(ctx context.Context, plane *controlplane.ControlPlane, root string) error {
	return applyTemplate(ctx, plane, root, "guard.yaml")
}

// ApplyFence applies what the chart in the checkout root has for fenced objects. Each API server enforces it some moments later.
func ApplyFence(ctx context.Context, plane *controlplane.ControlPlane, root string) error {
	return applyTemplate(ctx, plane, root, "fence.yaml")
}

// applyTemplate applies one template of the chart as the Helm that tools/helm.mod pins renders it. The first call on a machine builds Helm.
func applyTemplate(ctx context.Context, plane *controlplane.ControlPlane, root, template string) error {
	path, err := HelmPath(ctx, root)
	if err != nil {
		return err
	}
	helm := gotool.Command(ctx, root)
	helm.Path = path
	helm.Args = []string{
		"helm", "template", "release", "charts/singletonjob", "--namespace=" + OperatorNamespace,
		"--set=serviceAccount.name=" + operatorAccount, "--show-only=templates/" + template,
	}
	manifest, err := helm.Output()
	if err != nil {
		return fmt.Errorf("rendering %s: %w", template, err)
	}
	dir, err := os.MkdirTemp("", "singletonjob-template-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, template)
	if err := os.WriteFile(file, manifest, 0o600); err != nil {
		return err
	}
	return plane.Apply(ctx, file)
}

// HelmPath is the Helm that tools/helm.mod pins; the first call on a machine builds it.
func HelmPath(ctx context.Context, root string) (string, error) {
	built, err := gotool.Command(ctx, root, "tool", "-modfile=tools/helm.mod", "-n", "helm").Output()
	if err != nil {
		return "", fmt.Errorf("build Helm: %w", err)
	}
	return strings.TrimSpace(string(built)), nil
}
