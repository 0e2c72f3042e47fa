// Package check checks the health of a process over HTTP, TCP or gRPC, like a kubelet and with a kubelet's messages. Exec probes are not
// here, because they start a process; see package supervise.
package check

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/probe"
)

// UserAgent is the User-Agent of checks, HookUserAgent that of hooks. Servers recognize a kubelet by the part before the slash.
const (
	UserAgent     = "kube-probe/1.37"
	HookUserAgent = "kube-lifecycle/1.37"
)

// maxBody is the maximum number of bytes that are read of a response.
const maxBody = 10 << 10

// maxBuffered is the maximum number of bytes of a response that a server can send over HTTP/2 before anything is read of them. Go's default
// is 4 MiB for each response, and the agent has a small share of the container's memory.
const maxBuffered = 16 << 10

// Checker makes checks. It keeps no connections. The zero value uses the loopback address if a check names no host.
type Checker struct {
	// PodIP is the address that is used if a check names no host.
	PodIP string
}

// Run makes a check until ctx ends. It does not support exec checks. The deadline of ctx is the check's timeout.
func (c Checker) Run(ctx context.Context, of contract.Check) probe.Result {
	switch {
	case of.HTTPGet != nil:
		return c.httpGet(ctx, of.HTTPGet)
	case of.TCPSocket != nil:
		return c.tcpSocket(ctx, of.TCPSocket)
	case of.GRPC != nil:
		return c.grpc(ctx, of.GRPC)
	}
	return probe.Result{Text: "the probe has no httpGet, tcpSocket or grpc"}
}

func (c Checker) address(host string, port int) string {
	for _, known := range []string{host, c.PodIP, "127.0.0.1"} {
		if known != "" {
			return net.JoinHostPort(strings.Trim(known, "[]"), strconv.Itoa(port))
		}
	}
	return ""
}

func (c Checker) tcpSocket(ctx context.Context, of *contract.TCPSocket) probe.Result {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address(of.Host, of.Port))
	if err != nil {
		return probe.Failed("%s", err)
	}
	_ = conn.Close()
	return probe.Passed()
}

// transport returns a transport for one check. As in a kubelet, the server's certificate is not verified.
func transport(protocols ...func(*http.Protocols, bool)) *http.Transport {
	spoken := new(http.Protocols)
	for _, set := range protocols {
		set(spoken, true)
	}
	return &http.Transport{
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as a kubelet
		Protocols:              spoken,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream:     maxBuffered,
			MaxReceiveBufferPerConnection: 64 << 10, // the minimum
			MaxReadFrameSize:              16 << 10, // the minimum
		},
	}
}

var (
	http1 = (*http.Protocols).SetHTTP1
	http2 = (*http.Protocols).SetHTTP2 // with TLS
	h2c   = (*http.Protocols).SetUnencryptedHTTP2
)

