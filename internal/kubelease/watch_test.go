//go:build linux

package kubelease

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// script is what an API server does with the watches that are opened, one after the other. Each step writes events and
// returns; the stream then ends in good order, unless the step hangs up or blocks.
type script []http.HandlerFunc

// play serves a script and returns the queries that came in. When the script is over, further watches are held open.
func (s script) play(t *testing.T) (c *Client, queries <-chan url.Values) {
	t.Helper()
	seen := make(chan url.Values, 100)
	next := make(chan http.HandlerFunc, len(s))
	for _, step := range s {
		next <- step
	}
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.URL.Query()
		select {
		case step := <-next:
			step(w, r)
		default:
			hold(w, r)
		}
	})
	return f.client(t), seen
}

// hold answers that the watch is open and says nothing more.
func hold(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func event(kind, object string) string {
	return fmt.Sprintf(`{"type":%q,"object":%s}`+"\n", kind, object)
}

func bookmark(revision int) string {
	return event("BOOKMARK", fmt.Sprintf(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"resourceVersion":"%d"}}`, revision))
}

func gone() string { return event("ERROR", statusJSON(410, "Expired", "", "", "")) }

// stream sends events, then stays for as long as a watch must last to count as ended in good order.
func stream(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(events, ""))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(shortest):
		case <-r.Context().Done():
		}
	}
}

// endless is an event without an end.
func endless(w http.ResponseWriter, _ *http.Request) {
	_, err := io.WriteString(w, `{"type":"ADDED","object":{"kind":"`)
	for more := strings.Repeat("x", 1<<20); err == nil; {
		_, err = io.WriteString(w, more)
	}
}

// watching starts a watch and returns what it emits, and how to restart it.
func watching(t *testing.T, c *Client) (events <-chan WatchEvent, restart chan<- struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, again, ended := make(chan WatchEvent, 100), make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		c.Watch(ctx, again, func(e WatchEvent) { out <- e })
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(3 * time.Minute):
			t.Error("the watch does not end with its context")
		}
	})
	return out, again
}

// next returns the next thing as text, such as "changed 10".
func next(t *testing.T, events <-chan WatchEvent) string {
	t.Helper()
	select {
	case e := <-events:
		word := [...]string{Opened: "opened", Closed: "closed", NotOpened: "not opened", Changed: "changed", Deleted: "deleted"}[e.Kind]
		if e.Object != nil {
			word += fmt.Sprint(" ", e.Object.Record.Revision)
		}
		if (e.Err != nil) != (e.Kind == Closed || e.Kind == NotOpened) {
			t.Errorf("%s with error %v", word, e.Err)
		}
		return word
	case <-time.After(2*idleTimeout + 2*time.Minute):
		t.Fatal("the watch emits nothing")
		return ""
	}
}

func expect(t *testing.T, events <-chan WatchEvent, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, next(t, events))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
}

func TestWatchRequest(t *testing.T) {
	c, queries := script{}.play(t)
	events, _ := watching(t, c)
	expect(t, events, "opened")
	q := <-queries
	if d := seconds(q); d < watchDuration || d > 2*watchDuration {
		t.Errorf("timeoutSeconds %v, want between %v and twice that", d, watchDuration)
	}
	q.Del("timeoutSeconds")
	want := url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}, "fieldSelector": {"metadata.name=job"}}
	if diff := cmp.Diff(want, q); diff != "" {
		t.Errorf("query (-want +got):\n%s", diff)
	}
}

