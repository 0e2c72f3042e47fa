//go:build linux

// Command late measures how late a write of a dead process can arrive, because the kernel retransmits it from the send buffer. At a sink
// that can't fence, lockDelay has to outlast this.
//
// A process writes on many TCP connections, one line at a time, and each line is answered. All connections are cut at once, and the process
// is killed at its lease's deadline, as an agent does it. Then one connection after the other is restored. Everything runs on one machine,
// in its own network. The command needs root, iproute2 and nftables: run 'make bench-late'.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/test/subprocess"
)

type options struct {
	connections int
	least, most time.Duration // how long a connection is cut
	dies, lease time.Duration // after the beginning of the cut
	watch       time.Duration // after the last mend
	json        string
	world       bool
	writer      string
}

func main() {
	var o options
	flag.IntVar(&o.connections, "connections", 106, "how many are cut")
	flag.DurationVar(&o.least, "least", 15*time.Second, "how long the first is cut")
	flag.DurationVar(&o.most, "most", 2*time.Minute, "how long the last is cut")
	flag.DurationVar(&o.dies, "dies", 14*time.Second, "when the process is killed, after the cut")
	flag.DurationVar(&o.lease, "lease", 15*time.Second, "when a successor may begin, after the cut")
	flag.DurationVar(&o.watch, "watch", 110*time.Second, "how long what is late is waited for when all is mended")
	flag.StringVar(&o.json, "json", "dist/late.json", "file for all figures")
	flag.BoolVar(&o.world, "world", false, "this is the process in the network of its own")
	flag.StringVar(&o.writer, "writer", "", "this is the process that writes to these addresses")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/late:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context) error {
	switch {
	case o.writer != "":
		return write(strings.Split(o.writer, ","))
	case o.world:
		samples, err := o.measure(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(samples)
	}
	return o.report(ctx)
}

// report has the measurement made in a network of its own, which ends with it.
func (o *options) report(ctx context.Context) error {
	var out strings.Builder
	world := exec.Command("/proc/self/exe", append(os.Args[1:], "-world")...)
	world.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	world.Stdout, world.Stderr = &out, os.Stderr
	process, err := subprocess.Start(world)
	if err != nil {
		return fmt.Errorf("a network of its own takes root: %w", err)
	}
	defer process.Stop(0)
	select {
	case <-process.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := process.Err(); err != nil {
		return err
	}
	var samples []Sample
	if err := json.Unmarshal([]byte(out.String()), &samples); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.json), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(o.json, []byte(out.String()), 0o644); err != nil {
		return err
	}
	_, err = io.WriteString(os.Stdout, markdown(samples, o.dies, o.lease))
	return err
}
