//go:build linux

package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/debian"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/subprocess"
	"github.com/singletonjob/operator/test/tier"
)

const monitoring = root + "/charts/singletonjob/monitoring/"

// TestDashboard: a real Prometheus scrapes the operator and two agents. It runs the query of each panel of the dashboard and each alert on
// what they served. One job works, and its holder changes twice; the Pods of another one fit on no node.
func TestDashboard(t *testing.T) {
	t.Parallel()
	program := prometheusProgram(t)
	port, err := controlplane.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	operator := fmt.Sprintf("127.0.0.1:%d", port)
	w := worldOn(t, newProduct(t, func(o *Options) { o.Metrics = operator }))
	first := w.run(w.job(long))
	broken := w.job(long)
	broken.Name, broken.Spec.Template.Spec.NodeSelector = "broken", map[string]string{testLabel: "nowhere"}
	w.must(w.p.Client.Create(t.Context(), broken))
	p := w.startPrometheus(program, operator)
	p.await("scrapes of all targets", func() error {
		return only(p.query("count(count_over_time(up[1h]) > 2 and up == 1)"), 3)
	})

	w.must(syscall.Kill(first.process.Pid, syscall.SIGKILL))
	second := w.next(first)
	w.protected()
	job, err := w.p.Job(t.Context(), w.ns, jobName)
	w.must(err)
	asked := job.DeepCopy()
	metav1.SetMetaDataAnnotation(&asked.ObjectMeta, contract.SwitchoverAnnotation, fmt.Sprintf("*@%d", second.token))
	w.must(w.p.Client.Patch(t.Context(), asked, client.MergeFrom(job)))
	third := w.next(second)
	w.protected()

	of := func(name string, more ...string) map[string]string {
		labels := map[string]string{"namespace": w.ns, "name": name}
		for i := 0; i < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
		return labels
	}
	exactly := func(want float64, labels map[string]string) func([]point) error {
		return func(got []point) error { return one(got, labels, func(v float64) bool { return v == want }) }
	}
	positive := func(labels map[string]string) func([]point) error {
		return func(got []point) error {
			return one(got, labels, func(v float64) bool { return v > 0 && !math.IsInf(v, 0) })
		}
	}
	single := func(want float64) func([]point) error {
		return func(got []point) error { return only(got, want) }
	}
	both := func(checks ...func([]point) error) func([]point) error {
		return func(got []point) error {
			for _, check := range checks {
				if err := check(got); err != nil {
					return err
				}
			}
			return nil
		}
	}
	want := map[string][]func([]point) error{
		"Jobs":             {single(2)},
		"Not active":       {single(1)},
		"Not protected":    {single(0)},
		"Operator at work": {single(1)},
		"Active":           {both(exactly(1, of(jobName)), exactly(0, of("broken")))},
		"Conditions that are False": {
			exactly(1, of("broken", "type", v1alpha1.ConditionActive, "reason", v1alpha1.ReasonCandidatesNotReady)),
		},
		"Failovers and handovers": {
			exactly(1, of(jobName, "reason", v1alpha1.ChangeProcessExited)), exactly(1, of(jobName, "reason", v1alpha1.ChangeSwitchoverRequested)),
		},
		"Downtime": {both(
			positive(map[string]string{"type": string(v1alpha1.Failover)}), positive(map[string]string{"type": string(v1alpha1.Handover)}),
		)},
		"Candidates that are not ready": {both(exactly(0, of(jobName)), exactly(2, of("broken")))},
		"Renewals":                      {positive(map[string]string{"namespace": w.ns, "pod": third.pod})},
		"Time left":                     {positive(map[string]string{"namespace": w.ns, "pod": third.pod})},
		"Errors of the operator":        {single(0)},
	}
	seen := map[string]bool{}
	for _, panel := range panels(t) {
		if seen[panel.Title] = true; len(want[panel.Title]) != len(panel.Targets) {
			t.Errorf("the panel %s has %d queries, and the test expects results of %d", panel.Title, len(panel.Targets), len(want[panel.Title]))
			continue
		}
		for i, target := range panel.Targets {
			expr := strings.NewReplacer("$namespace", w.ns, "$__rate_interval", "10m", "$__range", "1h").Replace(target.Expr)
			p.await("the panel "+panel.Title, func() error {
				got := p.query(expr)
				return errorsOf(want[panel.Title][i](got), labelled(got, target.LegendFormat))
			})
		}
	}
	for title := range want {
		if !seen[title] {
			t.Errorf("there is no panel %s", title)
		}
	}
	p.await("the namespaces to choose from", func() error {
		var names []string
		p.get("/api/v1/label/namespace/values?match[]=singletonjob_suspended", &names)
		if len(names) != 1 || names[0] != w.ns {
			return fmt.Errorf("they are %v", names)
		}
		return nil
	})
	p.await("the alerts", func() error { return p.alerts(w.ns, "broken") })
}

// point is one element of a query's result.
type point struct {
	labels map[string]string
	value  float64
}

// one reports whether exactly one point has these labels, and its value is as wanted.
func one(got []point, labels map[string]string, is func(float64) bool) error {
	found := 0
	for _, s := range got {
		matches := true
		for name, value := range labels {
			matches = matches && s.labels[name] == value
		}
		if matches && is(s.value) {
			found++
		}
	}
	if found != 1 {
		return fmt.Errorf("%d samples with %v are as wanted: %v", found, labels, got)
	}
	return nil
}

