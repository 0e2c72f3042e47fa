package ask

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/closedport"
)

// TestClient: what is asked is reported, by each client, with who answered or why nobody did; and one connection is kept.
func TestClient(t *testing.T) {
	me := Who{Pod: "a", Token: 5}
	var connections atomic.Int64
	answers := httptest.NewUnstartedServer(Handler(me))
	answers.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	answers.Start()
	defer answers.Close()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // before that, the server does not notice that the client has gone
		<-r.Context().Done()
	}))
	defer silent.Close()
	for name, c := range map[string]struct {
		url  string
		want Asked
	}{
		"answers": {answers.URL, Asked{Who: me}},
		"is gone": {"http://" + closedport.Address(t), Asked{Failure: Refused}},
		"hangs":   {silent.URL, Asked{Failure: TimedOut}},
	} {
		t.Run(name, func(t *testing.T) {
			got := awaitBoth(t, c.url, c.want)
			for i, n := range got {
				if n == 0 {
					t.Errorf("client %d reported nothing like %+v", i, c.want)
				}
			}
			// The server counts all connections, the one that is kept among those that are new each time. A busy machine may have
			// patience with that one come to its end.
			if name == "answers" && connections.Load() >= int64(got[0]+got[1]) {
				t.Errorf("%d connections for %d and %d requests: none was kept", connections.Load(), got[0], got[1])
			}
		})
	}
}

// TestHandler: each write is taken once, and only a POST is one. A probe is answered.
func TestHandler(t *testing.T) {
	h := Handler(Who{Pod: "a", Token: 5})
	for _, c := range []struct {
		method, body string
		want         int
	}{
		{http.MethodPost, "7", http.StatusOK},
		{http.MethodPost, "7", http.StatusConflict},
		{http.MethodPost, "8", http.StatusOK},
		{http.MethodGet, "9", http.StatusOK},
		{http.MethodPost, "9", http.StatusOK},
		{http.MethodPut, "10", http.StatusBadRequest},
		{http.MethodPost, "", http.StatusBadRequest},
		{http.MethodPost, "x", http.StatusBadRequest},
		{http.MethodPost, strings.Repeat("1", 21), http.StatusBadRequest},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, "/", strings.NewReader(c.body)))
		if w.Code != c.want {
			t.Errorf("%s %q: %d, want %d", c.method, c.body, w.Code, c.want)
		}
	}
}

// TestAnotherWritesAnswer: an answer counts only for the write that it names.
func TestAnotherWritesAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(taken{Who{Pod: "a", Token: 5}, 1})
	}))
	defer server.Close()
	if who, err := write(t.Context(), server.Client(), server.URL, 2); err == nil || who != (Who{}) {
		t.Errorf("the answer to another write is taken for one's own: %+v, %v", who, err)
	}
}

// TestFailures: a dial that ran out of time says so in more than one way.
func TestFailures(t *testing.T) {
	for want, errs := range map[Failure][]error{
		"":       {nil},
		Refused:  {&net.OpError{Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}},
		TimedOut: {context.DeadlineExceeded, &net.OpError{Err: os.ErrDeadlineExceeded}, &url.Error{Err: &net.OpError{Err: context.DeadlineExceeded}}},
		Broken:   {io.EOF, &net.OpError{Err: os.NewSyscallError("read", syscall.ECONNRESET)}},
	} {
		for _, err := range errs {
			if got := failureOf(err); got != want {
				t.Errorf("%v is %q, want %q", err, got, want)
			}
		}
	}
}

// awaitBoth counts the reports that say what is wanted, of new connections and of those on one that is kept, until there are ten of each.
func awaitBoth(t *testing.T, url string, want Asked) (counts [2]int) {
	t.Helper()
	const enough = 10
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	batches := make(chan []Asked)
	report := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var batch []Asked
		if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
			t.Error(err)
		}
		select {
		case batches <- batch:
		case <-ctx.Done():
		}
	}))
	defer report.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&Client{URL: url, Report: report.URL}).Run(ctx)
	}()
	for counts[0] < enough || counts[1] < enough {
		select {
		case batch := <-batches:
			for _, a := range batch {
				if a.Who == want.Who && a.Failure == want.Failure && a.Done >= a.Sent {
					if a.Kept {
						counts[1]++
					} else {
						counts[0]++
					}
				}
			}
		case <-ctx.Done():
			return counts
		}
	}
	cancel()
	<-done
	return counts
}
