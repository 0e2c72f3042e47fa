//go:build linux

package supervise

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultPath is searched when the environment has no PATH, as container
// runtimes do.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds file as execvp(3) does, in the PATH of env. A file with a slash is
// not looked at: exec says best what is wrong with it.
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
		if unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS) == nil {
			return path, nil
		}
		reason = unix.EACCES
	}
	return "", reason
}

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
