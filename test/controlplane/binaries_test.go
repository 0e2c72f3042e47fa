//go:build linux

package controlplane

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheNestedModulePinsTheNamedVersions(t *testing.T) {
	t.Parallel()
	module, err := os.ReadFile("kubernetes/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"k8s.io/kubernetes v" + KubernetesVersion, "go.etcd.io/etcd/server/v3 v" + EtcdVersion} {
		if !strings.Contains(string(module), want) {
			t.Errorf("kubernetes/go.mod does not require %s", want)
		}
	}
	for name, p := range programs {
		if !strings.Contains(string(module), "\t"+p.pkg+"\n") {
			t.Errorf("kubernetes/go.mod does not name %s as the tool for %s", p.pkg, name)
		}
	}
}

// TestFind: each program is taken where it is found first, in $KUBEBUILDER_ASSETS, in the cache, on PATH. Nothing is built.
func TestFind(t *testing.T) {
	minor := func(version string) string { return version[:strings.LastIndex(version, ".")+1] }
	fits := "echo Kubernetes v" + minor(KubernetesVersion) + "9; echo etcd Version: " + minor(EtcdVersion) + "9"
	const old = "echo Kubernetes v1.36.3; echo etcd Version: 3.4.1"
	cases := map[string]struct {
		assets, cached, path map[string]string // what each program does
		names                []string
		want                 map[string]string // where it is taken
	}{
		"complete assets": {
			assets: map[string]string{"etcd": old, "kube-apiserver": old, "kubectl": old},
			want:   map[string]string{"etcd": "assets", "kube-apiserver": "assets", "kubectl": "assets"},
		},
		"the archives of envtest, for the demo": {
			assets: map[string]string{"etcd": old, "kube-apiserver": fits, "kubectl": old}, names: All,
			cached: map[string]string{"kube-scheduler": ""}, path: map[string]string{"kube-controller-manager": fits, "kubectl": fits},
			want: map[string]string{
				"etcd": "assets", "kube-apiserver": "assets", "kubectl": "assets", "kube-scheduler": "cached", "kube-controller-manager": "path",
			},
		},
		"all of the cache": {
			cached: map[string]string{"etcd": "", "kube-apiserver": "", "kubectl": ""}, path: map[string]string{"etcd": fits},
			want: map[string]string{"etcd": "cached", "kube-apiserver": "cached", "kubectl": "cached"},
		},
		"nothing but PATH": {
			path: map[string]string{"etcd": fits, "kube-apiserver": fits, "kubectl": fits},
			want: map[string]string{"etcd": "path", "kube-apiserver": "path", "kubectl": "path"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			t.Setenv(versionVariable, "")
			t.Setenv("XDG_CACHE_HOME", filepath.Join(root, "cache"))
			dirs := map[string]string{
				"assets": filepath.Join(root, "assets"), "path": filepath.Join(root, "path"),
				"cached": filepath.Join(root, "cache", "singletonjob", "k8s-"+KubernetesVersion, "bin"),
			}
			for place, programs := range map[string]map[string]string{"assets": c.assets, "cached": c.cached, "path": c.path} {
				for name, text := range programs {
					write(t, filepath.Join(dirs[place], name), text, 0o755)
				}
			}
			t.Setenv("PATH", dirs["path"]+":"+os.Getenv("PATH"))
			if t.Setenv(assetsVariable, ""); c.assets != nil {
				t.Setenv(assetsVariable, dirs["assets"])
			}
			got, err := Find(t.Context(), io.Discard, c.names...)
			if err != nil {
				t.Fatal(err)
			}
			for name, place := range c.want {
				if path, err := filepath.EvalSymlinks(got.Path(name)); err != nil || path != filepath.Join(dirs[place], name) {
					t.Errorf("%s is %s, %v; want that of %s", name, path, err, place)
				}
			}
		})
	}
}

func write(t *testing.T, file, script string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), mode); err != nil {
		t.Fatal(err)
	}
}

// TestMixedVersions: a scheduler of another version than its API server may wait for what that does not serve.
func TestMixedVersions(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "kube-apiserver"), "echo Kubernetes v1.36.3", 0o755)
	t.Setenv(assetsVariable, dir)
	t.Setenv(versionVariable, "")
	if _, err := Find(t.Context(), io.Discard, "kube-apiserver", "kube-scheduler"); err == nil || !strings.Contains(err.Error(), "and no kube-scheduler: set K8S=") {
		t.Errorf("got %v", err)
	}
}

func TestOtherVersionsOnPath(t *testing.T) {
	dir := t.TempDir()
	for _, name := range All {
		write(t, filepath.Join(dir, name), "echo Kubernetes v1.36.3; echo etcd Version: 3.4.1", 0o755)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if got := onPath(t.Context(), KubernetesVersion, All); len(got) > 0 {
		t.Errorf("programs of other versions are taken: %v", got)
	}
}

func TestAssetsWithoutPrograms(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "etcd"), "", 0o644) // not executable
	t.Setenv(assetsVariable, dir)
	if _, err := Find(t.Context(), io.Discard, "etcd"); err == nil || !strings.Contains(err.Error(), dir+" has no executable etcd, ") {
		t.Errorf("got %v", err)
	}
}

func TestBuildRefusesUnknownBinaries(t *testing.T) {
	t.Parallel()
	_, err := Build(t.Context(), io.Discard, "etcd", "kubeadm")
	if err == nil || !strings.Contains(err.Error(), "cannot build kubeadm") {
		t.Errorf("got %v", err)
	}
}

// lines are what is written, one by one, but for what nobody takes.
type lines chan string

func (l lines) Write(text []byte) (int, error) {
	select {
	case l <- string(text):
	default:
	}
	return len(text), nil
}

func TestOneBuilderAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), io.Discard, path)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := make(chan error, 1)
	go func() {
		_, err := lock(ctx, lines(told), path)
		waited <- err
	}()
	select {
	case line := <-told:
		if !strings.Contains(line, "waiting") {
			t.Errorf("the second builder does not say that it waits: %q", line)
		}
	case err := <-waited:
		t.Fatalf("the second builder does not wait: %v", err)
	}
	select {
	case err := <-waited:
		t.Fatalf("the second builder does not go on waiting: %v", err)
	case line := <-told:
		t.Errorf("the second builder says so again: %q", line)
	case <-time.After(500 * time.Millisecond): // two looks
	}
	cancel()
	if err := <-waited; err == nil {
		t.Error("the second builder got the lock")
	}
	unlock()
	unlock, err = lock(t.Context(), io.Discard, path)
	if err != nil {
		t.Fatalf("the lock was given back, but: %v", err)
	}
	unlock()
}
