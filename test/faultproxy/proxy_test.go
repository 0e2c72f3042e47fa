//go:build linux

package faultproxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/faultproxy"
)

// server is an upstream that counts what reaches it. A write adds its body to the log, a read returns how long the log is,
// and a watch tells each new length.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	writes []string
	auth   string
	grown  chan struct{} // closed and replaced at each write
}

func newServer(t *testing.T) *server {
	s := &server{grown: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.handle))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.CloseClientConnections)
	t.Cleanup(s.Close)
	return s
}

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") == "true" {
		s.watch(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.auth = r.Header.Get("Authorization")
	if r.Method == http.MethodPut {
		s.writes = append(s.writes, string(body))
		close(s.grown)
		s.grown = make(chan struct{})
	}
	_, _ = fmt.Fprint(w, len(s.writes))
}

func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	for {
		s.mu.Lock()
		n, grown := len(s.writes), s.grown
		s.mu.Unlock()
		_, _ = fmt.Fprintln(w, n)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-grown:
		case <-r.Context().Done():
			return
		}
	}
}

func (s *server) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// await waits until the server has received n writes.
func (s *server) await(t *testing.T, n int) {
	t.Helper()
	for {
		s.mu.Lock()
		got, grown := len(s.writes), s.grown
		s.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-grown:
		case <-time.After(5 * time.Minute):
			t.Fatalf("the server has received %d writes, want %d", got, n)
		}
	}
}

// world is a client, a proxy and a server.
type world struct {
	server *server
	proxy  *faultproxy.Proxy
	client *http.Client
}

func newWorld(t *testing.T, http2 bool) *world {
	s := newServer(t)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	proxy, err := faultproxy.Start(faultproxy.Options{Listen: "127.0.0.1:0", Certificate: &s.TLS.Certificates[0], Upstream: s.URL, UpstreamCA: ca})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: http2}
	t.Cleanup(transport.CloseIdleConnections)
	return &world{server: s, proxy: proxy, client: &http.Client{Transport: transport}}
}

// eachProtocol runs a test over HTTP/1.1 and HTTP/2: a shared connection must fail and heal as well as one per request.
func eachProtocol(t *testing.T, test func(*testing.T, *world)) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, http2))
		})
	}
}

const unanswered = 200 * time.Millisecond // long enough for any answer that there is

func (w *world) do(ctx context.Context, method, path, body string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, w.proxy.URL()+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer secret")
	response, err := w.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func (w *world) mustDo(t *testing.T, method, path, body, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	code, got, err := w.do(ctx, method, path, body)
	if err != nil || code != http.StatusOK || got != want {
		t.Fatalf("%s %s: %d %q %v, want %q", method, path, code, got, err, want)
	}
}

// mustHang makes a request that is not answered, though it has had the time for it, and gives up. That time begins when the request has
// reached the point that arrived names.
func (w *world) mustHang(t *testing.T, method, path, body string, arrived func() bool) {
	t.Helper()
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	answered := make(chan string, 1)
	go func() {
		code, text, err := w.do(ctx, method, path, body)
		answered <- fmt.Sprintf("%d %q %v", code, text, err)
	}()
	for deadline := time.Now().Add(5 * time.Minute); !arrived(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s %s has not arrived", method, path)
		}
	}
	select {
	case answer := <-answered:
		t.Fatalf("%s %s: %s, want no answer", method, path, answer)
	case <-time.After(unanswered):
	}
	giveUp()
	<-answered
}

func atOnce() bool { return true }

// mustBreak makes a request whose connection ends without an answer.
func (w *world) mustBreak(t *testing.T, method, path, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if code, text, err := w.do(ctx, method, path, body); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%s %s: %d %q %v, want a broken connection", method, path, code, text, err)
	}
}

