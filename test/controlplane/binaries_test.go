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

func TestAssetsDirectory(t *testing.T) {
	cases := map[string]struct {
		files map[string]os.FileMode
		names []string
		lacks string
		why   string
	}{
		"complete":       {files: map[string]os.FileMode{"etcd": 0o755, "kube-apiserver": 0o755, "kubectl": 0o755}},
		"one missing":    {files: map[string]os.FileMode{"etcd": 0o755, "kubectl": 0o755}, lacks: "kube-apiserver"},
		"not executable": {files: map[string]os.FileMode{"etcd": 0o644, "kube-apiserver": 0o755, "kubectl": 0o755}, lacks: "etcd"},
		"all missing":    {lacks: "etcd, kube-apiserver, kubectl"},
		"only the asked": {files: map[string]os.FileMode{"kubelet": 0o755}, names: []string{"kubelet"}, why: "the lab asks for others than envtest's"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, mode := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), nil, mode); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv(assetsVariable, dir)
			got, err := Find(t.Context(), io.Discard, c.names...)
			if c.lacks == "" {
				if err != nil || got.Dir != dir {
					t.Errorf("got %v, %v; want the directory %s (%s)", got, err, dir, c.why)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), dir+" lacks the executable "+c.lacks+":") {
				t.Errorf("want an error that says what %s lacks, got: %v", dir, err)
			}
		})
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
