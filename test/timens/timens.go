//go:build linux

// Package timens starts programs in time namespaces, in which a machine has slept for as long as one likes.
package timens

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/tier"
)

// Execute is the beginning of a command line that puts a program into a time namespace, of offsets such as --boottime=86400. The
// program is a child of it. Where no such namespace can be made the test is skipped.
func Execute(t testing.TB, offsets ...string) []string {
	t.Helper()
	by := append([]string{"unshare", "--time", "--fork", "--kill-child"}, offsets...)
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.CommandContext(t.Context(), by[0], append(by[1:], "true")...).CombinedOutput()
		switch said := string(out); {
		case err == nil:
			return by
		case strings.Contains(said, "temporarily unavailable") && time.Now().Before(end): // EAGAIN: too many processes
		case strings.Contains(said, "Invalid argument"):
			t.Skipf("this kernel has no time namespaces: %s", said)
		default:
			tier.Needs(t, "no time namespace can be made here (it takes root and util-linux): %v\n%s", err, said)
		}
	}
}
