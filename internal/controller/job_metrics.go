package controller

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plan"
)

// gauge is a metric that every job has.
type gauge struct {
	name, help string
	of         func(job *v1alpha1.SingletonJob) float64
}

var gauges = []gauge{
	{"active", "1 while a tenure exists and its process runs, as far as the operator sees.", func(job *v1alpha1.SingletonJob) float64 {
		return oneIf(job.Status.ActivePod != "")
	}},
	{"fencing_token", "The fencing token of the current or last tenure.", func(job *v1alpha1.SingletonJob) float64 {
		return float64(job.Status.FencingToken)
	}},
	{"candidates_ready", "Candidate pods that are ready.", func(job *v1alpha1.SingletonJob) float64 {
		return float64(job.Status.Candidates.Ready)
	}},
	{"candidates_desired", "spec.candidates; 0 while spec.suspend is set.", func(job *v1alpha1.SingletonJob) float64 {
		if job.Spec.Suspend || plan.Idle(&job.Status) && job.Status.Candidates.Total == 0 {
			return 0
		}
		return float64(job.Spec.Candidates)
	}},
	{"suspended", "1 while spec.suspend is set: no active process is then no outage.", func(job *v1alpha1.SingletonJob) float64 {
		return oneIf(job.Spec.Suspend)
	}},
	{"idle", "1 while there is nothing to run, for example before a tick or after a run: no active process is then no outage.", func(job *v1alpha1.SingletonJob) float64 {
		return oneIf(plan.Idle(&job.Status))
	}},
	{"renewals_per_second", "1/retryPeriod while a process is active, else 0: how often its Lease is written.", renewals},
}

// jobMetrics are the gauges and conditions of all jobs. They are made for each scrape from a few values per job: as metrics they would
// take ten times as much memory, a quarter of all that the operator uses.
type jobMetrics struct {
	gauges    []*prometheus.Desc
	condition *prometheus.Desc
	mu        sync.Mutex
	of        map[types.NamespacedName]shownJob
}

// shownJob is what is exported of a job.
type shownJob struct {
	gauges     []float64
	conditions []shownCondition
}

type shownCondition struct{ kind, status, reason string }

func newJobMetrics() *jobMetrics {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("singletonjob_"+name, help, append([]string{"namespace", "name"}, labels...), nil)
	}
	m := &jobMetrics{
		of:        map[types.NamespacedName]shownJob{},
		condition: describe("condition", "1 for the current status and reason of each condition of a job. Earlier ones have no series.", "type", "status", "reason"),
	}
	for _, g := range gauges {
		m.gauges = append(m.gauges, describe(g.name, g.help))
	}
	return m
}

// show sets what is exported of a job.
func (m *jobMetrics) show(job *v1alpha1.SingletonJob) {
	var s shownJob
	for _, g := range gauges {
		s.gauges = append(s.gauges, g.of(job))
	}
	for _, c := range job.Status.Conditions {
		s.conditions = append(s.conditions, shownCondition{c.Type, string(c.Status), c.Reason})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[types.NamespacedName{Namespace: job.Namespace, Name: job.Name}] = s
}

func (m *jobMetrics) forget(job types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, job)
}

// Describe implements prometheus.Collector.
func (m *jobMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range slices.Concat(m.gauges, []*prometheus.Desc{m.condition}) {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *jobMetrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	all := maps.Clone(m.of) // the values of an entry are never changed, and a slow scrape must not stop the operator
	m.mu.Unlock()
	pairs := labelPairs{}
	for job, s := range all {
		name, namespace := pair("name", job.Name), pairs.of("namespace", job.Namespace)
		labels := []*dto.LabelPair{name, namespace}
		for i, value := range s.gauges {
			to <- sample{m.gauges[i], labels, value}
		}
		for _, c := range s.conditions {
			to <- sample{m.condition, []*dto.LabelPair{name, namespace, pairs.of("reason", c.reason), pairs.of("status", c.status), pairs.of("type", c.kind)}, 1}
		}
	}
}

// labelPairs are the labels of one scrape that several series share.
type labelPairs map[[2]string]*dto.LabelPair

func (p labelPairs) of(name, value string) *dto.LabelPair {
	key := [2]string{name, value}
	if p[key] == nil {
		p[key] = pair(name, value)
	}
	return p[key]
}

func pair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// sample is one value of a gauge, with its labels in the order of their names.
type sample struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	value  float64
}

// Desc implements prometheus.Metric.
func (s sample) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s sample) Write(to *dto.Metric) error {
	to.Label, to.Gauge = s.labels, &dto.Gauge{Value: &s.value}
	return nil
}
