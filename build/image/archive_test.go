package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// testSpec is an image for two platforms. Its binaries are short texts.
func testSpec(t *testing.T) imageSpec {
	t.Helper()
	dir := t.TempDir()
	spec := imageSpec{Reference: "singletonjob/operator:v1", Version: "v1", Revision: "abc", Created: created}
	for _, arch := range []string{"amd64", "arm64"} {
		files := make(map[string]string)
		for _, name := range commands {
			files[name] = filepath.Join(dir, arch+"-"+name)
			if err := os.WriteFile(files[name], []byte(name+" for "+arch), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		spec.Platforms = append(spec.Platforms, platformFiles{Platform: v1.Platform{OS: "linux", Architecture: arch}, Files: files})
	}
	return spec
}

func write(t *testing.T, spec imageSpec) (file string, digest v1.Hash) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "image.tar")
	digest, err := writeArchive(file, filepath.Join(t.TempDir(), "layout"), spec)
	if err != nil {
		t.Fatal(err)
	}
	return file, digest
}

// unpack extracts an archive as a consumer of the image does.
func unpack(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for r := tar.NewReader(in); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, header.Name)
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			content, readErr := io.ReadAll(r)
			if readErr != nil {
				t.Fatal(readErr)
			}
			err = os.WriteFile(path, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestArchiveIsAnOCILayout(t *testing.T) {
	file, digest := write(t, testSpec(t))
	root, err := layout.ImageIndexFromPath(unpack(t, file))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Digest != digest {
		t.Fatalf("index.json lists %v, want the one index %s", manifest.Manifests, digest)
	}
	loaded := manifest.Manifests[0].Annotations["io.containerd.image.name"]
	if !strings.HasSuffix(loaded, "/singletonjob/operator:v1") || strings.HasPrefix(loaded, "index.") {
		t.Errorf("containerd would load it as %q", loaded)
	}
	index, err := root.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range list.Manifests {
		platforms = append(platforms, m.Platform.String())
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, img, m.Platform.Architecture)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("platforms are %q, want %q", platforms, want)
	}
}

// checkImage: an unprivileged user, no shell, and only the two binaries, executable by all.
func checkImage(t *testing.T, img v1.Image, arch string) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.Architecture != arch || config.OS != "linux" || !config.Created.Equal(created) {
		t.Errorf("%s: user %s, platform %s/%s, created %s", arch, config.Config.User, config.OS, config.Architecture, config.Created)
	}
	if diff := cmp.Diff([]string{"/manager"}, config.Config.Entrypoint); diff != "" {
		t.Errorf("%s: entrypoint (-want +got):\n%s", arch, diff)
	}
	got := files(t, img)
	want := map[string]string{"agent": "agent for " + arch, "fence-proxy": "fence-proxy for " + arch, "manager": "manager for " + arch}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: files (-want +got):\n%s", arch, diff)
	}
}

// files reads the whole file system of an image: name → content.
func files(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	flat := mutate.Extract(img)
	defer flat.Close()
	content := make(map[string]string)
	for r := tar.NewReader(flat); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return content
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		content[header.Name] = string(body)
		if header.Mode != 0o555 || header.Uid != 0 || !header.ModTime.Equal(created) {
			t.Errorf("%s has mode %o, owner %d, time %s", header.Name, header.Mode, header.Uid, header.ModTime)
		}
	}
}

// The programs in the image report the requested version.
func TestProgramsReportTheirVersion(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	t.Chdir("../..")
	t.Setenv("SOURCE_DATE_EPOCH", strconv.FormatInt(created.Unix(), 10))
	if err := run([]string{"-output=" + archive, "-platforms=linux/" + runtime.GOARCH, "-version=v1.2.3-test"}); err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	inside := files(t, img)
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, []byte(inside["agent"]), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), agent, "version").Output()
	if err != nil || string(out) != "v1.2.3-test\n" {
		t.Errorf("agent version says %q, %v", out, err)
	}
	if !strings.Contains(inside["manager"], "v1.2.3-test") {
		t.Error("the manager was not told the version")
	}
}

// Docker before 25 reads manifest.json and does not know an index.
func TestArchiveLoadsInOldDocker(t *testing.T) {
	file, _ := write(t, testSpec(t))
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, img, "amd64")
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{"singletonjob/operator:v1"}) {
		content, _ := json.Marshal(manifest)
		t.Errorf("manifest.json is %s", content)
	}
}

func TestArchiveIsReproducible(t *testing.T) {
	first, firstDigest := write(t, testSpec(t))
	second, secondDigest := write(t, testSpec(t))
	a, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) || firstDigest != secondDigest {
		t.Errorf("two archives of the same image differ: %s, %s", firstDigest, secondDigest)
	}
}

func TestArchiveRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*imageSpec)
		want   string
	}{
		"no tag":          {func(s *imageSpec) { s.Reference = "singletonjob/operator" }, "singletonjob/operator"},
		"a bad reference": {func(s *imageSpec) { s.Reference = "Singleton Job:v1" }, "-reference"},
		"no platform":     {func(s *imageSpec) { s.Platforms = nil }, "no platform"},
		"a missing file":  {func(s *imageSpec) { s.Platforms[1].Files["agent"] = "/nonexistent/agent" }, "linux/arm64"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t)
			c.change(&spec)
			file := filepath.Join(t.TempDir(), "image.tar")
			_, err := writeArchive(file, filepath.Join(t.TempDir(), "layout"), spec)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("returned %v, want an error about %q", err, c.want)
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("left an archive behind: %v", err)
			}
		})
	}
}

func TestSourceDate(t *testing.T) {
	for epoch, want := range map[string]int64{"": 0, "0": 0, "1767323045": 1767323045, "-1": -1, "yesterday": -1} {
		got, err := sourceDate(epoch)
		if want < 0 && err == nil || want >= 0 && (err != nil || got.Unix() != want || got.Location() != time.UTC) {
			t.Errorf("sourceDate(%q) = %v, %v", epoch, got, err)
		}
	}
}
