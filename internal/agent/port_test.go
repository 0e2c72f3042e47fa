//go:build linux

package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The oldest client that has not asked makes room, unless clients that have asked, and do not go, hold most of the places.
func TestExpendable(t *testing.T) {
	for places, want := range map[string]int{ // A has asked, w has not
		"wwww": 0, "AwAw": 1, "AAww": 2, "wAAw": 0, "AAAw": 0, "wAAA": 0, "AAAA": 0, "Awww": 1,
	} {
		var clients []*client
		for _, c := range places {
			clients = append(clients, &client{asked: c == 'A'})
		}
		if got := expendable(clients); got != want {
			t.Errorf("%s: number %d makes room, want %d", places, got, want)
		}
	}
}

// serving is a port that gives its clients a time limit. Its answers are long.
func serving(t *testing.T, limit time.Duration) (p *port, address string) {
	t.Helper()
	l, err := ListenPort("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = newPort(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			_, _ = w.Write(make([]byte, 512<<10)) // more than the kernel buffers
		}
		_, _ = io.WriteString(w, "well")
	}), nil)
	p.limit = limit
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serve(l)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-served
	})
	return p, l.Addr().String()
}

func (p *port) count() (clients, asked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		if c.asked {
			asked++
		}
	}
	return len(p.clients), asked
}

func connect(t *testing.T, address, says string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, says); err != nil {
		t.Fatal(err)
	}
	return conn
}

// probeAt asks as a kubelet does.
func probeAt(t *testing.T, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "well" || !response.Close {
		t.Errorf("%q, %v, close %t", body, err, response.Close)
	}
	return nil
}

// Clients that connect and stay hold a fixed number of places, whatever they send. A kubelet is still answered.
func TestPortServesProbesDespiteConnections(t *testing.T) {
	for name, says := range map[string]string{
		"nothing":                      "",
		"half a header":                "GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 3000),
		"a request, answer not read":   "GET /long HTTP/1.1\r\nHost: x\r\n\r\n",
		"a request, and stays":         "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"a request without its body":   "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
		"a request with a large body":  "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n",
		"a request in too many pieces": "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			p, address := serving(t, time.Hour) // places are free only because clients make room
			first := connect(t, address, says)
			for range 2 * maxClients {
				connect(t, address, says)
			}
			if err := probeAt(t, address); err != nil {
				t.Errorf("a kubelet gets %v", err)
			}
			if clients, _ := p.count(); clients > maxClients {
				t.Errorf("%d clients, want at most %d", clients, maxClients)
			}
			if _, err := io.Copy(io.Discard, first); err != nil && !isReset(err) {
				t.Errorf("the oldest client is still connected: %v", err)
			}
		})
	}
}

func isReset(err error) bool { return strings.Contains(err.Error(), "reset") }

