package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/build/tarball"
)

const (
	chartDir  = "charts/singletonjob"
	chartName = "singletonjob"
	// Media types of charts in registries: https://helm.sh/docs/topics/registries
	chartConfig  = "application/vnd.cncf.helm.config.v1+json"
	chartContent = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

func helm(ctx context.Context, args ...string) *exec.Cmd {
	return gotool.Command(ctx, "", append([]string{"tool", "-modfile=tools/helm.mod", "helm"}, args...)...)
}

func (r release) chart() string { return chartName + "-" + r.number() + ".tgz" }

// makeChart writes the chart, whose values name the released image, as an archive and in the form that registries store. It also
// writes install.yaml.
func (r release) makeChart(ctx context.Context, digest string) error {
	work, err := os.MkdirTemp("", "singletonjob-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dir := filepath.Join(work, chartName)
	if err := os.CopyFS(dir, os.DirFS(chartDir)); err != nil {
		return err
	}
	if err := setImage(filepath.Join(dir, "values.yaml"), r.repository, digest); err != nil {
		return err
	}
	if err := r.annotate(filepath.Join(dir, "Chart.yaml"), r.repository+"@"+digest); err != nil {
		return err
	}
	if _, err := output(helm(ctx, "package", dir, "--version="+r.number(), "--app-version="+r.number(), "--destination="+work)); err != nil {
		return err
	}
	packed, err := os.ReadFile(filepath.Join(work, r.chart()))
	if err != nil {
		return err
	}
	files, err := unpacked(packed)
	if err != nil {
		return err
	}
	const metadata = chartName + "/Chart.yaml"
	// Helm stores the time of packing in the archive.
	if packed, err = tarball.Compressed(ordered(files, metadata)); err != nil {
		return err
	}
	if err := os.WriteFile(r.file(r.chart()), packed, 0o644); err != nil {
		return err
	}
	if err := r.makeInstall(ctx, r.repository+"@"+digest); err != nil {
		return err
	}
	layout, err := chartLayout(packed, files[metadata])
	if err != nil {
		return err
	}
	return os.WriteFile(r.file(chartName+"-chart-"+r.number()+".oci.tar"), layout, 0o644)
}

// setImage sets the image in the values. It replaces text so that the comments stay, and must find each line exactly once.
func setImage(file, repository, digest string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, values, found := strings.Cut(string(text), "\nimage:\n")
	for line, with := range map[string]string{
		"  repository: singletonjob/operator\n": "  repository: " + repository + "\n",
		"  digest: \"\"\n":                      "  digest: \"" + digest + "\"\n",
	} {
		found = found && strings.Contains(values, line)
		values = strings.Replace(values, line, with, 1)
	}
	if !found {
		return fmt.Errorf("%s must have image.repository with its default and an empty image.digest, once each", file)
	}
	return os.WriteFile(file, []byte(head+"\nimage:\n"+values), 0o644)
}

// annotate adds what Artifact Hub shows of this version to the chart's metadata, whose annotations come last.
func (r release) annotate(file, image string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	changes, err := yaml.Marshal(changesOf(string(changelog), r.version))
	if err != nil {
		return err
	}
	images, err := yaml.Marshal([]map[string]any{{"name": chartName, "image": image, "platforms": []string{"linux/amd64", "linux/arm64"}}})
	if err != nil {
		return err
	}
	added, err := yaml.Marshal(map[string]string{
		"artifacthub.io/changes": string(changes), "artifacthub.io/images": string(images),
		"artifacthub.io/prerelease": strconv.FormatBool(strings.Contains(r.version, "-")),
	})
	if err != nil {
		return err
	}
	indented := "  " + strings.ReplaceAll(strings.TrimSpace(string(added)), "\n", "\n  ") + "\n"
	return os.WriteFile(file, append(text, indented...), 0o644)
}

// changesOf returns the entries of a version in the change log, or those that are not released.
func changesOf(changelog, version string) []string {
	_, section, found := strings.Cut(changelog, "\n## "+version+"\n")
	if !found {
		_, section, _ = strings.Cut(changelog, "\n## Unreleased\n")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var changes []string
	for _, entry := range strings.Split(section, "\n- ")[1:] {
		entry, _, _ = strings.Cut(entry, "\n\n")
		changes = append(changes, strings.Join(strings.Fields(entry), " "))
	}
	return changes
}

// makeInstall renders the chart for users without Helm, and checks that the result names the image.
func (r release) makeInstall(ctx context.Context, image string) error {
	const namespace = "singletonjob-system"
	text, err := output(helm(ctx, "template", chartName, r.file(r.chart()), "--namespace="+namespace))
	if err != nil {
		return err
	}
	if !strings.Contains(text, image) {
		return fmt.Errorf("the chart does not name %s", image)
	}
	const head = "# SingletonJob %s: kubectl apply --server-side -f install.yaml\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n"
	return os.WriteFile(r.file("install.yaml"), []byte(fmt.Sprintf(head, r.version, namespace)+text+"\n"), 0o644)
}

func unpacked(packed []byte) (map[string][]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return tarball.Read(zip)
}

// ordered sorts files by name, except for the one that readers look for first.
func ordered(files map[string][]byte, first string) []tarball.File {
	all := []tarball.File{{Name: first, Mode: 0o644, Content: files[first]}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name != first {
			all = append(all, tarball.File{Name: name, Mode: 0o644, Content: files[name]})
		}
	}
	return all
}

// chartLayout writes the chart as an OCI layout, in the form in which `helm push` stores it. skopeo, crane and oras can copy it to
// a registry.
func chartLayout(packed, metadata []byte) ([]byte, error) {
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	config, err := yaml.YAMLToJSON(metadata)
	if err != nil {
		return nil, err
	}
	blob := func(media types.MediaType, content []byte) v1.Descriptor {
		hash, size, _ := v1.SHA256(bytes.NewReader(content)) // reading from memory does not fail
		files["blobs/sha256/"+hash.Hex] = content
		return v1.Descriptor{MediaType: media, Digest: hash, Size: size}
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: blob(chartConfig, config), Layers: []v1.Descriptor{blob(chartContent, packed)},
	})
	if err != nil {
		return nil, err
	}
	index, err := json.Marshal(v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{blob(types.OCIManifestSchema1, manifest)},
	})
	if err != nil {
		return nil, err
	}
	files["index.json"] = index
	var out bytes.Buffer
	err = tarball.Write(&out, ordered(files, "oci-layout"))
	return out.Bytes(), err
}
