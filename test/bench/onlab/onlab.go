//go:build linux

// Package onlab is what the benchmarks have in common that break the lab of test/lab.
package onlab

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/test/cluster"
)

// Options are the flags of all of them.
type Options struct{ Kubeconfig, Image, Archive, JSON string }

// Flags defines them. figures is the default of -json.
func (o *Options) Flags(figures string) {
	flag.StringVar(&o.Kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the lab's")
	flag.StringVar(&o.Image, "image", "singletonjob/operator:e2e", "the operator's image, as name:tag")
	flag.StringVar(&o.Archive, "image-archive", "", "archive with that image, loaded into the lab first")
	flag.StringVar(&o.JSON, "json", figures, "file for all figures")
}

// Main runs a benchmark until it ends or is interrupted, and ends the program where it fails. A second interrupt ends it at once.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Connect connects to the lab, for the target of make that has it up.
func (o *Options) Connect(ctx context.Context, target string) (*cluster.Cluster, error) {
	if o.Kubeconfig == "" {
		return nil, fmt.Errorf("set KUBECONFIG to the lab's, or run 'make %s'", target)
	}
	c, err := cluster.Connect(ctx, cluster.Options{Kubeconfig: o.Kubeconfig, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	if c.Lab == nil {
		c.Close()
		return nil, errors.New("this cluster is not the lab of test/lab on this machine, and no other can be broken")
	}
	return c, nil
}

// Load loads the archive of the operator's image into the lab, if there is one.
func (o *Options) Load(ctx context.Context, c *cluster.Cluster) error {
	if o.Archive == "" {
		return nil
	}
	return c.Lab.Image(ctx, o.Archive)
}

// Write writes the figures.
func (o *Options) Write(figures any) error {
	text, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(o.JSON, append(text, '\n'))
}

// WriteFile writes a file, and makes its folder.
func WriteFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// Sleep returns early, with an error, when the context ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// NodesReady reports whether every node takes pods.
func NodesReady(ctx context.Context, c client.Client) (bool, any, error) {
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes); err != nil {
		return false, nil, err
	}
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return false, n.Name + " is not ready", nil
			}
		}
		if len(n.Spec.Taints) > 0 {
			return false, fmt.Sprint(n.Name, " is tainted: ", n.Spec.Taints), nil
		}
	}
	return true, nil, nil
}
