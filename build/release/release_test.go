package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/build/tarball"
	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/test/tier"
)

const digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		log.Fatal(err)
	}
	os.Exit(m.Run())
}

func madeChart(t *testing.T) release {
	t.Helper()
	r := release{version: "v0.9.0-rc.1", repository: "example.com/singletonjob/operator", dir: t.TempDir()}
	if err := r.makeChart(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestChart: the chart has the same bytes each time and installs the released image by its digest. Helm gets the same chart from a
// registry that received the layout.
func TestChart(t *testing.T) {
	r := madeChart(t)
	again := madeChart(t)
	for _, file := range []string{r.chart(), "install.yaml", "singletonjob-chart-0.9.0-rc.1.oci.tar"} {
		one, err := os.ReadFile(r.file(file))
		if err != nil {
			t.Fatal(err)
		}
		if two, _ := os.ReadFile(again.file(file)); !bytes.Equal(one, two) {
			t.Errorf("%s differs when it is made again", file)
		}
	}
	install, _ := os.ReadFile(r.file("install.yaml"))
	for _, want := range []string{"kind: Namespace", "kind: CustomResourceDefinition", "image: \"example.com/singletonjob/operator@" + digest} {
		if !strings.Contains(strings.ReplaceAll(string(install), "image: e", `image: "e`), want) {
			t.Errorf("install.yaml has no %s", want)
		}
	}

	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := server.Listener.Addr().String()
	push(t, r.file("singletonjob-chart-0.9.0-rc.1.oci.tar"), host+"/charts/singletonjob:0.9.0-rc.1")
	to := t.TempDir()
	if _, err := output(helm(t.Context(), "pull", "oci://"+host+"/charts/singletonjob", "--version=0.9.0-rc.1", "--plain-http", "--destination="+to)); err != nil {
		t.Fatal(err)
	}
	pulled, err := os.ReadFile(filepath.Join(to, r.chart()))
	if err != nil {
		t.Fatal(err)
	}
	if made, _ := os.ReadFile(r.file(r.chart())); !bytes.Equal(made, pulled) {
		t.Error("what Helm pulls is not the chart")
	}
}

// TestAnnotations: Artifact Hub reads the image, the changes and whether it is a prerelease from the released chart.
func TestAnnotations(t *testing.T) {
	r := madeChart(t)
	shown, err := output(helm(t.Context(), "show", "chart", r.file(r.chart())))
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ Annotations map[string]string }
	var images []struct{ Image string }
	var changes []string
	err = yaml.Unmarshal([]byte(shown), &about)
	err = errors.Join(err, yaml.Unmarshal([]byte(about.Annotations["artifacthub.io/images"]), &images))
	err = errors.Join(err, yaml.Unmarshal([]byte(about.Annotations["artifacthub.io/changes"]), &changes))
	if err != nil {
		t.Fatal(err)
	}
	if len(images) != 1 || images[0].Image != r.repository+"@"+digest || len(changes) == 0 || about.Annotations["artifacthub.io/prerelease"] != "true" {
		t.Errorf("the annotations are %v", about.Annotations)
	}
	if about.Annotations["artifacthub.io/license"] == "" {
		t.Error("an annotation of the source is lost")
	}
}

func TestChangesOfAVersion(t *testing.T) {
	const log = "# Changes\n\n## Unreleased\n\nNot yet.\n\n- New\n\n## v0.2.0\n\n- One `a`\n  line\n- Two\n\nText.\n\n## v0.1.0\n\n- Old\n"
	for version, want := range map[string][]string{"v0.2.0": {"One `a` line", "Two"}, "v0.1.0": {"Old"}, "v0.3.0": {"New"}} {
		if got := changesOf(log, version); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
}

// push copies an OCI layout as crane does.
func push(t *testing.T, archive, to string) {
	t.Helper()
	dir := t.TempDir()
	packed, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	files, err := tarball.Read(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatal(manifest, err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(to, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
}

// TestChangedValuesAreNotReleased: a chart that would install another image is not released.
func TestChangedValuesAreNotReleased(t *testing.T) {
	for _, text := range []string{"a: b\n", "a:\nimage:\n  repository: other\n  digest: \"\"\n", "a:\nimage:\n  repository: singletonjob/operator\n"} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := setImage(file, "example.com/x", digest); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestSeal: openssl and sha256sum accept the sealed files, which are the same each time, and reject files that were changed
// afterwards.
func TestSeal(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, _ := x509.MarshalPKCS8PrivateKey(key)
	public, _ := x509.MarshalPKIXPublicKey(&key.PublicKey)
	keyFile, publicFile := filepath.Join(dir, "key.pem"), filepath.Join(dir, "key.pub")
	for file, block := range map[string]*pem.Block{keyFile: {Type: "PRIVATE KEY", Bytes: private}, publicFile: {Type: "PUBLIC KEY", Bytes: public}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read, err := readKey(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	var signatures []string
	for range 2 {
		r := release{version: "v0.9.0", dir: t.TempDir(), revision: "abc"}
		if err := os.WriteFile(r.file("a"), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.seal(read); err != nil {
			t.Fatal(err)
		}
		check(t, r, publicFile, true)
		signature, _ := os.ReadFile(r.file(sums + ".sig"))
		signatures = append(signatures, string(signature))
		var statement struct{ Subject []subject }
		text, _ := os.ReadFile(r.file(provenance))
		if err := json.Unmarshal(text, &statement); err != nil || len(statement.Subject) != 1 || statement.Subject[0].Name != "a" {
			t.Errorf("the provenance is of %+v, %v", statement, err)
		}
		if err := os.WriteFile(r.file(sums), []byte("other"), 0o600); err != nil {
			t.Fatal(err)
		}
		check(t, r, publicFile, false)
	}
	if signatures[0] != signatures[1] {
		t.Error("signed twice, two signatures")
	}
}

// TestReleaseTwice makes the release of this commit twice, as docs/release.md says, each in a checkout and with a temporary directory of its
// own. Both have the same bytes, and the commands of that page verify them.
func TestReleaseTwice(t *testing.T) {
	tier.Deep(t, "compiles everything for all platforms, for minutes")
	dir := t.TempDir()
	shell := func(in, script string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-ec", script)
		cmd.Dir = in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	shell(dir, "openssl ecparam -name prime256v1 -genkey -noout -out key.pem && openssl ec -in key.pem -pubout -out key.pub")
	var command string
	page, err := os.ReadFile("docs/release.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands.Of("docs/release.md", string(page)) {
		if strings.HasPrefix(c.Text, "make release") {
			command = strings.NewReplacer("REGISTRY", "example.com", "https://…", "https://example.com", "key.pem", filepath.Join(dir, "key.pem")).Replace(c.Text)
		}
	}
	for _, name := range []string{"one", "other"} {
		source, temporary := filepath.Join(dir, name, "source"), filepath.Join(dir, name, "temporary")
		shell(".", "mkdir -p "+temporary+" && git worktree add --detach "+source)
		t.Cleanup(func() {
			_ = exec.CommandContext(context.Background(), "git", "worktree", "remove", "--force", source).Run()
		})
		shell(source, "TMPDIR="+temporary+" "+command)
	}
	shell(dir, "diff --recursive one/source/dist/release other/source/dist/release")
	r := release{dir: filepath.Join(dir, "one/source/dist/release")}
	files, err := r.sums()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Log(f.Digest.SHA256, f.Name)
	}
	check(t, r, filepath.Join(dir, "key.pub"), true)
}

// check types the commands of docs/release.md.
func check(t *testing.T, r release, public string, right bool) {
	t.Helper()
	page, err := os.ReadFile("docs/release.md") // TestMain is at the top
	if err != nil {
		t.Fatal(err)
	}
	script := ""
	for _, c := range commands.Of("docs/release.md", string(page)) {
		if !strings.HasPrefix(c.Text, "make ") {
			script += c.Text + "\n"
		}
	}
	defer os.Remove(filepath.Join(r.dir, "raw"))
	cmd := exec.CommandContext(t.Context(), "bash", "-ec", strings.ReplaceAll(script, "key.pub", public))
	cmd.Dir = r.dir
	if out, err := cmd.CombinedOutput(); !strings.Contains(script, "openssl") || (err == nil) != right {
		t.Errorf("%v, of\n%s\n%s", err, script, out)
	}
}

func TestMaterials(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
		{Path: "example.com/b", Version: "v1.0.0"}, {Path: "example.com/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/c", Version: "v2.0.0"}},
	}}
	text, err := materials("singletonjob-image", "0.9.0", []*debug.BuildInfo{info, info})
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat  string
		Components []struct{ PURL string }
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range bom.Components {
		got = append(got, c.PURL)
	}
	if want := "pkg:golang/example.com/b@v1.0.0 pkg:golang/example.com/c@v2.0.0 pkg:golang/std@1.26.8"; bom.BOMFormat != "CycloneDX" || strings.Join(got, " ") != want {
		t.Errorf("%s", text)
	}
}

// TestReleaseErrors: each error is one line, before anything is built.
func TestReleaseErrors(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"-version=0.2":                 `-version="0.2": expected a version such as v0.2.0`,
		"-repository=":                 `-repository="": expected the image's future repository`,
		"-repository=example.com/x:v1": "without a tag",
		"-url=http://x":                `-url="http://x": expected the future location of the files`,
		"-key=LICENSE":                 "-key=LICENSE: no ECDSA P-256 private key in PEM",
		"-key=nowhere":                 "-key=nowhere: open nowhere",
		"-output=" + full:              "already has old",
	} {
		args := []string{"-version=v0.2.0", "-repository=example.com:5000/x", "-url=https://x", "-output=" + t.TempDir(), flag}
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %s, got %v", flag, want, err)
		}
	}
}
