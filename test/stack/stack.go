//go:build linux

// Package stack runs the whole product on this machine, for the demo and for the tests here. It runs a real control plane, local nodes and
// the operator as a process of its own. Its sink is behind a network that can hold writes back.
//
// Its tests inject faults into processes, agents, node networks, Leases and jobs. After each fault there is one process at a time,
// tokens grow, the sink stores nothing stale, a standby takes over, and the status reports every tenure once.
package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/subprocess"
)

// Images that the nodes know.
const (
	OperatorImage = "singletonjob/operator:local"
	WorkloadImage = "singletonjob/workload:local"
)

// OperatorNamespace is where the operator is at home.
const OperatorNamespace = "singletonjob-system"

const (
	operatorAccount = "singletonjob-operator"
	operatorLog     = "operator.log"
	noMetrics       = "0"
)

// Options of Start.
type Options struct {
	// Plane to run on; the caller stops it. Its definitions and roles must be applied.
	Plane *controlplane.ControlPlane
	// Root is the checkout.
	Root string
	// Nodes are their names.
	Nodes []string
	// NodeGrace is how long a node may be silent before it counts as lost; by default localnode's.
	NodeGrace time.Duration
	// Output is called with each line that a container prints. May be nil.
	Output func(localnode.Line)
	// Images are further ones that the nodes know, by name.
	Images map[string]localnode.Image
	// Registry is a host that the operator may ask in plain HTTP what images run. May be empty.
	Registry string
	// OperatorLink is the network between operator and API server. May be nil.
	OperatorLink *faultproxy.Proxy
	// Metrics is the address at which the operator serves its metrics by HTTP; "0" if it is empty, for none.
	Metrics string
	// Front stands before the sink and sees what it is asked and answers. May be nil.
	Front func(sink http.Handler) http.Handler
}

// Product is running. Its methods may be called from any goroutine.
type Product struct {
	Plane   *controlplane.ControlPlane
	Cluster *localnode.Cluster
	// Client is the administrator's.
	Client client.Client
	// Sink that the writers write to, by way of SinkLink.
	Sink     *fencetest.Sink
	SinkLink *faultproxy.Proxy

	dir        string
	registry   string
	metrics    string
	link       *faultproxy.Proxy
	sinkServer *http.Server
	mu         sync.Mutex
	operator   *subprocess.Process
}

func init() {
	// The tests cause the errors that clients of the API server log here.
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
}

// Build compiles the agent, the operator and the workload from the checkout root into dir, an image directory each.
func Build(ctx context.Context, root, dir string) error {
	for image, packages := range map[string][]string{
		"operator": {"./cmd/agent", "./cmd/manager"},
		"workload": {"./test/workload"},
	} {
		into := filepath.Join(dir, image)
		if err := os.MkdirAll(into, 0o755); err != nil {
			return err
		}
		cmd := gotool.Command(ctx, root, append([]string{"build", "-ldflags=-s -w", "-o", into + "/"}, packages...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", strings.Join(packages, " "), err, out)
		}
	}
	return nil
}

// Install applies the definitions and the operator's role from the checkout root, and lets the operator's account have it.
func Install(ctx context.Context, plane *controlplane.ControlPlane, root string) error {
	if err := plane.Apply(ctx, filepath.Join(root, "config/crd"), filepath.Join(root, "config/rbac")); err != nil {
		return err
	}
	c, err := NewClient(plane.Config())
	if err != nil {
		return err
	}
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: OperatorNamespace, Name: operatorAccount}
	meta := metav1.ObjectMeta{Name: operatorAccount, Namespace: OperatorNamespace}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: OperatorNamespace}},
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: operatorAccount}, Subjects: []rbacv1.Subject{account},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "singletonjob-operator"},
		},
	} {
		if err := c.Create(ctx, o); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// NewClient is one that knows SingletonJobs.
func NewClient(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// Start starts nodes, sink and operator, and returns when the nodes are registered. The programs are in images, as Build
// puts them there.
func Start(ctx context.Context, o Options, images string) (*Product, error) {
	dir, err := os.MkdirTemp("", "singletonjob-product-")
	if err != nil {
		return nil, err
	}
	p := &Product{Plane: o.Plane, dir: dir, registry: o.Registry, metrics: cmp.Or(o.Metrics, noMetrics), link: o.OperatorLink, Sink: &fencetest.Sink{}}
	if err := p.start(ctx, o, images); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func (p *Product) start(ctx context.Context, o Options, programs string) (err error) {
	if p.Client, err = NewClient(o.Plane.Config()); err != nil {
		return err
	}
	if err := p.serveSink(o.Front); err != nil {
		return err
	}
	images := map[string]localnode.Image{
		imageName(OperatorImage): {Root: filepath.Join(programs, "operator")},
		imageName(WorkloadImage): {Root: filepath.Join(programs, "workload"), Entrypoint: []string{"/workload"}},
	}
	maps.Copy(images, o.Images)
	p.Cluster, err = localnode.StartCluster(ctx, localnode.ClusterOptions{
		Plane: o.Plane, Nodes: o.Nodes, NodeGrace: o.NodeGrace, Output: o.Output,
		Images:        images,
		PathVariables: map[string]string{contract.CredentialsEnv: contract.CredentialsDir},
	})
	if err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(programs, "operator", "manager"), filepath.Join(p.dir, "manager")); err != nil {
		return err
	}
	return p.StartOperator()
}

func imageName(reference string) string {
	name, _, _ := strings.Cut(reference, ":")
	return name
}

func (p *Product) serveSink(front func(http.Handler) http.Handler) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	handler := p.Sink.Handler()
	if front != nil {
		handler = front(handler)
	}
	p.sinkServer = &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = p.sinkServer.Serve(listener) }()
	p.SinkLink, err = faultproxy.Start(faultproxy.Options{Listen: "127.0.0.1:0", Upstream: "http://" + listener.Addr().String()})
	return err
}

