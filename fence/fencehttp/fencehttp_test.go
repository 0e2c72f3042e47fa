package fencehttp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
)

// patience is what a step may take on a busy machine.
const patience = 3 * time.Minute

const resource = fence.Resource("billing/reconcile")

// send is a write; it returns the status.
func send(ctx context.Context, url string, token int, path string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader("x"))
	if err != nil {
		return 0, err
	}
	request.Header.Set(fence.HeaderToken, fmt.Sprint(token))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// slow is a service whose writes to /slow end when they are let, or, unless it is deaf, when they are cut.
type slow struct {
	began chan string
	let   chan struct{}
	deaf  bool
	cause atomic.Value
	over  atomic.Int32 // writes of /slow that have ended
}

func (s *slow) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/slow" {
		return
	}
	defer s.over.Add(1)
	s.began <- r.Header.Get(fence.HeaderToken)
	done := r.Context().Done()
	if s.deaf {
		done = nil
	}
	select {
	case <-s.let:
	case <-done:
		s.cause.Store(context.Cause(r.Context()))
	}
}

func newSlow() *slow { return &slow{began: make(chan string, 100), let: make(chan struct{})} }

type result struct {
	status int
	err    error
}

func later(t *testing.T, url string, token int, path string) <-chan result {
	done := make(chan result, 1)
	go func() {
		status, err := send(t.Context(), url, token, path)
		done <- result{status, err}
	}()
	return done
}

// TestFirstWriteWaitsForOldWrites: the first write of a tenure begins after the last write of the old tenure has ended.
func TestFirstWriteWaitsForOldWrites(t *testing.T) {
	service := newSlow()
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Next: service, Drain: patience, Patience: patience}
	url := serve(t, f, false).URL
	old := []<-chan result{later(t, url, 33, "/slow"), later(t, url, 33, "/slow")}
	<-service.began
	<-service.began
	first := later(t, url, 34, "/")
	for !shut(f) { // it waits now
		time.Sleep(time.Millisecond)
	}
	stale := later(t, url, 33, "/") // began too late: it waits for the decision, and is refused
	select {
	case r := <-first:
		t.Fatalf("the new tenure's first write did not wait: %+v", r)
	default:
	}
	close(service.let)
	for _, done := range old {
		if r := <-done; r.status != http.StatusOK {
			t.Errorf("a write that had begun: %+v", r)
		}
	}
	if r := <-first; r.status != http.StatusOK {
		t.Errorf("the new tenure's first write: %+v", r)
	}
	if r := <-stale; r.status == http.StatusOK {
		t.Errorf("SAFETY: a write of the past tenure that began while the new one waited was accepted: %+v", r)
	} else if r.status != http.StatusPreconditionFailed {
		t.Errorf("a write of the past tenure that began while the new one waited: %+v", r)
	}
}

func shut(f *Fence) bool {
	l, _ := f.lane(resource)
	defer f.done(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shut
}

// TestEndlessOldWriteIsCut: a write of the old tenure that does not end is cut. It has returned before the new tenure's first write begins.
func TestEndlessOldWriteIsCut(t *testing.T) {
	service := newSlow()
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Drain: -1, Settle: patience, Patience: patience}
	f.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(fence.HeaderToken) == "34" && service.over.Load() != 1 {
			t.Error("the new tenure's first write began before the old one had returned")
		}
		service.ServeHTTP(w, r)
	})
	url := serve(t, f, false).URL
	old := later(t, url, 33, "/slow")
	<-service.began
	if status, err := send(t.Context(), url, 34, "/"); status != http.StatusOK {
		t.Errorf("the new tenure's first write: %d %v", status, err)
	}
	if r := <-old; r.err == nil {
		t.Errorf("the write that was cut was answered: %+v", r)
	}
	if cause, _ := service.cause.Load().(error); !errors.Is(cause, ErrCut) {
		t.Errorf("it was told %v", cause)
	}
}

// TestWriteThatIgnoresItsCutBlocksTheNextTenure: no later write overtakes one that continues after it was cut.
func TestWriteThatIgnoresItsCutBlocksTheNextTenure(t *testing.T) {
	service := newSlow()
	service.deaf = true
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Next: service, Drain: -1, Settle: time.Millisecond, Patience: patience}
	url := serve(t, f, false).URL
	old := later(t, url, 33, "/slow")
	<-service.began
	if status, err := send(t.Context(), url, 34, "/"); status != http.StatusServiceUnavailable {
		t.Errorf("beside a write that has not ended: %d %v", status, err)
	}
	if mark, _ := f.Store.Mark(t.Context(), resource); mark != 33 {
		t.Errorf("the mark is %d", mark)
	}
	close(service.let)
	<-old
	for deadline := time.Now().Add(patience); ; {
		status, err := send(t.Context(), url, 34, "/")
		if status == http.StatusOK {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("once it had ended: %d %v", status, err)
		}
	}
}

