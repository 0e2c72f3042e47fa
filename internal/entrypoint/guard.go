package entrypoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

const (
	// maxAnswer bounds the body of an answer. Registries accept manifests of at most 4 MiB; configurations are smaller.
	maxAnswer = 4 << 20
	// maxHeader bounds the header of an answer.
	maxHeader = 64 << 10
)

var (
	errLocal = errors.New("a loopback or link-local address")
	errPlain = errors.New("plain HTTP")
	errLong  = errors.New("an answer of more than 4 MiB")
)

// guarded limits requests and answers to what a user who may only create Pods may send and see.
type guarded struct {
	next http.RoundTripper
	// plain are the hosts, with their ports if any, that may be asked over plain HTTP.
	plain map[string]bool
}

func (g guarded) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" && !g.plain[request.URL.Host] {
		return nil, errPlain
	}
	response, err := g.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Body = &bounded{response.Body, maxAnswer}
	return response, nil
}

// bounded fails if a body is longer than a limit.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errLong
	}
	return n, err
}

func newTransport(insecure map[string]bool, roots *x509.CertPool) http.RoundTripper {
	direct := &net.Dialer{Timeout: 10 * time.Second}
	outside := &net.Dialer{Timeout: 10 * time.Second, Control: refuseLocal}
	trusted := map[string]bool{} // as addresses to dial
	for host := range insecure {
		if _, _, err := net.SplitHostPort(host); err == nil {
			trusted[host] = true
			continue
		}
		trusted[net.JoinHostPort(host, "80")], trusted[net.JoinHostPort(host, "443")] = true, true
	}
	return guarded{plain: insecure, next: &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if trusted[address] {
				return direct.DialContext(ctx, network, address)
			}
			return outside.DialContext(ctx, network, address)
		},
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		ForceAttemptHTTP2:      true,
		DisableKeepAlives:      true, // a second look-up is rare
	}}
}

// metadata is the only address of a cloud's metadata service that is not link-local.
var metadata = netip.MustParseAddr("fd00:ec2::254")

// refuseLocal checks the address of a connection after name resolution.
func refuseLocal(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := to.Addr().Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() || ip == metadata {
		return errLocal
	}
	return nil
}