func TestWatch(t *testing.T) {
	f := serve(t, hold)
	dir := credentials(t, f.ca(), "secret")
	broken := hangUp("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"typ")
	for name, test := range map[string]struct {
		script   script
		want     []string
		versions []string // resourceVersion of each request
		why      string
		real     bool // over a connection, with the time of this machine: no stream may have to last
	}{
		"changes and deletion": {
			script:   script{stream(event("ADDED", leaseJSON(10)), event("MODIFIED", leaseJSON(11)), event("DELETED", leaseJSON(12)))},
			want:     []string{"opened", "changed 10", "changed 11", "deleted 12"},
			versions: []string{""},
		},
		"ended in good order": {
			script:   script{stream(event("ADDED", leaseJSON(10)), bookmark(20)), stream(event("MODIFIED", leaseJSON(21)))},
			want:     []string{"opened", "changed 10", "changed 21"},
			versions: []string{"", "20", "21"},
			why:      "resuming at the bookmark misses nothing, so nothing is to be emitted for it",
		},
		"too old when resumed": {
			script:   script{stream(bookmark(20)), stream(gone()), stream(event("ADDED", leaseJSON(30)))},
			want:     []string{"opened", "closed", "opened", "changed 30"},
			versions: []string{"", "20", ""},
			why:      "410: what happened meanwhile is lost, so it begins anew, without a version",
		},
		"too old by status": {
			script:   script{stream(bookmark(20)), say(410, statusJSON(410, "Expired", "", "", "")), stream(event("ADDED", leaseJSON(30)))},
			want:     []string{"opened", "closed", "opened", "changed 30"},
			versions: []string{"", "20", ""},
		},
		"not opened": {
			script:   script{say(403, statusJSON(403, "Forbidden", "", "", "")), say(429, "slow down"), say(500, ""), stream(event("ADDED", leaseJSON(10)))},
			want:     []string{"not opened", "not opened", "not opened", "opened", "changed 10"},
			versions: []string{"", "", "", ""},
		},
		"broken off": {
			script:   script{broken, stream(event("ADDED", leaseJSON(10)))},
			want:     []string{"opened", "closed", "opened", "changed 10"},
			versions: []string{"", ""},
			real:     true,
		},
		"ended at once": {
			script:   script{say(200, event("ADDED", leaseJSON(10))), stream(event("ADDED", leaseJSON(10)))},
			want:     []string{"opened", "changed 10", "closed", "opened", "changed 10"},
			versions: []string{"", ""},
			why:      "a server that ends every watch at once must not be asked without a pause",
		},
		"nonsense": {
			script:   script{stream("<html>"), stream(event("ADDED", `{"kind":"Pod"}`)), stream(event("SURPRISE", leaseJSON(10))), stream(event("ADDED", leaseJSON(11)))},
			want:     []string{"opened", "closed", "opened", "closed", "opened", "closed", "opened", "changed 11"},
			versions: []string{"", "", "", ""},
		},
		"of another Lease": {
			script:   script{stream(event("ADDED", strings.Replace(leaseJSON(99), `"name":"job"`, `"name":"other"`, 1))), stream(event("ADDED", leaseJSON(11)))},
			want:     []string{"opened", "closed", "opened", "changed 11"},
			versions: []string{"", ""},
			why:      "what another Lease says must not be taken for this one's",
		},
		"larger than any Lease": {
			script:   script{endless, stream(event("ADDED", leaseJSON(11)))},
			want:     []string{"opened", "closed", "opened", "changed 11"},
			versions: []string{"", ""},
			why:      "the agent's memory is counted",
		},
		"somebody else's": {
			script:   script{stream(event("ADDED", strings.Replace(leaseJSON(10), `"singletonjob"`, `"helm"`, 1))), stream(event("ADDED", leaseJSON(11)))},
			want:     []string{"opened", "closed", "opened", "changed 11"},
			versions: []string{"", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			follow := func(t *testing.T, c *Client, queries <-chan url.Values) {
				t.Helper()
				events, _ := watching(t, c)
				expect(t, events, test.want...)
				for i, want := range test.versions {
					if got := (<-queries).Get("resourceVersion"); got != want {
						t.Errorf("request %d asks from resourceVersion %q, want %q (%s)", i, got, want, test.why)
					}
				}
			}
			if test.real {
				c, queries := test.script.play(t)
				follow(t, c, queries)
				return
			}
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir})
				queries := make(chan url.Values, 100)
				c.watches.play(test.script, queries)
				follow(t, c, queries)
			})
		})
	}
}

func TestWatchRestart(t *testing.T) {
	c, queries := script{func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, event("ADDED", leaseJSON(10)))
		hold(w, r)
	}}.play(t)
	events, restart := watching(t, c)
	expect(t, events, "opened", "changed 10")
	restart <- struct{}{}
	expect(t, events, "closed", "opened")
	<-queries
	if got := (<-queries).Get("resourceVersion"); got != "" {
		t.Errorf("asks from resourceVersion %q, want none: the old watch is not trusted", got)
	}
}

// network is a transport that no bytes go over, for tests on a fake clock.
type network struct {
	answer func(*http.Request) (*http.Response, error)
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) { return n.answer(r) }
func (n *network) CloseIdleConnections()                             {}

