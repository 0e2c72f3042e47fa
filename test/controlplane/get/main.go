//go:build linux

// Command get makes sure that programs of a control plane are there and prints the directory that holds them:
//
//	go run ./test/controlplane/get [-build] [name ...]
//
// Without names: etcd, kube-apiserver and kubectl. Progress goes to standard error.
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
	build := flag.Bool("build", false, "build what the cache lacks, without $KUBEBUILDER_ASSETS or a download")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	get := controlplane.Find
	if *build {
		get = controlplane.Build
	}
	binaries, err := get(ctx, os.Stderr, flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "get:", err)
		os.Exit(1)
	}
	fmt.Println(binaries.Dir)
}