// A client that has half of the places, by requests that it does not finish, does not have a kubelet's request make room for it.
func TestPortServesProbesDespiteRequests(t *testing.T) {
	p, address := serving(t, time.Hour)
	await := func(asked int) {
		for _, n := p.count(); n < asked; _, n = p.count() {
			time.Sleep(time.Millisecond)
		}
	}
	for n := range maxClients - 1 {
		connect(t, address, "GET / HTTP/1.1\r\n\r\n")
		await(n + 1)
	}
	kubelet := connect(t, address, "GET / HTTP")
	for clients, _ := p.count(); clients < maxClients; clients, _ = p.count() {
		time.Sleep(time.Millisecond)
	}
	for n := range maxClients - 2 {
		next := connect(t, address, "GET / HTTP/1.1\r\n\r\n")
		if _, err := io.ReadFull(next, make([]byte, 1)); err != nil { // it has its place, and has asked
			t.Fatalf("stranger %d gets %v", n, err)
		}
	}
	if _, err := io.WriteString(kubelet, "/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(kubelet), nil)
	if err != nil {
		t.Fatalf("a kubelet gets %v", err)
	}
	_ = response.Body.Close()
}

// pipes is a listener without a network, so that the fake clock applies.
type pipes chan net.Conn

func (l pipes) Accept() (net.Conn, error) {
	if conn, open := <-l; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (l pipes) Close() error   { return nil }
func (l pipes) Addr() net.Addr { return nil }

// readAnswer reads one answer, if there is one.
func readAnswer(c net.Conn) {
	if answer, err := http.ReadResponse(bufio.NewReaderSize(c, 64<<10), nil); err == nil {
		_ = answer.Body.Close()
	}
}

// A client has one second for its request, however slowly that comes, and one second to read the answer and to close.
func TestPortTimes(t *testing.T) {
	for name, row := range map[string]struct {
		client func(net.Conn)
		want   time.Duration
	}{
		"says nothing": {func(net.Conn) {}, time.Second},
		"a byte at a time": {func(c net.Conn) {
			for _, err := c.Write([]byte("G")); err == nil; _, err = c.Write([]byte("G")) {
				time.Sleep(100 * time.Millisecond)
			}
		}, time.Second},
		"does not read": {func(c net.Conn) {
			time.Sleep(500 * time.Millisecond)
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
		}, 1500 * time.Millisecond},
		"does not close": {func(c net.Conn) {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
			readAnswer(c)
		}, time.Second},
		"closes": {func(c net.Conn) {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
			readAnswer(c)
			_ = c.Close()
		}, 0},
		"never ends its header": {func(c net.Conn) {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nX: ")
			_, _ = c.Write(make([]byte, maxRequest))
		}, 0},
		"goes on after its request": {func(c net.Conn) {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
			readAnswer(c)
			for _, err := c.Write(make([]byte, 100)); err == nil; _, err = c.Write(make([]byte, 100)) {
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := make(pipes)
				p := newPort(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "well") }), nil)
				go p.serve(l)
				theirs, ours := net.Pipe()
				closed := make(chan struct{})
				began := time.Now()
				l <- signalsClose{ours, closed}
				left := make(chan struct{})
				go func() {
					defer close(left)
					row.client(theirs)
				}()
				<-closed
				if took := time.Since(began); took != row.want {
					t.Errorf("closed after %v, want %v", took, row.want)
				}
				close(l)
				<-left
			})
		})
	}
}

type signalsClose struct {
	net.Conn
	closed chan struct{}
}

func (c signalsClose) Close() error {
	close(c.closed)
	return c.Conn.Close()
}

// The rules of HTTP for a server that closes after each answer.
func TestPortAnswers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.holding()
		for request, want := range map[string]string{
			"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 40\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" +
				"phase Holding, watching the Lease: true\n",
			"HEAD /livez HTTP/1.1\r\n\r\n":            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n",
			"GET /else HTTP/1.0\r\n\r\n":              "HTTP/1.1 404 Not Found\r\n",
			"POST /readyz HTTP/1.1\r\n\r\n":           "HTTP/1.1 405 Method Not Allowed\r\n",
			"* * *\r\n\r\n":                           "",
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":        "HTTP/1.1 400 Bad Request\r\n",
			"GET /readyz HTTP/1.1\r\n: none\r\n\r\n":  "",
			"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n": "HTTP/1.1 404 Not Found\r\n",
		} {
			l := make(pipes)
			go w.agent.ServePort(l)
			theirs, ours := net.Pipe()
			l <- ours
			go func() { _, _ = io.WriteString(theirs, request) }()
			got, err := io.ReadAll(theirs)
			if err != nil || !strings.HasPrefix(string(got), want) || (want == "") != (len(got) == 0) {
				t.Errorf("%q: %q, %v, want %q", request, got, err, want)
			}
			close(l)
		}
	})
}

// A mistake in an answer ends neither the agent nor the port.
func TestPortSurvivesAMistake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &transcript{}
		log := NewLog(said)
		var times atomic.Int32
		p := newPort(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if times.Add(1) == 1 {
				panic(errors.New("a mistake"))
			}
			_, _ = io.WriteString(w, "well")
		}), log)
		l := make(pipes)
		go p.serve(l)
		for _, want := range []string{"", "well"} {
			theirs, ours := net.Pipe()
			l <- ours
			go func() { _, _ = io.WriteString(theirs, "GET / HTTP/1.1\r\n\r\n") }()
			if got, err := io.ReadAll(theirs); err != nil || !strings.HasSuffix(string(got), want) {
				t.Errorf("%q, %v, want %q", got, err, want)
			}
		}
		close(l)
		log.Close(time.Second)
		if !strings.Contains(said.String(), "a mistake") {
			t.Errorf("the log does not tell of it: %s", said)
		}
	})
}
