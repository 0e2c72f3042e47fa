//go:build linux

package supervise

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultPath is searched when the environment has no PATH, as container
// runtimes do.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds file as execvp(3) does, in the PATH of env. Relative results are
// relative to dir, where the program will be started. A file with a slash is not
// looked at: exec says best what is wrong with it.
func lookPath(file, dir string, env []string) (string, error) {
	if file == "" {
		return "", unix.ENOENT
	}
	if strings.Contains(file, "/") {
		return file, nil
	}
	reason := error(unix.ENOENT)
	for _, folder := range filepath.SplitList(pathOf(env)) {
		path := folder + "/" + file
		if folder == "" {
			path = "./" + file
		}
		seen := path
		if !filepath.IsAbs(seen) {
			seen = filepath.Join(dir, seen)
		}
		info, err := os.Stat(seen)
		if err != nil || info.IsDir() {
			continue
		}
		if unix.Faccessat(unix.AT_FDCWD, seen, unix.X_OK, unix.AT_EACCESS) == nil {
			return path, nil
		}
		reason = unix.EACCES
	}
	return "", reason
}

// checkDir tells a missing directory from a missing program, which exec's error
// number does not.
func checkDir(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return &dirError{err}
	}
	if !info.IsDir() {
		return &dirError{&os.PathError{Op: "chdir", Path: dir, Err: unix.ENOTDIR}}
	}
	return nil
}

// dirError hides from errors.Is that the cause may be ENOENT: the program was
// not looked for, so it is not "not found".
type dirError struct{ err error }

func (e *dirError) Error() string { return "working directory: " + e.err.Error() }

func pathOf(env []string) string {
	for _, kv := range env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			return path
		}
	}
	return defaultPath
}

// lastOfEach drops every variable that a later entry sets again.
func lastOfEach(env []string) []string {
	last := make(map[string]int, len(env))
	for i, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		last[name] = i
	}
	kept := make([]string, 0, len(last))
	for i, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); last[name] == i {
			kept = append(kept, kv)
		}
	}
	return kept
}
