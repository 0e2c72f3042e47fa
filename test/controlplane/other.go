//go:build linux

package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/singletonjob/operator/build/gotool"
)

// buildOther builds programs of another version of Kubernetes than the pinned one. Its etcd is the pinned one.
func buildOther(ctx context.Context, progress io.Writer, version string, b Binaries, names []string) error {
	if i := slices.Index(names, "etcd"); i >= 0 {
		names = slices.Delete(names, i, i+1)
		pinned, err := buildVersion(ctx, progress, KubernetesVersion, []string{"etcd"})
		if err != nil {
			return err
		}
		if err := os.Link(pinned.Path("etcd"), b.Path("etcd")); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	dir := filepath.Join(filepath.Dir(b.Dir), "module")
	if err := makeModule(ctx, dir, version, names); err != nil {
		return fmt.Errorf("preparing to build Kubernetes %s: %w", version, err)
	}
	return build(ctx, progress, version, dir, b, names)
}

// makeModule makes a module in dir that builds programs of this version. Its requirements are those of k8s.io/kubernetes itself, with the
// published versions of the staging modules. The Go tool checks all of them against the checksum database.
func makeModule(ctx context.Context, dir, version string, names []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	own, err := goMod(ctx, dir, version)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "go.mod")
	if err := os.WriteFile(file, own, 0o644); err != nil {
		return err
	}
	out, err := gotool.Command(ctx, dir, "mod", "edit", "-json", file).Output()
	if err != nil {
		return withStderr(err)
	}
	edit, err := edits(out, version)
	if err != nil {
		return err
	}
	list := []string{"list", "-mod=mod", "-deps"} // which writes go.sum
	for _, name := range names {
		list = append(list, programs[name].pkg)
	}
	for _, args := range [][]string{append(edit, file), list} {
		if _, err := gotool.Command(ctx, dir, args...).Output(); err != nil {
			return withStderr(err)
		}
	}
	return nil
}

// goMod returns the go.mod of k8s.io/kubernetes.
func goMod(ctx context.Context, dir, version string) ([]byte, error) {
	out, err := gotool.Command(ctx, dir, "mod", "download", "-json", "k8s.io/kubernetes@v"+version).Output()
	var module struct{ GoMod, Error string }
	// A version that does not exist is an error of the command, which its output explains.
	if json.Unmarshal(out, &module) == nil && module.Error != "" {
		return nil, errors.New(module.Error)
	}
	if err != nil {
		return nil, withStderr(err)
	}
	return os.ReadFile(module.GoMod)
}

// edits are the arguments of the Go tool that turn the go.mod of k8s.io/kubernetes, given as JSON, into one of a module that requires it.
func edits(own []byte, version string) ([]string, error) {
	var file struct {
		Replace []struct{ Old, New struct{ Path string } }
	}
	if err := json.Unmarshal(own, &file); err != nil {
		return nil, err
	}
	args := []string{"mod", "edit", "-module=kubernetes", "-require=k8s.io/kubernetes@v" + version}
	for _, r := range file.Replace {
		if strings.HasPrefix(r.New.Path, "./staging/") {
			args = append(args, fmt.Sprintf("-replace=%[1]s=%[1]s@v0%s", r.Old.Path, strings.TrimPrefix(version, "1")))
		}
	}
	return args, nil
}