func TestPass(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		w.mustDo(t, "PUT", "/x", "one", "1")
		w.mustDo(t, "GET", "/x", "", "1")
		if w.server.auth != "Bearer secret" {
			t.Errorf("the token arrived as %q", w.server.auth)
		}
		seen := w.proxy.Seen(func(r faultproxy.Request) bool { return r.Method == "PUT" })
		if len(seen) != 1 || seen[0].Path != "/x" || len(w.proxy.Seen()) != 2 {
			t.Errorf("the proxy says that it saw %v", w.proxy.Seen())
		}
	})
}

func TestCutFreezesTheConnectionsThatExist(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		w.mustDo(t, "PUT", "/x", "before", "1")
		events := w.watch(t)
		events.next(t, "1")
		w.proxy.Cut()
		w.mustHang(t, "GET", "/x", "", atOnce)
		w.mustHang(t, "PUT", "/x", "lost or late", atOnce)
		if got := w.server.received(); len(got) != 1 {
			t.Fatalf("a write passed the cut link: %q", got)
		}
		w.server.put(t, "by another")
		events.none(t)
		if err := w.proxy.Heal(); err != nil {
			t.Fatal(err)
		}
		events.next(t, "2")
		if code, _, err := w.do(t.Context(), "PUT", "/x", "after"); err != nil || code != http.StatusOK {
			t.Errorf("after the heal: %d %v", code, err)
		}
	})
}

func TestRefuse(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		events := w.watch(t)
		events.next(t, "0")
		w.proxy.Refuse()
		events.end(t)
		if _, _, err := w.do(t.Context(), "GET", "/x", ""); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("want a refused connection, got %v", err)
		}
		if other, err := net.Listen("tcp", w.proxy.Addr()); err == nil {
			_ = other.Close()
			t.Error("somebody else could have answered in the meantime")
		}
		if err := w.proxy.Heal(); err != nil {
			t.Fatal(err)
		}
		w.mustDo(t, "GET", "/x", "", "0")
	})
}

func TestFaultsOfRequests(t *testing.T) {
	put := faultproxy.Method("PUT")
	cases := map[string]struct {
		fault  faultproxy.Fault
		during func(*testing.T, *world)
		// stored is what the server has received while the fault lasts, later what it has received when all is over.
		stored, later []string
	}{
		"black hole": {
			fault: faultproxy.BlackHole(),
			during: func(t *testing.T, w *world) {
				w.mustHang(t, "PUT", "/x", "a", func() bool { return len(w.proxy.Seen()) == 1 })
			},
		},
		"reset": {
			fault:  faultproxy.Reset(),
			during: func(t *testing.T, w *world) { w.mustBreak(t, "PUT", "/x", "a") },
		},
		"hold": {
			fault: faultproxy.Hold(),
			during: func(t *testing.T, w *world) {
				w.mustHang(t, "PUT", "/x", "a", func() bool { return w.proxy.Held() == 1 })
			},
			later: []string{"a"},
		},
		"lose reply": {
			fault: faultproxy.LoseReply(),
			during: func(t *testing.T, w *world) {
				w.mustHang(t, "PUT", "/x", "a", func() bool { return len(w.server.received()) == 1 })
			},
			stored: []string{"a"}, later: []string{"a"},
		},
		"reset reply": {
			fault:  faultproxy.ResetReply(),
			during: func(t *testing.T, w *world) { w.mustBreak(t, "PUT", "/x", "a") },
			stored: []string{"a"}, later: []string{"a"},
		},
		"delay": {
			fault: faultproxy.Delay(20*time.Millisecond, 20*time.Millisecond),
			during: func(t *testing.T, w *world) {
				begin := time.Now()
				w.mustDo(t, "PUT", "/x", "a", "1")
				if took := time.Since(begin); took < 40*time.Millisecond {
					t.Errorf("it took %v", took)
				}
			},
			stored: []string{"a"}, later: []string{"a"},
		},
		"duplicate": {
			fault:  faultproxy.Duplicate(0),
			during: func(t *testing.T, w *world) { w.mustDo(t, "PUT", "/x", "a", "1") },
			stored: []string{"a", "a"}, later: []string{"a", "a"},
		},
		"late duplicate": {
			fault:  faultproxy.Duplicate(time.Hour), // removing the fault lets go of it
			during: func(t *testing.T, w *world) { w.mustDo(t, "PUT", "/x", "a", "1") },
			stored: []string{"a"}, later: []string{"a", "a"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, w *world) {
				remove := w.proxy.Inject(c.fault, put)
				c.during(t, w)
				w.server.await(t, len(c.stored))
				if got := w.server.received(); !slices.Equal(got, c.stored) {
					t.Errorf("while the fault lasts the server has received %q, want %q", got, c.stored)
				}
				w.mustDo(t, "GET", "/x", "", fmt.Sprint(len(c.stored))) // another method is not concerned
				remove()
				w.server.await(t, len(c.later))
				w.mustDo(t, "PUT", "/x", "b", fmt.Sprint(len(c.later)+1))
				if got, want := w.server.received(), append(slices.Clone(c.later), "b"); !slices.Equal(got, want) {
					t.Errorf("in the end the server has received %q, want %q", got, want)
				}
			})
		})
	}
}

