//go:build linux

package localnode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/test/controlplane"
)

// Cluster is a control plane's nodes.
type Cluster struct {
	options ClusterOptions
	dir     string

	mu    sync.Mutex
	nodes []*Node
}

// ClusterOptions of StartCluster. Each node is in a zone of its own.
type ClusterOptions struct {
	Plane *controlplane.ControlPlane
	// Nodes are their names.
	Nodes []string
	// Images, PathVariables, Output, BackOff and MaxBackOff are each node's; see Options.
	Images              map[string]Image
	PathVariables       map[string]string
	Output              func(Line)
	BackOff, MaxBackOff time.Duration
	// NodeGrace is how long a node may be silent before it counts as lost; by default controlplane.DefaultNodeGrace.
	NodeGrace time.Duration
}

// StartCluster starts nodes and the control plane's controllers, and returns when pods may be bound to all of them.
func StartCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "singletonjob-nodes-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: o, dir: dir}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	o := c.options
	if err := o.Plane.StartControllers(ctx, o.NodeGrace); err != nil {
		return err
	}
	for _, name := range o.Nodes {
		if _, err := c.AddNode(ctx, name, nil); err != nil {
			return err
		}
	}
	return nil
}

// AddNode starts another node, whose Node object has labels besides those that every node has, and returns when pods may
// be bound to it.
func (c *Cluster) AddNode(ctx context.Context, name string, labels map[string]string) (*Node, error) {
	certificate, err := c.options.Plane.ServerCertificate()
	if err != nil {
		return nil, err
	}
	all := map[string]string{corev1.LabelTopologyZone: "zone-of-" + name}
	maps.Copy(all, labels)
	o := c.options
	node, err := Start(ctx, Options{
		Name: name, Config: o.Plane.Config(), Certificate: certificate, Dir: filepath.Join(c.dir, name), Labels: all,
		Images: o.Images, PathVariables: o.PathVariables, Output: o.Output, BackOff: o.BackOff, MaxBackOff: o.MaxBackOff,
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.nodes = append(c.nodes, node)
	c.mu.Unlock()
	if err := c.options.Plane.AwaitSchedulable(ctx, name); err != nil {
		return nil, err
	}
	return node, nil
}

// Dir holds a directory for each node, with the logs of its containers.
func (c *Cluster) Dir() string { return c.dir }

// Nodes in the order in which they were started.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// Node by its name; nil if there is none.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes() {
		if n.Name() == name {
			return n
		}
	}
	return nil
}

// NodeOf is the node that runs a pod.
func (c *Cluster) NodeOf(namespace, pod string) (*Node, error) {
	var errs []error
	for _, n := range c.Nodes() {
		_, err := n.running(namespace, pod, "")
		if err == nil {
			return n, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no node runs pod %s/%s: %w", namespace, pod, errors.Join(errs...))
}

// Heal ends all faults of all nodes' networks.
func (c *Cluster) Heal() error {
	var errs []error
	for _, n := range c.Nodes() {
		errs = append(errs, n.Heal())
	}
	return errors.Join(errs...)
}

// Stop ends all nodes and their containers, and removes their files.
func (c *Cluster) Stop() {
	var nodes sync.WaitGroup
	for _, n := range c.Nodes() {
		nodes.Go(n.Stop)
	}
	nodes.Wait()
	_ = os.RemoveAll(c.dir)
}