func (c Checker) httpGet(ctx context.Context, of *contract.HTTPGet) probe.Result {
	req, err := c.request(ctx, of, UserAgent)
	if err != nil {
		return probe.Result{Text: err.Error()}
	}
	client := clientFor(of)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return probe.Failed("%s", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch code := resp.StatusCode; {
	case code < http.StatusOK || code >= http.StatusBadRequest:
		return probe.Failed("HTTP probe failed with statuscode: %d", code)
	case err != nil:
		return probe.Failed("cannot read the response body: %s", err)
	case code >= http.StatusMultipleChoices:
		return probe.Result{Outcome: probe.Success, Text: "Probe terminated redirects, Response body: " + string(body)}
	}
	return probe.Passed()
}

// clientFor returns a client for one request and its redirects.
func clientFor(of *contract.HTTPGet) *http.Client {
	t := transport(http1, http2)
	if of.HTTP2 {
		t = transport(h2c)
	}
	return &http.Client{Transport: t, CheckRedirect: sameHost}
}

func (c Checker) request(ctx context.Context, of *contract.HTTPGet, userAgent string) (*http.Request, error) {
	u, err := url.Parse(of.Path)
	if err != nil {
		u = &url.URL{Path: of.Path} // a text that is not a URL is a path
	}
	u.Scheme, u.Host = "http", c.address(of.Host, of.Port)
	if of.TLS {
		u.Scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	for _, h := range of.Headers {
		req.Header.Add(h.Name, h.Value)
	}
	if _, set := req.Header["User-Agent"]; !set {
		req.Header.Set("User-Agent", userAgent)
	}
	if _, set := req.Header["Accept"]; !set {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}

// sameHost follows redirects, except to another host, which would not check the process. The redirect itself counts as a response.
func sameHost(req *http.Request, via []*http.Request) error {
	const most = 10
	switch {
	case req.URL.Hostname() != via[0].URL.Hostname():
		return http.ErrUseLastResponse
	case len(via) >= most:
		return fmt.Errorf("stopped after %d redirects", most)
	}
	return nil
}

// The gRPC health checking protocol, version 1: the method, and the numbers of the states in a response.
const healthCheck = "/grpc.health.v1.Health/Check"

var serving = map[uint64]string{0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

// gRPC status codes with a message of their own.
const (
	grpcDeadlineExceeded = "4"
	grpcUnimplemented    = "12"
)

func (c Checker) grpc(ctx context.Context, of *contract.GRPC) probe.Result {
	scheme, t := "http", transport(h2c)
	if of.TLS {
		scheme, t = "https", transport(http2)
	}
	defer t.CloseIdleConnections()
	address := c.address("", of.Port)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+address+healthCheck, bytes.NewReader(healthRequest(of.Service)))
	if err != nil {
		return probe.Result{Text: err.Error()}
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", UserAgent)
	if until, bounded := ctx.Deadline(); bounded {
		left := max(1, time.Until(until).Milliseconds())
		req.Header.Set("Grpc-Timeout", strconv.FormatInt(min(left, 99_999_999), 10)+"m") // gRPC allows at most eight digits
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return c.unanswered(address, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil { // in this case there are no trailers
		return c.unanswered(address, err)
	}
	return healthAnswer(resp, body)
}

func (c Checker) unanswered(address string, err error) probe.Result {
	if errors.Is(err, context.DeadlineExceeded) {
		return probe.Failed("timeout: no answer of the service at %q: %v", address, err)
	}
	return probe.Failed("error: failed to connect service at %q: %v", address, err)
}

// healthRequest returns a HealthCheckRequest in a gRPC frame: the length, then the message. Its first field is the service.
func healthRequest(service string) []byte {
	const firstField = 1<<3 | 2 // of bytes
	var message []byte
	if service != "" {
		message = append(binary.AppendUvarint([]byte{firstField}, uint64(len(service))), service...)
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return append(frame, message...)
}

func healthAnswer(resp *http.Response, body []byte) probe.Result {
	status, message := resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")
	if status == "" { // a response without a message has the status in its headers
		status, message = resp.Header.Get("Grpc-Status"), resp.Header.Get("Grpc-Message")
	}
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	switch status {
	case "0":
		state, err := healthState(body)
		switch {
		case err != nil:
			return probe.Failed("error: health rpc probe failed: %v", err)
		case serving[state] != "SERVING":
			return probe.Failed("service unhealthy (responded with %q)", named(state))
		}
		return probe.Passed()
	case "":
		return probe.Failed("error: health rpc probe failed: a response with HTTP status %d and without a gRPC status", resp.StatusCode)
	case grpcUnimplemented:
		return probe.Failed("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", message)
	case grpcDeadlineExceeded:
		return probe.Failed("timeout: health rpc did not complete in time: %s", message)
	}
	return probe.Failed("error: health rpc probe failed: gRPC status %s: %s", status, message)
}

func named(state uint64) string {
	if name, known := serving[state]; known {
		return name
	}
	return strconv.FormatUint(state, 10)
}

// healthState returns the state in a gRPC frame with a HealthCheckResponse: its first field, a number. It skips unknown fields.
func healthState(frame []byte) (state uint64, err error) {
	const header = 5
	if len(frame) < header || frame[0] != 0 || uint64(len(frame)-header) < uint64(binary.BigEndian.Uint32(frame[1:])) {
		return 0, errors.New("the response is not a single message, or is compressed")
	}
	message := frame[header : header+int(binary.BigEndian.Uint32(frame[1:]))]
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return 0, errBadMessage
		}
		var value uint64
		if value, message, err = field(tag&7, message[n:]); err != nil {
			return 0, err
		}
		if tag == 1<<3 {
			state = value
		}
	}
	return state, nil
}

var errBadMessage = errors.New("the response is not a message of the health checking protocol")

// field reads one field. It returns its value if that is a number, and the rest of the message.
func field(wireType uint64, message []byte) (value uint64, rest []byte, err error) {
	var size uint64
	switch wireType {
	case 0:
		value, n := binary.Uvarint(message)
		if n <= 0 {
			return 0, nil, errBadMessage
		}
		return value, message[n:], nil
	case 1:
		size = 8
	case 2:
		length, n := binary.Uvarint(message)
		if n <= 0 {
			return 0, nil, errBadMessage
		}
		message, size = message[n:], length
	case 5:
		size = 4
	default:
		return 0, nil, errBadMessage
	}
	if size > uint64(len(message)) {
		return 0, nil, errBadMessage
	}
	return 0, message[size:], nil
}
