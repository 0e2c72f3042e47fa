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

// pool is the connections for one kind of request.
type pool struct {
	credentials string
	connect     func(*x509.CertPool) transport

	mu      sync.Mutex
	current transport // nil: connect anew
	ca      []byte    // what current trusts
}

// transport is what is used of *http.Transport.
type transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

func (p *pool) tokenFile() string { return filepath.Join(p.credentials, "token") }
func (p *pool) caFile() string    { return filepath.Join(p.credentials, "ca.crt") }

// send sends a request with the token of now. The caller calls drop to have the next ones use fresh connections. A request
// that gets no answer takes its own connection with it, and leaves others alone: where one API server of three is dead,
// what has answered since is worth more than a connection to anywhere.
//
// The transport repeats a request on another connection by itself only if nothing of it was written to the first.
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
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", fieldManager)
	// RoundTrip and not a Client: a redirect is not followed.
	response, err = over.RoundTrip(request)
	if err != nil {
		return nil, nil, late(request, err)
	}
	return response, drop, nil
}

// late says so of a request that failed by its deadline, and not by what it met.
func late(request *http.Request, err error) error {
	if request.Context().Err() != nil {
		return fmt.Errorf("no answer in time: %w", err)
	}
	return err
}

// open returns the transport, a fresh one if the last was dropped or trusts another authority than ca.crt names now.
func (p *pool) open() (transport, error) {
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

// drop has later requests use fresh connections. What is still under way on the old ones is not disturbed.
func (p *pool) drop(used transport) {
	p.mu.Lock()
	if p.current == used {
		p.current = nil
	}
	p.mu.Unlock()
	used.CloseIdleConnections()
}

// leave has later requests use fresh connections, whichever are in use now.
func (p *pool) leave() {
	p.mu.Lock()
	used := p.current
	p.mu.Unlock()
	if used != nil {
		p.drop(used)
	}
}

// dialer connects to a host of several addresses beginning with another one each time: one that does not answer must
// not be in the way of every attempt.
type dialer struct {
	net.Dialer
	turn   atomic.Uint32
	lookup func(ctx context.Context, host string) ([]string, error)
}

func newDialer() *dialer {
	d := &dialer{lookup: net.DefaultResolver.LookupHost}
	// A peer that is gone without a word is noticed after 30 s, though nothing is sent, as on a watch.
	d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
	d.Timeout = connectTimeout
	return d
}

// connectTimeout ends connecting that nobody waits for any more, and the handshake after it.
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

func (d *dialer) transport(authorities *x509.CertPool) transport {
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
		// Memory is counted: see largest.
		MaxResponseHeaderBytes: 64 << 10,
	}
}
