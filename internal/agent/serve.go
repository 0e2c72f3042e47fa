//go:build linux

package agent

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/singletonjob/operator/internal/contract"
)

// Handler serves the kubelet's probes and the metrics. It reads the snapshot and never waits for the agent's goroutine.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+contract.ReadyPath, func(w http.ResponseWriter, _ *http.Request) {
		s := a.snapshot.Load()
		why := fmt.Sprintf("phase %s, watching the Lease: %t", s.Phase, s.watching)
		if !s.ready && s.unready != "" {
			why += ", " + s.unready
		}
		answer(w, s.ready, why)
	})
	mux.HandleFunc("GET "+contract.LivePath, func(w http.ResponseWriter, _ *http.Request) {
		stuck := a.snapshot.Load().stuck(a.o.Clock.Now().Boot)
		answer(w, !stuck, fmt.Sprintf("stuck: %t", stuck))
	})
	mux.HandleFunc("GET "+contract.MetricsPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		a.metrics.write(w, a.snapshot.Load(), a.o.Clock.Now().Boot, a.log.droppedEver.Load())
	})
	return mux
}

func answer(w http.ResponseWriter, well bool, why string) {
	if !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, why+"\n")
}

// NewServer returns a server for Handler with timeouts, so that slow clients cannot block it.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
	}
}
