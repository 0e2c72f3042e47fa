package fencehttp

import (
	"bufio"
	"context"
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

// until waits for what comes to pass by itself.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

func markIs(f *Fence, want fence.Token) func() bool {
	return func() bool {
		mark, err := f.Store.Mark(context.Background(), resource)
		return err == nil && mark == want
	}
}

// attentive is a store that heeds its context, as one in another place does.
type attentive struct{ Memory }

func (s *attentive) Mark(ctx context.Context, r fence.Resource) (fence.Token, error) {
	mark, err := s.Memory.Mark(ctx, r)
	return mark, errors.Join(err, ctx.Err())
}

func (s *attentive) Raise(ctx context.Context, r fence.Resource, to fence.Token) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.Memory.Raise(ctx, r, to)
}

// TestNewTenureThatStopsWaiting: the client of a new tenure gives up before the old writes have ended. They keep their time, and the new
// tenure is accepted later.
func TestNewTenureThatStopsWaiting(t *testing.T) {
	service := newSlow()
	f := &Fence{Resource: Fixed(resource), Store: &attentive{}, Next: service, Drain: patience, Patience: time.Millisecond}
	url := serve(t, f, false).URL
	var old <-chan result
	until(t, "a write is under way", func() bool { // whose own patience is as short
		old = later(t, url, 33, "/slow")
		select {
		case <-service.began:
			return true
		case r := <-old:
			return r.status != http.StatusServiceUnavailable
		}
	})
	until(t, "its successor waits", func() bool {
		status, err := send(t.Context(), url, 34, "/")
		if status == http.StatusOK {
			t.Fatal("SAFETY: a write was accepted beside one of the past")
		}
		if status != http.StatusServiceUnavailable {
			t.Fatalf("beside a write of the past: %d %v", status, err)
		}
		return shut(f)
	})
	if service.over.Load() != 0 {
		t.Error("the write of the past was cut before its time")
	}
	close(service.let)
	if r := <-old; r.status != http.StatusOK {
		t.Errorf("the write of the past: %+v", r)
	}
	until(t, "the mark is raised though nobody waits for it", markIs(f, 34))
}

// offered is a request of a client that would like to continue in HTTP/2, as Java's does each time.
func offered(method, header string) string {
	return method + " /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n" + header
}

// TestUpgradeOfferIsNotAStream: a write that offered an upgrade and did not become a stream keeps its time when the next tenure begins.
func TestUpgradeOfferIsNotAStream(t *testing.T) {
	for name, headers := range map[string]string{
		"h2c":       offered("POST", "Fencing-Token: 33"),
		"websocket": "POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nFencing-Token: 33",
	} {
		t.Run(name, func(t *testing.T) {
			service := newSlow()
			f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Drain: patience, Patience: 2 * patience}
			f.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get(fence.HeaderToken) == "33" && len(tokens(r.Header["Upgrade"])) > 0 != (name == "websocket") || len(r.Header["Http2-Settings"]) > 0 ||
					strings.Contains(strings.Join(r.Header["Connection"], ","), "HTTP2") {
					t.Errorf("arrived: %v", r.Header)
				}
				service.ServeHTTP(w, r)
			})
			server := serve(t, f, false)
			old := make(chan int, 1)
			go func() {
				status, _ := raw(t, server.Listener.Addr().String(), headers+"\r\n\r\n")
				old <- status
			}()
			<-service.began
			next := make(chan result, 1)
			go func() {
				request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
				request.Header = http.Header{fence.HeaderToken: {"34"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
				response, err := http.DefaultTransport.RoundTrip(request)
				if err == nil {
					response.Body.Close()
				}
				next <- result{err: err}
			}()
			until(t, "the next tenure waits", func() bool { return shut(f) || service.over.Load() > 0 })
			close(service.let)
			if status := <-old; status != http.StatusOK {
				t.Errorf("the write that had begun: %d", status)
			}
			if cause := service.cause.Load(); cause != nil {
				t.Errorf("it was cut: %v", cause)
			}
			<-next
		})
	}
}