// TestAFrozenClientIsCut: it has sent half of its body, and reads nothing.
func TestAFrozenClientIsCut(t *testing.T) {
	reading := make(chan struct{}, 1)
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Drain: -1, Settle: patience, Patience: patience}
	f.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(fence.HeaderToken) != "33" {
			return
		}
		if r.URL.Path == "/read" {
			reading <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		reading <- struct{}{}
		for r.Context().Err() == nil || r.URL.Path == "/write" { // to write to one that is cut fails
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	address := serve(t, f, false).Listener.Addr().String()
	token := 33
	for _, path := range []string{"/read", "/write"} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nFencing-Token: 33\r\nContent-Length: 10\r\n\r\nhalf", path)
		<-reading
		token++
		if status, err := send(t.Context(), "http://"+address, token, "/"); status != http.StatusOK {
			t.Errorf("%s: the new tenure's first write: %d %v", path, status, err)
		}
		conn.Close()
		if path == "/read" { // again
			f.Close()
			f.Store = &Memory{}
		}
	}
}

// raw sends bytes as they are, and returns the answers' statuses and bodies.
func raw(t *testing.T, address, request string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// mean are the headers of requests, as a hostile or broken client sends them, and how each is to be answered.
var mean = map[string]struct {
	headers string
	want    int
}{
	"one":                       {"Fencing-Token: 7", 200},
	"in lower case":             {"fencing-token: 7", 200},
	"with spaces around":        {"Fencing-Token: \t 7 \t", 200},
	"none":                      {"X-Other: 7", 428},
	"empty":                     {"Fencing-Token:", 428},
	"nothing but spaces":        {"Fencing-Token:    ", 428},
	"twice":                     {"Fencing-Token: 7\r\nFencing-Token: 7", 400},
	"twice, in different case":  {"Fencing-Token: 7\r\nfENCING-tOKEN: 9", 400},
	"empty and one":             {"Fencing-Token:\r\nFencing-Token: 7", 400},
	"a list":                    {"Fencing-Token: 1,2", 400},
	"a list of one":             {"Fencing-Token: 7,", 400},
	"a sign":                    {"Fencing-Token: +1", 400},
	"negative":                  {"Fencing-Token: -7", 400},
	"zero":                      {"Fencing-Token: 0", 400},
	"a leading zero":            {"Fencing-Token: 07", 400},
	"hexadecimal":               {"Fencing-Token: 0x1", 400},
	"an exponent":               {"Fencing-Token: 1e3", 400},
	"a space within":            {"Fencing-Token: 7 8", 400},
	"2^63":                      {"Fencing-Token: 9223372036854775808", 400},
	"2^64+7":                    {"Fencing-Token: 18446744073709551623", 400},
	"a million digits":          {"Fencing-Token: " + strings.Repeat("7", 500_000), 400},
	"a quoted string":           {`Fencing-Token: "7"`, 400},
	"digits of another script":  {"Fencing-Token: \u0667", 400},
	"folded":                    {"Fencing-Token: 7\r\n 8", 400},
	"a space before the colon":  {"Fencing-Token : 7", 400},
	"a NUL":                     {"Fencing-Token: 7\x00", 400},
	"a bare CR":                 {"Fencing-Token: 7\r8", 400},
	"an underscore":             {"Fencing_Token: 9", 400},
	"an underscore beside":      {"Fencing-Token: 7\r\nFencing_Token: 9", 400},
	"dropped on the way":        {"Fencing-Token: 7\r\nConnection: Fencing-Token", 400},
	"dropped, among others":     {"Fencing-Token: 7\r\nConnection: close, fencing-TOKEN", 400},
	"dropped, in a second":      {"Fencing-Token: 7\r\nConnection: close\r\nConnection: x,Fencing-Token", 400},
	"the resource dropped":      {"Fencing-Token: 7\r\nConnection: Fencing-Resource", 400},
	"after the body":            {"Fencing-Token: 7\r\nTransfer-Encoding: chunked\r\nTrailer: Fencing-Token", 400},
	"the resource":              {"Fencing-Token: 7\r\nFencing-Resource: billing/reconcile", 200},
	"another resource":          {"Fencing-Token: 7\r\nFencing-Resource: billing/other", 400},
	"two resources":             {"Fencing-Token: 7\r\nFencing-Resource: billing/reconcile\r\nfencing-resource: x", 400},
	"the resource in CAPITALS":  {"Fencing-Token: 7\r\nFencing-Resource: BILLING/reconcile", 400},
	"in the query's stead":      {"Cookie: Fencing-Token=7", 428},
	"a length and chunks":       {"Fencing-Token: 7\r\nTransfer-Encoding: chunked\r\nContent-Length: 3", 200}, // the chunks count, here and, by what is sent on, behind a proxy
	"two lengths":               {"Fencing-Token: 7\r\nContent-Length: 0\r\nContent-Length: 3", 400},
	"an encoding in disguise":   {"Fencing-Token: 7\r\nTransfer-Encoding: xchunked", 501},
	"the greatest":              {"Fencing-Token: 9223372036854775807", 200},
	"stale after the greatest?": {"Fencing-Token: 9223372036854775806", 200},
}

func TestHostileHeaders(t *testing.T) {
	for name, c := range mean {
		t.Run(name, func(t *testing.T) {
			passed := false
			f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true })}
			server := serve(t, f, false)
			ending := "\r\n\r\n"
			if strings.Contains(c.headers, "chunked") {
				ending += "0\r\n\r\n"
			}
			status, body := raw(t, server.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: a\r\n"+c.headers+ending)
			server.Close()
			if status != c.want && (c.want != 400 || status != 431) || passed != (c.want == 200) {
				t.Errorf("status %d, passed %v; want status %d\n%.300s", status, passed, c.want, body)
			}
		})
	}
}

