//go:build linux

package agent

import (
	"fmt"
	"io"
	"net/http"

	"github.com/singletonjob/operator/internal/contract"
)

// Handler serves the kubelet's probes and the metrics. It reads the snapshot and never waits for the agent's goroutine. Anyone who reaches
// the Pod can ask, so no answer contains text from the process, such as the reason why it is not ready.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+contract.ReadyPath, func(w http.ResponseWriter, _ *http.Request) {
		s := a.snapshot.Load()
		reply(w, s.ready, fmt.Sprintf("phase %s, watching the Lease: %t", s.Phase, s.watching))
	})
	mux.HandleFunc("GET "+contract.LivePath, func(w http.ResponseWriter, _ *http.Request) {
		stuck := a.snapshot.Load().stuck(a.o.Clock.Now().Boot)
		reply(w, !stuck, fmt.Sprintf("stuck: %t", stuck))
	})
	mux.HandleFunc("GET "+contract.MetricsPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		a.metrics.write(w, a.snapshot.Load(), a.o.Clock.Now().Boot, a.log.droppedEver.Load())
	})
	return mux
}

func reply(w http.ResponseWriter, well bool, why string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, why+"\n")
}
