//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/singletonjob/operator/test/lab/internal/imagefile"
)

// The images that every node needs.
const (
	pauseImage = "local/pause:1"
	dnsImage   = "local/coredns:1" // also in system.yaml
)

const containerdSocket = "/run/containerd/containerd.sock"

func (l *Lab) systemImages() []string { return []string{l.path("pause.tar"), l.path("coredns.tar")} }

func (l *Lab) writeSystemImages() error {
	program := func(name, path string) imagefile.Image {
		inside := "/" + filepath.Base(path)
		return imagefile.Image{Name: name, Files: []imagefile.File{{Source: path, Path: inside}}, Entrypoint: []string{inside}}
	}
	archives := l.systemImages()
	return errors.Join(
		writeImage(program(pauseImage, l.bin.Path("pause")), archives[0]),
		writeImage(program(dnsImage, l.bin.Path("coredns")), archives[1]),
	)
}

func writeImage(image imagefile.Image, archive string) error {
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	return errors.Join(image.Write(file), file.Close())
}

// LoadImages imports the archives into every node. An archive is what docker, podman and package imagefile write, or an
// OCI layout in a tar file.
func (l *Lab) LoadImages(ctx context.Context, archives ...string) error {
	if err := l.ensureBinaries(ctx); err != nil {
		return err
	}
	machines, err := l.Machines()
	if err != nil {
		return err
	}
	work, ctx := errgroup.WithContext(ctx)
	for _, m := range machines[1:] {
		work.Go(func() error {
			for _, archive := range archives {
				if err := l.importImage(ctx, m, archive); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return work.Wait()
}

// LoadFiles makes an image of files and imports it into every node.
func (l *Lab) LoadFiles(ctx context.Context, image imagefile.Image) error {
	dir, err := os.MkdirTemp("", "lab-image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	archive := filepath.Join(dir, "image.tar")
	if err := writeImage(image, archive); err != nil {
		return err
	}
	return l.LoadImages(ctx, archive)
}

func (l *Lab) importImage(ctx context.Context, m Machine, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return l.ctr(ctx, m, file, "images", "import", "--local", "-")
}

// ctr runs containerd's client in the namespace that the kubelet uses. It runs inside the node, so it ends with it: left
// over, it would wait for containerd forever.
func (l *Lab) ctr(ctx context.Context, m Machine, input io.Reader, args ...string) error {
	client := m.Command(ctx, append([]string{l.bin.Path("ctr"), "--namespace", "k8s.io"}, args...)...)
	client.Stdin = input
	if out, err := client.CombinedOutput(); err != nil {
		return fmt.Errorf("on %s: ctr %s: %w: %s", m.Name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (l *Lab) awaitContainerd(ctx context.Context, m Machine) error {
	return Poll(ctx, 50*time.Millisecond, "containerd of "+m.Name, func() (bool, error) {
		if err := l.stillRuns(ctx, m, Containerd); err != nil {
			return false, err
		}
		_, err := os.Stat(m.Path(containerdSocket))
		return err == nil && l.ctr(ctx, m, nil, "version") == nil, nil
	})
}

// LoadImageSpec makes and imports the image that the text describes, in the form that imagefile.Parse reads.
func (l *Lab) LoadImageSpec(ctx context.Context, text string) error {
	image, err := imagefile.Parse(text)
	if err != nil {
		return err
	}
	return l.LoadFiles(ctx, image)
}