// TestLateStreamOfAnOldTenure: a stream begins while the next tenure already waits.
func TestLateStreamOfAnOldTenure(t *testing.T) {
	began, let, hijacked := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Drain: patience, Patience: 2 * patience}
	f.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(fence.HeaderToken) != "33" {
			return
		}
		close(began)
		<-let
		conn, _, err := http.NewResponseController(w).Hijack()
		hijacked <- err
		if err == nil {
			t.Cleanup(func() { conn.Close() }) // forever
		}
	})
	server := serve(t, f, false)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\nFencing-Token: 33\r\n\r\n")
	<-began
	next := later(t, server.URL, 34, "/")
	until(t, "the next tenure waits", func() bool { return shut(f) })
	close(let)
	if err := <-hijacked; !errors.Is(err, ErrCut) {
		t.Errorf("a stream of the past began: %v", err)
		return
	}
	if r := <-next; r.status != http.StatusOK {
		t.Errorf("the next tenure: %+v", r)
	}
}

// remote is a store that others raise marks in, and whose holds may be of no worth without its process knowing.
type remote struct {
	Memory

	stale, gone atomic.Bool
	holds       atomic.Int32
	confirmed   atomic.Int32
}

func (s *remote) Hold(ctx context.Context, r fence.Resource) (Hold, error) {
	mark, err := s.Mark(ctx, r)
	s.holds.Add(1)
	s.stale.Store(false)
	s.gone.Store(false)
	return Hold{
		Mark:    mark,
		Fresh:   func() bool { return !s.stale.Load() },
		Release: func() { s.holds.Add(-1) },
		Confirm: func(context.Context) error {
			s.confirmed.Add(1)
			if s.gone.Load() {
				return errors.New("the session has ended")
			}
			s.stale.Store(false)
			return nil
		},
	}, err
}

// TestThawedProcessIsRefused: a frozen process wakes up. It does not know that its hold has expired, and that another process raised the
// mark.
func TestThawedProcessIsRefused(t *testing.T) {
	store, service := &remote{}, newSlow()
	f := &Fence{Resource: Fixed(resource), Store: store, Next: service, Drain: patience, Settle: patience, Patience: patience}
	url := serve(t, f, false).URL
	old := later(t, url, 33, "/slow")
	<-service.began
	store.stale.Store(true)
	if status, err := send(t.Context(), url, 33, "/"); status != http.StatusOK || store.confirmed.Load() != 1 {
		t.Errorf("the hold stands, as the store said %d times: %d %v", store.confirmed.Load(), status, err)
	}
	if err := store.Raise(t.Context(), resource, 34); err != nil {
		t.Fatal(err)
	}
	store.gone.Store(true)
	store.stale.Store(true)
	if status, err := send(t.Context(), url, 33, "/"); status == http.StatusOK {
		t.Error("SAFETY: a write of the past tenure was accepted")
	} else if status != http.StatusPreconditionFailed {
		t.Errorf("a write of the past tenure: %d %v", status, err)
	}
	if r := <-old; r.err == nil {
		t.Errorf("what was under way by the hold: %+v", r)
	}
}

