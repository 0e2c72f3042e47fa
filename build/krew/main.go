// Command krew packs kubectl singleton for krew, the package manager of kubectl plugins. It writes an archive for each platform, and the
// manifest with their checksums:
//
//	go run ./build/krew -version=v0.1.0 -url=https://example.com/singletonjob/v0.1.0
//
// The same sources, Go version and flags give the same bytes.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/build/tarball"
)

//go:embed singleton.yaml.tmpl
var manifest string

// platforms are the platforms on which users run kubectl.
const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

// archive is the archive of one platform, as in the manifest.
type archive struct{ OS, Arch, File, Sum, Binary string }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "krew:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet("krew", flag.ContinueOnError)
	version := flags.String("version", "", "version of the plugin, such as v0.1.0")
	url := flags.String("url", "", "where the archives will be found, without their names")
	output := flags.String("output", "dist/krew", "directory to write into")
	list := flags.String("platforms", platforms, "comma-separated `os/architecture` list")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !gotool.IsVersion(*version) {
		return fmt.Errorf("-version=%q: krew needs a version such as v0.1.0 (make krew VERSION=v0.1.0)", *version)
	}
	if !strings.HasPrefix(*url, "https://") {
		return fmt.Errorf("-url=%q: krew downloads only from https:// URLs", *url)
	}
	if err := os.MkdirAll(*output, 0o755); err != nil {
		return err
	}
	var archives []archive
	for platform := range strings.SplitSeq(*list, ",") {
		a, err := pack(ctx, platform, *version, *output)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		fmt.Println(filepath.Join(*output, a.File), a.Sum)
		archives = append(archives, a)
	}
	text, err := render(*version, strings.TrimSuffix(*url, "/"), archives)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(*output, "singleton.yaml"), text, 0o644)
}

func render(version, url string, archives []archive) ([]byte, error) {
	var out bytes.Buffer
	err := template.Must(template.New("manifest").Parse(manifest)).Execute(&out, map[string]any{
		"Version": version, "URL": url, "Archives": archives,
	})
	return out.Bytes(), err
}

// pack builds the plugin for a platform and writes its archive.
func pack(ctx context.Context, platform, version, dir string) (archive, error) {
	system, arch, ok := strings.Cut(platform, "/")
	if !ok {
		return archive{}, fmt.Errorf("expected os/architecture")
	}
	a := archive{OS: system, Arch: arch, Binary: "kubectl-singleton", File: fmt.Sprintf("kubectl-singleton_%s_%s_%s.tar.gz", version, system, arch)}
	if system == "windows" {
		a.Binary += ".exe"
	}
	work, err := os.MkdirTemp("", "singletonjob-krew-")
	if err != nil {
		return a, err
	}
	defer os.RemoveAll(work)
	file := filepath.Join(work, a.Binary)
	if err := gotool.Release(ctx, version, system, arch, file, "./cmd/kubectl-singleton").Run(); err != nil {
		return a, err
	}
	packed, err := pressed(file, "LICENSE")
	if err != nil {
		return a, err
	}
	sum := sha256.Sum256(packed)
	a.Sum = hex.EncodeToString(sum[:])
	return a, os.WriteFile(filepath.Join(dir, a.File), packed, 0o644)
}

// pressed is an archive of files under their base names.
func pressed(paths ...string) ([]byte, error) {
	var files []tarball.File
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if info.Mode()&0o100 != 0 { // whatever this user's umask
			mode = 0o755
		}
		files = append(files, tarball.File{Name: filepath.Base(path), Mode: mode, Content: content})
	}
	return tarball.Compressed(files)
}
