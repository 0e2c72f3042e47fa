// Command verdict reads what `go test -json` has said, reruns included, and decides whether it is red:
//
//	go run ./test/verdict dist/ci/pure.json dist/ci/api.json
//
// A test that failed must have passed in a later run. A test that did so is flaky, and more of them than -flaky are red. A failed
// test that said SAFETY is red whatever a rerun said. The exit status is 1 where anything is red.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	flaky := flag.Int("flaky", 3, "how many tests may fail and then pass")
	list := flag.String("list", "", "a `file` for the names of the flaky tests")
	quiet := flag.Bool("quiet", false, "say nothing of skipped tests")
	flag.Parse()
	red, err := verdict(os.Stdout, flag.Args(), *flaky, *list, *quiet)
	if err != nil {
		fmt.Fprintln(os.Stderr, "verdict:", err)
	}
	if red || err != nil {
		os.Exit(1)
	}
}

func verdict(to io.Writer, files []string, mayFlake int, list string, quiet bool) (red bool, err error) {
	var all results
	for _, file := range files {
		if err := all.readFile(file); err != nil {
			return true, err
		}
	}
	sum := all.sum()
	if list != "" {
		if err := os.WriteFile(list, []byte(lines(sum.flaky)), 0o600); err != nil {
			return true, err
		}
	}
	return sum.tell(to, mayFlake, quiet), nil
}
