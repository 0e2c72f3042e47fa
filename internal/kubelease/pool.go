package kubelease

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// pool holds the connections for one kind of request.
type pool struct {
	credentials string
	connect     func(*x509.CertPool) Transport

	mu      sync.Mutex
	current Transport // nil: open a new connection
	ca      []byte    // the certificate authority that current trusts
}

// Transport is the used part of *http.Transport.
type Transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

func newPool(c Config) *pool {
	p := &pool{credentials: c.Credentials, connect: c.Connect}
	if p.connect == nil {
		p.connect = newDialer().transport
	}
	return p
}

func (p *pool) tokenFile() string { return filepath.Join(p.credentials, "token") }
func (p *pool) caFile() string    { return filepath.Join(p.credentials, "ca.crt") }

// send sends a request with the current token. The caller calls drop to make later requests use new connections. A request
// without an answer closes its own connection and leaves others alone. If one API server of three is dead, a connection that has
// answered since is worth more than a connection to any server.
//
// The transport repeats a request on another connection only if no byte of it was written to the first.
func (p *pool) send(request *http.Request) (response *http.Response, drop func(), err error) {
	// Small files in memory (a projected volume), replaced atomically.
	token, err := os.ReadFile(p.tokenFile())
	if err != nil {
		return nil, nil, fmt.Errorf("the token of the agent's service account: %w", err)
	}
	over, err := p.open()
	if err != nil {
		return nil, nil, err
	}
	drop = func() { p.drop(over) }
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if request.Header.Get("Accept") == "" {
		request.Header.Set("Accept", "application/json")
	}
	request.Header.Set("User-Agent", fieldManager)
	// RoundTrip instead of a Client, because redirects must not be followed.
	response, err = over.RoundTrip(request)
	if err != nil {
		return nil, nil, late(request, err)
	}
	return response, drop, nil
}

// late marks the error of a request that failed because of its deadline.
func late(request *http.Request, err error) error {
	if request.Context().Err() != nil {
		return fmt.Errorf("no answer in time: %w", err)
	}
	return err
}

// open returns the transport. It creates a new one if the last was dropped, or trusts a certificate authority other than the
// present ca.crt.
func (p *pool) open() (Transport, error) {
	ca, err := os.ReadFile(p.caFile())
	if err != nil {
		return nil, fmt.Errorf("the API server's certificate authority: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil && bytes.Equal(ca, p.ca) {
		return p.current, nil
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("the API server's certificate authority: %s holds no PEM certificate", p.caFile())
	}
	if p.current != nil {
		p.current.CloseIdleConnections()
	}
	p.current, p.ca = p.connect(authorities), ca
	return p.current, nil
}

// drop makes later requests use new connections. Requests in flight on the old ones continue.
func (p *pool) drop(used Transport) {
	p.mu.Lock()
	if p.current == used {
		p.current = nil
	}
	p.mu.Unlock()
	used.CloseIdleConnections()
}

// leave makes later requests use new connections in place of the present ones.
func (p *pool) leave() {
	p.mu.Lock()
	used := p.current
	p.mu.Unlock()
	if used != nil {
		p.drop(used)
	}
}

// dialer connects to a host with several addresses. Each time it begins with a different address, so that one dead address does
// not delay every attempt.
type dialer struct {
	net.Dialer
	turn   atomic.Uint32
	lookup func(ctx context.Context, host string) ([]string, error)
}

func newDialer() *dialer {
	d := &dialer{lookup: net.DefaultResolver.LookupHost}
	// A peer that disappears silently is detected after 30 s, even if nothing is sent, as on a watch.
	d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
	d.Timeout = connectTimeout
	return d
}

// connectTimeout ends a connection attempt for which nobody waits any more, and the TLS handshake after it.
const connectTimeout = 10 * time.Second

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addresses, err := d.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	first := d.turn.Add(1) - 1
	for i := range addresses {
		at := addresses[(int(first)+i)%len(addresses)]
		var conn net.Conn
		if conn, err = d.DialContext(ctx, network, net.JoinHostPort(at, port)); err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

func (d *dialer) transport(authorities *x509.CertPool) Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		// No Proxy: HTTPS_PROXY is meant for the user's process, and the API server is in the cluster.
		DialContext:         d.dial,
		TLSHandshakeTimeout: connectTimeout,
		TLSClientConfig:     &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12},
		Protocols:           protocols,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     90 * time.Second,
		// Bounds memory: see largest.
		MaxResponseHeaderBytes: 64 << 10,
	}
}