func (p *pool) replace(answer func(*http.Request) (*http.Response, error)) {
	p.current = &network{answer}
	p.connect = func(*x509.CertPool) Transport { return &network{answer} }
}

// play has a script answer, on a fake clock.
func (p *pool) play(s script, queries chan<- url.Values) {
	var next atomic.Int64
	p.replace(func(r *http.Request) (*http.Response, error) {
		queries <- r.URL.Query()
		step := http.HandlerFunc(hold)
		if i := int(next.Add(1)) - 1; i < len(s) {
			step = s[i]
		}
		reader, writer := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(context.Cause(r.Context())) })
		w := &wire{PipeWriter: writer, header: http.Header{}, begun: make(chan struct{})}
		asked := r.Clone(r.Context())
		asked.Body = http.NoBody
		go func() {
			step(w, asked)
			w.WriteHeader(http.StatusOK)
			_ = writer.Close()
		}()
		<-w.begun
		return &http.Response{StatusCode: w.code, Header: w.header, Body: reader}, nil
	})
}

// wire is the server's end of an answer.
type wire struct {
	*io.PipeWriter
	header http.Header
	code   int // once begun is closed
	begin  sync.Once
	begun  chan struct{}
}

func (w *wire) Header() http.Header { return w.header }
func (w *wire) Flush()              { w.WriteHeader(http.StatusOK) }

func (w *wire) WriteHeader(code int) {
	w.begin.Do(func() {
		w.code = code
		close(w.begun)
	})
}

func (w *wire) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.PipeWriter.Write(p)
}

// A watch that passes nothing though its connection stands is given up, and so is one that is never answered.
func TestIdleWatch(t *testing.T) {
	f := serve(t, hold)
	dir := credentials(t, f.ca(), "secret")
	for name, test := range map[string]struct {
		answer func(*http.Request) (*http.Response, error)
		want   string
		after  time.Duration
	}{
		"idle": {
			answer: func(r *http.Request) (*http.Response, error) {
				reader, writer := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(context.Cause(r.Context())) })
				return &http.Response{StatusCode: 200, Body: reader}, nil
			},
			want: "closed", after: idleTimeout,
		},
		"idle after some bookmarks": {
			answer: func(r *http.Request) (*http.Response, error) {
				reader, writer := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(context.Cause(r.Context())) })
				go func() {
					for i := range 3 {
						time.Sleep(time.Minute)
						_, _ = io.WriteString(writer, bookmark(20+i))
					}
				}()
				return &http.Response{StatusCode: 200, Body: reader}, nil
			},
			want: "closed", after: 3*time.Minute + idleTimeout,
		},
		"never answered": {
			answer: func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			},
			want: "not opened", after: openTimeout,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir})
				c.watches.replace(test.answer)
				began := time.Now()
				events, _ := watching(t, c)
				got := next(t, events)
				if got == "opened" {
					got = next(t, events)
				}
				if got != test.want || time.Since(began) != test.after {
					t.Errorf("%s after %v, want %s after %v", got, time.Since(began), test.want, test.after)
				}
			})
		})
	}
}

// pauses are the first and the longest pause between two watches, for each retryPeriod.
var pauses = map[time.Duration][2]time.Duration{
	0:                {firstPause, lastPause},
	2 * time.Second:  {firstPause, lastPause},
	10 * time.Second: {500 * time.Millisecond, lastPause},
	time.Minute:      {3 * time.Second, 15 * time.Second},
	time.Hour:        {longestFirst, 5 * longestFirst},
}

// seconds is how long a watch is asked to last.
func seconds(q url.Values) time.Duration {
	n := 0
	_, _ = fmt.Sscan(q.Get("timeoutSeconds"), &n)
	return time.Duration(n) * time.Second
}

// asked is a watch that ends when it was asked to.
func asked(w http.ResponseWriter, r *http.Request) {
	for end := time.Now().Add(seconds(r.URL.Query())); time.Now().Before(end); {
		_, _ = io.WriteString(w, bookmark(20))
		time.Sleep(min(time.Minute, time.Until(end)))
	}
}

// endsWith is a stream that ends in good order with a context.
type endsWith struct{ context.Context }

func (e endsWith) Read([]byte) (int, error) {
	<-e.Done()
	return 0, io.EOF
}