// TestDuplicatesOverHTTP2: the same over HTTP/2, where headers are in lower case.
func TestDuplicatesOverHTTP2(t *testing.T) {
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Next: &lists{}}
	server := serve(t, f, true)
	for want, tokens := range map[int][]string{200: {"7"}, 400: {"7", "9"}, 428: {""}} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		request.Header["fencing-token"] = tokens
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.ProtoMajor != 2 || response.StatusCode != want {
			t.Errorf("%q over %s: %d, want %d", tokens, response.Proto, response.StatusCode, want)
		}
	}
}

// TestRequestsWithoutAToken: only reads pass without a token. A request that only looks like a read does not.
func TestRequestsWithoutAToken(t *testing.T) {
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Next: &lists{}}
	address := serve(t, f, false).Listener.Addr().String()
	for request, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: a":     200,
		"HEAD / HTTP/1.1\r\nHost: a":    200,
		"OPTIONS * HTTP/1.1\r\nHost: a": 200,
		"get / HTTP/1.1\r\nHost: a":     428,
		"GETX / HTTP/1.1\r\nHost: a":    428,
		"TRACE / HTTP/1.1\r\nHost: a":   428,
		"DELETE / HTTP/1.1\r\nHost: a":  428,
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket": 428,
		"GET / HTTP/1.1\r\nHost: a\r\nupgrade: anything":                         428,
		"GET / HTTP/1.1\r\nHost: a\r\nX-HTTP-Method-Override: DELETE":            428,
		"GET / HTTP/1.1\r\nHost: a\r\nX_HTTP_Method_Override: DELETE":            428,
		"GET / HTTP/1.1\r\nHost: a\r\nx-http_method: DELETE":                     428,
		"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c, websocket":                   428,
		offered("GET", "X-Other: 1"):                                             200,
		offered("POST", "X-Other: 1"):                                            428,
		"CONNECT a:80 HTTP/1.1\r\nHost: a":                                       428,
	} {
		if status, _ := raw(t, address, request+"\r\n\r\n"); status != want {
			t.Errorf("%q: %d, want %d", request, status, want)
		}
	}
}

// TestProblems: each refusal has a problem document with its cause.
func TestProblems(t *testing.T) {
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Next: &lists{}}
	strict := &Fence{Resource: Fixed(resource), Store: &Memory{}, Next: &lists{}, Strict: true}
	broken := &Fence{Resource: Fixed(resource), Store: failing{}, Next: &lists{}}
	if status, err := send(t.Context(), serve(t, f, false).URL, 40, "/"); status != http.StatusOK {
		t.Fatal(status, err)
	}
	for name, c := range map[string]struct {
		fence *Fence
		token string
		want  Problem
		is    error
	}{
		"stale":       {f, "34", Problem{Type: ProblemStale, Status: 412, Presented: 34, Highest: 40}, fence.ErrStale},
		"missing":     {f, "", Problem{Type: ProblemMissing, Status: 428}, fence.ErrMissingToken},
		"malformed":   {f, "x", Problem{Type: ProblemMalformed, Status: 400}, fence.ErrMalformedToken},
		"ahead":       {strict, "34", Problem{Type: ProblemAhead, Status: 425, Presented: 34}, fence.ErrAhead},
		"unavailable": {broken, "34", Problem{Type: ProblemUnavailable, Status: 503, Presented: 34}, ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			request := httptest.NewRequest(http.MethodPost, "/", nil)
			request.Header.Set(fence.HeaderToken, c.token)
			c.fence.ServeHTTP(recorder, request)
			var got Problem
			if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			response := recorder.Result()
			if got.Detail == "" || got.Title == "" || response.Header.Get("Content-Type") != "application/problem+json" || response.StatusCode != got.Status {
				t.Errorf("%d %v %+v", response.StatusCode, response.Header, got)
			}
			got.Detail, got.Title = "", ""
			if c.want.Resource = resource; got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if err := Check(response); !errors.Is(err, c.is) {
				t.Errorf("the client reads %v", err)
			}
		})
	}
}

