//go:build !linux

// Command demo needs Linux.
package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "The demo runs pods as plain processes and watches their deaths with means that only Linux has; this is %s.\n"+
		"Run it in any Linux container or machine with Go: no root is needed.\n", runtime.GOOS)
	os.Exit(1)
}
