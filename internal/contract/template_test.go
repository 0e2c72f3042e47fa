package contract

import (
	"math/rand/v2"
	"path"
	"regexp"
	"strings"
	"testing"
)

var ours = regexp.MustCompile(OursPattern)

// TestReservedPaths: every spelling of a reserved path is refused. Of other paths, only those with `..` are refused.
func TestReservedPaths(t *testing.T) {
	check := func(mount string) {
		t.Helper()
		cleaned := path.Clean("/" + mount)
		there := cleaned == "/singletonjob" || strings.HasPrefix(cleaned, "/singletonjob/")
		matches := ours.MatchString(mount)
		if there && !matches {
			t.Errorf("%q is %s, and is accepted", mount, cleaned)
		}
		if matches && !there && !strings.Contains("/"+mount+"/", "/../") {
			t.Errorf("%q is %s, and is refused", mount, cleaned)
		}
	}
	for _, mount := range []string{
		"/singletonjob", "singletonjob", "//singletonjob", "/./singletonjob", "./singletonjob", "/singletonjob/", "/singletonjob/.", "/././/./singletonjob/bin",
		"/x/../singletonjob", "../singletonjob", "/\n/../singletonjob", "/singletonjob/bin/..", "/singletonjobs", "/x/singletonjob", "/.singletonjob", "/data", "",
		".singletonjob", "/..singletonjob", "/x/./singletonjob", "/singletonjob/../data", "/data/..",
	} {
		check(mount)
	}
	r := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"/", "/", ".", "..", "/./", "/../", "singletonjob", "singletonjob", "x", "s", "\n", "é"}
	for range 100_000 {
		var mount strings.Builder
		for range r.IntN(9) {
			mount.WriteString(pieces[r.IntN(len(pieces))])
		}
		check(mount.String())
	}
}
