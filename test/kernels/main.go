//go:build linux

// Command kernels tests what the kernel does for the agent (process trees, timers, control groups, clocks) on kernels that this
// machine does not have. They are Debian's, in virtual machines without hardware support, so they run wherever this program runs.
// One kernel has control groups of version 1, the others have only version 2. During the tests the wall clock jumps by an hour
// back and forth, and no test must notice.
//
//	go run ./test/kernels >events.json && go run ./test/verdict events.json
//
// It needs Go and a Debian for amd64. Kernels and an emulator are downloaded by apt-get, from the mirror that the machine itself
// uses, and unpacked into the user's cache: nothing is installed. It prints what `go test -json` prints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/test/debian"
)

// A kernel is one of Debian's.
type kernel struct {
	version string // what people call it
	release string // of Debian, which has it
	cgroups int    // their version
}

// kernels are the oldest that is still met, which lacks CLOSE_RANGE_CLOEXEC, and those of the last two releases.
var kernels = []kernel{{"5.10", "bullseye", 1}, {"6.1", "bookworm", 2}, {"6.12", "trixie", 2}}

// A suite is a package whose tests need nothing but a kernel.
type suite struct{ name, dir string }

var suites = []suite{
	{"supervise", "./internal/supervise"},
	{"sender", "./internal/sender"},
	{"agent", "./internal/agent"},
}

// readSources matches the tests that read files of the checkout. The machines do not have it.
const readSources = "^(TestArchitectures|TestMetrics)$"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only := flag.String("kernels", "", "the versions to take, separated by commas; all if empty")
	pattern := flag.String("run", "", "the tests to run, as a regular `expression`; all if empty")
	limit := flag.Duration("timeout", 30*time.Minute, "for how long one kernel may run")
	flag.Parse()
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "kernels-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	tools, err := debian.Unpack(ctx, os.Stderr, equipment)
	if err != nil {
		return err
	}
	if err := compile(ctx, work, tools); err != nil {
		return err
	}
	var failed []error
	for _, k := range chosen {
		image, err := k.image(ctx)
		if err == nil {
			m := machine{kernel: k, image: image, tools: tools, work: work, pattern: *pattern, limit: *limit}
			err = m.test(ctx)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("on Linux %s: %w", k.version, err))
		}
	}
	return errors.Join(failed...)
}

// equipment is an emulator, and what the machines have beside the tests.
var equipment = debian.Packages{Release: "bookworm", Names: []string{"qemu-system-x86", "busybox-static", "coreutils", "util-linux"}}

// image is the newest of the release, of the flavour that is made for virtual machines.
func (k kernel) image(ctx context.Context) (string, error) {
	dir, err := debian.Unpack(ctx, os.Stderr, debian.Packages{Release: k.release, Names: []string{"linux-image-cloud-amd64"}, Keep: "boot"})
	if err != nil {
		return "", err
	}
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-"+k.version+".*"))
	if err == nil && len(images) != 1 {
		err = fmt.Errorf("%s/boot has %d images of it, want one", dir, len(images))
	}
	if err != nil {
		return "", err
	}
	return images[0], nil
}

func choose(only string) ([]kernel, error) {
	if only == "" {
		return kernels, nil
	}
	var chosen []kernel
	for version := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(kernels, func(k kernel) bool { return k.version == version })
		if i < 0 {
			return nil, fmt.Errorf("-kernels=%s: no kernel %q: there are 5.10, 6.1 and 6.12", only, version)
		}
		chosen = append(chosen, kernels[i])
	}
	return chosen, nil
}
