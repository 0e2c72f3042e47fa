//go:build linux

// Package localnode runs the pods of a real API server as plain processes on this machine: no kubelet, no container
// runtime, no root. It is for tests and the demo. A node registers itself, runs what is bound to it, answers with its
// pods' status, and can be cut off and frozen. A real scheduler and controller manager run beside it.
//
// A container has the same command, arguments, environment (with the downward API), volumes, probes, restart policy, grace period
// and service-account token as in Kubernetes. No process of it outlives its main process. It has no file system, network, user,
// cgroup or PID namespace of its own, and no resource limits, nor variables that report them. It has no security context, no
// lifecycle hooks, no ephemeral containers, and no image is pulled for it. A pod's address is one of 127.0.0.0/8 that no other pod has.
package localnode

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"github.com/singletonjob/operator/test/faultproxy"
)

// Version is what a node says its kubelet is.
const Version = "v0.0.0-localnode.not-a-kubelet"

const (
	hostIP = "127.0.0.1"
	// heartbeatNamespace holds a Lease for each node, which it renews every heartbeat, as in Kubernetes.
	heartbeatNamespace = corev1.NamespaceNodeLease
	heartbeat          = time.Second
	// requestTimeout bounds each request of a node: one swallowed by the network is made again.
	requestTimeout = 3 * time.Second
	// retryPause is between attempts at something that failed.
	retryPause = 250 * time.Millisecond
	// refreshPeriod is how often volumes that mirror the API server are brought up to date.
	refreshPeriod = 10 * time.Second
)

// Options of Start.
type Options struct {
	// Name of the node, and of its Node object.
	Name string
	// Config reaches the API server. Requests go through a proxy of the node's own; so the client must identify itself by
	// a token, not by a certificate.
	Config *rest.Config
	// Certificate is what the node's proxy serves: pods trust what signed it through kube-root-ca.crt.
	Certificate tls.Certificate
	// Labels of the Node object, besides the host name.
	Labels map[string]string
	// Images by reference, with or without tag.
	Images map[string]Image
	// PathVariables tell programs where a volume is that they look for at a path that is built into them: by the name of
	// an environment variable, the mount path.
	PathVariables map[string]string
	// Dir is for volumes and logs.
	Dir string
	// Output is called with each line that a container prints, from several goroutines. May be nil.
	Output func(Line)
	// BackOff is the pause before the second restart of a container in a row; it doubles up to MaxBackOff. The first
	// restart is at once. Defaults: 1 s and 10 s, a tenth and a thirtieth of the kubelet's.
	BackOff, MaxBackOff time.Duration
}

// Line is a line that a container printed.
type Line struct {
	Time                            time.Time
	Node, Namespace, Pod, Container string
	Text                            string
}

// Node is a running node. Its methods may be called from any goroutine.
type Node struct {
	options Options
	proxy   *faultproxy.Proxy
	client  kubernetes.Interface
	ctx     context.Context // ends with Stop
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup

	mu      sync.Mutex
	workers map[types.UID]*worker
	closed  bool // no new workers
}

// Start starts a node, and returns when its Node object is there and Ready.
func Start(ctx context.Context, o Options) (*Node, error) {
	if !initialized {
		return nil, errors.New("call localnode.Init first in main or TestMain: this program is also the shim of its containers")
	}
	if o.BackOff == 0 {
		o.BackOff = time.Second
	}
	if o.MaxBackOff == 0 {
		o.MaxBackOff = 10 * time.Second
	}
	if o.Output == nil {
		o.Output = func(Line) {}
	}
	proxy, err := faultproxy.Start(faultproxy.Options{Listen: "127.0.0.1:0", Certificate: &o.Certificate, Upstream: o.Config.Host, UpstreamCA: o.Config.CAData})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", o.Name, err)
	}
	through := rest.CopyConfig(o.Config)
	through.Host, through.UserAgent = proxy.URL(), "localnode/"+o.Name
	client, err := kubernetes.NewForConfig(through)
	if err != nil {
		proxy.Close()
		return nil, fmt.Errorf("node %s: %w", o.Name, err)
	}
	n := &Node{options: o, proxy: proxy, client: client, workers: map[types.UID]*worker{}}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	if err := n.register(ctx); err != nil {
		proxy.Close()
		return nil, fmt.Errorf("registering node %s: %w", o.Name, err)
	}
	n.work.Go(n.beat)
	n.work.Go(n.watchPods)
	return n, nil
}

// Name of the node.
func (n *Node) Name() string { return n.options.Name }

// Proxy is the network between the API server and everything on this node, the node itself included.
func (n *Node) Proxy() *faultproxy.Proxy { return n.proxy }

// Cut cuts the node off from the API server. Its pods continue to run.
func (n *Node) Cut() { n.proxy.Cut() }

// Heal ends Cut, and all other faults of the node's network.
func (n *Node) Heal() error { return n.proxy.Heal() }

// errStopped ends containers with a short grace.
var errStopped = errors.New("the node is being stopped")

// Stop ends all containers, and the node. The API server's state of its Pods stays unchanged.
func (n *Node) Stop() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel(errStopped)
	n.work.Wait()
	n.proxy.Close()
}

// register makes the Node object, or takes over the one that an earlier node of this name left.
func (n *Node) register(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: n.options.Name,
		Labels: map[string]string{
			corev1.LabelHostname: n.options.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		},
		Annotations: map[string]string{"singletonjob.io/localnode": "runs pods as plain processes; it is no kubelet"},
	}}
	maps.Copy(node.Labels, n.options.Labels)
	if _, err := n.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return n.reportReady(ctx)
}

// reportReady writes the node's status, if it does not say already that the node is ready. Controllers write nodes too.
func (n *Node) reportReady(ctx context.Context) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error { return n.reportReadyOnce(ctx) })
}

