//go:build linux

package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/build/gotool"
)

// program is one that the nested module kubernetes can build. Etcd's package is called v3, so its name is given.
type program struct{ name, pkg string }

var programs = func() map[string]program {
	all := map[string]program{"etcd": {name: "etcd", pkg: "go.etcd.io/etcd/server/v3"}}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "kube-proxy"} {
		all[name] = program{name: name, pkg: "k8s.io/kubernetes/cmd/" + name}
	}
	return all
}()

// Build returns the named programs of Kubernetes and etcd, building those that the cache lacks from Go modules. The lab
// uses it for the programs that no archive of envtest holds. Two callers at once build only once.
func Build(ctx context.Context, progress io.Writer, names ...string) (Binaries, error) {
	if unknown := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return programs[n].pkg != "" }); len(unknown) > 0 {
		return Binaries{}, fmt.Errorf("cannot build %s: known are %s",
			strings.Join(unknown, ", "), strings.Join(slices.Sorted(maps.Keys(programs)), ", "))
	}
	version, err := wantedVersion()
	if err != nil {
		return Binaries{}, err
	}
	return buildVersion(ctx, progress, version, names)
}

func buildVersion(ctx context.Context, progress io.Writer, version string, names []string) (Binaries, error) {
	b, err := cache(version)
	if err != nil {
		return Binaries{}, err
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return Binaries{}, fmt.Errorf("making the cache: %w", err)
	}
	unlock, err := lock(ctx, progress, filepath.Join(filepath.Dir(b.Dir), "lock"))
	if err != nil {
		return Binaries{}, err
	}
	defer unlock()
	missing := b.missing(names)
	if len(missing) == 0 {
		return b, nil
	}
	if version == KubernetesVersion {
		dir, err := moduleDir(ctx)
		if err != nil {
			return Binaries{}, err
		}
		return b, build(ctx, progress, version, dir, b, missing)
	}
	return b, buildOther(ctx, progress, version, b, missing)
}

// build builds programs in the module in dir.
func build(ctx context.Context, progress io.Writer, version, dir string, b Binaries, names []string) error {
	// In the cache itself, so that the rename at the end stays on one file system and is atomic.
	scratch, err := os.MkdirTemp(filepath.Dir(b.Dir), "building-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	_, _ = fmt.Fprintf(progress, "building %s from Go modules, once, into %s\n", strings.Join(names, ", "), b.Dir)
	begin := time.Now()
	all := gotool.Compilation{Name: "Kubernetes " + version, Dir: dir}
	for _, name := range names {
		all.Packages = append(all.Packages, programs[name].pkg)
	}
	if err := all.Run(ctx, progress); err != nil {
		return err
	}
	for _, name := range names {
		if err := link(ctx, version, dir, programs[name], scratch); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(scratch, name), b.Path(name)); err != nil {
			return err
		}
	}
	_, _ = fmt.Fprintf(progress, "built in %v\n", time.Since(begin).Round(time.Second))
	return nil
}

// link builds one program of what is compiled.
func link(ctx context.Context, version, dir string, p program, into string) error {
	const variables = "k8s.io/component-base/version"
	parts := strings.SplitN(version, ".", 3)
	ldflags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=v%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s",
		variables, version, parts[0], parts[1])
	out, err := gotool.Command(ctx, dir, "build", "-ldflags", ldflags, "-o", filepath.Join(into, p.name), p.pkg).CombinedOutput()
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("building %s in %s: %w\n%s", p.pkg, dir, err, bytes.TrimSpace(out))
	}
	return nil
}

func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// lock waits for the only right to build. The kernel gives the lock back when its holder ends, however it ends.
func lock(ctx context.Context, progress io.Writer, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; told = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = file.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !told {
			_, _ = fmt.Fprintf(progress, "another process is building the control plane; waiting for it (lock %s)\n", path)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("waiting for the build that holds %s: %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}
