//go:build linux

// Package faultproxy is an HTTP(S) reverse proxy whose faults are switched while it runs. Placed before an API server, or
// any other HTTP service, it is the network between one client and that server.
//
// It ends TLS and passes every header through, a bearer token too; a client certificate cannot pass. Faults are of two
// kinds: those of the whole link (Cut, Refuse), which freeze or end every connection, and those of single requests
// (Inject), chosen by a predicate.
package faultproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// remembered bounds the number of requests that a proxy keeps, because it can run for days.
const remembered = 50_000

// Options of Start.
type Options struct {
	// Listen is the address to listen on. An address with port 0 gets a free port.
	Listen string
	// Certificate is what the proxy serves TLS with; without one it serves plain HTTP.
	Certificate *tls.Certificate
	// Upstream is the server's URL.
	Upstream string
	// UpstreamCA is the PEM certificate of the authority that signed the server's.
	UpstreamCA []byte
}

// Proxy is a running proxy. Its methods may be called from any goroutine.
type Proxy struct {
	scheme    string
	upstream  atomic.Pointer[url.URL]
	addr      string
	tls       *tls.Config
	handler   http.Handler
	transport *http.Transport
	link      *gate
	port      hold           // while refusing, too: nobody else may answer there
	late      sync.WaitGroup // deliveries that outlive their request
	held      atomic.Int64   // by Hold, at this moment

	mu     sync.Mutex
	sever  func() // ends the server and its connections; nil while refusing or closed
	closed bool
	rules  []*rule // the newest first
	seen   []Request
	latest map[string]*answer // of each read, for Stale
}

// Start starts a proxy that passes everything.
func Start(o Options) (*Proxy, error) {
	upstream, err := url.Parse(o.Upstream)
	if err != nil {
		return nil, fmt.Errorf("the upstream's URL: %w", err)
	}
	p := &Proxy{scheme: "http", link: newGate(), latest: map[string]*answer{}}
	p.upstream.Store(upstream)
	// Compression is the client's and the server's matter, so bodies pass as they are.
	p.transport = &http.Transport{ForceAttemptHTTP2: true, DisableCompression: true}
	if len(o.UpstreamCA) > 0 {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(o.UpstreamCA) {
			return nil, errors.New("the upstream's authority is no PEM certificate")
		}
		p.transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	if o.Certificate != nil {
		p.scheme = "https"
		p.tls = &tls.Config{Certificates: []tls.Certificate{*o.Certificate}, MinVersion: tls.VersionTLS12}
	}
	p.handler = &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(p.upstream.Load()) },
		Transport:      roundTripper(p.roundTrip),
		ModifyResponse: closeAsServer,
		FlushInterval:  -1, // a watch's events must not wait for more
		ErrorHandler:   abort,
		ErrorLog:       log.New(io.Discard, "", 0), // failing is what this is for
	}
	if err := p.serve(o.Listen); err != nil {
		return nil, err
	}
	if p.port, err = newHold(p.addr); err != nil {
		p.Refuse()
		return nil, fmt.Errorf("holding the address: %w", err)
	}
	return p, nil
}

// closeAsServer ends the connection after a reply that says so: ReverseProxy keeps that to itself.
func closeAsServer(reply *http.Response) error {
	if reply.Close {
		reply.Header.Set("Connection", "close")
	}
	return nil
}

// abort ends the connection (of HTTP/2, the stream) without an answer: the proxy says nothing that the server did not say.
func abort(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }

func (p *Proxy) serve(addr string) error {
	listener, err := listen(addr)
	if err != nil {
		return err
	}
	p.addr = listener.Addr().String()
	server := &http.Server{
		Handler:           http.HandlerFunc(p.handle),
		TLSConfig:         p.tls.Clone(),
		ReadHeaderTimeout: time.Hour, // a frozen link is not a slow client
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	frozen := &gatedListener{Listener: listener, gate: p.link, severed: make(chan struct{})}
	p.sever = func() {
		frozen.sever()
		_ = server.Close()
	}
	go func() {
		if server.TLSConfig != nil {
			_ = server.ServeTLS(frozen, "", "")
		} else {
			_ = server.Serve(frozen)
		}
	}()
	return nil
}

func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	if p.seen = append(p.seen, describe(r)); len(p.seen) > remembered {
		p.seen = slices.Clone(p.seen[remembered/2:])
	}
	p.mu.Unlock()
	p.handler.ServeHTTP(w, r)
}

// URL is where clients connect to.
func (p *Proxy) URL() string { return p.scheme + "://" + p.addr }

