// Command report reads what `go test -json` prints and tells a person what matters: how long each package took, the output
// of what failed, and every test that was skipped, with its reason.
//
//	go test -json ./... | go run ./test/report -skips=.ci/skips
//
// The file names the skips that are expected. The exit status is 0 only if no test failed and none but these was skipped.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	file := flag.String("skips", "", "a `file` of expected skips: any other is a failure; without it, none is")
	verbose := flag.Bool("v", false, "print all that tests say, as they say it")
	flag.Parse()
	if err := report(*file, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func report(file string, verbose bool) error {
	var expected []skip
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if expected, err = parseSkips(string(text)); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	r := newResults(os.Stdout)
	r.verbose = verbose
	if err := r.read(os.Stdin); err != nil {
		return err
	}
	return r.summary(expected, file != "")
}
