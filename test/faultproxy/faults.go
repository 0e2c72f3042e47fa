//go:build linux

package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// Fault is what happens to a request instead of being passed.
type Fault interface {
	roundTrip(p *Proxy, r *http.Request, active *rule) (*http.Response, error)
}

// errNoAnswer makes the proxy end the connection without an answer.
var errNoAnswer = errors.New("injected fault: no answer")

type faultFunc func(p *Proxy, r *http.Request, active *rule) (*http.Response, error)

func (f faultFunc) roundTrip(p *Proxy, r *http.Request, active *rule) (*http.Response, error) {
	return f(p, r, active)
}

// BlackHole swallows requests: they reach nobody, and the client hears nothing until the fault is removed.
func BlackHole() Fault {
	return faultFunc(func(_ *Proxy, r *http.Request, active *rule) (*http.Response, error) {
		active.wait(r.Context())
		return nil, errNoAnswer
	})
}

// Reset ends the connection before the request reaches the server.
func Reset() Fault {
	return faultFunc(func(*Proxy, *http.Request, *rule) (*http.Response, error) { return nil, errNoAnswer })
}

// Hold keeps requests on the way until the fault is removed. Then they are delivered, though the client may be long gone.
func Hold() Fault {
	return faultFunc(func(p *Proxy, r *http.Request, active *rule) (*http.Response, error) {
		again, err := repeatable(r)
		if err != nil {
			return nil, err
		}
		p.held.Add(1)
		delivered := p.deliver(func() (*http.Response, error) {
			<-active.lifted
			p.held.Add(-1)
			return p.transport.RoundTrip(again())
		})
		return delivered(r.Context())
	})
}

// LoseReply passes the request to the server and swallows the reply: the client hears nothing until the fault is removed.
func LoseReply() Fault {
	return faultFunc(func(p *Proxy, r *http.Request, active *rule) (*http.Response, error) {
		if err := p.deliverAndDrop(r); err != nil {
			return nil, err
		}
		active.wait(r.Context())
		return nil, errNoAnswer
	})
}

// ResetReply passes the request to the server and ends the connection instead of replying.
func ResetReply() Fault {
	return faultFunc(func(p *Proxy, r *http.Request, _ *rule) (*http.Response, error) {
		if err := p.deliverAndDrop(r); err != nil {
			return nil, err
		}
		return nil, errNoAnswer
	})
}

// BreakOff passes the request to the server and ends the connection after half of the reply.
func BreakOff() Fault {
	return faultFunc(func(p *Proxy, r *http.Request, _ *rule) (*http.Response, error) {
		response, body, err := p.wholeReply(r)
		if err != nil {
			return nil, err
		}
		response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), broken{}))
		return response, nil
	})
}

// broken is the end of a connection.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errNoAnswer }

// Alter passes the request to the server and changes the reply: its status and header in place, its body to what is returned.
func Alter(change func(reply *http.Response, body []byte) []byte) Fault {
	return faultFunc(func(p *Proxy, r *http.Request, _ *rule) (*http.Response, error) {
		response, body, err := p.wholeReply(r)
		if err != nil {
			return nil, err
		}
		body = change(response, body)
		response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		response.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return response, nil
	})
}

// wholeReply passes a request and takes the whole reply from the network.
func (p *Proxy) wholeReply(r *http.Request) (response *http.Response, body []byte, err error) {
	if response, err = p.transport.RoundTrip(r); err != nil {
		return nil, nil, err
	}
	if err := buffer(response); err != nil {
		return nil, nil, err
	}
	body, err = io.ReadAll(response.Body)
	return response, body, err
}

// Delay is a slow network: before the request reaches the server, and before its reply reaches the client.
func Delay(request, reply time.Duration) Fault {
	return faultFunc(func(p *Proxy, r *http.Request, active *rule) (*http.Response, error) {
		if !pause(r.Context(), active, request) {
			return nil, errNoAnswer
		}
		response, err := p.pass(r)
		if err != nil {
			return nil, err
		}
		if !pause(r.Context(), active, reply) {
			_ = response.Body.Close()
			return nil, errNoAnswer
		}
		return response, nil
	})
}

// pause ends early when the fault is removed, and is false when the client gave up.
func pause(ctx context.Context, active *rule, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-active.lifted:
		return true
	case <-ctx.Done():
		return false
	}
}

// TooManyRequests answers 429 as an overloaded API server does.
func TooManyRequests(retryAfter time.Duration) Fault {
	header := http.Header{"Retry-After": {strconv.Itoa(int(retryAfter.Seconds()))}}
	return Answer(http.StatusTooManyRequests, header, status(http.StatusTooManyRequests, "TooManyRequests"))
}

// Fail answers with an HTTP status of the server's side, 500 and above.
func Fail(code int) Fault { return Answer(code, nil, status(code, "InternalError")) }

