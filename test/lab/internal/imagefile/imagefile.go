// Package imagefile makes container images from files of this machine, with no registry and no daemon.
package imagefile

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// A File is one file of an image.
type File struct {
	Source string // on this machine, a directory with all that is in it, too; empty: a symbolic link
	Path   string // in the image
	Target string // of a symbolic link
}

// An Image is one layer of files and the command that runs.
type Image struct {
	Name       string
	Files      []File
	Entrypoint []string
	StopSignal string // none: SIGTERM
}

// Parse reads NAME=SRC:DST[,SRC:DST...][@ENTRYPOINT...][!STOPSIGNAL]; a SRC of the form ->TARGET makes a symbolic link.
func Parse(text string) (Image, error) {
	image, rest, ok := strings.Cut(text, "=")
	if !ok || image == "" {
		return Image{}, fmt.Errorf("image %q is not of the form NAME=SRC:DST[,SRC:DST...][@ENTRYPOINT...][!STOPSIGNAL]", text)
	}
	rest, stops, _ := strings.Cut(rest, "!")
	files, entrypoint, _ := strings.Cut(rest, "@")
	parsed := Image{Name: image, Entrypoint: strings.Fields(entrypoint), StopSignal: stops}
	for pair := range strings.SplitSeq(files, ",") {
		source, destination, ok := strings.Cut(pair, ":")
		if !ok || source == "" || destination == "" {
			return Image{}, fmt.Errorf("file %q of image %s is not of the form SRC:DST", pair, image)
		}
		file := File{Source: source, Path: destination}
		if target, isLink := strings.CutPrefix(source, "->"); isLink {
			file.Source, file.Target = "", target
		}
		parsed.Files = append(parsed.Files, file)
	}
	return parsed, nil
}

// Write writes the image as an archive that a container runtime imports.
func (i Image) Write(w io.Writer) error {
	tag, err := name.NewTag(i.Name)
	if err != nil {
		return err
	}
	image, err := i.build()
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	return tarball.Write(tag, image, w)
}

func (i Image) build() (v1.Image, error) {
	content, err := layer(i.Files)
	if err != nil {
		return nil, err
	}
	files, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, files)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint, config.Config.StopSignal = i.Entrypoint, i.StopSignal
	config.Config.Env = []string{"PATH=/bin"}
	return mutate.ConfigFile(image, config)
}

// layer is the same, byte for byte, for the same files.
func layer(files []File) ([]byte, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	made := map[string]bool{".": true, "/": true}
	if err := directory(w, made, "/tmp", 0o1777); err != nil {
		return nil, err
	}
	files, err := expand(files)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := directory(w, made, path.Dir(path.Clean("/"+f.Path)), 0o755); err != nil {
			return nil, err
		}
		if err := f.write(w); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

// expand puts the files and links in directories in their place. Directories without any are left out.
func expand(files []File) ([]File, error) {
	var all []File
	for _, f := range files {
		if f.Source == "" {
			all = append(all, f)
			continue
		}
		err := filepath.WalkDir(f.Source, func(source string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			below, err := filepath.Rel(f.Source, source)
			if err != nil {
				return err
			}
			found := File{Source: source, Path: path.Join(f.Path, filepath.ToSlash(below))}
			if source != f.Source && entry.Type()&fs.ModeSymlink != 0 {
				found.Source = ""
				found.Target, err = os.Readlink(source)
			}
			all = append(all, found)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// directory writes the directory's header after those of its parents, unless they are written.
func directory(w *tar.Writer, made map[string]bool, dir string, mode int64) error {
	if made[dir] {
		return nil
	}
	made[dir] = true
	if err := directory(w, made, path.Dir(dir), 0o755); err != nil {
		return err
	}
	return w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(dir, "/") + "/", Typeflag: tar.TypeDir, Mode: mode})
}

func (f File) write(w *tar.Writer) error {
	destination := strings.TrimPrefix(path.Clean("/"+f.Path), "/")
	if f.Source == "" {
		return w.WriteHeader(&tar.Header{Name: destination, Typeflag: tar.TypeSymlink, Linkname: f.Target, Mode: 0o777})
	}
	content, err := os.ReadFile(f.Source)
	if err != nil {
		return err
	}
	info, err := os.Stat(f.Source)
	if err != nil {
		return err
	}
	mode := int64(0o644) // the container's user is seldom the owner
	if info.Mode().Perm()&0o111 != 0 {
		mode = 0o755
	}
	if err := w.WriteHeader(&tar.Header{Name: destination, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
