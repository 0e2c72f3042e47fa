package show

import (
	"fmt"
	"slices"
	"strings"
)

// NotFound is the message for a job that does not exist in a namespace. It suggests jobs with a similar name, or other namespaces
// that have a job of this name.
func NotFound(name, namespace string, here, elsewhere []string) string {
	text := fmt.Sprintf("there is no SingletonJob %q in namespace %s", name, namespace)
	similar := slices.DeleteFunc(slices.Clone(here), func(other string) bool { return !alike(name, other) })
	slices.Sort(similar)
	slices.Sort(elsewhere)
	const most = 5
	switch {
	case len(elsewhere) > 0:
		return text + ", but there is one in namespace " + listed(elsewhere, most) + ": select it with -n"
	case len(similar) > 0:
		return text + "; did you mean " + listed(similar, most) + "?"
	case len(here) > 0:
		slices.Sort(here)
		return text + "; the namespace has " + listed(here, most)
	}
	return text + ", and no other either: select another namespace with -n"
}

func listed(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// alike reports whether one name could be a mistyped version of the other.
func alike(a, b string) bool {
	return strings.Contains(b, a) || strings.Contains(a, b) || distance(a, b) <= max(1, len(a)/4)
}

// distance is the number of bytes to change, add or remove to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}
