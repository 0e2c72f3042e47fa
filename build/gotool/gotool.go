// Package gotool runs the Go tool for the programs of this project that build others. They all build with the same settings, and
// the Makefile exports these settings to the commands that it runs. Packages that two programs share are then compiled only once,
// because Go's build cache distinguishes packages by their flags. Half of the time of a first `make demo` is the compilation of
// Kubernetes.
package gotool

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"time"
)

// settings exclude cgo, paths of this machine and the shell's environment. They equal the Makefile's exports, except for the last
// three, which nobody sets for this project. Debug information is omitted, because writing it takes a fifth of the compile time.
var settings = []string{
	"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false -gcflags=all=-dwarf=false",
	"GOWORK=off", "GOOS=", "GOARCH=",
}

// version is the variable into which the linker writes the version. The linker does not report a variable that does not exist.
const version = "github.com/singletonjob/operator/internal/contract.Version"

var semantic = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// IsVersion reports whether a text is a release version: a semantic version with a v, as in tags and krew.
func IsVersion(text string) bool { return semantic.MatchString(text) }

// Release is the command that builds a package of this project for release, for a platform and with a version, into a file.
func Release(ctx context.Context, number, system, architecture, file, pkg string) *exec.Cmd {
	cmd := Command(ctx, "", "build", "-ldflags=-s -w -X "+version+"="+number, "-o", file, pkg)
	cmd.Env = append(cmd.Env, "GOOS="+system, "GOARCH="+architecture)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}

// Command is the Go tool with these arguments in dir; empty for the current directory. To change a setting, such as the platform,
// append to Env.
func Command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), settings...)
	// The compilers are children of the Go tool. An interrupt lets it end them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