// failing is a store that is down.
type failing struct{}

func (failing) Mark(context.Context, fence.Resource) (fence.Token, error) {
	return 0, errors.New("disk on fire")
}

func (failing) Raise(context.Context, fence.Resource, fence.Token) error {
	return errors.New("disk on fire")
}

// TestStrict: only Advance raises the mark and cuts writes in progress.
func TestStrict(t *testing.T) {
	service := newSlow()
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Next: service, Strict: true, Drain: -1, Settle: patience, Patience: patience}
	url := serve(t, f, false).URL
	advancer := httptest.NewServer(f.Advancer())
	t.Cleanup(advancer.Close)
	advance := func(token fence.Token) int {
		client := http.Client{Transport: &Transport{Token: token, Resource: resource}}
		response, err := client.Post(advancer.URL, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	expect := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	write := func(token int) int {
		status, err := send(t.Context(), url, token, "/")
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	expect("before any advance", write(33), 425)
	expect("an advance", advance(33), 204)
	expect("the same again", advance(33), 204)
	expect("the mark", write(33), 200)
	expect("a forged one", write(1<<62), 425)
	old := later(t, url, 33, "/slow")
	<-service.began
	expect("the next tenure", advance(34), 204)
	if r := <-old; r.err == nil {
		t.Errorf("what was under way was not cut: %+v", r)
	}
	expect("the past", write(33), 412)
	expect("a stale advance", advance(33), 412)
	expect("the present", write(34), 200)
}

// TestMonitor: the fence refuses nothing and reports everything.
func TestMonitor(t *testing.T) {
	told := make(chan error, 1)
	f := &Fence{
		Resource: Fixed(resource), Store: &Memory{}, Next: &lists{}, Monitor: true,
		Observe: func(_ *http.Request, d Decision) { told <- d.Err },
	}
	server := serve(t, f, false)
	for _, write := range []struct {
		token int
		want  error
	}{{33, nil}, {34, nil}, {33, fence.ErrStale}, {0, fence.ErrMalformedToken}} {
		if status, err := send(t.Context(), server.URL, write.token, "/"); status != http.StatusOK {
			t.Errorf("token %d: %d %v", write.token, status, err)
		}
		if err := <-told; !errors.Is(err, write.want) {
			t.Errorf("token %d: %v, want %v", write.token, err, write.want)
		}
	}
}

// TestAHijackedConnectionIsCut: its handler has returned, and another goroutine reads from it.
func TestAHijackedConnectionIsCut(t *testing.T) {
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Drain: patience, Settle: patience, Patience: patience}
	open := make(chan struct{})
	f.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !upgrades(r) {
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			defer conn.Close()
			close(open)
			_, _ = io.Copy(io.Discard, conn)
		}()
	})
	server := serve(t, f, false)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\nFencing-Token: 33\r\n\r\n")
	<-open
	if status, err := send(t.Context(), server.URL, 34, "/"); status != http.StatusOK {
		t.Errorf("the new tenure's first write: %d %v", status, err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the stream of the past tenure is open")
	}
}

func TestTransport(t *testing.T) {
	service := &lists{}
	f := &Fence{Resource: FromHeader, Store: &Memory{}, Next: service}
	server := serve(t, f, false)
	redirect := httptest.NewServer(http.RedirectHandler(server.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirect.Close)
	t.Setenv(fence.EnvToken, "33")
	t.Setenv(fence.EnvNamespace, "billing")
	if _, err := FromEnvironment(); !errors.Is(err, fence.ErrMalformedResource) {
		t.Errorf("without a name: %v", err)
	}
	t.Setenv(fence.EnvName, "reconcile")
	transport, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: transport}
	response, err := client.Post(redirect.URL, "", strings.NewReader("a"))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if got := service.stored(string(resource)); got != "a" {
		t.Errorf("stored is %q", got)
	}
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
	request.Header.Set(fence.HeaderToken, "34")
	if response, err := client.Do(request); err == nil {
		response.Body.Close()
		t.Error("a request with another token was sent")
	}
	t.Setenv(fence.EnvToken, "")
	if _, err := FromEnvironment(); !errors.Is(err, fence.ErrMissingToken) {
		t.Errorf("without a token: %v", err)
	}
}
