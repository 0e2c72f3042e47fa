package charts

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/plan"
	"github.com/singletonjob/operator/test/debian"
	"github.com/singletonjob/operator/test/tier"
)

// monitored are the settings that render all objects for Prometheus and Grafana.
var monitored = []string{
	"--show-only=templates/monitoring.yaml", "--set=monitoring.labels.release=prom",
	"--set=monitoring.rules.create=true,monitoring.serviceMonitor.create=true,monitoring.podMonitor.create=true,monitoring.dashboard.create=true",
}

// renderedMonitoring are the chart's monitoring objects, by kind.
func renderedMonitoring(t *testing.T, settings ...string) map[string]map[string]any {
	t.Helper()
	helm, err := helmPath()
	if err != nil {
		t.Fatalf("build Helm: %v", err)
	}
	args := slices.Concat([]string{"template", "release", chart, "--namespace=ns"}, monitored, settings)
	manifest, err := exec.CommandContext(t.Context(), helm, args...).Output()
	if err != nil {
		t.Fatalf("helm template: %v", err)
	}
	objects := map[string]map[string]any{}
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		objects[fmt.Sprint(object["kind"])] = object
	}
	return objects
}

// rule is an alert as Prometheus reads it.
type rule struct{ Alert, Expr string }

func alerts(t *testing.T, objects map[string]map[string]any) (groups []byte, rules []rule) {
	t.Helper()
	groups, err := yaml.Marshal(objects["PrometheusRule"]["spec"])
	if err != nil {
		t.Fatal(err)
	}
	var spec struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(groups, &spec); err != nil || len(spec.Groups) != 1 || len(spec.Groups[0].Rules) < 6 {
		t.Fatalf("the rules are %v, %v", spec, err)
	}
	return groups, spec.Groups[0].Rules
}

type panel struct {
	Title, Description string
	Targets            []struct{ Expr string }
}

// dashboardOf is the dashboard as Grafana's sidecar finds it.
func dashboardOf(objects map[string]map[string]any) string {
	data, _ := objects["ConfigMap"]["data"].(map[string]any)
	text, _ := data["singletonjob.json"].(string)
	return text
}

func panels(t *testing.T, objects map[string]map[string]any) []panel {
	t.Helper()
	text := dashboardOf(objects)
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal([]byte(text), &dashboard); err != nil || len(dashboard.Panels) == 0 {
		t.Fatalf("the dashboard: %v\n%.200s", err, text)
	}
	return dashboard.Panels
}

// promtool runs Prometheus' own checker, from Debian.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		tier.Needs(t, "promtool comes from Debian's packages, and here is no apt-get")
	}
	root, err := debian.Unpack(t.Context(), os.Stderr, debian.Packages{
		Release: "bookworm", Names: []string{"prometheus"}, Without: []string{"perl*", "libperl*", "fonts-*", "libjs-*"},
	})
	if err != nil {
		t.Fatal(err)
	}
	command := append(debian.Command(root, "/usr/bin/promtool"), args...)
	if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Each alert fires when it must and only then, and the dashboard's expressions are valid.
func TestAlertsAndDashboardByPromtool(t *testing.T) {
	t.Parallel()
	objects := renderedMonitoring(t)
	dir := t.TempDir()
	groups, _ := alerts(t, objects)
	records := "groups: [{name: dashboard, rules: ["
	for _, p := range panels(t, objects) {
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(target.Expr)
			records += fmt.Sprintf("{record: 'panel:%d', expr: %q},", len(records), expr)
		}
	}
	cases, err := os.ReadFile("testdata/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"rules.yaml": groups, "rules_test.yaml": cases, "dashboard.yaml": []byte(records + "]}]"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, "check", "rules", filepath.Join(dir, "rules.yaml"), filepath.Join(dir, "dashboard.yaml"))
	promtool(t, "test", "rules", filepath.Join(dir, "rules_test.yaml"))
}

