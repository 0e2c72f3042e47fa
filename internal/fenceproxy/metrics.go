package fenceproxy

import (
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
)

// metrics are what the proxy counts.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	cut      *prometheus.CounterVec
	highest  *prometheus.GaugeVec
	wait     prometheus.Histogram
	reloaded prometheus.Gauge
}

// byHeader is the label of resources that clients name, of which there may be any number.
const byHeader = "(header)"

func newMetrics(enforced bool) *metrics {
	mode := prometheus.Labels{"enforced": map[bool]string{true: "true", false: "false"}[enforced]}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fence_proxy_requests_total", ConstLabels: mode,
			Help: "Fenced requests by what was decided: passed, stale, missing, malformed, ahead or unavailable.",
		}, []string{"resource", "outcome"}),
		cut: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fence_proxy_cut_total", Help: "Writes under way that a later tenure has cut.",
		}, []string{"resource"}),
		highest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fence_proxy_highest_token", Help: "The greatest token that has passed here since the start.",
		}, []string{"resource"}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fence_proxy_decision_seconds", Help: "How long decisions took, with the wait for earlier writes to end.",
			Buckets: []float64{.0001, .001, .01, .1, .5, 1, 5, 10, 30},
		}),
		reloaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fence_proxy_config_ok", Help: "1 if the configuration that is on the disk is in use.",
		}),
	}
	m.registry.MustRegister(m.requests, m.cut, m.highest, m.wait, m.reloaded)
	m.reloaded.Set(1)
	return m
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "passed"
	case errors.Is(err, fence.ErrStale):
		return "stale"
	case errors.Is(err, fence.ErrAhead):
		return "ahead"
	case errors.Is(err, fence.ErrMissingToken):
		return "missing"
	case errors.Is(err, fencehttp.ErrUnavailable):
		return "unavailable"
	}
	return "malformed"
}

func (p *Proxy) label(resource fence.Resource) string {
	if p.site.Load().fixed[resource] {
		return string(resource)
	}
	return byHeader
}

func (p *Proxy) observe(_ *http.Request, d fencehttp.Decision) {
	label := p.label(d.Resource)
	p.metrics.requests.WithLabelValues(label, outcome(d.Err)).Inc()
	p.metrics.wait.Observe(d.Waited.Seconds())
	if d.Err == nil && label != byHeader {
		p.metrics.highest.WithLabelValues(label).Set(float64(d.Presented))
	}
}