func TestAWatchWhoseReplyIsLost(t *testing.T) {
	for name, fault := range map[string]faultproxy.Fault{"swallowed": faultproxy.LoseReply(), "reset": faultproxy.ResetReply()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, true)
			defer w.proxy.Inject(fault)()
			ctx, cancel := context.WithTimeout(t.Context(), unanswered)
			defer cancel()
			if code, text, err := w.do(ctx, "GET", "/watched?watch=true", ""); err == nil {
				t.Errorf("got %d %q", code, text)
			}
		})
	}
}

func TestAnswersByTheProxy(t *testing.T) {
	cases := map[string]struct {
		fault faultproxy.Fault
		code  int
		retry string
	}{
		"overloaded":  {fault: faultproxy.TooManyRequests(3 * time.Second), code: 429, retry: "3"},
		"unavailable": {fault: faultproxy.Fail(503), code: 503},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, w *world) {
				defer w.proxy.Inject(c.fault)()
				response, err := w.client.Get(w.proxy.URL() + "/x")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = response.Body.Close() }()
				body, _ := io.ReadAll(response.Body)
				if response.StatusCode != c.code || response.Header.Get("Retry-After") != c.retry || !strings.Contains(string(body), `"kind":"Status"`) {
					t.Errorf("got %s, Retry-After %q, %s", response.Status, response.Header.Get("Retry-After"), body)
				}
			})
		})
	}
}

func TestStaleReadsShowTheTimeOfInjection(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		w.mustDo(t, "PUT", "/x", "a", "1")
		w.mustDo(t, "GET", "/x?resourceVersion=7", "", "1")
		remove := w.proxy.Inject(faultproxy.Stale())
		w.mustDo(t, "PUT", "/x", "b", "2")
		w.mustDo(t, "GET", "/x", "", "1")
		w.mustDo(t, "GET", "/new", "", "2") // nothing to be stale with yet
		w.mustDo(t, "PUT", "/x", "c", "3")
		w.mustDo(t, "GET", "/x", "", "1")
		w.mustDo(t, "GET", "/new", "", "2")
		remove()
		w.mustDo(t, "GET", "/x", "", "3")
	})
}

func TestAStalledWatchLooksAlive(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		events := w.watch(t)
		events.next(t, "0")
		remove := w.proxy.Inject(faultproxy.StallWatch(), faultproxy.PathHas("/watched"))
		w.server.put(t, "a")
		events.none(t)
		w.mustDo(t, "GET", "/x", "", "1") // reads are not concerned
		remove()
		events.next(t, "1")
	})
}