func status(code int, reason string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"injected fault","reason":%q,"code":%d}`, reason, code)
}

// Answer answers by itself; the server does not see the request.
func Answer(code int, header http.Header, body string) Fault {
	return faultFunc(func(_ *Proxy, r *http.Request, _ *rule) (*http.Response, error) {
		all := http.Header{"Content-Type": {"application/json"}}
		maps.Copy(all, header)
		return respond(r, code, all, []byte(body)), nil
	})
}

// Duplicate delivers requests twice and gives the client the first reply. The second delivery follows the first by after;
// with 0, it is made before the client is answered.
func Duplicate(after time.Duration) Fault {
	return faultFunc(func(p *Proxy, r *http.Request, active *rule) (*http.Response, error) {
		again, err := repeatable(r)
		if err != nil {
			return nil, err
		}
		response, err := p.pass(again())
		if err != nil {
			return nil, err
		}
		second := p.deliver(func() (*http.Response, error) {
			pause(context.Background(), active, after)
			return p.transport.RoundTrip(again())
		})
		if after == 0 {
			_, _ = second(r.Context())
		}
		return response, nil
	})
}

// Stale answers reads with what they were last answered before the fault was injected: a cache that is stuck. A read that
// was not seen before is passed once.
func Stale() Fault { return &stale{} }

type stale struct {
	mu      sync.Mutex
	answers map[string]*answer
}

func (s *stale) freeze(latest map[string]*answer) { s.answers = maps.Clone(latest) }

func (s *stale) roundTrip(p *Proxy, r *http.Request, _ *rule) (*http.Response, error) {
	if r.Method != http.MethodGet || isWatch(r) {
		return p.pass(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.answers[readKey(r)]; old != nil {
		return respond(r, http.StatusOK, old.header, old.body), nil
	}
	response, err := p.pass(r)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if fresh := p.latest[readKey(r)]; fresh != nil {
		s.answers[readKey(r)] = fresh
	}
	return response, nil
}

// StallWatch lets watches be opened and passes none of their events, in those open already too. Their connections stay.
// Events that happen meanwhile arrive when the fault is removed.
func StallWatch() Fault { return stallWatch{} }

type stallWatch struct{}

func (stallWatch) roundTrip(p *Proxy, r *http.Request, _ *rule) (*http.Response, error) {
	return p.pass(r)
}

// stallable is a watch's body that passes nothing while a rule stalls it.
type stallable struct {
	io.ReadCloser
	request *http.Request
	proxy   *Proxy
	ctx     context.Context
}

func (b *stallable) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	for {
		active := b.proxy.stalledBy(b.request)
		if active == nil {
			return n, err
		}
		if !active.wait(b.ctx) {
			return 0, b.ctx.Err()
		}
	}
}

// deliver runs send to its end, though the client that it was for may give up; result waits for it as long as the client
// does. An answer that nobody waits for is dropped.
func (p *Proxy) deliver(send func() (*http.Response, error)) (result func(context.Context) (*http.Response, error)) {
	type outcome struct {
		response *http.Response
		err      error
	}
	done := make(chan outcome, 1)
	p.late.Go(func() {
		response, err := send()
		if err == nil {
			err = buffer(response)
		}
		done <- outcome{response, err}
	})
	return func(ctx context.Context) (*http.Response, error) {
		select {
		case o := <-done:
			return o.response, o.err
		case <-ctx.Done():
			return nil, errNoAnswer
		}
	}
}

// deliverAndDrop returns when the server has answered; the answer is dropped.
func (p *Proxy) deliverAndDrop(r *http.Request) error {
	again, err := repeatable(r)
	if err != nil {
		return err
	}
	response, err := p.transport.RoundTrip(again())
	if err != nil {
		return err
	}
	if isWatch(r) {
		return response.Body.Close() // it has begun, and would not end
	}
	return buffer(response)
}

// repeatable reads the body, so that the request can be sent again and outlive the client that sent it.
func repeatable(r *http.Request) (again func() *http.Request, err error) {
	var body []byte
	if r.Body != nil {
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, fmt.Errorf("reading the request's body: %w", err)
		}
	}
	return func() *http.Request {
		c := r.Clone(context.WithoutCancel(r.Context()))
		c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		if len(body) == 0 {
			c.Body = http.NoBody
		}
		return c
	}, nil
}

// answer is a remembered reply to a read.
type answer struct {
	header http.Header
	body   []byte
}

// remember keeps the answer to a read, and leaves the response readable.
func (p *Proxy) remember(r *http.Request, response *http.Response) error {
	const longest = 1 << 20
	if r.Method != http.MethodGet || response.StatusCode != http.StatusOK || response.ContentLength < 0 || response.ContentLength > longest {
		return nil
	}
	if err := buffer(response); err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest[readKey(r)] = &answer{header: response.Header.Clone(), body: body}
	return nil
}

// readKey tells reads apart: another encoding or selector is another answer, another minimal version is not.
func readKey(r *http.Request) string {
	query := url.Values{}
	for name, values := range r.URL.Query() {
		if name != "resourceVersion" && name != "resourceVersionMatch" {
			query[name] = values
		}
	}
	return r.URL.Path + "?" + query.Encode() + " " + r.Header.Get("Accept")
}

// buffer takes the whole body from the network, so that the connection is free again.
func buffer(response *http.Response) error {
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("reading the server's answer: %w", err)
	}
	return nil
}

func respond(r *http.Request, code int, header http.Header, body []byte) *http.Response {
	return &http.Response{
		StatusCode: code, Status: strconv.Itoa(code) + " " + http.StatusText(code),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header.Clone(), Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}
}
