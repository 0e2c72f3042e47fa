package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// TestManifest checks the fields that krew reads.
func TestManifest(t *testing.T) {
	text, err := render("v0.1.0", "https://example.com/x", []archive{
		{"linux", "amd64", "kubectl-singleton_v0.1.0_linux_amd64.tar.gz", "aa11", "kubectl-singleton"},
		{"windows", "amd64", "kubectl-singleton_v0.1.0_windows_amd64.tar.gz", "bb22", "kubectl-singleton.exe"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version, ShortDescription string
			Platforms                 []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.UnmarshalStrict(text, &map[string]any{}); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	p := m.Spec.Platforms
	if m.Metadata.Name != "singleton" || m.Spec.Version != "v0.1.0" || len(m.Spec.ShortDescription) > 50 || len(p) != 2 ||
		p[1].URI != "https://example.com/x/kubectl-singleton_v0.1.0_windows_amd64.tar.gz" || p[1].SHA256 != "bb22" ||
		p[1].Bin != "kubectl-singleton.exe" || p[1].Selector.MatchLabels["os"] != "windows" {
		t.Errorf("%+v of\n%s", m, text)
	}
}

// TestInvalidManifestIsNotWritten: nothing is written for an invalid version, or for an address that krew refuses.
func TestInvalidManifestIsNotWritten(t *testing.T) {
	for flag, want := range map[string]string{
		"-version=unknown": `-version="unknown": krew needs a version such as v0.1.0`,
		"-url=http://x":    `-url="http://x": krew downloads only from https:// URLs`,
	} {
		if err := run([]string{"-version=v0.1.0", "-url=https://x", "-output=" + t.TempDir(), flag}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %s, got %v", flag, want, err)
		}
	}
}

// TestArchive: the unpacked plugin runs, and has its licence with it.
func TestArchive(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kubectl-singleton")
	if err := os.WriteFile(program, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	packed, err := pressed(program, "../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for all := tar.NewReader(zip); ; {
		header, err := all.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[header.Name] = header.Mode
	}
	if diff := cmp.Diff(map[string]int64{"kubectl-singleton": 0o755, "LICENSE": 0o644}, got); diff != "" {
		t.Errorf("files and their modes (-want +got):\n%s", diff)
	}
}

// TestArchiveIsReproducible: nobody could check a checksum that differs with each build.
func TestArchiveIsReproducible(t *testing.T) {
	first, err := pressed("main.go", "singleton.yaml.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	if second, err := pressed("main.go", "singleton.yaml.tmpl"); err != nil || string(first) != string(second) {
		t.Errorf("two archives of the same files differ: %v", err)
	}
}