// TestWatchThatEndsEarly: an API server that stops ends all watches. They are resumed one after the other if retryPeriod is long, and
// miss nothing. A watch that ends when it was asked to is resumed at once.
func TestWatchThatEndsEarly(t *testing.T) {
	f := serve(t, hold)
	dir := credentials(t, f.ca(), "secret")
	for retry, pause := range pauses {
		t.Run(retry.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir, RetryPeriod: retry})
				queries := make(chan url.Values, 100)
				c.watches.play(script{stream(event("ADDED", leaseJSON(10))), asked, stream(event("MODIFIED", leaseJSON(21)))}, queries)
				began := time.Now()
				events, _ := watching(t, c)
				<-queries
				again := <-queries
				if version := again.Get("resourceVersion"); version != "10" {
					t.Errorf("resumed from %q", version)
				}
				resumed, want := time.Now(), pause[0]
				if want == firstPause {
					want = 0
				}
				if took := resumed.Sub(began) - shortest; took < want/2 || took > want {
					t.Errorf("resumed after a pause of %v, want between %v and %v", took, want/2, want)
				}
				<-queries
				if took := time.Since(resumed); took != seconds(again) {
					t.Errorf("resumed %v later, though it was asked to last %v", took, seconds(again))
				}
				expect(t, events, "opened", "changed 10", "changed 21")
			})
		})
	}
	t.Run("restarted in the pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir, RetryPeriod: time.Hour})
			queries := make(chan url.Values, 100)
			c.watches.play(script{stream(event("ADDED", leaseJSON(10)))}, queries)
			events, restart := watching(t, c)
			expect(t, events, "opened", "changed 10")
			time.Sleep(shortest + time.Second)
			restart <- struct{}{}
			expect(t, events, "closed", "opened")
			<-queries
			if version := (<-queries).Get("resourceVersion"); version != "" {
				t.Errorf("asks from resourceVersion %q, want none: the old watch is not trusted", version)
			}
		})
	})
	t.Run("restarted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir})
			queries := make(chan url.Values, 100)
			c.watches.replace(func(r *http.Request) (*http.Response, error) {
				queries <- r.URL.Query()
				body := io.MultiReader(strings.NewReader(event("ADDED", leaseJSON(10))), endsWith{r.Context()})
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
			})
			events, restart := watching(t, c)
			expect(t, events, "opened", "changed 10")
			time.Sleep(2 * shortest)
			restart <- struct{}{}
			expect(t, events, "closed", "opened", "changed 10")
			<-queries
			if version := (<-queries).Get("resourceVersion"); version != "" {
				t.Errorf("asks from resourceVersion %q, want none: the old watch is not trusted", version)
			}
		})
	})
}

// The pauses between attempts grow, differ, and stay within bounds, also where each watch begins well.
func TestWatchBacksOff(t *testing.T) {
	f := serve(t, hold)
	dir := credentials(t, f.ca(), "secret")
	rows := map[string]struct {
		answer func() (*http.Response, error)
		emits  []string
	}{
		"does not open": {
			func() (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, []string{"not opened"},
		},
		"breaks after an event": {
			func() (*http.Response, error) {
				body := io.MultiReader(strings.NewReader(event("ADDED", leaseJSON(10))), iotest.ErrReader(io.ErrUnexpectedEOF))
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
			},
			[]string{"opened", "changed 10", "closed"},
		},
	}
	try := func(t *testing.T, name string, retry time.Duration, bounds [2]time.Duration) {
		row := rows[name]
		t.Run(fmt.Sprint(name, " ", retry), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir, RetryPeriod: retry})
				var at []time.Time
				c.watches.replace(func(*http.Request) (*http.Response, error) {
					at = append(at, time.Now())
					return row.answer()
				})
				events, _ := watching(t, c)
				const attempts = 12
				for range attempts {
					expect(t, events, row.emits...)
				}
				for i := 1; i < attempts; i++ {
					pause, most := at[i].Sub(at[i-1]), min(bounds[0]<<(i-1), bounds[1])
					if pause < most/2 || pause > most {
						t.Errorf("pause %d is %v, want between %v and %v", i, pause, most/2, most)
					}
				}
			})
		})
	}
	for name := range rows {
		for retry, bounds := range pauses {
			try(t, name, retry, bounds)
		}
	}
}
