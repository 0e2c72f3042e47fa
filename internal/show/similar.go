package show

import (
	"fmt"
	"slices"
	"strings"
)

// NotFound says that a job of a name is not in a namespace, and what may have been meant: one of a similar name, or the one of
// that name in another namespace.
func NotFound(name, namespace string, here, elsewhere []string) string {
	text := fmt.Sprintf("there is no SingletonJob %q in namespace %s", name, namespace)
	similar := slices.DeleteFunc(slices.Clone(here), func(other string) bool { return !alike(name, other) })
	slices.Sort(similar)
	slices.Sort(elsewhere)
	const most = 5
	switch {
	case len(elsewhere) > 0:
		return text + ", but in " + listed(elsewhere, most) + ": give it with -n"
	case len(similar) > 0:
		return text + "; did you mean " + listed(similar, most) + "?"
	case len(here) > 0:
		slices.Sort(here)
		return text + "; there is " + listed(here, most)
	}
	return text + ", nor any other: -n names another namespace"
}

func listed(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// alike reports whether one name may be a mistyped other.
func alike(a, b string) bool {
	return strings.Contains(b, a) || strings.Contains(a, b) || distance(a, b) <= max(1, len(a)/4)
}

// distance is how many bytes have to be changed, added or removed to make one of the other.
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