func (n *Node) reportReadyOnce(ctx context.Context) error {
	node, err := n.client.CoreV1().Nodes().Get(ctx, n.options.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	now := metav1.Now()
	capacity := corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("64Gi"),
	}
	node.Status = corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: hostIP}, {Type: corev1.NodeHostName, Address: n.options.Name}},
		NodeInfo: corev1.NodeSystemInfo{
			KubeletVersion: Version, ContainerRuntimeVersion: "localnode://plain-processes",
			OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "LocalNodeReady", Message: "plain processes, no kubelet",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}
	_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// beat says that the node lives.
func (n *Node) beat() {
	for {
		_ = n.request(n.beatOnce) // the next one comes soon
		if !sleep(n.ctx, heartbeat) {
			return
		}
	}
}

func (n *Node) beatOnce(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(heartbeatNamespace)
	now := metav1.NowMicro()
	lease, err := leases.Get(ctx, n.options.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.options.Name}}
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &n.options.Name, RenewTime: &now, LeaseDurationSeconds: new(int32(40))}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	case err == nil:
		lease.Spec.RenewTime = &now
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	return errors.Join(err, n.reportReady(ctx))
}

// request gives a request its deadline.
func (n *Node) request(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(n.ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}

// watchPods gives every pod that is bound to this node a worker.
func (n *Node) watchPods() {
	source := cache.NewListWatchFromClient(n.client.CoreV1().RESTClient(), "pods", "", fields.OneTermEqualSelector("spec.nodeName", n.options.Name))
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { n.saw(o.(*corev1.Pod), false) },
			UpdateFunc: func(_, o any) { n.saw(o.(*corev1.Pod), false) },
			DeleteFunc: func(o any) {
				if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = gone.Obj
				}
				n.saw(o.(*corev1.Pod), true)
			},
		},
	})
	informer.RunWithContext(n.ctx)
}

func (n *Node) saw(pod *corev1.Pod, gone bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.workers[pod.UID]
	switch {
	case w != nil:
		w.update(pod, gone)
	case gone || n.closed:
	default:
		w = n.newWorker(pod)
		n.workers[pod.UID] = w
		n.work.Go(func() {
			w.run()
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.workers, pod.UID)
		})
	}
}

// addresses of pods: each process of this machine that runs nodes takes ranges at random, each pod the next address.
var nextAddress atomic.Uint32

func init() { nextAddress.Store(rand.Uint32N(250 * 250 * 250)) }

func newAddress() string {
	i := nextAddress.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 1+i/(250*250)%250, 1+i/250%250, 2+i%250)
}

// Log is the file that holds everything a container printed on this node, over all its restarts.
func (n *Node) Log(namespace, pod, container string) string {
	return filepath.Join(n.options.Dir, "logs", namespace+"_"+pod+"_"+container+".log")
}

// running finds a container's process. An empty name means the pod's first container.
func (n *Node) running(namespace, pod, container string) (*process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if p := w.current(); p.Namespace == namespace && p.Name == pod {
			if container == "" {
				container = p.Spec.Containers[0].Name
			}
			if running := w.process(container); running != nil {
				return running, nil
			}
		}
	}
	return nil, fmt.Errorf("no container %q of pod %s/%s runs on node %s", container, namespace, pod, n.options.Name)
}

// Processes lists the processes of a pod's first container, the main process first, parents before their children.
func (n *Node) Processes(namespace, pod string) ([]Process, error) {
	p, err := n.running(namespace, pod, "")
	if err != nil {
		return nil, err
	}
	return p.tree(), nil
}

// Freeze stops every process of a pod's first container, and returns when all have stopped. Timers continue and expire.
func (n *Node) Freeze(namespace, pod string) error {
	p, err := n.running(namespace, pod, "")
	if err != nil {
		return err
	}
	return p.freeze()
}

// Thaw resumes what Freeze stopped and has not died since, children before their parents.
func (n *Node) Thaw(namespace, pod string) error {
	p, err := n.running(namespace, pod, "")
	if err != nil {
		return err
	}
	p.thaw()
	return nil
}

// Target chooses among the processes of a container.
type Target func(main int, all []Process) []Process

// MainProcess is the container's PID 1: the agent, in a candidate.
func MainProcess(main int, all []Process) []Process {
	for _, p := range all {
		if p.Pid == main {
			return []Process{p}
		}
	}
	return nil
}

// Leaves are the living processes that have no child: the user's, in a candidate.
func Leaves(_ int, all []Process) []Process {
	parents := map[int]bool{}
	for _, p := range all {
		parents[p.Parent] = true
	}
	var leaves []Process
	for _, p := range all {
		if !parents[p.Pid] && p.State != 'Z' {
			leaves = append(leaves, p)
		}
	}
	return leaves
}

// Signal sends sig to processes of a pod's first container, and says to which.
func (n *Node) Signal(namespace, pod string, to Target, sig syscall.Signal) ([]Process, error) {
	running, err := n.running(namespace, pod, "")
	if err != nil {
		return nil, err
	}
	chosen := to(running.pid, running.tree())
	if len(chosen) == 0 {
		return nil, fmt.Errorf("pod %s/%s has no such process", namespace, pod)
	}
	for _, p := range chosen {
		if err := syscall.Kill(p.Pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return nil, fmt.Errorf("signalling %d (%v): %w", p.Pid, p.Args, err)
		}
	}
	return chosen, nil
}

// Kill is Signal with SIGKILL.
func (n *Node) Kill(namespace, pod string, what Target) ([]Process, error) {
	return n.Signal(namespace, pod, what, syscall.SIGKILL)
}

func mkdirs(paths ...string) error {
	for _, path := range paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	return nil
}
