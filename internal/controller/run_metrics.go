package controller

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/plan"
)

// runMetrics are the metrics of jobs that run to completion. Other jobs do not have these series.
type runMetrics struct {
	nextTick, missed, skipped, last *prometheus.GaugeVec
	ended                           *prometheus.CounterVec
	seconds, delay                  *prometheus.HistogramVec
}

func newRunMetrics(gauge func(name, help string) *prometheus.GaugeVec) runMetrics {
	buckets := []float64{.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 3 * 3600, 12 * 3600}
	return runMetrics{
		nextTick: gauge("next_tick_timestamp_seconds", "Time of the schedule's next tick, in seconds since 1970."),
		missed:   gauge("ticks_missed", "Ticks that should have had a run and had none."),
		skipped:  gauge("ticks_skipped", "Ticks that the overlap policy skipped."),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "singletonjob", Name: "last_run", Help: "1 for the state of the newest run.",
		}, []string{"namespace", "name", "state"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "singletonjob", Name: "runs_total", Help: "Runs that have ended since this operator started, by state.",
		}, []string{"namespace", "name", "state"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "singletonjob", Name: "run_seconds", Help: "Time from the start of a run's first attempt to the end of its last attempt, by state.", Buckets: buckets,
		}, []string{"state"}),
		delay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "singletonjob", Name: "run_start_delay_seconds", Help: "Time from a tick to the start of its run.", Buckets: buckets,
		}, nil),
	}
}

func (m runMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.nextTick, m.missed, m.skipped, m.last, m.ended, m.seconds, m.delay}
}

func (m runMetrics) show(job *v1alpha1.SingletonJob) {
	if job.Spec.RunPolicy != v1alpha1.RunPolicyRunToCompletion {
		return
	}
	at, s := []string{job.Namespace, job.Name}, &job.Status
	if s.NextTick != nil {
		m.nextTick.WithLabelValues(at...).Set(float64(s.NextTick.Unix()))
	} else {
		m.nextTick.DeleteLabelValues(at...)
	}
	if job.Spec.Schedule != nil {
		m.missed.WithLabelValues(at...).Set(float64(s.Missed))
		m.skipped.WithLabelValues(at...).Set(float64(s.Skipped))
	}
	if len(s.Runs) == 0 {
		return
	}
	now := s.Runs[0].State
	m.last.WithLabelValues(append(at, now)...).Set(1)
	for _, state := range []lease.RunState{lease.RunRunning, lease.RunFailed, lease.RunComplete, lease.RunGivenUp, lease.RunReplaced} {
		if string(state) != now {
			m.last.DeleteLabelValues(append(at, string(state))...)
		}
	}
}

// count counts the runs that a status shows for the first time as started or ended.
func (m runMetrics) count(namespace, name string, before, now []v1alpha1.RunStatus) {
	for i := range now {
		is := &now[i]
		was := slices.IndexFunc(before, func(r v1alpha1.RunStatus) bool { return r.ID == is.ID })
		run := plan.RunOf(is)
		if was < 0 && run.OfSchedule() && is.StartTime != nil {
			m.delay.WithLabelValues().Observe(max(0, is.StartTime.Sub(is.Tick.Time).Seconds()))
		}
		if run.Open() || was >= 0 && !plan.RunOf(&before[was]).Open() {
			continue
		}
		m.ended.WithLabelValues(namespace, name, is.State).Inc()
		if is.StartTime != nil && is.EndTime != nil {
			m.seconds.WithLabelValues(is.State).Observe(max(0, is.EndTime.Sub(is.StartTime.Time).Seconds()))
		}
	}
}

func (m runMetrics) forget(labels prometheus.Labels) {
	for _, vec := range []interface{ DeletePartialMatch(prometheus.Labels) int }{m.nextTick, m.missed, m.skipped, m.last, m.ended} {
		vec.DeletePartialMatch(labels)
	}
}
