// Package gotool runs the Go tool for the programs of this project that build others. All of them build with the same
// settings, and the Makefile exports these to what it runs: a package that two programs share is then compiled once, since
// Go's build cache tells packages apart by their flags. Half of what a first `make demo` takes is compiling Kubernetes.
package gotool

import (
	"context"
	"os"
	"os/exec"
	"time"
)

// settings are free of cgo, of this machine's paths and of this shell's wishes. They equal what the Makefile exports, but
// for the last three, which nobody sets for this project. What debuggers need is left out: writing it is a fifth of compiling.
var settings = []string{
	"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false -gcflags=all=-dwarf=false",
	"GOWORK=off", "GOOS=", "GOARCH=",
}

// Command is the Go tool with these arguments in dir, or in the current directory if that is empty. Anyone who needs another
// setting, such as a platform, appends it to Env.
func Command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), settings...)
	// The compilers are children of the Go tool: the interrupt lets it end them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
