//go:build !linux

// Command torture needs Linux.
package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "The torture runs pods as plain processes and stops and kills them by means that only Linux has; this is %s.\n", runtime.GOOS)
	os.Exit(1)
}