// TestResourcesAreForgotten when nothing is written to them, and not before.
func TestResourcesAreForgotten(t *testing.T) {
	store, service := &remote{}, newSlow()
	f := &Fence{Resource: FromHeader, Store: store, Next: service, Drain: patience, Patience: 2 * patience, idle: time.Hour}
	url := serve(t, f, false).URL
	write := func(r fence.Resource, token, path string) int {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, nil)
		request.Header = http.Header{fence.HeaderToken: {token}, fence.HeaderResource: {string(r)}}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return 0
		}
		response.Body.Close()
		return response.StatusCode
	}
	for i := range maxResources - 1 {
		l, err := f.lane(fence.Resource(fmt.Sprint("other/", i)))
		if err != nil {
			t.Fatal(err)
		}
		f.done(l)
	}
	old := make(chan int)
	go func() { old <- write(resource, "33", "/slow") }()
	<-service.began
	if status := write("one/more", "33", "/"); status != http.StatusServiceUnavailable {
		t.Errorf("one resource more than there may be: %d", status)
	}
	inUse := func() (count int, written bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.idle = time.Millisecond
		return len(f.lanes), f.lanes[resource] != nil
	}
	until(t, "the others are forgotten", func() bool {
		f.sweep()
		count, written := inUse()
		if !written {
			t.Fatal("the one that is written to is forgotten")
		}
		return count == 1
	})
	if status := write("one/more", "33", "/"); status != http.StatusOK {
		t.Errorf("once the others are forgotten: %d", status)
	}
	close(service.let)
	if status := <-old; status != http.StatusOK {
		t.Errorf("the write that was under way: %d", status)
	}
	until(t, "all is let go of", func() bool {
		f.sweep()
		count, _ := inUse()
		return count == 0 && store.holds.Load() == 0
	})
	if status := write(resource, "32", "/"); status != http.StatusPreconditionFailed {
		t.Errorf("the past tenure after that: %d", status)
	}
}

// silent is a store that answers when it may.
type silent struct {
	Memory
	answers chan struct{}
}

func (s *silent) Mark(ctx context.Context, r fence.Resource) (fence.Token, error) {
	<-s.answers
	return s.Memory.Mark(ctx, r)
}

// TestMonitorDoesNotWaitForTheStore: a store that hangs delays no request.
func TestMonitorDoesNotWaitForTheStore(t *testing.T) {
	store, told := &silent{answers: make(chan struct{})}, make(chan error, 1)
	f := &Fence{
		Resource: Fixed(resource), Store: store, Next: &lists{}, Monitor: true, Patience: patience,
		Observe: func(_ *http.Request, d Decision) { told <- d.Err },
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if status, err := send(ctx, serve(t, f, false).URL, 33, "/"); status != http.StatusOK {
		t.Fatalf("%d %v", status, err)
	}
	close(store.answers)
	if err := <-told; err != nil {
		t.Error(err)
	}
}

// TestResponseToAClosedConnection: a response without a reader is written to its end, and the next tenure waits for that.
func TestResponseToAClosedConnection(t *testing.T) {
	const chunk, more = 64 << 10, 1000 // more than the buffers on the way hold
	begun, gone, written := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var over atomic.Bool
	f := &Fence{Resource: Fixed(resource), Store: &Memory{}, Drain: patience, Patience: 2 * patience, Detach: true}
	f.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(fence.HeaderToken) != "33" {
			if !over.Load() {
				t.Error("the next tenure did not wait")
			}
			return
		}
		_, _ = w.Write(make([]byte, chunk))
		close(begun)
		<-gone
		_, err := io.Copy(w, io.LimitReader(zeros{}, chunk*more))
		over.Store(true)
		written <- errors.Join(err, r.Context().Err())
	})
	server := serve(t, f, false)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nFencing-Token: 33\r\n\r\n")
	<-begun
	if _, err := bufio.NewReader(conn).ReadByte(); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	next := later(t, server.URL, 34, "/")
	until(t, "the next tenure waits", func() bool { return shut(f) })
	close(gone)
	if r := <-next; r.status != http.StatusOK {
		t.Errorf("the next tenure: %+v", r)
	}
	if err := <-written; err != nil {
		t.Errorf("what was written to nobody: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestCheckKeepsOtherProblems: problem documents of other causes can still be read after Check.
func TestCheckKeepsOtherProblems(t *testing.T) {
	for _, body := range []string{`{"type":"about:blank","title":"out of stock"}`, "no JSON", strings.Repeat("x", 2*maxProblem)} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaTypeProblem)
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, body)
		}))
		response, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(response); err != nil {
			t.Errorf("%.40s: %v", body, err)
		}
		if got, err := io.ReadAll(response.Body); err != nil || string(got) != body {
			t.Errorf("%.40s: left of it is %.40q, %v", body, got, err)
		}
		response.Body.Close()
		server.Close()
	}
}