// only reports whether there is only one sample, with this value.
func only(got []point, want float64) error {
	if len(got) != 1 || got[0].value != want {
		return fmt.Errorf("want one point of %v: %v", want, got)
	}
	return nil
}

var legend = regexp.MustCompile(`\{\{(\w+)\}\}`)

// labelled reports whether each point has the labels that its name in the panel is made of.
func labelled(got []point, format string) error {
	for _, match := range legend.FindAllStringSubmatch(format, -1) {
		for _, s := range got {
			if s.labels[match[1]] == "" {
				return fmt.Errorf("there is no label %s in %v", match[1], s)
			}
		}
	}
	return nil
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

type panel struct {
	Title   string
	Targets []struct{ Expr, LegendFormat string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	text, err := os.ReadFile(monitoring + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	return dashboard.Panels
}

// prometheusProgram is the command line of Debian's Prometheus.
func prometheusProgram(t *testing.T) []string {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		tier.Needs(t, "Prometheus comes from Debian's packages, and here is no apt-get")
	}
	dir, err := debian.Unpack(t.Context(), os.Stderr, debian.Packages{
		Release: "bookworm", Names: []string{"prometheus"}, Without: []string{"perl*", "libperl*", "fonts-*", "libjs-*"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return debian.Command(dir, "/usr/bin/prometheus")
}

// prometheus is a server that runs.
type prometheus struct {
	w   *world
	url string
}

// startPrometheus scrapes the operator, with the labels of the jobs kept, and the agents, with the labels that a PodMonitor gives them.
func (w *world) startPrometheus(program []string, operator string) *prometheus {
	w.t.Helper()
	var pods corev1.PodList
	w.must(w.p.Client.List(w.t.Context(), &pods, client.InNamespace(w.ns), client.MatchingLabels{contract.NameLabel: jobName}))
	dir := w.t.TempDir()
	rules, err := filepath.Abs(monitoring + "rules.yaml")
	w.must(err)
	config := fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: operator
    honor_labels: true
    static_configs: [{targets: [%q]}]
  - job_name: agents
    static_configs:
`, rules, operator)
	for _, pod := range pods.Items {
		config += fmt.Sprintf("      - {targets: ['%s:%d'], labels: {namespace: %s, pod: %s}}\n", pod.Status.PodIP, contract.DefaultPort, pod.Namespace, pod.Name)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	w.must(os.WriteFile(file, []byte(config), 0o600))
	port, err := controlplane.FreePort()
	w.must(err)
	p := &prometheus{w: w, url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	cmd := exec.Command(program[0], append(program[1:], "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+strings.TrimPrefix(p.url, "http://"))...)
	var log strings.Builder
	cmd.Stderr = &log
	process, err := subprocess.Start(cmd)
	w.must(err)
	w.t.Cleanup(func() {
		process.Stop(0)
		if w.t.Failed() {
			w.t.Logf("prometheus:\n%s", log.String())
		}
	})
	p.await("Prometheus to be ready", func() error {
		response, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %s", response.Status)
		}
		return nil
	})
	return p
}

// await waits until a check finds nothing wrong.
func (p *prometheus) await(what string, check func() error) {
	p.w.t.Helper()
	ctx, cancel := context.WithTimeout(p.w.t.Context(), patience)
	defer cancel()
	p.w.must(observe.Await(ctx, what, func() (bool, any, error) {
		err := check()
		return err == nil, fmt.Sprint(err), nil
	}))
}

// get reads the data of an answer of Prometheus.
func (p *prometheus) get(path string, into any) {
	p.w.t.Helper()
	response, err := http.Get(p.url + path)
	p.w.must(err)
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	p.w.must(json.NewDecoder(response.Body).Decode(&answer))
	if answer.Status != "success" {
		p.w.t.Fatalf("%s: %s", path, answer.Error)
	}
	p.w.must(json.Unmarshal(answer.Data, into))
}

// query runs a query now.
func (p *prometheus) query(expr string) (all []point) {
	p.w.t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	p.get("/api/v1/query?query="+url.QueryEscape(expr), &data)
	for _, r := range data.Result {
		value, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		p.w.must(err)
		all = append(all, point{r.Metric, value})
	}
	return all
}

// alerts reports whether every alert of the chart was evaluated without an error, and SingletonJobNotActive is pending or firing for one job
// alone.
func (p *prometheus) alerts(namespace, name string) error {
	p.w.t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct {
				Name, Health, LastError string
				LastEvaluation          time.Time
				Alerts                  []struct{ Labels map[string]string }
			}
		}
	}
	p.get("/api/v1/rules", &data)
	rules, of := 0, ""
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			if rules++; r.Health != "ok" || r.LastError != "" {
				return fmt.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
			}
			for _, a := range r.Alerts {
				if r.Name == "SingletonJobNotActive" {
					of += a.Labels["namespace"] + "/" + a.Labels["name"]
				}
			}
		}
	}
	if want := namespace + "/" + name; rules < 6 || of != want {
		return fmt.Errorf("of %d rules SingletonJobNotActive is for %q, want %q", rules, of, want)
	}
	return nil
}