// Addr is host:port of URL.
func (p *Proxy) Addr() string { return p.addr }

// Cut freezes the link: connections are accepted and never answered, and those that exist pass not a byte more. No side gets an error.
// After Heal the bytes on the way arrive late, as after a real partition.
func (p *Proxy) Cut() { p.link.close() }

// Refuse ends all connections and refuses new ones, as a machine without a server does. The port stays taken.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sever != nil {
		p.sever()
		p.sever = nil
	}
}

// Heal ends Cut, Refuse and every injected fault.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		r.lift()
	}
	p.rules = nil
	p.link.open()
	if p.sever != nil || p.closed {
		return nil
	}
	if err := p.serve(p.addr); err != nil {
		return fmt.Errorf("listening again: %w", err)
	}
	return nil
}

// Forward sends the requests from now on to another server, such as a load balancer does whose server has failed. Those under way stay where
// they are. The server's certificate is of the same authority as that of the first one.
func (p *Proxy) Forward(upstream string) error {
	to, err := url.Parse(upstream)
	if err != nil {
		return fmt.Errorf("the upstream's URL: %w", err)
	}
	p.upstream.Store(to)
	return nil
}

// Upstream is the URL of the server to which requests go.
func (p *Proxy) Upstream() string { return p.upstream.Load().String() }

// Certify heals, ends all connections, and answers new ones with another certificate, as after the rotation of an authority.
func (p *Proxy) Certify(certificate tls.Certificate) error {
	p.Refuse()
	p.mu.Lock()
	p.tls = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	p.mu.Unlock()
	return p.Heal()
}

// Inject makes fault happen to the requests that all of the predicates hold for, until remove is called. Where several
// rules match a request, the newest acts. Removing lets go of what the fault holds back.
func (p *Proxy) Inject(fault Fault, when ...Match) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &rule{fault: fault, when: when, lifted: make(chan struct{})}
	if s, ok := fault.(*stale); ok {
		s.freeze(p.latest)
	}
	p.rules = append([]*rule{r}, p.rules...)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rules = slices.DeleteFunc(p.rules, func(other *rule) bool { return other == r })
		r.lift()
	}
}

// Seen returns the requests that have reached the proxy and that all of the predicates hold for, the oldest first. It keeps only the newest
// ones.
func (p *Proxy) Seen(when ...func(Request) bool) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []Request
	for _, r := range p.seen {
		if !slices.ContainsFunc(when, func(is func(Request) bool) bool { return !is(r) }) {
			found = append(found, r)
		}
	}
	return found
}

// Held is how many requests Hold keeps on the way at this moment. Each of them will be delivered.
func (p *Proxy) Held() int { return int(p.held.Load()) }

// Close ends the proxy and all its connections, and waits for deliveries under way.
func (p *Proxy) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	p.Refuse()
	_ = p.Heal()
	if first {
		p.port.release()
	}
	p.late.Wait()
	p.transport.CloseIdleConnections()
}

func (p *Proxy) roundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	index := slices.IndexFunc(p.rules, func(rule *rule) bool { return rule.matches(r) })
	var active *rule
	if index >= 0 {
		active = p.rules[index]
	}
	p.mu.Unlock()
	if active != nil {
		return active.fault.roundTrip(p, r, active)
	}
	return p.pass(r)
}

// pass sends the request on. Watches can be stalled later, and reads are remembered for Stale.
func (p *Proxy) pass(r *http.Request) (*http.Response, error) {
	response, err := p.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if isWatch(r) {
		response.Body = &stallable{ReadCloser: response.Body, request: r, proxy: p, ctx: r.Context()}
		return response, nil
	}
	return response, p.remember(r, response)
}

// stalledBy is the newest rule that stalls this watch.
func (p *Proxy) stalledBy(r *http.Request) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rule := range p.rules {
		if _, ok := rule.fault.(stallWatch); ok && rule.matches(r) {
			return rule
		}
	}
	return nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// rule is an injected fault.
type rule struct {
	fault  Fault
	when   []Match
	once   sync.Once
	lifted chan struct{}
}

func (r *rule) matches(request *http.Request) bool {
	return !slices.ContainsFunc(r.when, func(is Match) bool { return !is(request) })
}

func (r *rule) lift() { r.once.Do(func() { close(r.lifted) }) }

// wait returns when the rule is lifted; false when ctx ended first.
func (r *rule) wait(ctx context.Context) bool {
	select {
	case <-r.lifted:
		return true
	case <-ctx.Done():
		return false
	}
}
