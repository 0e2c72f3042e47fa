package kubelease

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// line is the connections for one kind of request.
type line struct {
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

func (l *line) tokenFile() string { return filepath.Join(l.credentials, "token") }
func (l *line) caFile() string    { return filepath.Join(l.credentials, "ca.crt") }

// send sends a request with the token of now. When the answer's body breaks off, the caller calls drop.
//
// The transport repeats a request on another connection by itself only if nothing of it was written to the first.
func (l *line) send(request *http.Request) (response *http.Response, drop func(), err error) {
	// Small files in memory (a projected volume), replaced atomically.
	token, err := os.ReadFile(l.tokenFile())
	if err != nil {
		return nil, nil, fmt.Errorf("the token of the agent's service account: %w", err)
	}
	over, err := l.open()
	if err != nil {
		return nil, nil, err
	}
	drop = func() { l.drop(over) }
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", fieldManager)
	// RoundTrip and not a Client: a redirect is not followed.
	response, err = over.RoundTrip(request)
	if err != nil {
		drop()
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
func (l *line) open() (transport, error) {
	ca, err := os.ReadFile(l.caFile())
	if err != nil {
		return nil, fmt.Errorf("the API server's certificate authority: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil && bytes.Equal(ca, l.ca) {
		return l.current, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("the API server's certificate authority: %s holds no PEM certificate", l.caFile())
	}
	if l.current != nil {
		l.current.CloseIdleConnections()
	}
	l.current, l.ca = l.connect(pool), ca
	return l.current, nil
}

// drop has later requests use fresh connections. What is still under way on the old ones is not disturbed.
func (l *line) drop(used transport) {
	l.mu.Lock()
	if l.current == used {
		l.current = nil
	}
	l.mu.Unlock()
	used.CloseIdleConnections()
}

func newTransport(pool *x509.CertPool) transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	// A peer that is gone without a word is noticed after 30 s, though nothing is sent, as on a watch.
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return &http.Transport{
		// No Proxy: HTTPS_PROXY is meant for the user's process, and the API server is in the cluster.
		DialContext:         dialer.DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		Protocols:           protocols,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     90 * time.Second,
	}
}
