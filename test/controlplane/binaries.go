//go:build linux

// Package controlplane runs a real etcd and kube-apiserver on loopback, for tests and the demo: no cluster, no root.
//
// Find gets the programs, Start runs them. A test that started them can stop, pause and kill them, and add a real scheduler and controller
// manager with StartControllers. There is no kubelet: package localnode runs pods without. Tests that need an API server and nothing else
// share one by package apiserver.
package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/singletonjob/operator/build/gotool"
)

// The pinned versions, equal to those of kubernetes/go.mod.
const (
	KubernetesVersion = "1.37.1"
	EtcdVersion       = "3.7.3"
)

// versionVariable names another version of Kubernetes to build, as in make e2e K8S=1.36.3. Its etcd is the pinned one.
const versionVariable = "K8S"

func wantedVersion() (string, error) {
	version := cmp.Or(os.Getenv(versionVariable), KubernetesVersion)
	if !regexp.MustCompile(`^1\.\d+\.\d+$`).MatchString(version) {
		return "", fmt.Errorf("%s=%s: expected a version such as %s", versionVariable, version, KubernetesVersion)
	}
	return version, nil
}

// assetsVariable is how users of controller-runtime's envtest name a directory of ready binaries.
const assetsVariable = "KUBEBUILDER_ASSETS"

// Binaries is a directory of programs.
type Binaries struct {
	Dir string
	// Origin tells a person where they come from.
	Origin string
}

// Path is where the program called name lies.
func (b Binaries) Path(name string) string { return filepath.Join(b.Dir, name) }

func (b Binaries) missing(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		info, err := os.Stat(b.Path(name))
		return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
	})
}

// minimal is a control plane and the command line to look at it, and all that envtest's archives hold.
var minimal = []string{"etcd", "kube-apiserver", "kubectl"}

// All are the programs that this package runs.
var All = append(slices.Clone(minimal), "kube-controller-manager", "kube-scheduler")

// Find returns the named programs, by default etcd, kube-apiserver and kubectl. It looks in $KUBEBUILDER_ASSETS, which must be complete if
// it is set; then in a cache outside the checkout; else it builds them from Go modules into the cache. Slow steps are reported to progress.
func Find(ctx context.Context, progress io.Writer, names ...string) (Binaries, error) {
	if len(names) == 0 {
		names = minimal
	}
	if dir := os.Getenv(assetsVariable); dir != "" {
		return assets(dir, names)
	}
	return Build(ctx, progress, names...)
}

func assets(dir string, names []string) (Binaries, error) {
	b := Binaries{Dir: dir, Origin: "$" + assetsVariable}
	if missing := b.missing(names); len(missing) > 0 {
		return Binaries{}, fmt.Errorf("%s=%s lacks the executable %s: complete the directory, or unset the variable to have them built",
			assetsVariable, dir, strings.Join(missing, ", "))
	}
	return b, nil
}

// cacheDir is for one version alone, so that a new version never meets old programs.
func cacheDir(version string) (string, error) {
	root, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place to keep the control plane's programs (%w): set HOME or XDG_CACHE_HOME, or point %s at a directory of them", err, assetsVariable)
	}
	return filepath.Join(root, "singletonjob", "k8s-"+version), nil
}

// moduleDir finds the nested module beside this package: programs are built from the checkout that runs.
func moduleDir(ctx context.Context) (string, error) {
	const self = "github.com/singletonjob/operator/test/controlplane"
	out, err := gotool.Command(ctx, "", "list", "-f", "{{.Dir}}", self).Output()
	if err != nil {
		return "", fmt.Errorf("finding the source of %s (run it inside the checkout): %w", self, withStderr(err))
	}
	return filepath.Join(strings.TrimSpace(string(out)), "kubernetes"), nil
}
