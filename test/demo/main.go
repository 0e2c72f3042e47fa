//go:build linux

// Command demo shows what a SingletonJob does, on this machine and with Go only. It runs a real etcd and API server, the
// operator, and three nodes that run Pods as plain processes, without a kubelet. It kills the active process, cuts off a
// node, and freezes and thaws a holder. It checks every claim that it prints, and exits with 0 only if all hold.
//
// With -fence it shows something else: a Python and a Node program that write to a PostgreSQL with fence.sql.
//
// With -keep, or KEEP=1 in the environment, it leaves everything running until Ctrl-C, so that you can try things by hand.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/stack"
)

const namespace = "demo"

// demo is one run.
type demo struct {
	*terminal
	*stack.Product
	root    string
	kept    bool // the run has ended, and -keep leaves it running for the user
	claims  claims
	metered atomic.Value // fence.Resource whose writes are shown
}

// tenure is a holding of the Lease, as the demo saw it.
type tenure struct {
	token     fence.Token
	pod, node string
}

func main() {
	localnode.Init()
	keep := flag.Bool("keep", os.Getenv("KEEP") != "" && os.Getenv("KEEP") != "0", "leave everything running until Ctrl-C")
	fenced := flag.Bool("fence", false, "show only how a Python and a Node program are fenced by PostgreSQL, which must be installed, as psycopg2 and npm")
	flag.Parse()
	os.Exit(run(*keep && !*fenced, *fenced))
}

// run returns the exit code.
func run(keep, fenced bool) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, orphaned := context.WithCancelCause(ctx)
	go watchParent(orphaned)
	d := &demo{terminal: newTerminal(os.Stdout)}
	err := d.run(ctx, keep, fenced)
	switch {
	case ctx.Err() != nil && !d.kept:
		d.say(dim, "stopped; all processes have ended")
		return 130
	case err != nil:
		d.say(red, "the demo failed: %v", err)
		return 1
	}
	return 0
}

// watchParent ends the demo when its parent process, make or the Go tool, has ended without a signal.
func watchParent(end context.CancelCauseFunc) {
	for parent := os.Getppid(); os.Getppid() == parent; {
		time.Sleep(500 * time.Millisecond)
	}
	end(errors.New("the parent process has ended"))
}

// errUnproved ends a run in which a claim did not hold.
var errUnproved = errors.New("some claims did not hold; see ✗ above")

func (d *demo) run(ctx context.Context, keep, fenced bool) error {
	d.print(d.mark(bold, "SingletonJob") + ": exactly one copy acts. Everything runs on this machine; nothing is installed.")
	stop, err := d.setUp(ctx, fenced)
	defer stop()
	if err != nil {
		return err
	}
	live, end := context.WithCancel(ctx)
	defer end()
	metered := func(ctx context.Context) error {
		d.metered.Store(fence.Resource(ledger))
		go d.meter(live)
		return d.killedProcess(ctx)
	}
	quiet := func(ctx context.Context) error { end(); return d.summary(ctx) }
	scenes := []func(context.Context) error{d.election, metered, d.cutOffNode, d.frozenHolder, d.thawedWriter, quiet}
	if fenced {
		var stop func()
		scenes, stop, err = d.fenceScenes(ctx)
		defer stop()
		if err != nil {
			return err
		}
	}
	for _, scene := range scenes {
		// The timeout only ends scenes that hang, because a busy machine is slow. Only the claims decide about success.
		limited, cancel := context.WithTimeout(ctx, 10*time.Minute)
		err := scene(limited)
		cancel()
		if err != nil && ctx.Err() == nil {
			d.trouble()
		}
		if err != nil {
			return err
		}
	}
	good := d.table()
	d.print("")
	d.say(bold, "%d claims, %v", len(d.claims), time.Since(d.begin).Round(100*time.Millisecond))
	if keep {
		d.keep(ctx)
	}
	if !good {
		return errUnproved
	}
	return nil
}

