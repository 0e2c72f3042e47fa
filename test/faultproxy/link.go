//go:build linux

package faultproxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// listen listens on an address that a hold may have, or get.
func listen(addr string) (net.Listener, error) {
	var shared error
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return errors.Join(c.Control(func(fd uintptr) {
			shared = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), shared)
	}}
	return config.Listen(context.Background(), "tcp", addr)
}

// hold is a socket that is bound to an address and does not listen. While nobody else listens there, connections are refused. The kernel
// gives the port to no one who asks for any port.
type hold int

func newHold(addr string) (hold, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return -1, err
	}
	family, name := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	if at.Addr().Is4() {
		family, name = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.Bind(fd, name)); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("bind "+addr, err)
	}
	return hold(fd), nil
}

func (h hold) release() { _ = unix.Close(int(h)) }

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
	select { // alone: where the gate is open too, the other select would choose either
	case <-c.severed:
		return net.ErrClosed
	default:
	}
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
