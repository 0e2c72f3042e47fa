//go:build linux

package supervise

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultPath is searched if the environment has no PATH, as in container runtimes.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds file in the PATH of env, like execvp(3). It does not check a file with a slash, because exec gives the best error for it.
func lookPath(file string, env []string) (string, error) {
	if file == "" {
		return "", unix.ENOENT
	}
	if strings.Contains(file, "/") {
		return file, nil
	}
	reason := error(unix.ENOENT)
	for dir := range strings.SplitSeq(pathOf(env), ":") {
		path := dir + "/" + file
		if dir == "" {
			path = "./" + file
		}
		info, err := os.Stat(path)
		if err != nil || info.IsDir() {
			continue
		}
		executable := func() error { return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS) }
		if uninterrupted(executable) == nil {
			return path, nil
		}
		reason = unix.EACCES
	}
	return "", reason
}

// CannotExecute returns the reason why a file cannot be executed, if that is certain without trying: the file does not exist, or no user
// may execute it. Only an attempt shows whether this process can execute it, so nil guarantees nothing. It accesses files, which can hang.
func CannotExecute(file string, env []string) error {
	path, err := lookPath(file, env)
	if err == nil {
		err = notExecutable(path)
	}
	if err == nil {
		return nil
	}
	return &StartError{Op: opExecute, Path: file, Err: err}
}

func notExecutable(path string) error {
	const anybody = 0o111
	var file unix.Stat_t
	err := unix.Stat(path, &file)
	if errors.Is(err, unix.ENOENT) {
		return err
	}
	if err == nil && (file.Mode&unix.S_IFMT != unix.S_IFREG || file.Mode&anybody == 0) {
		return unix.EACCES
	}
	return nil // nothing is certain about a file that could not be checked
}

func pathOf(env []string) string {
	for _, kv := range env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			return path
		}
	}
	return defaultPath
}

// lastOfEach removes every entry whose variable a later entry sets again.
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
