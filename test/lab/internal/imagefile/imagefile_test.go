package imagefile

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		text  string
		want  Image
		fails bool
	}{
		"one file":           {text: "local/a:1=/bin/x:/bin/x", want: Image{Name: "local/a:1", Files: []File{{Source: "/bin/x", Path: "/bin/x"}}}},
		"link and command":   {text: "a=x:/bin/x,->/bin/x:/bin/sh@/bin/x -v", want: Image{Name: "a", Files: []File{{Source: "x", Path: "/bin/x"}, {Path: "/bin/sh", Target: "/bin/x"}}, Entrypoint: []string{"/bin/x", "-v"}}},
		"a stop signal":      {text: "a=x:y@/y z!SIGQUIT", want: Image{Name: "a", Files: []File{{Source: "x", Path: "y"}}, Entrypoint: []string{"/y", "z"}, StopSignal: "SIGQUIT"}},
		"no name":            {text: "=x:y", fails: true},
		"no equals sign":     {text: "a", fails: true},
		"no destination":     {text: "a=x", fails: true},
		"empty destination":  {text: "a=x:", fails: true},
		"no file":            {text: "a=", fails: true},
		"a comma at the end": {text: "a=x:y,", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.text)
			if (err != nil) != tc.fails {
				t.Fatalf("error %v, want one: %v", err, tc.fails)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" && !tc.fails {
				t.Errorf("image (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	program, data := filepath.Join(dir, "program"), filepath.Join(dir, "data")
	tree := filepath.Join(dir, "tree")
	if err := errors.Join(
		os.WriteFile(program, []byte("#!"), 0o700), os.WriteFile(data, []byte("d"), 0o600), os.MkdirAll(filepath.Join(tree, "deep/empty"), 0o755),
		os.WriteFile(filepath.Join(tree, "deep/data"), []byte("d"), 0o600), os.Symlink("deep/data", filepath.Join(tree, "link")),
	); err != nil {
		t.Fatal(err)
	}
	image := Image{
		Name:       "local/x:1",
		Files:      []File{{Source: program, Path: "/usr/bin/program"}, {Source: data, Path: "etc/data"}, {Path: "/usr/bin/sh", Target: "program"}, {Source: tree, Path: "/opt"}},
		Entrypoint: []string{"/usr/bin/program", "-v"},
	}
	var first, second bytes.Buffer
	if err := errors.Join(image.Write(&first), image.Write(&second)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same files differ")
	}
	read, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(first.Bytes())), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := read.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(image.Entrypoint, config.Config.Entrypoint); diff != "" {
		t.Errorf("entrypoint (-want +got):\n%s", diff)
	}
	layer, err := layer(image.Files)
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[h.Name+h.Linkname] = h.Mode
	}
	want := map[string]int64{
		"tmp/": 0o1777, "usr/": 0o755, "usr/bin/": 0o755, "usr/bin/program": 0o755, "etc/": 0o755, "etc/data": 0o644, "usr/bin/shprogram": 0o777,
		"opt/": 0o755, "opt/deep/": 0o755, "opt/deep/data": 0o644, "opt/linkdeep/data": 0o777,
	}
	if diff := cmp.Diff(want, modes); diff != "" {
		t.Errorf("entries and modes (-want +got):\n%s", diff)
	}
}
