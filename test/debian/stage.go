//go:build linux

package debian

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// loader runs programs of a Debian. Some releases have /lib as a link to /usr/lib, whose packages nonetheless bring files for both.
const loader = "/lib64/ld-linux-x86-64.so.2"

var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"}

// Command is the command line that runs a program of an unpacked directory here, with its own libraries.
func Command(root, program string) []string {
	var dirs []string
	for _, dir := range libraryDirs {
		dirs = append(dirs, filepath.Join(root, dir))
	}
	return []string{filepath.Join(root, loader), "--library-path", strings.Join(dirs, ":"), filepath.Join(root, program)}
}

// Stage copies files and directories of an unpacked directory to the same places below another one. It also copies what runs them: the
// libraries that they name, and what loads these.
func Stage(root, to string, paths ...string) error {
	s := stage{root: root, to: to, done: map[string]bool{}}
	for _, name := range paths {
		if err := s.add(path.Clean("/" + name)); err != nil {
			return err
		}
	}
	return nil
}

type stage struct {
	root, to string
	done     map[string]bool
}

// add copies a path, and what it needs.
func (s *stage) add(name string) error {
	if s.done[name] {
		return nil
	}
	s.done[name] = true
	from, to := filepath.Join(s.root, name), filepath.Join(s.to, name)
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	switch {
	case info.IsDir():
		entries, err := os.ReadDir(from)
		for _, entry := range entries {
			err = errors.Join(err, s.add(path.Join(name, entry.Name())))
		}
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return s.link(name, from, to)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no file", from)
	}
	if err := copyFile(from, to, info.Mode().Perm()); err != nil {
		return err
	}
	return s.libraries(from)
}

// link copies a link, and what it leads to if that is there: alternatives, for one, are not.
func (s *stage) link(name, from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if err := os.Symlink(target, to); err != nil {
		return err
	}
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	if _, err := os.Lstat(filepath.Join(s.root, target)); err != nil {
		return nil //nolint:nilerr // it leads out of the packages
	}
	return s.add(target)
}

func (s *stage) libraries(program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return nil // not an ELF file
	}
	defer func() { _ = file.Close() }()
	needed, err := file.ImportedLibraries()
	if err != nil || len(needed) == 0 {
		return err
	}
	for _, library := range needed {
		if err := s.library(library); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
	}
	return s.loader()
}

func (s *stage) library(name string) error {
	for _, dir := range libraryDirs {
		if _, err := os.Lstat(filepath.Join(s.root, dir, name)); err == nil {
			return s.add(path.Join(dir, name))
		}
	}
	if name == path.Base(loader) {
		return s.loader()
	}
	return fmt.Errorf("no package has its library %s", name)
}

// loader is copied to the place that programs name, whatever of that is a link.
func (s *stage) loader() error {
	to := filepath.Join(s.to, loader)
	if s.done[loader] {
		return nil
	}
	s.done[loader] = true
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return copyFile(filepath.Join(s.root, "/lib/x86_64-linux-gnu", path.Base(loader)), to, 0o755)
}

func copyFile(from, to string, mode fs.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
