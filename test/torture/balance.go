//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/test/faultproxy"
)

const (
	// servers is the number of API servers.
	servers = 3
	// checked is the interval between checks of each server's readiness, and the limit for its answer.
	checked = 500 * time.Millisecond
	// moved is how often, in a thousand checks, a proxy is moved to another server without a reason.
	moved = 5
)

// balancer is the load balancer between the nodes and the operator, each of which has a proxy, and the API servers. A proxy stays at its
// server until that does not answer. So clients move between servers that are up to date and servers that lag.
type balancer struct {
	urls []string

	mu      sync.Mutex
	proxies []*faultproxy.Proxy
	ready   []bool
}

func (b *balancer) add(p *faultproxy.Proxy) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.proxies = append(b.proxies, p)
	return p.Forward(b.urls[len(b.proxies)%len(b.urls)])
}

// run asks the servers until ctx ends.
func (b *balancer) run(ctx context.Context, config *rest.Config) error {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return err
	}
	b.ready = make([]bool, len(b.urls))
	for i, url := range b.urls {
		go func() {
			for ctx.Err() == nil {
				ready := answersReady(ctx, transport, url)
				b.mu.Lock()
				b.ready[i] = ready
				b.mu.Unlock()
				pause(ctx, checked)
			}
		}()
	}
	go func() {
		for ctx.Err() == nil {
			pause(ctx, checked)
			b.failOver()
		}
	}()
	return nil
}

func answersReady(ctx context.Context, transport http.RoundTripper, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*checked)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return false
	}
	reply, err := transport.RoundTrip(request)
	if err != nil {
		return false
	}
	_ = reply.Body.Close()
	return reply.StatusCode == http.StatusOK
}

func (b *balancer) failOver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.proxies {
		at := slices.Index(b.urls, p.Upstream())
		if !b.ready[at] || rand.IntN(1000) < moved {
			_ = b.move(p, at) // if no server is ready, it stays
		}
	}
}

// move sends a proxy's requests to another server that is ready. The caller holds b.mu.
func (b *balancer) move(p *faultproxy.Proxy, from int) error {
	var others []string
	for i, url := range b.urls {
		if i != from && b.ready[i] {
			others = append(others, url)
		}
	}
	if len(others) == 0 {
		return errors.New("no other API server is ready")
	}
	return p.Forward(others[rand.IntN(len(others))])
}

// moveNow is move for a fault.
func (b *balancer) moveNow(p *faultproxy.Proxy) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.move(p, slices.Index(b.urls, p.Upstream()))
}
