//go:build linux

package controlplane

import (
	"bytes"
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

func TestBuildRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	_, err := Build(t.Context(), io.Discard, "etcd", "kubeadm")
	if err == nil || !strings.Contains(err.Error(), "cannot build kubeadm") {
		t.Errorf("got %v", err)
	}
}

func TestOneBuilderAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), io.Discard, path)
	if err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, &told, path); err == nil || !strings.Contains(told.String(), "waiting") {
		t.Errorf("the second builder got the lock (%v) or did not say that it waits: %q", err, told.String())
	}
	unlock()
	unlock, err = lock(t.Context(), io.Discard, path)
	if err != nil {
		t.Fatalf("the lock was given back, but: %v", err)
	}
	unlock()
}
