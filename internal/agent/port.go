//go:build linux

package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"
)

// The limits of the port for probes and metrics. Anyone who reaches the Pod can connect to it, and the container's memory limit applies to
// what the connections take.
const (
	maxClients = 64
	// maxRequest is the maximum number of bytes that are read of a request: its line and its headers.
	maxRequest = 4 << 10
	// maxUnread and maxUnsent are the sizes of the kernel's buffers of a connection, in bytes. The kernel doubles them.
	maxUnread = 4 << 10
	maxUnsent = 16 << 10
	// clientTime is the time limit for the request, and again for the answer.
	clientTime = time.Second
)

// ListenPort opens the port for probes and metrics.
func ListenPort(address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { // every connection inherits the options
			err = errors.Join(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, maxUnread),
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, maxUnsent))
		}), err)
	}}
	config.SetMultipathTCP(false)
	return config.Listen(context.Background(), "tcp", address)
}

// ServePort answers the probes of the kubelet and requests for metrics, until the listener is closed.
func (a *Agent) ServePort(l net.Listener) { newPort(a.Handler(), a.log).serve(l) }

// port answers one request of each client. Any number of clients takes a limited amount of memory. No client keeps another one out, because
// a new one takes the place of an old one.
//
// An http.Server cannot give a place away at once: it sleeps for half a second before it closes some connections.
type port struct {
	handler http.Handler
	log     *Log
	limit   time.Duration // for the request, and again for the answer

	mu      sync.Mutex
	left    *sync.Cond // signaled when a client has left
	clients []*client  // in the order of their arrival, at most maxClients
}

func newPort(h http.Handler, log *Log) *port {
	p := &port{handler: h, log: log, limit: clientTime}
	p.left = sync.NewCond(&p.mu)
	return p
}

func (p *port) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond) // no descriptors left
			continue
		}
		c := &client{Conn: conn}
		p.admit(c)
		go p.attend(c)
	}
}

// client is one connection.
type client struct {
	net.Conn
	asked bool // its request is complete; guarded by port.mu
}

// close closes the connection. The kernel keeps nothing of it.
func (c *client) close() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// admit adds a client. If there is no place, it first closes another connection and waits until that client's goroutine has ended.
func (p *port) admit(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.clients) == maxClients {
		p.clients[expendable(p.clients)].close()
	}
	for len(p.clients) == maxClients {
		p.left.Wait()
	}
	p.clients = append(p.clients, c)
}

// expendable returns the index of the client that makes room for another: the oldest one without a complete request. It is the oldest of
// all if most clients have asked, because they can take their time to read the answer.
func expendable(clients []*client) int {
	asked := 0
	for _, c := range clients {
		if c.asked {
			asked++
		}
	}
	if 2*asked > len(clients) {
		return 0
	}
	return slices.IndexFunc(clients, func(c *client) bool { return !c.asked })
}

func (p *port) attend(c *client) {
	defer p.leave(c)
	defer func() {
		if mistake := recover(); mistake != nil { // a request must not end the tenure
			p.log.Print("request for probes or metrics not answered", "error", mistake)
		}
	}()
	_ = c.SetDeadline(time.Now().Add(p.limit))
	request, err := http.ReadRequest(bufio.NewReaderSize(io.LimitReader(c, maxRequest), 1<<10))
	if err != nil {
		return
	}
	p.heard(c)
	given := answer{header: http.Header{}}
	p.handler.ServeHTTP(&given, request)
	_ = c.SetDeadline(time.Now().Add(p.limit))
	if _, err := c.Write(given.text(request)); err == nil {
		c.finish()
	}
}

func (p *port) heard(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.asked = true
}

func (p *port) leave(c *client) {
	c.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients = slices.DeleteFunc(p.clients, func(other *client) bool { return other == c })
	p.left.Signal()
}

// finish waits until the client has read the answer and closes the connection. The wait is short for a client that sends more than its
// request.
func (c *client) finish() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	var rest [512]byte
	for range maxRequest / len(rest) {
		if _, err := c.Read(rest[:]); err != nil {
			return
		}
	}
}

// answer keeps what a handler answers.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
	}
}

func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(data)
}

// text returns the answer to a request, as it is sent.
func (a *answer) text(to *http.Request) []byte {
	a.WriteHeader(http.StatusOK)
	response := http.Response{
		StatusCode: a.code, ProtoMajor: 1, ProtoMinor: 1, Header: a.header, Body: io.NopCloser(&a.body),
		ContentLength: int64(a.body.Len()), Close: true, Request: to,
	}
	var text bytes.Buffer
	_ = response.Write(&text)
	return text.Bytes()
}
