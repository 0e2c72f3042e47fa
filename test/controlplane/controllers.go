//go:build linux

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/test/subprocess"
)

// DefaultNodeGrace is how long a node may miss its heartbeats before it counts as lost. In a cluster it is 50 s.
const DefaultNodeGrace = 8 * time.Second

// controllers are those of the controller manager's that pods, nodes, namespaces, owned objects, workloads and the built-in roles need.
const controllers = "clusterrole-aggregation-controller,deployment-controller,disruption-controller,garbage-collector-controller,namespace-controller,node-lifecycle-controller," +
	"pod-garbage-collector-controller,replicaset-controller,root-ca-certificate-publisher-controller,serviceaccount-controller,statefulset-controller,taint-eviction-controller"

// StartControllers starts a scheduler and a controller manager, which end with the control plane. nodeGrace is how long a
// node may be silent; by default DefaultNodeGrace.
func (c *ControlPlane) StartControllers(ctx context.Context, nodeGrace time.Duration) error {
	if nodeGrace == 0 {
		nodeGrace = DefaultNodeGrace
	}
	binaries, err := Find(ctx, c.progress, "kube-controller-manager", "kube-scheduler")
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Alone, they need no election, and nobody asks for their health or metrics.
	common := []string{"--kubeconfig=" + c.Kubeconfig(), "--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"}
	for name, flags := range map[string][]string{
		"kube-scheduler": nil,
		"kube-controller-manager": {
			// Each by its own account, as in a cluster: admission may ask who they are.
			"--use-service-account-credentials", "--controllers=" + controllers, "--root-ca-file=" + c.path("ca.crt"), "--node-monitor-period=1s",
			"--node-monitor-grace-period=" + nodeGrace.String(), "--node-eviction-rate=10", "--secondary-node-eviction-rate=10",
		},
	} {
		start := func() (*subprocess.Process, error) { return c.run(binaries.Path(name), append(flags, common...)...) }
		p, err := start()
		if err != nil {
			return err
		}
		c.controllers[name], c.revive[name] = p, start
	}
	return nil
}

// ReviveControllers starts what StartControllers has started and what has ended since, as a kubelet would: a scheduler ends
// itself when a restarted API server confuses it.
func (c *ControlPlane) ReviveControllers() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, p := range c.controllers {
		select {
		case <-p.Done():
			again, err := c.revive[name]()
			if err != nil {
				return err
			}
			c.controllers[name] = again
		default:
		}
	}
	return nil
}

// AwaitSchedulable waits until nothing keeps pods away from a node. The API server taints every new one.
func (c *ControlPlane) AwaitSchedulable(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && isReady(found) && len(found.Spec.Taints) == 0 {
			return nil
		}
		if err := c.controllersRun(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waiting until node %s takes pods: %w", node, context.Cause(ctx)), err)
		}
	}
}

func isReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// controllersRun is an error if one of them has ended.
func (c *ControlPlane) controllersRun() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, p := range c.controllers {
		select {
		case <-p.Done():
			return c.ended(name, p.Err())
		default:
		}
	}
	return nil
}
