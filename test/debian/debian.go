//go:build linux

// Package debian gets programs from Debian's packages, for tests that need them: unpacked into the user's cache, and not installed.
package debian

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Packages are some of one release, and those that they depend on.
type Packages struct {
	Release string // its code name
	Names   []string
	// Without are patterns of names of packages that are not needed, although others depend on them.
	Without []string
	// Keep is the one directory at the top to keep; all of them if it is empty.
	Keep string
}

// Unpack returns a directory with the files of the packages, as they are now: what the cache has stays as it is. It takes apt-get
// and a Debian that knows a mirror, and tells on progress what takes time. The directory is shared, so nobody writes to it.
func Unpack(ctx context.Context, progress io.Writer, p Packages) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q", p))
	dir = filepath.Join(cache, "singletonjob", "debian", p.Release+"-"+hex.EncodeToString(key[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	partial, err := os.MkdirTemp(filepath.Dir(dir), "unpacking-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(partial) }()
	_, _ = fmt.Fprintf(progress, "getting Debian's %s from %s, once, into %s\n", strings.Join(p.Names, ", "), p.Release, dir)
	if err := p.unpack(ctx, partial); err != nil {
		return "", fmt.Errorf("packages of Debian %s: %w", p.Release, err)
	}
	err = os.Rename(filepath.Join(partial, "root"), dir)
	if errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ENOTEMPTY) {
		return dir, nil // somebody else was first
	}
	return dir, err
}

func (p Packages) unpack(ctx context.Context, work string) error {
	options, err := p.options(ctx, work)
	if err != nil {
		return err
	}
	if err := aptGet(ctx, options, "update"); err != nil {
		return err
	}
	if err := aptGet(ctx, options, append([]string{"install", "--download-only", "--no-install-recommends"}, p.Names...)...); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(work, "archives/*.deb"))
	if err == nil && len(archives) == 0 {
		err = errors.New("apt-get has downloaded nothing")
	}
	if err != nil {
		return err
	}
	root := filepath.Join(work, "root")
	for _, archive := range archives {
		if p.excludes(archive) {
			continue
		}
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", archive, root).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", archive, err, bytes.TrimSpace(out))
		}
	}
	if p.Keep == "" {
		return nil
	}
	tops, err := os.ReadDir(root)
	for _, top := range tops {
		if err == nil && top.Name() != p.Keep {
			err = os.RemoveAll(filepath.Join(root, top.Name()))
		}
	}
	return err
}

func (p Packages) excludes(archive string) bool {
	name, _, _ := strings.Cut(filepath.Base(archive), "_")
	for _, pattern := range p.Without {
		if match, _ := filepath.Match(pattern, name); match {
			return true
		}
	}
	return false
}

// options have apt-get know one release alone, and nothing of what is installed here.
func (p Packages) options(ctx context.Context, work string) ([]string, error) {
	mirror, err := mirror(ctx)
	if err != nil {
		return nil, err
	}
	sources, status := filepath.Join(work, "sources.list"), filepath.Join(work, "status")
	line := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", mirror, p.Release)
	err = errors.Join(
		os.MkdirAll(filepath.Join(work, "archives/partial"), 0o755), os.MkdirAll(filepath.Join(work, "lists/partial"), 0o755),
		os.WriteFile(sources, []byte(line), 0o600), os.WriteFile(status, nil, 0o600),
	)
	options := []string{"-qq", "-y"}
	for _, option := range []string{
		"Dir::Etc::SourceList=" + sources, "Dir::Etc::SourceParts=/dev/null", "Dir::State::Lists=" + filepath.Join(work, "lists"),
		"Dir::State::Status=" + status, "Dir::Cache=" + work, "Debug::NoLocking=1", "Acquire::Languages=none", "Acquire::Retries=3",
		"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false", "APT::Sandbox::User=", "APT::Get::AllowUnauthenticated=false",
	} {
		options = append(options, "-o", option)
	}
	return options, err
}

// mirror is where this machine gets Debian from.
func mirror(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian").Output()
	if err != nil {
		return "", fmt.Errorf("asking apt-get for this machine's mirror of Debian: %w", err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if first == "" {
		return "", errors.New("apt-get knows no mirror of Debian: run apt-get update first, on a Debian")
	}
	return first, nil
}

func aptGet(ctx context.Context, options []string, command ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", slices.Concat(options, command)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(command, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
