package fenceproxy

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
)

const (
	copyBuffer          = 32 << 10
	maxIdle             = 1024
	maxIdlePerHost      = 256
	idleTimeout         = 90 * time.Second
	tlsHandshakeTimeout = 10 * time.Second
)

// Proxy has the handler for clients and the one for administrators.
type Proxy struct {
	fence   *fencehttp.Fence
	metrics *metrics
	config  Config
	log     *slog.Logger
	site    atomic.Pointer[site]
	ready   atomic.Bool
}

// site is the part of the configuration that can change while the proxy runs.
type site struct {
	rules     *fencehttp.Rules
	upstreams []*url.URL // of each rule
	only      *url.URL   // where all have the same
	fixed     map[fence.Resource]bool
	transport *http.Transport
}

// New returns a proxy for a valid configuration and a store.
func New(c Config, store fencehttp.Store, log *slog.Logger) (*Proxy, error) {
	p := &Proxy{config: c, metrics: newMetrics(!c.Monitor), log: log}
	if err := p.Reload(c); err != nil {
		return nil, err
	}
	p.fence = &fencehttp.Fence{
		Resource: func(r *http.Request) (fence.Resource, bool, error) { return visitOf(r).site.rules.Resource(r) },
		Store:    store, Strict: c.Strict, Monitor: c.Monitor, Detach: true,
		Drain: orNone(c.drain()), Settle: orNone(c.settle()), Patience: c.patience(),
		// A store waits for what ended and nobody knows how, and for when it may evict, before it does what it is asked.
		StoreTime: fencehttp.DefaultStoreTime + c.drain() + c.Store.evictAfter(),
		Observe:   p.observe,
		ObserveCut: func(r fence.Resource) {
			p.metrics.cut.WithLabelValues(p.label(r)).Inc()
		},
		Next: p.forward(),
	}
	p.ready.Store(true)
	return p, nil
}

// orNone says 0 as fencehttp does, to which 0 is the default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// Reload applies the fields that can change while the proxy runs.
func (p *Proxy) Reload(c Config) error {
	rules, err := c.rules()
	if err != nil {
		return err
	}
	s := &site{rules: rules, fixed: make(map[fence.Resource]bool), transport: http.DefaultTransport.(*http.Transport).Clone()} //nolint:forcetypeassert // it is one
	for _, r := range c.Rules {
		u, err := c.upstream(r)
		if err != nil {
			return err
		}
		s.upstreams = append(s.upstreams, u)
		s.fixed[r.Resource] = r.Resource != ""
	}
	s.only = s.upstreams[0]
	for _, u := range s.upstreams {
		if *u != *s.only {
			s.only = nil
			break
		}
	}
	s.transport.Proxy = nil
	s.transport.MaxIdleConns, s.transport.MaxIdleConnsPerHost = maxIdle, maxIdlePerHost
	s.transport.IdleConnTimeout, s.transport.TLSHandshakeTimeout = idleTimeout, tlsHandshakeTimeout
	s.transport.DisableCompression = true
	if c.UpstreamCA != "" {
		pem, err := os.ReadFile(c.UpstreamCA)
		if err != nil {
			return fmt.Errorf("upstreamCA: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return fmt.Errorf("upstreamCA: %s has no certificate in PEM", c.UpstreamCA)
		}
		s.transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	if old := p.site.Swap(s); old != nil {
		old.transport.CloseIdleConnections()
	}
	return nil
}

// visit is a request with the site as it was on arrival, so that the decision and the upstream come from the same configuration.
type visit struct {
	site *site
	to   *url.URL // nil before it has passed
}

type visitKey struct{}

func visitOf(r *http.Request) *visit { return r.Context().Value(visitKey{}).(*visit) } //nolint:forcetypeassert // ServeHTTP has put it there

// target returns the upstream of a request, or nil if no rule covers it.
func (s *site) target(r *http.Request) *url.URL {
	if s.only != nil {
		return s.only
	}
	if i, err := s.rules.Match(r); err == nil {
		return s.upstreams[i]
	}
	return nil
}

// misleading are headers that make some servers use another host, path or method than the rules have checked.
var misleading = []string{
	"X-Original-Url", "X-Rewrite-Url", "X-Original-Host", "X-Host", "X-Http-Host-Override", "X-Forwarded-Server", "X-Forwarded-Path",
	"X-Forwarded-Prefix", "X-Forwarded-Port", "X-Original-Method", "X-Forwarded-Method",
}

// misleads also finds the spellings that servers which replace _ by - accept.
func misleads(name string) bool {
	return strings.HasPrefix(name, "X") && slices.Contains(misleading, textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-")))
}

// forward returns the handler that sends requests to their upstream.
func (p *Proxy) forward() http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport:     roundTripper(func(r *http.Request) (*http.Response, error) { return visitOf(r).site.transport.RoundTrip(r) }),
		FlushInterval: -1,
		BufferPool:    &buffers{},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(visitOf(r.In).to)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
			maps.DeleteFunc(r.Out.Header, func(name string, _ []string) bool { return misleads(name) })
			// The checked headers arrive even if Connection names them.
			for _, name := range []string{fence.HeaderToken, fence.HeaderResource} {
				if values := r.In.Header[name]; len(values) > 0 {
					r.Out.Header[name] = values
				}
			}
		},
		ErrorHandler: p.failed,
		ErrorLog:     slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := visitOf(r)
		if v.to = v.site.target(r); v.to == nil {
			http.Error(w, "no rule of the fence covers this host and path", http.StatusMisdirectedRequest)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// failed answers a request that the upstream did not answer. The upstream may or may not have carried it out.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	p.log.Warn("upstream did not answer", "method", r.Method, "host", r.Host, "path", r.URL.Path, "error", err)
	http.Error(w, "the service behind the fence did not answer; it may or may not have carried out the request", http.StatusBadGateway)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// buffers are the buffers for copying bodies.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[]byte); ok {
		return *buffer
	}
	return make([]byte, copyBuffer)
}

func (b *buffers) Put(buffer []byte) { b.pool.Put(&buffer) }

// ServeHTTP serves clients.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.fence.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, &visit{site: p.site.Load()})))
}

// Close cuts the requests in progress.
func (p *Proxy) Close() { p.fence.Close() }

// NotReady makes /readyz report that the proxy is not ready, before it ends.
func (p *Proxy) NotReady() { p.ready.Store(false) }

// Admin returns the handler for probes, metrics and /advance.
func (p *Proxy) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !p.ready.Load() {
			http.Error(w, "the proxy is about to end", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{}))
	mux.Handle("POST /advance", p.authorized(p.fence.Advancer()))
	return mux
}

// authorized asks for the bearer token that the file has now.
func (p *Proxy) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.mayAdvance(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (p *Proxy) mayAdvance(r *http.Request) error {
	if p.config.AdvanceTokenFile == "" {
		return errors.New("advanceTokenFile is not set, so no request may advance a mark")
	}
	text, err := os.ReadFile(p.config.AdvanceTokenFile)
	if err != nil {
		p.log.Error("read advanceTokenFile", "error", err)
		return errors.New("advanceTokenFile can't be read, so no request may advance a mark")
	}
	want := strings.TrimSpace(string(text))
	got, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer || want == "" || subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
		return errors.New("header Authorization: want the bearer token of advanceTokenFile")
	}
	return nil
}
