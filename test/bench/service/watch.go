//go:build linux

package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/workload/ask"
)

// witness collects the facts of a run. A watch's delay, some milliseconds, is in all of its times.
type witness struct {
	mu     sync.Mutex
	asked  []ask.Asked
	leases []leaseSeen
	behind []behindSeen
}

// facts are those of now, all but the lives.
func (w *witness) facts() facts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return facts{asked: slices.Clone(w.asked), leases: slices.Clone(w.leases), behind: slices.Clone(w.behind)}
}

// forget drops what the client has asked before.
func (w *witness) forget(before time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = slices.DeleteFunc(w.asked, func(a ask.Asked) bool { return a.Sent < before })
}

// receive serves the client's reports on an address of the host until the context ends, and returns their URL.
func (w *witness) receive(ctx context.Context, host string) (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		var batch []ask.Asked
		if err := json.NewDecoder(in.Body).Decode(&batch); err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asked = append(w.asked, batch...)
	})}
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return "http://" + listener.Addr().String(), nil
}

// follow watches the Lease and the Service's endpoints until the context ends.
func (w *witness) follow(ctx context.Context, c client.WithWatch) {
	go each(ctx, c, &coordinationv1.LeaseList{}, w.leaseSeen)
	known := map[string][]string{}
	go each(ctx, c, &discoveryv1.EndpointSliceList{}, func(e watch.Event, at time.Duration) { w.sliceSeen(known, e, at) },
		client.MatchingLabels{discoveryv1.LabelServiceName: name})
}

func each(ctx context.Context, c client.WithWatch, list client.ObjectList, seen func(watch.Event, time.Duration), options ...client.ListOption) {
	for ctx.Err() == nil {
		w, err := c.Watch(ctx, list, append(options, client.InNamespace(name))...)
		if err != nil {
			_ = onlab.Sleep(ctx, 100*time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			seen(event, fencetest.Boottime())
		}
		w.Stop()
	}
}

func (w *witness) leaseSeen(e watch.Event, at time.Duration) {
	lease, ok := e.Object.(*coordinationv1.Lease)
	if !ok || lease.Name != name {
		return
	}
	token, err := strconv.ParseInt(lease.Annotations[contract.TokenAnnotation], 10, 64)
	if err != nil {
		return // nobody's yet
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.leases); n == 0 || w.leases[n-1].token != fence.Token(token) {
		w.leases = append(w.leases, leaseSeen{at, fence.Token(token)})
	}
}

// sliceSeen adds up all slices of the Service: known are their ready pods, by name.
func (w *witness) sliceSeen(known map[string][]string, e watch.Event, at time.Duration) {
	slice, ok := e.Object.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	known[slice.Name] = nil
	for _, endpoint := range slice.Endpoints {
		if e.Type != watch.Deleted && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) && endpoint.TargetRef != nil {
			known[slice.Name] = append(known[slice.Name], endpoint.TargetRef.Name)
		}
	}
	var pods []string
	for _, some := range known {
		pods = append(pods, some...)
	}
	slices.Sort(pods)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.behind); n == 0 || !slices.Equal(w.behind[n-1].pods, pods) {
		w.behind = append(w.behind, behindSeen{at, pods})
	}
}
