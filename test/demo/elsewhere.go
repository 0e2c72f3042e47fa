//go:build !linux

// Command demo needs Linux.
package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "The demo needs Linux, because it runs Pods as plain processes and watches when they end; this is %s.\n"+
		"Run it in a Linux container or machine with Go. It needs no root.\n", runtime.GOOS)
	os.Exit(1)
}
