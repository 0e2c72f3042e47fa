package fencehttp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

// lists is a service that knows nothing of fences: it appends what it is sent.
type lists struct {
	mu  sync.Mutex
	all map[string][]string
}

func (l *lists) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[string][]string)
	}
	resource := r.Header.Get(fence.HeaderResource)
	l.all[resource] = append(l.all[resource], string(body))
}

func (l *lists) stored(resource string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all[resource], " ")
}

// overHTTP is what the suite writes to. Strict and Advance have servers of their own before the same service.
type overHTTP struct {
	*lists
	server, advancer *httptest.Server
	strict           *overHTTP
}

// before has a fence before a service, and its Advancer.
func before(t *testing.T, service *lists, f *Fence, http2 bool) *overHTTP {
	advancer := httptest.NewServer(f.Advancer())
	t.Cleanup(advancer.Close)
	return &overHTTP{lists: service, server: serve(t, f, http2), advancer: advancer}
}

func (o *overHTTP) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	return request(ctx, o.server.Client(), o.server.URL, r, token, payload, http.StatusOK)
}

func (o *overHTTP) Advance(ctx context.Context, r fence.Resource, token string) error {
	return request(ctx, o.advancer.Client(), o.advancer.URL, r, token, "", http.StatusNoContent)
}

func (o *overHTTP) Strict() fencetest.Advancer { return o.strict }

// request sends a token as a client may that has no Transport: any text.
func request(ctx context.Context, client *http.Client, url string, r fence.Resource, token, payload string, want int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(payload))
	if err != nil {
		return err
	}
	request.Header.Set(fence.HeaderToken, token)
	request.Header.Set(fence.HeaderResource, string(r))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := Check(response); err != nil {
		return err
	}
	if response.StatusCode != want {
		return fmt.Errorf("status %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

func (o *overHTTP) Stored(_ context.Context, r fence.Resource) ([]string, error) {
	return strings.Fields(o.stored(string(r))), nil
}

// serve starts a fence before a service.
func serve(t *testing.T, f *Fence, http2 bool) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(f)
	server.EnableHTTP2 = http2
	if http2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	t.Cleanup(f.Close)
	return server
}

// defects are broken fences; see TestConformanceFindsDefects.
var defects = map[string]func(*Fence){
	"":                      func(*Fence) {},
	"lets everything pass":  func(f *Fence) { f.Monitor = true },
	"one mark for all":      func(f *Fence) { f.Resource = all },
	"never raises the mark": func(f *Fence) { f.Store = forgetful{} },
	"lower is raised to":    func(f *Fence) { f.Store = &latest{} },
	"is never strict":       func(f *Fence) { f.Strict = false },
}

// all is a resource for every request. It hides the header that names another, about which the fence would complain.
func all(r *http.Request) (fence.Resource, bool, error) {
	r.Header.Set("Payload-Of", r.Header.Get(fence.HeaderResource))
	r.Header.Del(fence.HeaderResource)
	return "all", true, nil
}

// forgetful stores nothing.
type forgetful struct{}

func (forgetful) Mark(context.Context, fence.Resource) (fence.Token, error) { return 0, nil }
func (forgetful) Raise(context.Context, fence.Resource, fence.Token) error  { return nil }

// latest claims a mark of 5 of what it has never seen.
type latest struct{ Memory }

func (l *latest) Mark(ctx context.Context, r fence.Resource) (fence.Token, error) {
	mark, err := l.Memory.Mark(ctx, r)
	return max(mark, 5), err
}

const defectVariable = "FENCEHTTP_DEFECT"

func TestConformance(t *testing.T) {
	for _, protocol := range []string{"HTTP1", "HTTP2"} {
		t.Run(protocol, func(t *testing.T) {
			fencetest.Run(t, func(t *testing.T) fencetest.Adapter {
				service := &lists{}
				open := func(strict bool) *overHTTP {
					f := &Fence{Resource: FromHeader, Store: &Memory{}, Next: service, Strict: strict}
					defects[os.Getenv(defectVariable)](f)
					return before(t, service, f, protocol == "HTTP2")
				}
				o := open(false)
				o.strict = open(true)
				return o
			})
		})
	}
}

// TestConformanceFindsDefects runs the suite on broken fences, in a process of its own.
func TestConformanceFindsDefects(t *testing.T) {
	for defect := range defects {
		t.Run(defect, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestConformance$/^HTTP1$", "-test.timeout=5m")
			command.Env = append(os.Environ(), defectVariable+"="+defect)
			out, err := command.CombinedOutput()
			if failed := err != nil; failed != (defect != "") {
				t.Errorf("the suite ended with %v:\n%s", err, out)
			}
		})
	}
}
