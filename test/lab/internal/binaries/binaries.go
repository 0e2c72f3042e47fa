//go:build linux

// Package binaries finds or builds the programs of a lab, all from Go modules with pinned versions. Kubernetes and etcd come from package
// controlplane, the container runtime and the cluster's DNS from the modules beside the lab.
package binaries

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/test/controlplane"
)

// project is the module that this program is part of.
const project = "github.com/singletonjob/operator"

// kubernetes are the programs that package controlplane builds.
var kubernetes = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}

// A module builds one or more programs.
type module struct {
	dir      string // below the checkout, where the go.mod or the modfile lies
	modfile  string // in dir; empty: go.mod
	packages []string
	flags    []string
	cgo      bool
	programs []string
}

var modules = map[string]module{
	"containerd": {
		dir: "test/lab/modules/containerd",
		packages: []string{
			"github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr",
		},
		flags:    []string{"-tags=no_btrfs,no_zfs"},
		programs: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
	},
	"runc": {
		dir:      "test/lab/modules/runc",
		packages: []string{"github.com/opencontainers/runc"},
		flags:    []string{"-tags=seccomp"},
		cgo:      true, // and Debian's libseccomp-dev and pkg-config
		programs: []string{"runc"},
	},
	"pause":   {dir: "test/lab/modules/pause", packages: []string{"."}, programs: []string{"pause"}},
	"csi":     {dir: "test/lab/modules/csi", packages: []string{"."}, programs: []string{"csi"}},
	"coredns": {dir: "test/lab/modules/coredns", packages: []string{"."}, programs: []string{"coredns"}},
	"helm":    {modfile: "tools/helm.mod", packages: []string{"helm.sh/helm/v4/cmd/helm"}, programs: []string{"helm"}},
}

// A Set is a directory of programs for each name.
type Set map[string]string

// Path is where the program lies.
func (s Set) Path(name string) string { return filepath.Join(s[name], name) }

// Runtime is what a lab needs beside the programs of Kubernetes.
var Runtime = []string{"containerd", "runc", "coredns", "pause"}

// Ensure returns the programs of Kubernetes and those of the named modules, building what the cache lacks.
func Ensure(ctx context.Context, progress io.Writer, names ...string) (Set, error) {
	kube, err := controlplane.Build(ctx, progress, kubernetes...)
	if err != nil {
		return nil, err
	}
	set := Set{}
	for _, program := range kubernetes {
		set[program] = kube.Dir
	}
	for _, name := range names {
		dir, err := Module(ctx, progress, name)
		if err != nil {
			return nil, err
		}
		for _, program := range modules[name].programs {
			set[program] = dir
		}
	}
	return set, nil
}

// Module returns the directory with the programs of one module, which is built if the cache lacks it.
func Module(ctx context.Context, progress io.Writer, name string) (string, error) {
	m, ok := modules[name]
	if !ok {
		return "", fmt.Errorf("no module %q", name)
	}
	root, err := checkout(ctx)
	if err != nil {
		return "", err
	}
	key, err := m.key(root)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "singletonjob", "lab", name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	_, _ = fmt.Fprintf(progress, "building %s from Go modules, once, into %s\n", strings.Join(m.programs, ", "), dir)
	begin := time.Now()
	if err := m.build(ctx, root, dir); err != nil {
		return "", err
	}
	_, _ = fmt.Fprintf(progress, "built in %v\n", time.Since(begin).Round(time.Second))
	return dir, nil
}

// key changes with everything that the programs are made of.
func (m module) key(root string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, m.packages, m.flags, m.cgo)
	files := []string{m.modfile, strings.TrimSuffix(m.modfile, ".mod") + ".sum"}
	if m.modfile == "" {
		files = []string{"go.mod", "go.sum"}
		sources, err := filepath.Glob(filepath.Join(root, m.dir, "*.go"))
		if err != nil {
			return "", err
		}
		for _, s := range sources {
			files = append(files, filepath.Base(s))
		}
	}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(root, m.dir, f))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // what requires nothing has no go.sum
			return "", err
		}
		_, _ = h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// build makes the directory all at once, so that a half-built one is never found.
func (m module) build(ctx context.Context, root, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	partial, err := os.MkdirTemp(filepath.Dir(dir), "building-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(partial) }()
	if err := os.Chmod(partial, 0o755); err != nil {
		return err
	}
	args := append([]string{"build", "-ldflags=-s -w"}, m.flags...)
	if m.modfile != "" {
		args = append(args, "-modfile="+m.modfile)
	}
	args = append(append(args, "-o", partial+"/"), m.packages...)
	cmd := gotool.Command(ctx, filepath.Join(root, m.dir), args...)
	if m.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", strings.Join(m.packages, " "), cmd.Dir, err, bytes.TrimSpace(out))
	}
	err = os.Rename(partial, dir)
	if errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil // somebody else was first
	}
	return err
}

// checkout finds the sources that this program was built from by asking Go for the project's module.
func checkout(ctx context.Context) (string, error) {
	out, err := gotool.Command(ctx, "", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("ask Go for the module of the current directory: %w", err)
	}
	path, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if path != project {
		return "", fmt.Errorf("the current directory belongs to module %s: run this in a checkout of %s", path, project)
	}
	return dir, nil
}

// Find returns the path of one program, which is built with its module if the cache lacks it.
func Find(ctx context.Context, progress io.Writer, program string) (string, error) {
	known := slices.Clone(kubernetes)
	if slices.Contains(kubernetes, program) {
		kube, err := controlplane.Build(ctx, progress, program)
		return kube.Path(program), err
	}
	for name, m := range modules {
		if slices.Contains(m.programs, program) {
			dir, err := Module(ctx, progress, name)
			return filepath.Join(dir, program), err
		}
		known = append(known, m.programs...)
	}
	slices.Sort(known)
	return "", fmt.Errorf("no program %q: there are %s", program, strings.Join(known, ", "))
}
