//go:build linux

package localnode

import (
	"path/filepath"
	"slices"
	"strings"
)

// There is no mount namespace without root, so a volume is not at its mount path. Wherever a container's command, arguments or environment
// name a mount path, they are given the directory of the volume instead. A program with a built-in path needs a variable that names the
// volume's path: see Options.PathVariables.

// mount is a volume's directory and where a container expects it.
type mount struct{ path, dir string }

// mounts is in the order of rewriting: a path within another comes before it.
type mounts []mount

func sortedMounts(all []mount) mounts {
	for i := range all {
		all[i].path = filepath.Clean(all[i].path)
	}
	slices.SortFunc(all, func(a, b mount) int { return len(b.path) - len(a.path) })
	return all
}

// rewrite replaces every mount path in text that stands as a path of its own: not within a longer name.
func (m mounts) rewrite(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		found, ok := m.at(text, i)
		if !ok {
			out.WriteByte(text[i])
			i++
			continue
		}
		out.WriteString(found.dir)
		i += len(found.path)
	}
	return out.String()
}

func (m mounts) at(text string, i int) (mount, bool) {
	if text[i] != '/' || i > 0 && (isName(text[i-1]) || text[i-1] == '/') {
		return mount{}, false
	}
	for _, candidate := range m {
		rest, ok := strings.CutPrefix(text[i:], candidate.path)
		if ok && (rest == "" || !isName(rest[0])) {
			return candidate, true
		}
	}
	return mount{}, false
}

// isName is true for a byte that continues with a file's name.
func isName(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte("_.-", b) >= 0 || b >= 0x80
}
