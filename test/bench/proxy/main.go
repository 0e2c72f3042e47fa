// Command proxy measures what the fence-proxy costs beside a plain reverse proxy of the standard library: the same service, clients and
// machine, in turns. make bench-proxy
package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/fenceproxy"
)

const resource = fence.Resource("bench/proxy")

func main() {
	clients := flag.Int("clients", 16, "how many write at a time")
	turn := flag.Duration("turn", 3*time.Second, "how long each proxy is measured at a time")
	turns := flag.Int("turns", 5, "how many turns each has")
	flag.Parse()
	if err := run(*clients, *turn, *turns); err != nil {
		fmt.Fprintln(os.Stderr, "bench/proxy:", err)
		os.Exit(1)
	}
}

func run(clients int, turn time.Duration, turns int) error {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write([]byte("stored\n"))
	}))
	defer upstream.Close()
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	plain, err := plainProxy(upstream.URL)
	if err != nil {
		return err
	}
	store, err := fenceproxy.OpenBolt(filepath.Join(dir, "marks"), time.Minute, 0)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	fenced, err := fenceproxy.New(fenceproxy.Config{
		Upstream: upstream.URL, Rules: []fenceproxy.Rule{{Resource: resource}},
	}.With(fenceproxy.Config{}), store, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer fenced.Close()
	subjects := []*subject{{name: "plain", handler: plain}, {name: "fenced", handler: fenced}}
	for _, s := range subjects {
		s.server = httptest.NewServer(s.handler)
		if err := s.measure(clients, turn/10); err != nil { // to warm up
			return err
		}
		s.took = nil
		s.rates = nil
	}
	for i := range turns {
		for j := range subjects { // each goes first in turn
			if err := subjects[(i+j)%len(subjects)].measure(clients, turn); err != nil {
				return err
			}
		}
	}
	return report(subjects[0], subjects[1])
}

// plainProxy is the standard library's with as many idle connections.
func plainProxy(address string) (http.Handler, error) {
	target, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.SetXForwarded() },
		Transport: &http.Transport{
			MaxIdleConns: 1024, MaxIdleConnsPerHost: 256, DisableCompression: true,
			DialContext: (&net.Dialer{}).DialContext,
		},
	}, nil
}

// subject is a proxy and what was measured of it.
type subject struct {
	name    string
	handler http.Handler
	server  *httptest.Server // until the program ends

	mu    sync.Mutex
	took  []time.Duration
	rates []float64 // writes a second, of each turn
	err   error
}

func (s *subject) measure(clients int, turn time.Duration) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	began := time.Now()
	before := len(s.took)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			var took []time.Duration
			var err error
			for err == nil && time.Since(began) < turn {
				at := time.Now()
				err = s.write(client)
				took = append(took, time.Since(at))
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.took = append(s.took, took...)
			if err != nil {
				s.err = err
			}
		})
	}
	all.Wait()
	s.rates = append(s.rates, float64(len(s.took)-before)/time.Since(began).Seconds())
	return s.err
}

func (s *subject) write(client *http.Client) error {
	request, err := http.NewRequest(http.MethodPost, s.server.URL+"/entries", strings.NewReader(strings.Repeat("x", 512)))
	if err != nil {
		return err
	}
	request.Header.Set(fence.HeaderToken, "4711")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", s.name, response.Status)
	}
	return nil
}

// The limit for the cost of the fence.
const (
	leastShare = 0.7
	mostAdded  = time.Millisecond
)

func report(plain, fenced *subject) error {
	for _, s := range []*subject{plain, fenced} {
		slices.Sort(s.took)
		slices.Sort(s.rates)
		fmt.Printf("%-7s %8.0f writes/s (median turn)   p50 %v   p99 %v   %d writes\n", s.name, s.rate(), s.quantile(50), s.quantile(99), len(s.took))
	}
	share, added := fenced.rate()/plain.rate(), fenced.quantile(50)-plain.quantile(50)
	fmt.Printf("fenced/plain %.2f (at least %.2f), p50 %+v (at most %v)\n", share, leastShare, added, mostAdded)
	if share < leastShare || added > mostAdded {
		return fmt.Errorf("the fence costs more than it may")
	}
	return nil
}

func (s *subject) rate() float64 { return s.rates[len(s.rates)/2] }

func (s *subject) quantile(percent int) time.Duration { return s.took[(len(s.took)-1)*percent/100] }
