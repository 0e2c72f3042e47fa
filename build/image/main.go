// Command image builds the operator's container image without a daemon and without a registry. It compiles the
// binaries for each platform, puts them on an empty file system and writes an archive:
//
//	go run ./build/image -reference=singletonjob/operator:v0.1.0 -output=dist/image.tar
//
// The archive is an OCI layout, for `ctr images import`, skopeo, crane and `docker load` of Docker 25 and later;
// a docker-style manifest in it serves older ones. The same sources, Go version and flags give the same bytes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/singletonjob/operator/build/gotool"
)

// commands are the programs in the image, each as /<name>.
var commands = []string{"agent", "fence-proxy", "manager"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	reference := flags.String("reference", "singletonjob/operator:dev", "`name:tag` that the image is loaded as")
	output := flags.String("output", "dist/image.tar", "archive to write")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64", "comma-separated `os/architecture` list")
	version := flags.String("version", "unknown", "version for the binaries and the labels")
	revision := flags.String("revision", "unknown", "commit for the labels")
	if err := flags.Parse(args); err != nil {
		return err
	}
	created, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "singletonjob-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	spec := imageSpec{Reference: *reference, Version: *version, Revision: *revision, Created: created}
	for name := range strings.SplitSeq(*platforms, ",") {
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return fmt.Errorf("-platforms: %q: %w", name, err)
		}
		binaries, err := compile(ctx, filepath.Join(work, "bin"), *platform, *version)
		if err != nil {
			return err
		}
		spec.Platforms = append(spec.Platforms, platformFiles{Platform: *platform, Files: binaries})
	}
	if err := os.MkdirAll(filepath.Dir(*output), 0o755); err != nil {
		return err
	}
	digest, err := writeArchive(*output, filepath.Join(work, "layout"), spec)
	if err != nil {
		return fmt.Errorf("write %s: %w", *output, err)
	}
	fmt.Printf("%s holds %s for %s\n%s\n", *output, *reference, *platforms, digest)
	return nil
}

// sourceDate reads the variable with which reproducible builds set every timestamp. Without it, all timestamps are in 1970.
func sourceDate(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q, expected seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// compile builds the commands for a platform and returns name → file.
func compile(ctx context.Context, dir string, p v1.Platform, version string) (map[string]string, error) {
	files := make(map[string]string, len(commands))
	for _, name := range commands {
		file := filepath.Join(dir, p.OS+"-"+p.Architecture, name)
		if err := gotool.Release(ctx, version, p.OS, p.Architecture, file, "./cmd/"+name).Run(); err != nil {
			return nil, fmt.Errorf("build cmd/%s for %s: %w", name, p, err)
		}
		files[name] = file
	}
	return files, nil
}
