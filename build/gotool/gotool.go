// Package gotool runs the Go tool for the programs of this project that build others. All of them build with the same
// settings, and the Makefile exports these to what it runs: a package that two programs share is then compiled once, since
// Go's build cache tells packages apart by their flags. Half of what a first `make demo` takes is compiling Kubernetes.
package gotool

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"time"
)

// settings are free of cgo, of this machine's paths and of this shell's wishes. They equal what the Makefile exports, but
// for the last three, which nobody sets for this project. What debuggers need is left out: writing it is a fifth of compiling.
var settings = []string{
	"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false -gcflags=all=-dwarf=false",
	"GOWORK=off", "GOOS=", "GOARCH=",
}

// version is what the linker writes a version into. It is silent about a variable that does not exist.
const version = "github.com/singletonjob/operator/internal/contract.Version"

var semantic = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// IsVersion reports whether a text is the number of a release: a semantic version with a v, as tags and krew have it.
func IsVersion(text string) bool { return semantic.MatchString(text) }

// Release is the command that builds a package of this project as users get it, for a platform and with a version, into a file.
func Release(ctx context.Context, number, system, architecture, file, pkg string) *exec.Cmd {
	cmd := Command(ctx, "", "build", "-ldflags=-s -w -X "+version+"="+number, "-o", file, pkg)
	cmd.Env = append(cmd.Env, "GOOS="+system, "GOARCH="+architecture)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
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
