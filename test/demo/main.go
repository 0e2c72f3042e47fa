//go:build linux

// Command demo shows on this machine, with nothing but Go, what a SingletonJob does: a real etcd and API server, the
// operator, and three nodes that run pods as plain processes (they are no kubelets). It kills the active process, cuts a
// node off, freezes a holder and thaws it, and checks everything that it says. It exits with 0 only if all of it was so.
//
// With -keep, or KEEP=1 in the environment, it leaves everything running until Ctrl-C, to try things by hand.
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
	kept    bool // run to its end and left for somebody to try
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
	flag.Parse()
	os.Exit(run(*keep))
}

// run returns the exit code.
func run(keep bool) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, orphaned := context.WithCancelCause(ctx)
	go watchParent(orphaned)
	d := &demo{terminal: newTerminal(os.Stdout)}
	err := d.run(ctx, keep)
	switch {
	case ctx.Err() != nil && !d.kept:
		d.say(dim, "stopped; no process is left")
		return 130
	case err != nil:
		d.say(red, "the demo failed: %v", err)
		return 1
	}
	return 0
}

// watchParent ends the demo when the one that started it, make or the Go tool, is gone without telling.
func watchParent(end context.CancelCauseFunc) {
	for parent := os.Getppid(); os.Getppid() == parent; {
		time.Sleep(500 * time.Millisecond)
	}
	end(errors.New("the parent process is gone"))
}

// errUnproved ends a run in which something was not as claimed.
var errUnproved = errors.New("not everything was as claimed; see ✗ above")

func (d *demo) run(ctx context.Context, keep bool) error {
	d.print(d.mark(bold, "SingletonJob") + ": exactly one copy acts. Everything runs on this machine; nothing is installed.")
	stop, err := d.setUp(ctx)
	defer stop()
	if err != nil {
		return err
	}
	live, end := context.WithCancel(ctx)
	defer end()
	for i, scene := range []func(context.Context) error{
		d.election, d.killedProcess, d.cutOffNode, d.frozenHolder, d.thawedWriter, d.summary,
	} {
		switch i {
		case 1:
			d.metered.Store(fence.Resource(ledger))
			go d.meter(live)
		case 5:
			end()
		}
		// For what hangs: a busy machine is slow. Nothing but the claims decides over success.
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

// setUp gets and starts everything. stop ends what was started, also after an error.
func (d *demo) setUp(ctx context.Context) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, end := range slices.Backward(stops) {
			end()
		}
	}
	d.scene("Setting up", "A control plane, the operator, three nodes, and a sink: a service that checks fencing tokens.")
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
	d.note("etcd and kube-apiserver %s run on loopback (%s)", controlplane.KubernetesVersion, binaries.Origin)
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
	d.note("the operator runs, and three nodes: plain processes, no kubelet, no root")
	d.block(nodes)
	return stop, nil
}

// keep waits until somebody has tried enough.
func (d *demo) keep(ctx context.Context) {
	kill := "# the ledger has no process just now"
	if job, err := d.Job(ctx, namespace, ledger); err == nil {
		if process, err := d.WriterProcess(namespace, job.Status.ActivePod); err == nil {
			kill = fmt.Sprintf("kill -9 %d     # the ledger's process: a failover", process.Pid)
		}
	}
	d.print("\n" + d.mark(bold, "Left running. Try:"))
	d.block(fmt.Sprintf(`export KUBECONFIG=%s PATH=%s:$PATH
%s
kubectl get singletonjobs -A -o wide --watch
kubectl -n demo describe singletonjob ledger
kubectl -n demo get lease ledger -o yaml
kubectl -n demo delete pod -l singletonjob.io/name=ledger,singletonjob.io/role=active     # a handover
kubectl -n demo patch sj ledger --type=merge -p '{"spec":{"suspend":true}}'
kubectl explain sj.spec.lease
curl -s %s/report                                                                         # what the sink saw

kubectl logs and exec need a kubelet. What containers print is in
%s/*/logs. Ctrl-C ends everything.`,
		d.Plane.Kubeconfig(), d.Plane.Binaries().Dir, kill, d.SinkLink.URL(), d.Cluster.Dir()))
	d.kept = true
	<-ctx.Done()
}

// trouble shows what may explain a failure.
func (d *demo) trouble() {
	if d.Product == nil {
		return
	}
	d.print("\nThe operator's last words:")
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
