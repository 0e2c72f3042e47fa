//go:build linux

// Package e2e tests the whole product on a real cluster, installed by Helm from its chart and its image.
//
// The tests run when the flag -e2e is given, on the cluster that KUBECONFIG names, and take it for their own: they install
// and remove the operator. Those that break something need the lab (test/lab) and skip where the cluster is another one.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/test/cluster"
)

var (
	enabled       = flag.Bool("e2e", false, "run the tests on the cluster that KUBECONFIG names; they install and remove the operator there")
	operatorImage = flag.String("image", "singletonjob/operator:e2e", "the operator's image, as name:tag, where the cluster finds it")
	archive       = flag.String("image-archive", "", "archive with that image, loaded into the lab before the tests")
	most          = flag.Duration("most", 0, "how long no process may have the Lease in a handover of TestRollouts and TestSwitchovers; 0: not judged")
	workloadImage = flag.String("workload-image", "", "image with test/workload as /workload; empty: built and loaded into the lab")
)

// bed is what all tests share; nil if they are not to run.
var bed *testbed

type testbed struct {
	*cluster.Cluster
	chart       string
	interrupted context.Context
	// zones are those of the lab that no test is at work in. operatorsZone is not among them: the operator stays whole
	// while they are broken. Without any, this cluster has too few nodes, and tests run one after the other.
	zones         chan zone
	operatorsZone string

	mu        sync.Mutex
	runs      map[string]int // of each test
	installed bool           // as install does it without settings, and ready
}

const (
	release         = cluster.Release
	systemNamespace = cluster.SystemNamespace
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if !*enabled {
		return m.Run()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program
	defer stop()
	var err error
	if bed, err = setUp(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	bed.interrupted = ctx
	defer bed.Close()
	return m.Run()
}

func setUp(ctx context.Context) (*testbed, error) {
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		return nil, errors.New("set KUBECONFIG to the cluster to test on, or run 'make e2e' for one on this machine")
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	r, err := cluster.Connect(ctx, cluster.Options{Kubeconfig: kubeconfig, WorkloadImage: *workloadImage, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	b := &testbed{Cluster: r, chart: "../../charts/singletonjob", runs: map[string]int{}}
	if r.Lab == nil {
		return b, nil
	}
	b.divide(r.Lab.Zones)
	if err := r.Lab.Fault(ctx, "heal"); err != nil { // whatever an interrupted run has left
		return nil, err
	}
	if *archive != "" {
		if err := r.Lab.Image(ctx, *archive); err != nil {
			return nil, err
		}
	}
	return b, b.loadSampleImage(ctx)
}

// A zone is some of the lab's nodes.
type zone struct {
	name  string
	nodes []string
}

// divide gives the last zone of the lab to the operator, and each of the others to one test at a time.
func (b *testbed) divide(zones map[string][]string) {
	names := slices.Sorted(maps.Keys(zones))
	if len(names) < 3 {
		return
	}
	b.operatorsZone, names = names[len(names)-1], names[:len(names)-1]
	b.zones = make(chan zone, len(names))
	for _, name := range names {
		b.zones <- zone{name, zones[name]}
	}
}

// loadSampleImage gives the lab what the samples name.
func (b *testbed) loadSampleImage(ctx context.Context) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("the samples need busybox: install the package busybox-static: %w", err)
	}
	image := "busybox:1.37=" + busybox + ":/bin/busybox"
	for _, applet := range []string{"sh", "date", "sleep", "cat"} {
		image += ",->/bin/busybox:/bin/" + applet
	}
	return b.Lab.Image(ctx, image)
}

// otherVersion is an image of the same commit whose programs and tag say another version.
const otherVersion = "singletonjob/operator:e2e-other"

func (b *testbed) loadOtherVersion(ctx context.Context, dir string) error {
	file := filepath.Join(dir, "other.tar")
	build := gotool.Command(ctx, "../..", "run", "./build/image", "-reference="+otherVersion, "-version=e2e-other",
		"-platforms=linux/"+runtime.GOARCH, "-output="+file)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the other version: %w\n%s", err, out)
	}
	return b.Lab.Image(ctx, file)
}

// install installs or upgrades the release and waits until it is ready.
func (b *testbed) install(ctx context.Context, settings ...string) error {
	return b.installImage(ctx, *operatorImage, settings...)
}

func (b *testbed) installImage(ctx context.Context, image string, settings ...string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.installed = false
	err := b.installChart(ctx, b.chart, image, settings...)
	b.installed = err == nil && image == *operatorImage && len(settings) == 0
	return err
}

// installChart leaves it to the caller to say what the next test finds.
func (b *testbed) installChart(ctx context.Context, chart, image string, settings ...string) error {
	if b.operatorsZone != "" {
		settings = append(slices.Clone(settings), `nodeSelector.topology\.kubernetes\.io/zone=`+b.operatorsZone)
	}
	return b.Install(ctx, chart, image, settings...)
}

// ensureInstalled is install where that may not be so already.
func (b *testbed) ensureInstalled(ctx context.Context) error {
	b.mu.Lock()
	installed := b.installed
	b.mu.Unlock()
	if installed {
		return nil
	}
	return b.install(ctx)
}

// distrust makes the next test install the release again.
func (b *testbed) distrust() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.installed = false
}

func (b *testbed) uninstall(ctx context.Context) error {
	b.distrust()
	return b.Uninstall(ctx)
}
