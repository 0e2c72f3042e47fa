//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

// witness learns about writes on the host, which no fault cuts off: from the writers' reports, and as the HTTP service. Its handler knows of
// no fence; under fencedPath there is one before it.
type witness struct {
	server *http.Server
	url    string

	mu      sync.Mutex
	reports map[fence.Resource]map[identity]offer.Report
	latest  map[fence.Resource]fence.Token // tenure that has said that it wrote
	entries map[fence.Resource][]string
}

const fencedPath = "/fenced"

func newWitness(host string) (*witness, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	w := &witness{
		url:     "http://" + listener.Addr().String(),
		reports: map[fence.Resource]map[identity]offer.Report{}, latest: map[fence.Resource]fence.Token{}, entries: map[fence.Resource][]string{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /reports", w.hear)
	mux.HandleFunc("POST /entries/", w.enter)
	fenced := &fencehttp.Fence{Resource: fencehttp.FromHeader, Store: &fencehttp.Memory{}, Next: mux} // the memory of the log's own process
	mux.Handle("POST "+fencedPath+"/entries/", http.StripPrefix(fencedPath, fenced))
	w.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = w.server.Serve(listener) }()
	return w, nil
}

// hear takes reports. Those that come twice, because an answer was lost, count once.
func (w *witness) hear(rw http.ResponseWriter, r *http.Request) {
	var reports []offer.Report
	if err := json.NewDecoder(r.Body).Decode(&reports); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, report := range reports {
		if w.reports[report.Log] == nil {
			w.reports[report.Log] = map[identity]offer.Report{}
		}
		w.reports[report.Log][of(report.Write)] = report
		if report.Outcome == offer.Accepted {
			w.latest[report.Log] = max(w.latest[report.Log], report.Token)
		}
	}
}

func (w *witness) enter(rw http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil || len(text) == 0 {
		http.Error(rw, errors.Join(err, errors.New("an entry without a text")).Error(), http.StatusBadRequest)
		return
	}
	w.add(fence.Resource(strings.TrimPrefix(r.URL.Path, "/entries/")), string(text))
}

// add stores an entry of a log.
func (w *witness) add(log fence.Resource, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries[log] = append(w.entries[log], text)
}

func (w *witness) stored(log fence.Resource) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.entries[log])
}

func (w *witness) told(log fence.Resource) []offer.Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.reports[log]))
}

// highest is the latest tenure that has said that it wrote.
func (w *witness) highest(log fence.Resource) fence.Token {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest[log]
}
