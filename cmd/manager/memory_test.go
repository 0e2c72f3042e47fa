package main

import (
	"math"
	"runtime/debug"
	"strings"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for name, c := range map[string]struct {
		limit, own string
		want       int64
		says       string
	}{
		"none":              {want: math.MaxInt64},
		"768Mi":             {limit: "805306368", want: 805306368 / 10 * 9},
		"somebody's own":    {limit: "805306368", own: "1GiB", want: math.MaxInt64}, // the runtime has read it before main
		"with a unit":       {limit: "768Mi", want: math.MaxInt64, says: `MEMORY_LIMIT "768Mi" is not a number of bytes`},
		"nothing at all":    {limit: "0", want: math.MaxInt64, says: `MEMORY_LIMIT "0"`},
		"all that there is": {limit: "9223372036854775807", want: math.MaxInt64 / 10 / 10 * 9},
	} {
		t.Run(name, func(t *testing.T) {
			debug.SetMemoryLimit(math.MaxInt64)
			t.Setenv(memoryEnv, c.limit)
			t.Setenv("GOMEMLIMIT", c.own)
			err := heedMemoryLimit()
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("the limit is %d, want %d", got, c.want)
			}
			if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}

func TestCollectOften(t *testing.T) {
	const theirs = 70
	before := debug.SetGCPercent(theirs)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "70") // the runtime has read it before main
	collectOften()
	t.Setenv("GOGC", "")
	if got := debug.SetGCPercent(theirs); got != theirs {
		t.Errorf("%d %%, though GOGC says %d", got, theirs)
	}
	collectOften()
	if got := debug.SetGCPercent(theirs); got != gcPercent {
		t.Errorf("%d %%, want %d", got, gcPercent)
	}
}
