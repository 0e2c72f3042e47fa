//go:build linux

package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/tier"
)

// Outages that a tenure survives, with a real API server. docs/timing.md has the simulator's table. Each scenario demands less than the
// simulator promises, to allow for a busy machine.
func TestTenureSurvives(t *testing.T) {
	tier.Deep(t, "outlives outages with a second to spare")
	for name, test := range map[string]struct {
		renew, retry float64 // seconds
		// trouble causes the outage on a candidate's network, and returns when it is over.
		trouble func(c *candidate)
	}{
		"a tenth of all requests swallowed, five in a row": {renew: 2.5, retry: 0.2, trouble: func(c *candidate) {
			var n atomic.Int64
			n.Store(30) // the first five are lost after four seconds
			c.swallow(func() bool { return n.Add(1)%50 >= 45 })
			elapse(c.w.t, 15*time.Second)
		}},
		"hung for 1.2 s of every 2.7 s": {renew: 3, retry: 0.3, trouble: func(c *candidate) {
			for range 6 {
				c.proxy.Cut()
				elapse(c.w.t, 1200*time.Millisecond)
				healProxy(c)
				elapse(c.w.t, 1500*time.Millisecond)
			}
		}},
		"an outage that begins after a renewal": {renew: 3, retry: 0.5, trouble: func(c *candidate) {
			var out atomic.Bool
			c.swallow(out.Load)
			for range 4 {
				c.w.renewedTwice()
				out.Store(true)
				// renewDeadline - retryPeriod - a request, which waits for 0.83 s at most
				elapse(c.w.t, 1600*time.Millisecond)
				out.Store(false)
			}
		}},
		"every second reply lost, and every second read from the past": {renew: 2.5, retry: 0.5, trouble: func(c *candidate) {
			c.proxy.Inject(faultproxy.ResetReply(), isWrite, everySecond())
			c.proxy.Inject(faultproxy.Stale(), isRead, everySecond())
			elapse(c.w.t, 15*time.Second)
		}},
		"refused by an overloaded server every second time": {renew: 2.5, retry: 0.5, trouble: func(c *candidate) {
			c.proxy.Inject(faultproxy.TooManyRequests(time.Hour), isWrite, everySecond())
			elapse(c.w.t, 15*time.Second)
		}},
		"one of three servers silent, and some requests swallowed": {renew: 3, retry: 0.2, trouble: func(c *candidate) {
			c.service.lose(func(to net.Conn) { _, _ = io.Copy(io.Discard, to) })
			c.loseSome(0.05)
			elapse(c.w.t, 15*time.Second)
		}},
		"one of three servers refuses, and some requests swallowed": {renew: 3, retry: 0.2, trouble: func(c *candidate) {
			c.service.lose(func(to net.Conn) { _ = to.(*net.TCPConn).SetLinger(0) })
			c.loseSome(0.05)
			elapse(c.w.t, 15*time.Second)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustGoOn(t, func(w *world) error {
				config := testConfig()
				config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = seconds(5), seconds(test.renew), seconds(test.retry)
				a := w.prepare("a", config)
				a.throughService()
				a.start()
				token := w.acts(a)
				w.standby("b", config)
				test.trouble(a)
				w.renewedTwice()
				lives := w.checkLives()
				if len(lives) != 1 || lives[0].token != token {
					return fmt.Errorf("the tenure did not go on: %+v; log of the holder:\n%s", lives, a.lines)
				}
				return nil
			})
		})
	}
}

// everySecond matches the first request, the third and so on.
func everySecond() faultproxy.Match {
	var n atomic.Int64
	return func(*http.Request) bool { return n.Add(1)%2 == 1 }
}

// swallow leaves requests (not watches) unanswered for as long as their client waits.
func (c *candidate) swallow(is func() bool) {
	c.proxy.Inject(faultproxy.BlackHole(), func(r *http.Request) bool { return !faultproxy.Watches()(r) && is() })
}

// loseSome drops a share of all requests or of their answers, the same ones in each run.
func (c *candidate) loseSome(share float64) {
	var mu sync.Mutex
	draw := rand.New(rand.NewPCG(1, 2))
	lost := func(*http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		return draw.Float64() < share/2
	}
	isRequest := func(r *http.Request) bool { return !faultproxy.Watches()(r) }
	c.proxy.Inject(faultproxy.BlackHole(), isRequest, lost)
	c.proxy.Inject(faultproxy.LoseReply(), isRequest, lost)
}

// service is one address for several servers, like a Kubernetes Service: each connection goes to one of them and stays there.
type service struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	dead  func(net.Conn) // what happens to connections to the dead server
	draw  *rand.Rand
	conns []net.Conn
}

const servers = 3

// throughService makes the agent connect through a Service whose servers are all the proxy.
func (c *candidate) throughService() {
	c.w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	c.w.must(err)
	s := &service{listener: listener, to: c.proxy.Addr(), draw: rand.New(rand.NewPCG(3, 4))}
	c.service = s
	c.w.t.Cleanup(s.close)
	go s.serve()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	c.w.must(err)
	c.env = slices.DeleteFunc(c.env, func(kv string) bool { return strings.HasPrefix(kv, "KUBERNETES_SERVICE_PORT=") })
	c.env = append(c.env, "KUBERNETES_SERVICE_PORT="+port)
}

// lose makes one of the servers die, with this effect on new connections. Existing connections end. Each is opened again, perhaps to the
// dead server.
func (s *service) lose(dead func(net.Conn)) {
	s.mu.Lock()
	s.dead = dead
	s.mu.Unlock()
	s.end()
}

func (s *service) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}

func (s *service) serve() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		go s.carry(conn)
	}
}

func (s *service) carry(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	s.mu.Lock()
	s.conns = append(s.conns, conn)
	dead := s.dead
	if s.draw.IntN(servers) != 0 {
		dead = nil
	}
	s.mu.Unlock()
	if dead != nil {
		dead(conn)
		return
	}
	to, err := net.Dial("tcp", s.to)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	go func() {
		_, _ = io.Copy(to, conn)
		_ = to.Close()
	}()
	_, _ = io.Copy(conn, to)
}

func (s *service) close() {
	_ = s.listener.Close()
	s.end()
}
