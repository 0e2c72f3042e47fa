//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"github.com/singletonjob/operator/test/bench/onlab"
)

// A Result is one run. All times in it are seconds, sizes MiB, and CPU cores.
type Result struct {
	Date  time.Time `json:"date"`
	Took  float64   `json:"took"`
	Jobs  int       `json:"jobs"`
	Lease string    `json:"lease"`
	Cores int       `json:"cores"`
	// Shared is how many connections all agents share; 0: each has its own.
	Shared     int    `json:"shared"`
	Kernel     string `json:"kernel"`
	Kubernetes string `json:"kubernetes"`
	// LeaseBytes is how long a Lease is in etcd: of a new job, and at the end, after the failovers.
	LeaseBytes [2]int   `json:"leaseBytes"`
	Phases     []*Phase `json:"phases"`
	// Faults are what must not be.
	Faults []string `json:"faults"`
	// Ended is why there is no phase after the last; empty if nothing went wrong.
	Ended string `json:"ended,omitempty"`
}

// phase is nil if the run ended before it.
func (r Result) phase(name string) *Phase {
	for _, p := range r.Phases {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// A Phase is what was measured while one thing happened.
type Phase struct {
	Name string  `json:"name"`
	Took float64 `json:"took"`
	// Load is the machine's load average of the last minute: above the cores, others wanted them too.
	Load float64 `json:"load"`
	// Requests that the API server served, by verb and resource. A watch counts when it begins. Others excludes the requests of the
	// simulated nodes and agents: it has those of the operator and of the API server itself.
	Requests map[string]float64 `json:"requests"`
	Others   map[string]float64 `json:"others"`
	// Operator is what its own client counted, by method.
	Operator map[string]float64 `json:"operator"`
	// CPU in cores, and memory at the end, by process; "bench" has all nodes and agents.
	CPU    map[string]float64 `json:"cpu"`
	Memory map[string]float64 `json:"memory"`
	// OperatorPeak is the most memory that the operator's process ever had.
	OperatorPeak float64 `json:"operatorPeak"`
	// Renewals and EtcdWrites a second, the 99th percentile of the renewals' time, and the CPU time of the API server for each.
	Renewals      float64 `json:"renewals"`
	RenewalP99    float64 `json:"renewalP99"`
	CPUPerRenewal float64 `json:"cpuPerRenewal"`
	EtcdWrites    float64 `json:"etcdWrites"`
	// Database is etcd's at the end, Grown by how much it grew.
	Database float64 `json:"database"`
	Grown    float64 `json:"grown"`
	// Facts are what the phase was about.
	Facts map[string]float64 `json:"facts,omitempty"`
}

// sample is the state of all counters.
type sample struct {
	at       time.Time
	pids     map[string][]int
	cpu      map[string]float64
	memory   map[string]float64
	peak     float64
	server   map[string]float64
	operator map[string]float64
	own      map[string]float64
	writes   float64
	database float64
}

const mib = 1 << 20

func (b *bench) sample(ctx context.Context) (sample, error) {
	s := sample{at: time.Now(), pids: b.pids(), cpu: map[string]float64{}, memory: map[string]float64{}, server: map[string]float64{}, operator: map[string]float64{}}
	for name, pids := range s.pids {
		for _, pid := range pids {
			p, err := procfs.NewProc(pid)
			if err != nil {
				return s, err
			}
			stat, err := p.Stat()
			if err != nil {
				return s, err
			}
			s.cpu[name], s.memory[name] = s.cpu[name]+stat.CPUTime(), s.memory[name]+float64(stat.ResidentMemory())/mib
			if name != "operator" {
				continue
			}
			status, err := p.NewStatus()
			if err != nil {
				return s, err
			}
			s.peak = float64(status.VmHWM) / mib
		}
	}
	s.own = b.fleet.requests()
	s.own[createJob] += b.sent
	text, err := b.server.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return s, err
	}
	families, err := parse(bytes.NewReader(text))
	if err != nil {
		return s, err
	}
	s.add(families)
	families, err = b.operatorMetrics(ctx)
	each(families["rest_client_requests_total"], func(label map[string]string, value float64) { s.operator[label["method"]] += value })
	return s, err
}

// add adds what an API server counted.
func (s *sample) add(families map[string]*dto.MetricFamily) {
	each(families["apiserver_request_total"], func(label map[string]string, value float64) {
		resource := label["resource"]
		if sub := label["subresource"]; sub != "" && !strings.HasPrefix(sub, "/") {
			resource += "/" + sub
		}
		if label["resource"] != "" {
			s.server[verbOf(label["verb"], resource)] += value
		}
	})
	each(families["etcd_requests_total"], func(label map[string]string, value float64) {
		if slices.Contains([]string{"create", "update", "delete"}, label["operation"]) {
			s.writes += value
		}
	})
	each(families["apiserver_storage_size_bytes"], func(_ map[string]string, value float64) { s.database = max(s.database, value/mib) })
}

// pids are the processes that run, by what they are.
func (b *bench) pids() map[string][]int {
	return map[string][]int{"bench": {os.Getpid()}, "operator": {b.operator.Pid()}, "etcd": {b.plane.EtcdPid()}, "kube-apiserver": b.plane.ServerPids()}
}

func each(family *dto.MetricFamily, do func(label map[string]string, value float64)) {
	for _, m := range family.GetMetric() {
		label := map[string]string{}
		for _, l := range m.GetLabel() {
			label[l.GetName()] = l.GetValue()
		}
		do(label, m.GetCounter().GetValue()+m.GetGauge().GetValue())
	}
}

func (b *bench) operatorMetrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	text, err := get(ctx, "http://"+b.metrics+"/metrics")
	if err != nil {
		return nil, err
	}
	return parse(bytes.NewReader(text))
}

