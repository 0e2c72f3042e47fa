//go:build linux

// Command get makes sure that programs of a control plane are there and prints the directory that holds them:
//
//	go run ./test/controlplane/get [-build] [name ...]
//
// Without names: all that package controlplane runs. Progress goes to standard error.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/singletonjob/operator/test/controlplane"
)

func main() {
	if err := get(); err != nil {
		fmt.Fprintln(os.Stderr, "get:", err)
		os.Exit(1)
	}
}

func get() error {
	build := flag.Bool("build", false, "build what the cache lacks, whatever $KUBEBUILDER_ASSETS says")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	find := controlplane.Find
	if *build {
		find = controlplane.Build
	}
	names := flag.Args()
	if len(names) == 0 {
		names = controlplane.All
	}
	binaries, err := find(ctx, os.Stderr, names...)
	if err != nil {
		return err
	}
	fmt.Println(binaries.Dir)
	return nil
}
