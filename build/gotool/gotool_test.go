package gotool

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMakeExportsTheSameSettings(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var exported []string
	for _, m := range regexp.MustCompile(`(?m)^export (\w+) := (.*)$`).FindAllStringSubmatch(string(makefile), -1) {
		exported = append(exported, m[1]+"="+m[2])
	}
	if want := settings[:2]; !slices.Equal(exported, want) {
		t.Errorf("the Makefile exports %q, this package builds with %q: what both build is compiled twice", exported, want)
	}
}

// TestModulesShareTheirVersions: a package is compiled once for all modules only if it and everything that it imports have one
// version.
func TestModulesShareTheirVersions(t *testing.T) {
	t.Parallel()
	const ours, plane = "../../go.mod", "../../test/controlplane/kubernetes/go.mod"
	var files []string
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".mod") {
			files = append(files, path)
		}
		return err
	})
	if err != nil || !slices.Contains(files, ours) || !slices.Contains(files, plane) {
		t.Fatalf("the modules are %q, %v", files, err)
	}
	want := required(t, plane)
	for _, file := range files {
		for module, version := range required(t, file) {
			// Tools and programs of the lab keep the versions of their releases, except for Kubernetes itself.
			shared := want[module] != "" && (file == ours || strings.HasPrefix(module, "k8s.io/"))
			if shared && version != want[module] {
				t.Errorf("%s requires %s %s, %s requires %s", file, module, version, plane, want[module])
			}
		}
	}
}

func required(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(?:\t|require )(\S+) (v\S+)(?: // indirect)?$`).FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = m[2]
	}
	return all
}

// fresh is a module with two packages that are in no cache.
func fresh(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module fresh\n",
		"a/a.go": fmt.Sprintf("package a\n\nconst New = %d // to every cache\n", time.Now().UnixNano()),
		"b/b.go": "package b\n\nimport \"fresh/a\"\n\nconst New = a.New\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCompilationReportsProgress(t *testing.T) {
	t.Parallel()
	const progress = `fresh: +\d+ %, \d of 2 packages, \d+s\n`
	var c Compilation
	var told bytes.Buffer
	// A test that gets no CPU while the Go tool works cannot report progress. A broken one never does.
	for try := 0; try < 20 && !regexp.MustCompile(progress).MatchString(told.String()); try++ {
		told.Reset()
		c = Compilation{Name: "fresh", Dir: fresh(t), Packages: []string{"./b"}, Every: time.Millisecond}
		if err := c.Run(t.Context(), &told); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"fresh: 2 packages to compile, once\n", progress, "fresh: compiled in "} {
		if !regexp.MustCompile(want).MatchString(told.String()) {
			t.Errorf("want %q in:\n%s", want, told.String())
		}
	}
	told.Reset()
	if err := c.Run(t.Context(), &told); err != nil || told.Len() > 0 {
		t.Errorf("with all in the cache, want nothing said: %v\n%s", err, told.String())
	}
	c.Packages = []string{"./nothing-here"}
	if err := c.Run(t.Context(), &told); err == nil || !strings.Contains(err.Error(), "nothing-here") {
		t.Errorf("want the Go tool's words on a package that does not exist, got: %v", err)
	}
}