// setUp downloads and starts everything. stop ends what was started, also after an error.
func (d *demo) setUp(ctx context.Context, fenced bool) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, end := range slices.Backward(stops) {
			end()
		}
	}
	sink := "a sink: a service that checks fencing tokens"
	if fenced {
		sink = "a PostgreSQL"
	}
	d.scene("Setting up", "A control plane, the operator, three nodes, and "+sink+".")
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return stop, fmt.Errorf("run the demo inside the checkout: %w", err)
	}
	d.root = strings.TrimSpace(string(out))
	binaries, err := controlplane.Find(ctx, d.terminal, controlplane.All...)
	if err != nil {
		return stop, err
	}
	images, err := os.MkdirTemp("", "singletonjob-demo-")
	if err != nil {
		return stop, err
	}
	stops = append(stops, func() { _ = os.RemoveAll(images) })
	d.note("building agent, operator and the demo's writer")
	if err := stack.Build(ctx, d.root, images); err != nil {
		return stop, err
	}
	plane, err := controlplane.Start(ctx, controlplane.Options{Binaries: binaries, Progress: d.terminal})
	if err != nil {
		return stop, err
	}
	stops = append(stops, plane.Stop)
	d.note("etcd and kube-apiserver run on loopback (%s)", binaries.Origin)
	if err := stack.Install(ctx, plane, d.root); err != nil {
		return stop, err
	}
	d.Product, err = stack.Start(ctx, stack.Options{Plane: plane, Root: d.root, Nodes: []string{"node-a", "node-b", "node-c"}}, images)
	if err != nil {
		return stop, err
	}
	stops = append(stops, d.Stop)
	nodes, err := plane.Kubectl(ctx, "get", "nodes")
	if err != nil {
		return stop, err
	}
	d.note("the operator and three nodes are running, as plain processes without kubelet or root")
	d.block(nodes)
	return stop, nil
}

// keep prints commands to try, and waits for Ctrl-C.
func (d *demo) keep(ctx context.Context) {
	kill := "# the ledger has no process at the moment"
	if job, err := d.Job(ctx, namespace, ledger); err == nil {
		if process, err := d.WriterProcess(namespace, job.Status.ActivePod); err == nil {
			kill = fmt.Sprintf("kill -9 %d     # the ledger's process: a failover", process.Pid)
		}
	}
	d.print("\n" + d.mark(bold, "Everything is still running. Try:"))
	d.block(fmt.Sprintf(`export KUBECONFIG=%s PATH=%s:$PATH
%s
kubectl get singletonjobs -A -o wide --watch
kubectl -n demo describe singletonjob ledger
kubectl -n demo get lease ledger -o yaml
kubectl -n demo delete pod -l singletonjob.io/name=ledger,singletonjob.io/role=active     # a handover
kubectl -n demo patch sj ledger --type=merge -p '{"spec":{"suspend":true}}'
kubectl explain sj.spec.lease
curl -s %s/report                                                                         # what the sink saw

kubectl logs and exec need a kubelet. The output of containers is in
%s/*/logs. Ctrl-C ends everything.`,
		d.Plane.Kubeconfig(), d.Plane.Binaries().Dir, kill, d.SinkLink.URL(), d.Cluster.Dir()))
	d.kept = true
	<-ctx.Done()
}

// trouble prints logs and objects that can explain a failure.
func (d *demo) trouble() {
	if d.Product == nil {
		return
	}
	d.print("\nThe operator's last log lines:")
	var log strings.Builder
	d.LogTo(&log)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	d.block(strings.Join(lines[max(0, len(lines)-10):], "\n"))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if pods, err := d.Plane.Kubectl(ctx, "get", "pods,sj", "-A", "-o", "wide"); err == nil {
		d.block(pods)
	}
}

func since(at time.Duration) time.Duration { return fencetest.Boottime() - at }
