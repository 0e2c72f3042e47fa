package controller

import (
	"cmp"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plan"
)

// metrics are the operator's metrics. controller-runtime's own metrics count reconciles and errors.
type metrics struct {
	active, token, ready, desired, suspended, idle, renewals, condition *prometheus.GaugeVec
	failovers, handovers                                                *prometheus.CounterVec
	downtime                                                            *prometheus.HistogramVec
	runs                                                                runMetrics
	pods                                                                *prometheus.GaugeVec
	agents                                                              agents
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
		active:    gauge("active", "1 while a tenure exists and its process runs, as far as the operator sees."),
		token:     gauge("fencing_token", "The fencing token of the current or last tenure."),
		ready:     gauge("candidates_ready", "Candidate pods that are ready."),
		desired:   gauge("candidates_desired", "spec.candidates; 0 while spec.suspend is set."),
		suspended: gauge("suspended", "1 while spec.suspend is set: no active process is then no outage."),
		idle:      gauge("idle", "1 while there is nothing to run, for example before a tick or after a run: no active process is then no outage."),
		renewals:  gauge("renewals_per_second", "1/retryPeriod while a process is active, else 0: how often its Lease is written."),
		runs:      newRunMetrics(gauge),
		condition: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "singletonjob", Name: "condition", Help: "1 for the current status and reason of each condition of a job. Earlier ones have no series.",
		}, append(job, "type", "status", "reason")),
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
	return append(m.runs.collectors(),
		m.active, m.token, m.ready, m.desired, m.suspended, m.idle, m.renewals, m.condition, m.failovers, m.handovers, m.downtime, m.pods)
}

// show exports a stored status, and counts the changes that are new in it.
func (m *metrics) show(job *v1alpha1.SingletonJob, changes []v1alpha1.TenureChange) {
	at := []string{job.Namespace, job.Name}
	m.active.WithLabelValues(at...).Set(oneIf(job.Status.ActivePod != ""))
	m.token.WithLabelValues(at...).Set(float64(job.Status.FencingToken))
	m.ready.WithLabelValues(at...).Set(float64(job.Status.Candidates.Ready))
	desired, idle := float64(job.Spec.Candidates), plan.Idle(&job.Status)
	if job.Spec.Suspend || idle && job.Status.Candidates.Total == 0 {
		desired = 0
	}
	m.desired.WithLabelValues(at...).Set(desired)
	m.idle.WithLabelValues(at...).Set(oneIf(idle))
	m.renewals.WithLabelValues(at...).Set(renewals(job))
	m.runs.show(job)
	m.suspended.WithLabelValues(at...).Set(oneIf(job.Spec.Suspend))
	m.showConditions(job)
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

// showConditions exports one series per condition. It adds the new series before it deletes the old one, so that a scrape in
// between finds two and never none.
func (m *metrics) showConditions(job *v1alpha1.SingletonJob) {
	for _, c := range job.Status.Conditions {
		now := prometheus.Labels{
			"namespace": job.Namespace, "name": job.Name, "type": c.Type, "status": string(c.Status), "reason": c.Reason,
		}
		m.condition.With(now).Set(1)
		for _, r := range v1alpha1.ConditionReasons() {
			if r.Condition == c.Type && (r.Status != c.Status || r.Reason != c.Reason) {
				m.condition.DeleteLabelValues(job.Namespace, job.Name, r.Condition, string(r.Status), r.Reason)
			}
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
	for _, vec := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
		m.active, m.token, m.ready, m.desired, m.suspended, m.idle, m.renewals, m.condition, m.failovers, m.handovers,
	} {
		vec.DeletePartialMatch(labels)
	}
	m.runs.forget(labels)
	m.showAgents(job, nil)
}
