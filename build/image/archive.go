package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nonroot is the user that runs the image. The chart and the Pod Security profile "restricted" require it.
const nonroot = "65532:65532"

// imageSpec holds everything on which the archive's bytes depend.
type imageSpec struct {
	Reference         string
	Version, Revision string
	Created           time.Time
	Platforms         []platformFiles
}

// platformFiles are the files at the root of one platform's image: name in the image → file on this machine.
type platformFiles struct {
	Platform v1.Platform
	Files    map[string]string
}

// writeArchive writes the image of all platforms to an archive, through an OCI layout in the directory scratch, and returns the
// digest of its index.
func writeArchive(file, scratch string, spec imageSpec) (v1.Hash, error) {
	tag, err := name.NewTag(spec.Reference)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("-reference: %w", err)
	}
	if !strings.HasSuffix(spec.Reference, ":"+tag.TagStr()) {
		return v1.Hash{}, fmt.Errorf("-reference: %s has no tag, expected name:tag", spec.Reference)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var first v1.Image
	for _, p := range spec.Platforms {
		img, err := buildImage(spec, p)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("%s: %w", p.Platform, err)
		}
		if first == nil {
			first = img
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p.Platform}})
	}
	if first == nil {
		return v1.Hash{}, errors.New("no platform to build for")
	}
	index, _ = mutate.Annotations(index, labels(spec)).(v1.ImageIndex)
	path, err := layout.Write(scratch, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          loadedAs(tag),
		"org.opencontainers.image.ref.name": tag.TagStr(),
	})); err != nil {
		return v1.Hash{}, err
	}
	if err := writeDockerManifest(scratch, first, spec.Reference); err != nil {
		return v1.Hash{}, err
	}
	if err := pack(file, scratch, spec.Created); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// loadedAs is the name under which containerd and the kubelet look for the image. A reference without a host means the same default
// host to all of them; only containerd spells it without the label "index".
func loadedAs(tag name.Tag) string {
	return strings.TrimPrefix(tag.Name(), "index.")
}

func labels(spec imageSpec) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "SingletonJob operator and agent",
		"org.opencontainers.image.description": "Exactly one active process with warm standbys and fencing tokens",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/singletonjob/operator",
		"org.opencontainers.image.version":     spec.Version,
		"org.opencontainers.image.revision":    spec.Revision,
		"org.opencontainers.image.created":     spec.Created.Format(time.RFC3339),
	}
}

// buildImage puts each file into a layer of its own, so that a release that changes one file transfers only that layer.
func buildImage(spec imageSpec, p platformFiles) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		content, err := fileLayer(name, p.Files[name], spec.Created)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(content)), nil
		}, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		history := v1.History{Created: v1.Time{Time: spec.Created}, CreatedBy: "COPY " + name + " /"}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: history, MediaType: types.OCILayer}); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.Platform.OS, p.Platform.Architecture, p.Platform.Variant
	config.Created = v1.Time{Time: spec.Created}
	config.Config = v1.Config{
		User:       nonroot,
		WorkingDir: "/",
		Env:        []string{"PATH=/"},
		Entrypoint: []string{"/manager"},
		Labels:     labels(spec),
	}
	return mutate.ConfigFile(img, config)
}

// fileLayer is an uncompressed layer with one executable at its root.
func fileLayer(name, file string, modified time.Time) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	header := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o555, Size: int64(len(content)), ModTime: modified, Format: tar.FormatPAX}
	if err := w.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	return layer.Bytes(), w.Close()
}

// writeDockerManifest adds the file that `docker load` reads before Docker 25. It can name only one platform.
func writeDockerManifest(dir string, img v1.Image, reference string) error {
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	docker := entry{Config: blob(manifest.Config.Digest), RepoTags: []string{reference}}
	for _, layer := range manifest.Layers {
		docker.Layers = append(docker.Layers, blob(layer.Digest))
	}
	content, err := json.Marshal([]entry{docker})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), content, 0o644)
}

// pack writes a directory to an archive whose bytes depend only on names and contents. It replaces an existing archive only after
// the new one is complete.
func pack(file, dir string, modified time.Time) (err error) {
	out, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = out.Close()
			_ = os.Remove(out.Name())
		}
	}()
	w := tar.NewWriter(out)
	// WalkDir goes in lexical order.
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return packEntry(w, dir, path, entry.IsDir(), modified)
	}); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := out.Chmod(0o644); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), file)
}

func packEntry(w *tar.Writer, dir, path string, isDir bool, modified time.Time) error {
	relative, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	if isDir {
		return w.WriteHeader(&tar.Header{Name: relative + "/", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: modified, Format: tar.FormatPAX})
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	header := &tar.Header{Name: relative, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), ModTime: modified, Format: tar.FormatPAX}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
