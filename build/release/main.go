// Command release builds all artifacts of a version of this project, from a clean commit, into one directory:
//
//	go run ./build/release -version=v0.2.0 -repository=REGISTRY/singletonjob/operator -url=https://… -key=key.pem
//
// The artifacts are the image for amd64 and arm64 as an OCI archive, the chart as an archive and as an OCI layout, and install.yaml. There
// is kubectl singleton for each platform, with its krew manifest. Bills of materials, provenance and checksums come with them. With a key,
// the last two are signed. The same commit, flags, Go version and key give the same bytes.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/singletonjob/operator/build/gotool"
)

// release holds the inputs of a release.
type release struct {
	// version starts with v, like tags. The image's tag and the chart's version have no v.
	version string
	// repository is the image's future repository, without a tag.
	repository string
	// url is the future location of the files, without their names.
	url string
	// revision is the commit, and epoch its time in seconds since 1970.
	revision, epoch string
	dir             string
}

func (r release) number() string { return strings.TrimPrefix(r.version, "v") }

func (r release) file(name string) string { return filepath.Join(r.dir, name) }

// image is the name of the image archive.
func (r release) image() string { return "singletonjob-image-" + r.number() + ".tar" }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := release{}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "what is released, such as v0.2.0")
	flags.StringVar(&r.repository, "repository", "", "where the image will be, as REGISTRY/singletonjob/operator, without a tag")
	flags.StringVar(&r.url, "url", "", "future location of the files, without their names: https://…")
	flags.StringVar(&r.dir, "output", "dist/release", "directory to make")
	key := flags.String("key", "", "`file` with a private key in PEM (ECDSA P-256) to sign with; no signatures if empty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := r.valid(); err != nil {
		return err
	}
	signer, err := readKey(*key)
	if err != nil {
		return fmt.Errorf("-key=%s: %w", *key, err)
	}
	if r.revision, r.epoch, err = commit(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{r.makeImage, r.makePlugin, r.makeMaterials} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := r.seal(signer); err != nil {
		return err
	}
	fmt.Println(r.dir, "is", r.version, "of", r.revision)
	return nil
}

func (r release) valid() error {
	switch {
	case !gotool.IsVersion(r.version):
		return fmt.Errorf("-version=%q: expected a version such as v0.2.0 (make release VERSION=v0.2.0)", r.version)
	case r.repository == "" || strings.ContainsAny(r.repository, "@ ") || strings.Contains(filepath.Base(r.repository), ":"):
		return fmt.Errorf("-repository=%q: expected the image's future repository, such as REGISTRY/singletonjob/operator, without a tag (REPOSITORY=…)", r.repository)
	case !strings.HasPrefix(r.url, "https://"):
		return fmt.Errorf("-url=%q: expected the future location of the files, starting with https:// (RELEASE_URL=…)", r.url)
	}
	if old, err := os.ReadDir(r.dir); err == nil && len(old) > 0 {
		return fmt.Errorf("-output=%s: the directory already has %s: remove it, or name another directory", r.dir, old[0].Name())
	}
	return nil
}

// commit returns the commit to release. It fails if the tree has changes that are in no commit.
func commit(ctx context.Context) (revision, epoch string, err error) {
	changes, err := output(exec.CommandContext(ctx, "git", "status", "--porcelain"))
	if err != nil {
		return "", "", err
	}
	if changes != "" {
		return "", "", fmt.Errorf("the tree differs from its commit: commit or remove these changes\n%s", changes)
	}
	if revision, err = output(exec.CommandContext(ctx, "git", "rev-parse", "HEAD")); err != nil {
		return "", "", err
	}
	epoch, err = output(exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct"))
	return revision, epoch, err
}

var digestLine = regexp.MustCompile(`(?m)^sha256:[0-9a-f]{64}$`)

// makeImage builds the image, then the chart that names it by its digest, then install.yaml.
func (r release) makeImage(ctx context.Context) error {
	cmd := gotool.Command(ctx, "", "run", "./build/image", "-reference="+r.repository+":"+r.number(), "-version="+r.version,
		"-revision="+r.revision, "-output="+r.file(r.image()))
	cmd.Env = append(cmd.Env, "SOURCE_DATE_EPOCH="+r.epoch)
	out, err := output(cmd)
	if err != nil {
		return err
	}
	digest := digestLine.FindString(out)
	if digest == "" {
		return fmt.Errorf("found no image digest in %q", out)
	}
	return r.makeChart(ctx, digest)
}

func (r release) makePlugin(ctx context.Context) error {
	_, err := output(gotool.Command(ctx, "", "run", "./build/krew", "-version="+r.version, "-url="+r.url, "-output="+r.dir))
	return err
}

// output is what a command prints to stdout, trimmed. Its stderr is passed on.
func output(cmd *exec.Cmd) (string, error) {
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return string(bytes.TrimSpace(out)), nil
}

var errNoKey = errors.New("no ECDSA P-256 private key in PEM: create one with openssl ecparam -name prime256v1 -genkey -noout")
