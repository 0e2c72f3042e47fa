//go:build linux

package main

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/torture/judge"
)

// sinks gives each write to a fenced sink and to one without a fence, and keeps the first one's answer to the writer.
type sinks struct {
	unfenced fencetest.Sink

	mu         sync.Mutex
	operations []judge.Operation
	last       map[fence.Resource]write
}

// write is the last one that arrived for a resource.
type write struct {
	pod string
	at  time.Duration
}

func newSinks() *sinks {
	return &sinks{unfenced: fencetest.Sink{Unfenced: true}, last: map[fence.Resource]write{}}
}

// front stands before the fenced sink.
func (s *sinks) front(fenced http.Handler) http.Handler {
	unfenced := s.unfenced.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // a writer that disconnected has written nothing
		}
		ask := func(sink http.Handler, answer http.ResponseWriter) {
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			sink.ServeHTTP(answer, again)
		}
		ask(unfenced, &answer{header: http.Header{}})
		told := &answer{header: http.Header{}}
		call := fencetest.Boottime()
		ask(fenced, told)
		s.record(r, body, told.status, call)
		maps.Copy(w.Header(), told.header)
		w.WriteHeader(told.status)
		_, _ = w.Write(told.body.Bytes())
	})
}

func (s *sinks) record(r *http.Request, body []byte, status int, call time.Duration) {
	token, err := fence.ParseToken(r.Header.Get(fence.HeaderToken))
	if err != nil || status != http.StatusOK && status != http.StatusPreconditionFailed {
		return // no write
	}
	resource := fence.Resource(r.Header.Get(fence.HeaderResource))
	_, writer, _ := strings.Cut(string(body), `"writer":"`)
	pod, _, _ := strings.Cut(writer, "@")
	s.mu.Lock()
	defer s.mu.Unlock()
	now := fencetest.Boottime()
	s.last[resource] = write{pod: pod, at: now}
	s.operations = append(s.operations, judge.Operation{
		Resource: resource, Token: token, Call: call, Return: now, Accepted: status == http.StatusOK,
	})
}

// lastWrite is the last one for a resource.
func (s *sinks) lastWrite(resource fence.Resource) write {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[resource]
}

// writes is how many there were.
func (s *sinks) writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.operations)
}

func (s *sinks) recorded() []judge.Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]judge.Operation{}, s.operations...)
}

// answer keeps what a handler answers.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) { a.status = status }

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.body.Write(b)
}
