package controller

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// metrics are served beside controller-runtime's own, which count reconciles and their errors.
type metrics struct {
	active, token, ready, desired *prometheus.GaugeVec
	failovers, handovers          *prometheus.CounterVec
	downtime                      *prometheus.HistogramVec
}

func newMetrics() *metrics {
	job := []string{"namespace", "name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "singletonjob", Name: name, Help: help}, job)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "singletonjob", Name: name, Help: help}, append(job, "reason"))
	}
	return &metrics{
		active:    gauge("active", "1 while a tenure exists and its process runs, as far as the operator sees."),
		token:     gauge("fencing_token", "The fencing token of the current or last tenure."),
		ready:     gauge("candidates_ready", "Candidate pods that are ready."),
		desired:   gauge("candidates_desired", "spec.candidates; 0 while spec.suspend is set."),
		failovers: counter("failovers_total", "Unplanned changes of holder since this operator started, by reason."),
		handovers: counter("handovers_total", "Planned changes of holder since this operator started, by reason."),
		downtime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "singletonjob", Name: "downtime_seconds",
			Help:    "From the last proof that the earlier holder acted to the acquisition by the next, by type of change.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 300},
		}, []string{"type"}),
	}
}

// Collectors are to be registered where the metrics shall be served.
func (r *Reconciler) Collectors() []prometheus.Collector {
	m := r.metrics
	return []prometheus.Collector{m.active, m.token, m.ready, m.desired, m.failovers, m.handovers, m.downtime}
}

// show gives a status that is stored, and counts the changes that it has for the first time.
func (m *metrics) show(job *v1alpha1.SingletonJob, changes []v1alpha1.TenureChange) {
	at := []string{job.Namespace, job.Name}
	active := 0.0
	if job.Status.ActivePod != "" {
		active = 1
	}
	m.active.WithLabelValues(at...).Set(active)
	m.token.WithLabelValues(at...).Set(float64(job.Status.FencingToken))
	m.ready.WithLabelValues(at...).Set(float64(job.Status.Candidates.Ready))
	desired := float64(job.Spec.Candidates)
	if job.Spec.Suspend {
		desired = 0
	}
	m.desired.WithLabelValues(at...).Set(desired)
	for _, c := range changes {
		switch c.Type {
		case v1alpha1.Failover:
			m.failovers.WithLabelValues(append(at, c.Reason)...).Inc()
		case v1alpha1.Handover:
			m.handovers.WithLabelValues(append(at, c.Reason)...).Inc()
		case v1alpha1.Elected:
		}
		if c.Downtime != nil {
			m.downtime.WithLabelValues(string(c.Type)).Observe(c.Downtime.Seconds())
		}
	}
}

// forget drops a job that is gone.
func (m *metrics) forget(job types.NamespacedName) {
	labels := prometheus.Labels{"namespace": job.Namespace, "name": job.Name}
	for _, vec := range []interface{ DeletePartialMatch(prometheus.Labels) int }{m.active, m.token, m.ready, m.desired, m.failovers, m.handovers} {
		vec.DeletePartialMatch(labels)
	}
}