// profileHeap writes what is in the operator's heap.
func (b *bench) profileHeap(ctx context.Context) error {
	profile, err := get(ctx, "http://"+b.profiles+"/debug/pprof/heap?gc=1")
	if err != nil {
		return err
	}
	return onlab.WriteFile(b.heap, profile)
}

func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

func parse(text io.Reader) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(text)
}

// between is what happened between two samples.
func between(name string, before, after sample, renewals []time.Duration) *Phase {
	p := &Phase{
		Name: name, Took: after.at.Sub(before.at).Seconds(), Load: load(), Memory: after.memory, OperatorPeak: after.peak,
		CPU: map[string]float64{}, Database: after.database, Grown: after.database - before.database,
	}
	same := func(process string) bool { return slices.Equal(before.pids[process], after.pids[process]) }
	p.Requests = grown(before.server, after.server, same("kube-apiserver"))
	p.Operator = grown(before.operator, after.operator, same("operator"))
	own := grown(before.own, after.own, true)
	p.Others = map[string]float64{}
	for what, n := range p.Requests {
		if left := n - own[what]; left > 0 && !strings.HasPrefix(what, "WATCH") {
			p.Others[what] = left
		}
	}
	for process, spent := range after.cpu {
		if same(process) { // else what the one before it spent is not known any more
			spent -= before.cpu[process]
		}
		p.CPU[process] = spent / p.Took
	}
	p.Renewals = own["PUT leases"] / p.Took
	if p.Renewals > 0 {
		p.CPUPerRenewal = p.CPU["kube-apiserver"] / p.Renewals
	}
	p.RenewalP99 = quantile(renewals, 99).Seconds()
	if p.EtcdWrites = (after.writes - before.writes) / p.Took; !same("kube-apiserver") {
		p.EtcdWrites = after.writes / p.Took
	}
	return p
}

// grown is by how much counters rose, of a process that is the same, or began between.
func grown(before, after map[string]float64, same bool) map[string]float64 {
	rose := map[string]float64{}
	for what, n := range after {
		if same {
			n -= before[what]
		}
		if n > 0 {
			rose[what] = n
		}
	}
	return rose
}

// quantile is the given percentile; 0 of nothing.
func quantile(all []time.Duration, percent int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*percent/100)]
}

func load() (average float64) {
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, _ = fmt.Sscan(string(text), &average)
	}
	return average
}