// The dashboard is valid by the schema of Grafana's Foundation SDK, which Grafana generates from its own schemas. It has no unknown field in
// the dashboard, in the panels, or in the queries for Prometheus. The test finds a mistake of each of these kinds.
func TestDashboardMatchesItsSchema(t *testing.T) {
	t.Parallel()
	known, schemas := map[string]bool{}, cog.NewRuntime()
	for _, of := range []variants.PanelcfgConfig{stat.VariantConfig(), statetimeline.VariantConfig(), table.VariantConfig(), timeseries.VariantConfig()} {
		schemas.RegisterPanelcfgVariant(of)
		known[of.Identifier] = true
	}
	schemas.RegisterDataqueryVariant(prometheus.VariantConfig())
	text := dashboardOf(renderedMonitoring(t))
	for name, c := range map[string]struct{ from, to string }{
		"as it is":                 {},
		"a field of no dashboard":  {`"editable"`, `"editible"`},
		"a type of another field":  {`"schemaVersion": 39`, `"schemaVersion": "39"`},
		"a field of no panel":      {`"gridPos"`, `"gridpos"`},
		"a field of no query":      {`"legendFormat"`, `"legend"`},
		"a refresh of no variable": {`"refresh": 2`, `"refresh": "2"`},
	} {
		changed := strings.Replace(text, c.from, c.to, 1)
		if c.from != "" && changed == text {
			t.Fatalf("%s: there is no %s", name, c.from)
		}
		d, err := dashboardBySchema(changed)
		if (err != nil) != (c.from != "") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if len(d.Panels) < 10 {
			t.Errorf("%s: %d panels", name, len(d.Panels))
		}
		for _, p := range d.Panels {
			if p.Panel == nil || !known[p.Panel.Type] {
				t.Errorf("the options of a panel are not checked: %+v", p)
			}
		}
	}
}

// dashboardBySchema reads a dashboard and returns what the schema finds wrong.
//
//nolint:staticcheck // the schema of the chart's dashboard; that of its successor is another one
func dashboardBySchema(text string) (d dashboard.Dashboard, err error) {
	// An error without text is an empty list, and the value is not complete then.
	if err := new(dashboard.Dashboard).UnmarshalJSONStrict([]byte(text)); err != nil && err.Error() != "" {
		return d, err
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return d, err
	}
	return d, d.Validate()
}

// Prometheus finds its targets, is authorized there, and the operator's metrics keep their job labels.
func TestMonitorsFindTheirTargets(t *testing.T) {
	t.Parallel()
	const token = `[{"bearerTokenFile":"/var/run/secrets/kubernetes.io/serviceaccount/token","honorLabels":true,"interval":"30s","port":"metrics","scheme":"https",`
	for set, c := range map[string]struct{ endpoints, selector string }{
		"watchNamespaces=null":  {token + `"tlsConfig":{"insecureSkipVerify":true}}]`, `{"any":true}`},
		"watchNamespaces={a,b}": {`[{"honorLabels":true,"interval":"30s","port":"metrics"}]`, `{"matchNames":["a","b"]}`},
		"metrics.certSecret=certs": {
			token + `"tlsConfig":{"ca":{"secret":{"key":"ca.crt","name":"certs"}},"serverName":"release-singletonjob-metrics.ns.svc"}}]`, `{"any":true}`,
		},
	} {
		objects := renderedMonitoring(t, "--set="+set)
		for path, want := range map[string]string{
			"ServiceMonitor spec endpoints":               c.endpoints,
			"ServiceMonitor spec selector":                `{"matchLabels":{"app.kubernetes.io/instance":"release","app.kubernetes.io/name":"singletonjob"}}`,
			"ServiceMonitor metadata labels release":      `"prom"`,
			"PodMonitor spec podMetricsEndpoints":         `[{"interval":"30s","port":"` + contract.PortName + `"}]`,
			"PodMonitor spec selector":                    `{"matchLabels":{"` + contract.ManagedByLabel + `":"` + contract.ManagedBy + `"}}`,
			"PodMonitor spec namespaceSelector":           c.selector,
			"PrometheusRule metadata labels release":      `"prom"`,
			"ConfigMap metadata labels grafana_dashboard": `"1"`,
		} {
			steps := strings.Fields(path)
			var at any = objects[steps[0]]
			for _, step := range steps[1:] {
				object, _ := at.(map[string]any)
				at = object[step]
			}
			if got, _ := json.Marshal(at); string(got) != want {
				t.Errorf("with %s, %s is %s, want %s", set, path, got, want)
			}
		}
	}
}

