package controller

import (
	"cmp"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// metrics are the operator's metrics. controller-runtime's own metrics count reconciles and errors.
type metrics struct {
	jobs                 *jobMetrics
	failovers, handovers *prometheus.CounterVec
	downtime             *prometheus.HistogramVec
	runs                 runMetrics
	pods                 *prometheus.GaugeVec
	agents               agents
}

// agents counts the candidates of each job by the image of their agents. Only the sums are exported, because a series per job would
// add no information about versions.
type agents struct {
	mu  sync.Mutex
	of  map[types.NamespacedName]map[string]int
	all map[string]int
}

func newMetrics() *metrics {
	job := []string{"namespace", "name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "singletonjob", Name: name, Help: help}, job)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "singletonjob", Name: name, Help: help}, append(job, "reason"))
	}
	m := &metrics{
		jobs: newJobMetrics(),
		runs: newRunMetrics(gauge),
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "singletonjob", Name: "pods", Help: "Candidate Pods of all jobs by the image of their agents; unknown for Pods that do not record it.",
		}, []string{"agent"}),
		agents:    agents{of: map[types.NamespacedName]map[string]int{}, all: map[string]int{}},
		failovers: counter("failovers_total", "Unplanned changes of holder since this operator started, by reason."),
		handovers: counter("handovers_total", "Planned changes of holder since this operator started, by reason."),
		downtime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "singletonjob", Name: "downtime_seconds",
			Help:    "Time from the last proof that the previous holder acted to the acquisition by the next holder, by type of change.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 300},
		}, []string{"type"}),
	}
	for _, planned := range []v1alpha1.TenureChangeType{v1alpha1.Failover, v1alpha1.Handover} {
		m.downtime.WithLabelValues(string(planned)) // at 0: Prometheus sees no increase in the first value of a series
	}
	return m
}

// Collectors returns the collectors to register with the registry that serves the metrics.
func (r *Reconciler) Collectors() []prometheus.Collector {
	m := r.metrics
	return append(m.runs.collectors(), m.jobs, m.failovers, m.handovers, m.downtime, m.pods)
}

// show exports a stored status, and counts the changes that are new in it.
func (m *metrics) show(job *v1alpha1.SingletonJob, changes []v1alpha1.TenureChange) {
	at := []string{job.Namespace, job.Name}
	m.jobs.show(job)
	m.runs.show(job)
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

// showAgents updates the counts with a job's current candidates.
func (m *metrics) showAgents(job types.NamespacedName, now map[string]int) {
	a := &m.agents
	a.mu.Lock()
	defer a.mu.Unlock()
	changed := map[string]bool{}
	for image, n := range a.of[job] {
		a.all[image] -= n
		changed[image] = true
	}
	for image, n := range now {
		a.all[image] += n
		changed[image] = true
	}
	if a.of[job] = now; len(now) == 0 {
		delete(a.of, job)
	}
	for image := range changed {
		n := a.all[image]
		if m.pods.WithLabelValues(image).Set(float64(n)); n == 0 { // otherwise every image of the past would stay
			m.pods.DeleteLabelValues(image)
			delete(a.all, image)
		}
	}
}

// renewals is the number of writes to a job's Lease per second.
func renewals(job *v1alpha1.SingletonJob) float64 {
	if job.Status.ActivePod == "" {
		return 0
	}
	return 1 / cmp.Or(job.Spec.Lease.RetryPeriod.Duration, v1alpha1.DefaultRetryPeriod).Seconds()
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// forget drops a deleted job.
func (m *metrics) forget(job types.NamespacedName) {
	labels := prometheus.Labels{"namespace": job.Namespace, "name": job.Name}
	m.jobs.forget(job)
	m.failovers.DeletePartialMatch(labels)
	m.handovers.DeletePartialMatch(labels)
	m.runs.forget(labels)
	m.showAgents(job, nil)
}
