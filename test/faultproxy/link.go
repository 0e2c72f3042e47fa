//go:build linux

package faultproxy

import (
	"net"
	"sync"
)

// gate lets bytes through while it is open.
type gate struct {
	mu     sync.Mutex
	passes chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{passes: make(chan struct{})}
	close(g.passes)
	return g
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.passes:
	default:
		close(g.passes)
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.passes:
		g.passes = make(chan struct{})
	default:
	}
}

func (g *gate) passage() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.passes
}

// gatedListener makes every connection pass the gate.
type gatedListener struct {
	net.Listener
	gate    *gate
	severed chan struct{}
}

func (l *gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: conn, gate: l.gate, severed: l.severed, closed: make(chan struct{})}, nil
}

// sever fails what waits before the gate. A server that closes a TLS connection first writes that it does, and so would
// wait for the gate to open.
func (l *gatedListener) sever() { close(l.severed) }

// gatedConn is a connection whose bytes wait before a closed gate, in both directions.
type gatedConn struct {
	net.Conn
	gate    *gate
	severed <-chan struct{}
	once    sync.Once
	closed  chan struct{}
}

func (c *gatedConn) wait() error {
	select {
	case <-c.gate.passage():
		return nil
	case <-c.closed:
		return net.ErrClosed
	case <-c.severed:
		return net.ErrClosed
	}
}

func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	// After the read and not before: a read that was waiting when the gate closed must hand out nothing either.
	if waited := c.wait(); waited != nil {
		return 0, waited
	}
	return n, err
}

func (c *gatedConn) Write(b []byte) (int, error) {
	if err := c.wait(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