// reasons matches what an expression demands of a condition.
var reasons = regexp.MustCompile(`singletonjob_condition\{[^}]*?(?:type="(\w+)", )?status="(\w+)", reason=~"([^"]+)"\}`)

// The document has a line for each alert and each panel. The conditions in their expressions exist.
func TestAlertsAndPanelsAreDocumented(t *testing.T) {
	t.Parallel()
	objects := renderedMonitoring(t)
	document, err := os.ReadFile("../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rules := alerts(t, objects)
	exprs := ""
	for _, r := range rules {
		exprs += r.Expr
		if !regexp.MustCompile("(?m)^\\| `" + r.Alert + "` \\| [^|]+ \\| [^|]{10,} \\|$").Match(document) {
			t.Errorf("docs/monitoring.md has no line for the alert %s that says what to do", r.Alert)
		}
	}
	for _, p := range panels(t, objects) {
		for _, target := range p.Targets {
			exprs += target.Expr
		}
		line := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(p.Title) + ` \| [^|]+ \| [^|]{10,} \|$`)
		if p.Description == "" || !line.Match(document) {
			t.Errorf("the panel %s has no description, or no line in docs/monitoring.md that says what to do", p.Title)
		}
	}
	asked := reasons.FindAllStringSubmatch(exprs, -1)
	for _, match := range asked {
		for reason := range strings.SplitSeq(match[3], "|") {
			if !slices.ContainsFunc(v1alpha1.ConditionReasons(), func(r v1alpha1.ConditionReason) bool {
				return r.Condition == match[1] && string(r.Status) == match[2] && r.Reason == reason
			}) {
				t.Errorf("no condition %s says %s, %s", match[1], match[2], reason)
			}
		}
	}
	if len(asked) < 3 {
		t.Errorf("only %d questions about conditions are found", len(asked))
	}
}

// A lack of protection of which the operator tells by an Event is alerted and shown, too.
func TestEveryLackOfProtectionHasAnAlert(t *testing.T) {
	t.Parallel()
	objects := renderedMonitoring(t)
	rules, _ := alerts(t, objects)
	for _, reason := range plan.Unprotected() {
		shown := slices.ContainsFunc(panels(t, objects), func(p panel) bool { return strings.Contains(p.Targets[0].Expr, reason) })
		if !strings.Contains(string(rules), reason) || !shown {
			t.Errorf("no alert or no panel asks for %s", reason)
		}
	}
}

// Each alert is seen to come, and to go again.
func TestAlertsFireAndResolve(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases struct {
		Tests []struct {
			Checks []struct {
				Alert string `json:"alertname"`
				Want  []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	comes, goes := map[string]bool{}, map[string]bool{}
	for _, test := range cases.Tests {
		here := map[string]bool{} // series do not outlast their test
		for _, check := range test.Checks {
			goes[check.Alert] = goes[check.Alert] || here[check.Alert] && len(check.Want) == 0
			here[check.Alert] = len(check.Want) > 0
			comes[check.Alert] = comes[check.Alert] || len(check.Want) > 0
		}
	}
	_, rules := alerts(t, renderedMonitoring(t))
	for _, r := range rules {
		if !comes[r.Alert] || !goes[r.Alert] {
			t.Errorf("the alert %s: seen to come %t, to go %t", r.Alert, comes[r.Alert], goes[r.Alert])
		}
	}
}
