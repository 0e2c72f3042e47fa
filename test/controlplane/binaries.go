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
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
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

// Find returns the named programs, by default etcd, kube-apiserver and kubectl. It takes each where it finds it first: in
// $KUBEBUILDER_ASSETS; in a cache outside the checkout; on PATH, if its version fits. It builds what is missing from Go modules into the cache.
// Slow steps are reported to progress.
func Find(ctx context.Context, progress io.Writer, names ...string) (Binaries, error) {
	if len(names) == 0 {
		names = minimal
	}
	ready, err := assets(os.Getenv(assetsVariable), names)
	if err != nil {
		return Binaries{}, err
	}
	rest := lacking(ready, names)
	if len(rest) == 0 {
		return Binaries{Dir: os.Getenv(assetsVariable), Origin: "$" + assetsVariable}, nil
	}
	version, err := wantedVersion()
	if err != nil {
		return Binaries{}, err
	}
	if server, has := ready["kube-apiserver"]; has && !fits(ctx, "kube-apiserver", server, version) {
		return Binaries{}, fmt.Errorf("$%s has a kube-apiserver of another version than %s, and no %s: set %s=VERSION to build these in its version, or unset the variable",
			assetsVariable, version, strings.Join(rest, ", "), versionVariable)
	}
	cached, err := cache(version)
	if err != nil {
		return Binaries{}, err
	}
	maps.Copy(ready, onPath(ctx, version, cached.missing(rest)))
	if len(ready) == 0 {
		return Build(ctx, progress, names...)
	}
	if rest = lacking(ready, names); len(rest) > 0 {
		if _, err := Build(ctx, progress, rest...); err != nil {
			return Binaries{}, err
		}
	}
	origin := "found on this machine"
	for _, name := range rest {
		ready[name] = cached.Path(name)
		origin = fmt.Sprintf("found on this machine, and %s %s", strings.Join(rest, ", "), cached.Origin)
	}
	dir, err := linked(filepath.Dir(filepath.Dir(cached.Dir)), ready)
	return Binaries{Dir: dir, Origin: origin}, err
}

func lacking(ready map[string]string, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return ready[name] != "" })
}

// assets returns which of the named programs are in a directory, by name. A directory without any program is a mistake.
func assets(dir string, names []string) (map[string]string, error) {
	found := map[string]string{}
	if dir == "" {
		return found, nil
	}
	b := Binaries{Dir: dir}
	if len(b.missing(All)) == len(All) {
		return nil, fmt.Errorf("%s=%s has no executable %s: correct or unset the variable", assetsVariable, dir, strings.Join(All, ", "))
	}
	missing := b.missing(names)
	for _, name := range names {
		if !slices.Contains(missing, name) {
			found[name] = b.Path(name)
		}
	}
	return found, nil
}

// onPath returns those of the named programs that are on PATH in the wanted minor version.
func onPath(ctx context.Context, version string, names []string) map[string]string {
	found := map[string]string{}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil && fits(ctx, name, path, version) {
			found[name] = path
		}
	}
	return found
}

// fits reports whether a program has the wanted minor version.
func fits(ctx context.Context, name, path, version string) bool {
	args, want := []string{"--version"}, "v"+version[:strings.LastIndex(version, ".")+1]
	switch name {
	case "etcd":
		want = "etcd Version: " + EtcdVersion[:strings.LastIndex(EtcdVersion, ".")+1]
	case "kubectl":
		args = []string{"version", "--client"}
	}
	out, err := exec.CommandContext(ctx, path, args...).Output()
	return err == nil && strings.Contains(string(out), want)
}

// linked makes a directory of links to programs, whose name depends on them alone.
func linked(root string, programs map[string]string) (dir string, err error) {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if programs[name], err = filepath.Abs(programs[name]); err != nil {
			return "", err
		}
		_, _ = fmt.Fprintln(h, name, programs[name])
	}
	dir = filepath.Join(root, "links-"+hex.EncodeToString(h.Sum(nil))[:12])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for name, path := range programs {
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return dir, nil
}

// cache is for one version alone, so that a new version never meets old programs.
func cache(version string) (Binaries, error) {
	root, err := os.UserCacheDir()
	if err != nil {
		return Binaries{}, fmt.Errorf("no place to keep the control plane's programs (%w): set HOME or XDG_CACHE_HOME, or point %s at a directory of them", err, assetsVariable)
	}
	dir := filepath.Join(root, "singletonjob", "k8s-"+version, "bin")
	return Binaries{Dir: dir, Origin: "built from Go modules, version " + version}, nil
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
