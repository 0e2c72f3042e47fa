package check

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/closedport"
)

// Each row has the result of a kubelet for the same hook, by pkg/kubelet/lifecycle of Kubernetes 1.37. Every answer counts as success.
func TestCall(t *testing.T) {
	asked := make(chan *http.Request, 20)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		process().ServeHTTP(w, r)
	})
	plain, secure := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	defer plain.Close()
	secure.StartTLS()
	defer secure.Close()
	open, closed := portOf(t, plain.URL), closedport.On127(t)
	for name, row := range map[string]struct {
		contract.HTTPGet
		fails string
		asks  int
	}{
		"200":                      {HTTPGet: contract.HTTPGet{Port: open, Path: "/status/200"}, asks: 1},
		"404":                      {HTTPGet: contract.HTTPGet{Port: open, Path: "/nothing"}, asks: 1},
		"503":                      {HTTPGet: contract.HTTPGet{Port: open, Path: "/status/503"}, asks: 1},
		"the body breaks off":      {HTTPGet: contract.HTTPGet{Port: open, Path: "/broken"}, asks: 1},
		"the body is long":         {HTTPGet: contract.HTTPGet{Port: open, Path: "/endless"}, asks: 1},
		"redirect":                 {HTTPGet: contract.HTTPGet{Port: open, Path: "/to?place=/status/500"}, asks: 2},
		"redirect elsewhere":       {HTTPGet: contract.HTTPGet{Port: open, Path: "/to?place=http://elsewhere.invalid/"}, asks: 1},
		"redirect for ever":        {HTTPGet: contract.HTTPGet{Port: open, Path: "/loop"}, asks: 10, fails: "stopped after 10 redirects"},
		"nobody listens":           {HTTPGet: contract.HTTPGet{Port: closed}, fails: "connect"},
		"nobody listens for https": {HTTPGet: contract.HTTPGet{Port: closed, TLS: true}, fails: "connect"},
		"https":                    {HTTPGet: contract.HTTPGet{Port: portOf(t, secure.URL), TLS: true}, asks: 1},
		"http to an https port":    {HTTPGet: contract.HTTPGet{Port: portOf(t, secure.URL)}, asks: 0},
		"https to an http port":    {HTTPGet: contract.HTTPGet{Port: open, TLS: true, Path: "/status/500"}, asks: 1},
		"https to an http port, and redirected for ever": {
			HTTPGet: contract.HTTPGet{Port: open, TLS: true, Path: "/loop"}, asks: 10, fails: "server gave HTTP response to HTTPS client",
		},
	} {
		t.Run(name, func(t *testing.T) {
			row.Headers = []contract.Header{{Name: "authorization", Value: "secret"}, {Name: "X-A", Value: "1"}}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := Checker{}.Call(ctx, &row.HTTPGet)
			if row.fails == "" && err != nil || row.fails != "" && !strings.Contains(fmt.Sprint(err), row.fails) {
				t.Errorf("%v, want %q", err, row.fails)
			}
			if len(asked) != row.asks {
				t.Errorf("asked %d times, want %d", len(asked), row.asks)
			}
			for range len(asked) {
				r := <-asked
				if agent := r.Header.Get("User-Agent"); agent != HookUserAgent || r.Header.Get("X-A") != "1" {
					t.Errorf("asked by %q with %v", agent, r.Header)
				}
				if told := r.Header.Get("Authorization") != ""; told != (r.TLS != nil || !row.TLS) {
					t.Errorf("told to whom reads along: %t, by TLS: %t, meant for TLS: %t", told, r.TLS != nil, row.TLS)
				}
			}
		})
	}
}

// A short answer is waited for to its end, so that a process may take its time to drain, and given up when the hook's time is over.
func TestCallThatTakesLong(t *testing.T) {
	release, answering := make(chan struct{}), make(chan struct{}, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			answering <- struct{}{}
			<-r.Context().Done()
			return
		}
		_ = http.NewResponseController(w).Flush()
		answering <- struct{}{}
		<-release
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	call := func(path string) {
		done <- Checker{}.Call(ctx, &contract.HTTPGet{Port: portOf(t, server.URL), Path: path})
	}
	go call("/drains")
	<-answering
	select {
	case err := <-done:
		close(release)
		t.Fatalf("%v before the end of the answer", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	go call("/hangs")
	<-answering
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("an answer that never came is a success")
		}
	case <-time.After(patience):
		t.Error("it goes on when its time is over")
	}
}
