// Command compile fills Go's build cache with everything that packages of this module need, and shows its progress, which the
// Go tool does not:
//
//	go run ./build/compile -name='the demo' ./test/demo ./cmd/agent ./cmd/manager
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/singletonjob/operator/build/gotool"
)

func main() {
	if err := compile(); err != nil {
		fmt.Fprintln(os.Stderr, "compile:", err)
		os.Exit(1)
	}
}

func compile() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name := flag.String("name", "the packages", "`name` of the packages in the output")
	tests := flag.Bool("tests", false, "also compile what their tests need")
	race := flag.Bool("race", false, "compile with the race detector")
	flag.Parse()
	return gotool.Compilation{Name: *name, Packages: flag.Args(), Tests: *tests, Race: *race}.Run(ctx, os.Stderr)
}
