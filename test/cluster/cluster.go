//go:build linux

// Package cluster joins a cluster that a kubeconfig names, the faults of the lab where it is the lab, and a sink: for the
// e2e tests and the benchmark.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/observe"
)

// Options of Connect.
type Options struct {
	// Kubeconfig of the cluster.
	Kubeconfig string
	// WorkloadImage holds test/workload as /workload. Empty: it is built, and loaded into the lab.
	WorkloadImage string
	Progress      io.Writer
}

// A Cluster is a cluster with a sink.
type Cluster struct {
	Client     client.WithWatch
	Config     *rest.Config
	Kubeconfig string
	// Lab is nil if the cluster is not a lab.
	Lab *Lab
	// Image is the workload's.
	Image string

	sink     sink
	records  records
	progress io.Writer
}

// Connect reaches the cluster, finds out whether it is the lab on this machine, and starts the sink.
func Connect(ctx context.Context, o Options) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read KUBECONFIG %s: %w", o.Kubeconfig, err)
	}
	config.QPS, config.Burst, config.Timeout = -1, -1, 0
	r := &Cluster{Config: config, Kubeconfig: o.Kubeconfig, Image: o.WorkloadImage, progress: o.Progress}
	r.records.of = map[fence.Resource][]fencetest.Attempt{}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	if r.Client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if r.Lab, err = findLab(ctx, config.Host); err != nil {
		return nil, err
	}
	if r.Image == "" {
		if r.Lab == nil {
			return nil, errors.New("this cluster is not the lab: build test/workload into an image as /workload, where the cluster finds it, and name it by -workload-image")
		}
		if r.Image, err = r.loadProgram(ctx, "./test/workload", "local/workload:1"); err != nil {
			return nil, err
		}
	}
	if r.Lab != nil {
		r.sink, err = serveSink(r.Lab.Host)
	} else {
		r.sink, err = r.deploySink(ctx)
	}
	return r, err
}

// Close ends the sink and forgets the lab's program. The cluster stays as it is.
func (c *Cluster) Close() {
	if c.sink != nil {
		c.sink.close()
	}
	if c.Lab != nil {
		c.Lab.close()
	}
}

// OneClock reports whether the writers' CLOCK_BOOTTIME is this process's.
func (c *Cluster) OneClock() bool { return c.Lab != nil }

// SinkURL is where workloads write to. In the lab the sink is on the host, so that it stays reachable whatever is cut off
// from the API server.
func (c *Cluster) SinkURL() string { return c.sink.url() }

// Attempts returns all writes to the resource that the sink has recorded since it was started. They are the caller's to
// read only.
func (c *Cluster) Attempts(ctx context.Context, resource fence.Resource) ([]fencetest.Attempt, error) {
	return c.records.follow(ctx, c.sink, resource)
}

// loadProgram builds a main package and loads it into the lab as an image with the program at /NAME.
func (c *Cluster) loadProgram(ctx context.Context, pkg, image string) (string, error) {
	dir, err := os.MkdirTemp("", "cluster-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, filepath.Base(pkg))
	if err := Build(ctx, pkg, program); err != nil {
		return "", err
	}
	return image, c.Lab.Image(ctx, fmt.Sprintf("%s=%s:/%s@/%[3]s", image, program, filepath.Base(pkg)))
}

// LoadProgram is for other programs than the workload.
func (c *Cluster) LoadProgram(ctx context.Context, pkg, image string) error {
	_, err := c.loadProgram(ctx, pkg, image)
	return err
}

// Build compiles a main package of this project, named from the root of the checkout, without cgo. It may be of a module of its own.
func Build(ctx context.Context, pkg, to string) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the checkout: %w", err)
	}
	cmd := gotool.Command(ctx, filepath.Join(strings.TrimSpace(string(root)), pkg), "build", "-ldflags=-s -w", "-o", to, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, out)
	}
	return nil
}

// Run runs a command with the cluster's KUBECONFIG and returns its output.
func (c *Cluster) Run(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// Kubectl runs kubectl, the lab's own if the cluster is the lab.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	program, err := c.Program(ctx, "kubectl")
	if err != nil {
		return "", err
	}
	return c.Run(ctx, append([]string{program}, args...)...)
}

// Program finds kubectl or helm.
func (c *Cluster) Program(ctx context.Context, name string) (string, error) {
	if c.Lab != nil {
		return c.Lab.Program(ctx, name)
	}
	return exec.LookPath(name)
}

// CreateNamespace makes a namespace that enforces the Pod Security standard "restricted". One of that name that is being
// deleted is waited for. Its pods run in the zone of the lab that is named, if one is.
func (c *Cluster) CreateNamespace(ctx context.Context, name, zone string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted",
		"pod-security.kubernetes.io/warn":    "restricted",
	}}}
	if zone != "" {
		namespace.Annotations = map[string]string{"scheduler.alpha.kubernetes.io/node-selector": corev1.LabelTopologyZone + "=" + zone}
	}
	return observe.Await(ctx, "namespace "+name, func() (bool, any, error) {
		err := c.Client.Create(ctx, namespace.DeepCopy())
		return err == nil, nil, err
	})
}

// DeleteNamespace deletes it and does not wait.
func (c *Cluster) DeleteNamespace(ctx context.Context, name string) error {
	return client.IgnoreNotFound(c.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
}
