//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/observe"
)

// sink records what workloads write.
type sink interface {
	url() string
	// attempts are some of those recorded from the given index on, and none only where there are no more.
	attempts(ctx context.Context, from int) ([]fencetest.Attempt, error)
	close()
}

// records are what was read of a sink so far, in which a suite looks for one resource's at each turn.
type records struct {
	mu   sync.Mutex
	read int
	of   map[fence.Resource][]fencetest.Attempt
}

func (r *records) follow(ctx context.Context, s sink, resource fence.Resource) ([]fencetest.Attempt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		more, err := s.attempts(ctx, r.read)
		if err != nil || len(more) == 0 {
			return slices.Clip(r.of[resource]), err
		}
		r.read += len(more)
		for _, a := range more {
			r.of[a.Resource] = append(r.of[a.Resource], a)
		}
	}
}

// hostSink is in this process, on an address of the host that the cluster's pods reach.
type hostSink struct {
	sink     fencetest.Sink
	listener net.Listener
	server   *http.Server
}

func serveSink(address string) (*hostSink, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, err
	}
	s := &hostSink{listener: listener}
	s.server = &http.Server{Handler: s.sink.Handler(), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

func (s *hostSink) url() string { return "http://" + s.listener.Addr().String() }

func (s *hostSink) attempts(_ context.Context, from int) ([]fencetest.Attempt, error) {
	return s.sink.Attempts(from), nil
}

func (s *hostSink) close() { _ = s.server.Close() }

// sinkNamespace holds the sink of clusters on which this process has no address. It is deleted at the end.
const sinkNamespace = "singletonjob-e2e-sink"

// podSink is a pod, read through the API server.
type podSink struct {
	cluster *Cluster
	address string
	core    *kubernetes.Clientset
}

func (c *Cluster) deploySink(ctx context.Context) (*podSink, error) {
	core, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return nil, err
	}
	if err := c.CreateNamespace(ctx, sinkNamespace, ""); err != nil {
		return nil, err
	}
	s := &podSink{cluster: c, core: core}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: sinkNamespace, Name: "sink"},
		Spec:       RestrictedPod(corev1.Container{Name: "sink", Image: c.Image, Command: []string{"/workload", "sink"}}),
	}
	if err := c.Client.Create(ctx, pod); err != nil {
		s.close()
		return nil, err
	}
	err = observe.Await(ctx, "the sink's pod", func() (bool, any, error) {
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "", pod.Status, err
	})
	if err != nil {
		s.close()
		return nil, err
	}
	s.address = "http://" + net.JoinHostPort(pod.Status.PodIP, "8080")
	return s, nil
}

func (s *podSink) url() string { return s.address }

func (s *podSink) attempts(ctx context.Context, from int) (more []fencetest.Attempt, err error) {
	text, err := s.core.CoreV1().Pods(sinkNamespace).
		ProxyGet("http", "sink", "8080", "/attempts", map[string]string{"from": strconv.Itoa(from)}).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(text, &more)
	}
	if err != nil {
		return nil, fmt.Errorf("read the sink: %w", err)
	}
	return more, nil
}

func (s *podSink) close() { _ = s.cluster.DeleteNamespace(context.Background(), sinkNamespace) }