func TestPredicates(t *testing.T) {
	bound := "h." + base64.RawURLEncoding.EncodeToString([]byte(`{"kubernetes.io":{"pod":{"name":"p-0"}}}`)) + ".s"
	request := func(method, path, token string) *http.Request {
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		return r
	}
	cases := map[string]struct {
		match   faultproxy.Match
		request *http.Request
		want    bool
	}{
		"method":         {faultproxy.Method("PUT", "PATCH"), request("PATCH", "/", ""), true},
		"another method": {faultproxy.Method("PUT", "PATCH"), request("GET", "/", ""), false},
		"path":           {faultproxy.PathHas("/leases/"), request("GET", "/namespaces/x/leases/y", ""), true},
		"another path":   {faultproxy.PathHas("/leases/"), request("GET", "/namespaces/x/leases", ""), false},
		"watch":          {faultproxy.Watches(), request("GET", "/?watch=1", ""), true},
		"no watch":       {faultproxy.Watches(), request("GET", "/?watch=false", ""), false},
		"pod":            {faultproxy.FromPod("p-0"), request("GET", "/", bound), true},
		"another pod":    {faultproxy.FromPod("p-1"), request("GET", "/", bound), false},
		"no pod's token": {faultproxy.FromPod("p-0"), request("GET", "/", "a.b.c"), false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := c.match(c.request); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
	first := faultproxy.Times(1, faultproxy.Method("PUT"))
	for i, want := range []bool{false, true, false} {
		if got := first(request([]string{"GET", "PUT", "PUT"}[i], "/", "")); got != want {
			t.Errorf("request %d: got %v", i, got)
		}
	}
}

func TestTheNewestRuleActs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	w.proxy.Inject(faultproxy.Fail(500))
	remove := w.proxy.Inject(faultproxy.Fail(503))
	if code, _, err := w.do(t.Context(), "GET", "/", ""); err != nil || code != 503 {
		t.Errorf("got %d %v, want the newer rule's 503", code, err)
	}
	remove()
	if code, _, err := w.do(t.Context(), "GET", "/", ""); err != nil || code != 500 {
		t.Errorf("got %d %v, want the older rule's 500", code, err)
	}
}

func TestCloseEndsAFrozenLink(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		events := w.watch(t)
		events.next(t, "0")
		w.proxy.Cut()
		w.proxy.Close()
		events.end(t)
	})
}

// put writes to the server directly.
func (s *server) put(t *testing.T, body string) {
	t.Helper()
	r, err := http.NewRequest("PUT", s.URL+"/x", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
}

// events are a watch's lines.
type events chan string

func (w *world) watch(t *testing.T) events {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", w.proxy.URL()+"/watched?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	lines := make(events)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(response.Body); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-t.Context().Done():
				return
			}
		}
	}()
	return lines
}

func (e events) next(t *testing.T, want string) {
	t.Helper()
	select {
	case got, open := <-e:
		if !open || got != want {
			t.Fatalf("the watch says %q (open: %v), want %q", got, open, want)
		}
	case <-time.After(5 * time.Minute):
		t.Fatalf("no event, want %q", want)
	}
}

func (e events) none(t *testing.T) {
	t.Helper()
	select {
	case got, open := <-e:
		t.Fatalf("an event passed: %q (open: %v)", got, open)
	case <-time.After(unanswered):
	}
}

func (e events) end(t *testing.T) {
	t.Helper()
	select {
	case got, open := <-e:
		if open {
			t.Fatalf("an event passed: %q", got)
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("the watch goes on")
	}
}

// httptest gives each server the same certificate.
func TestForward(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, w *world) {
		second := newServer(t)
		w.mustDo(t, http.MethodPut, "/", "a", "1")
		if err := w.proxy.Forward(second.URL); err != nil || w.proxy.Upstream() != second.URL {
			t.Fatalf("requests go to %s: %v", w.proxy.Upstream(), err)
		}
		w.mustDo(t, http.MethodPut, "/", "b", "1")
		if err := w.proxy.Forward(w.server.URL); err != nil {
			t.Fatal(err)
		}
		w.mustDo(t, http.MethodGet, "/", "", "1")
		if got := w.server.received(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("the first server has received %q", got)
		}
		if err := w.proxy.Forward("::"); err == nil {
			t.Error("no URL is an upstream")
		}
	})
}