// StartOperator starts the operator as its own process, with the account and the rights that it has in a cluster.
func (p *Product) StartOperator() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.operator != nil {
		return errors.New("the operator runs already")
	}
	var err error
	p.operator, err = p.runOperator(p.metrics)
	return err
}

// ReviveOperator starts the operator again if it has ended by itself, as a kubelet would.
func (p *Product) ReviveOperator() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.operator == nil {
		return nil
	}
	select {
	case <-p.operator.Done():
		again, err := p.runOperator(p.metrics)
		if err == nil {
			p.operator = again
		}
		return err
	default:
		return nil
	}
}

// AnotherOperator starts an operator beside the one that runs, as none should: neither knows of the other.
func (p *Product) AnotherOperator() (stop func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	another, err := p.runOperator(noMetrics)
	if err != nil {
		return nil, err
	}
	return func() { another.Stop(0) }, nil
}

func (p *Product) runOperator(metrics string) (*subprocess.Process, error) {
	config := p.Plane.Config()
	if p.link != nil {
		config.Host = p.link.URL()
	}
	return RunOperator(config, p.dir, filepath.Join(p.dir, "manager"), "--metrics-bind-address="+metrics, "--metrics-secure=false", "--entrypoint-insecure-registries="+p.registry)
}

// RunOperator starts the operator's program as its own process, with the account and the rights that Install gives it. Its files and its
// log are in dir. The config is the administrator's. Alone, it needs no election: one that was killed would make the next wait for its
// Lease.
func RunOperator(config *rest.Config, dir, program string, flags ...string) (*subprocess.Process, error) {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + OperatorNamespace + ":" + operatorAccount,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + OperatorNamespace, "system:authenticated"},
	}
	kubeconfig := filepath.Join(dir, "operator.kubeconfig")
	if err := controlplane.WriteKubeconfig(kubeconfig, config); err != nil {
		return nil, err
	}
	output, err := os.OpenFile(filepath.Join(dir, operatorLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Close() }()
	cmd := exec.Command(program, append([]string{
		"--kubeconfig=" + kubeconfig, "--agent-image=" + OperatorImage, "--leader-elect=false", "--health-probe-bind-address=0",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = output, output, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return subprocess.Start(cmd)
}

// SignalOperator sends sig to the operator's process, if it runs: SIGSTOP pauses it.
func (p *Product) SignalOperator(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.operator == nil {
		return nil
	}
	return p.operator.Signal(sig)
}

// KillOperator kills the operator's process, as a lost node would.
func (p *Product) KillOperator() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.operator != nil {
		p.operator.Stop(0)
		p.operator = nil
	}
}

// OperatorLog is the file that the operator logs to.
func (p *Product) OperatorLog() string { return filepath.Join(p.dir, operatorLog) }

// Stop ends everything but the control plane, and removes the files.
func (p *Product) Stop() {
	p.KillOperator()
	if p.Cluster != nil {
		p.Cluster.Stop()
	}
	if p.SinkLink != nil {
		p.SinkLink.Close()
	}
	if p.sinkServer != nil {
		_ = p.sinkServer.Close()
	}
	_ = os.RemoveAll(p.dir)
}

// LogTo copies the operator's log to w.
func (p *Product) LogTo(w io.Writer) {
	if output, err := os.Open(p.OperatorLog()); err == nil {
		_, _ = io.Copy(w, output)
		_ = output.Close()
	}
}
