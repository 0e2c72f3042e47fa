package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/test/apiserver"
	"github.com/singletonjob/operator/test/controlplane"
)

const crd = "../../config/crd/singletonjob.io_singletonjobs.yaml"

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

var applied struct {
	sync.Once
	err error
}

// server returns a control plane that serves SingletonJobs, a namespace, and a client for them.
func server(t testing.TB) (plane *controlplane.APIServer, namespace string, client *rest.RESTClient) {
	t.Helper()
	plane = apiserver.ForTest(t)
	applied.Do(func() { applied.err = plane.Apply(t.Context(), crd) })
	if applied.err != nil {
		t.Fatal(applied.err)
	}
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(plane.Config())
	config.APIPath, config.GroupVersion = "/apis", &GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace = plane.Namespace(t)
	return plane, namespace, client
}

func create(t testing.TB, client *rest.RESTClient, namespace string, body any) (*SingletonJob, error) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	var job SingletonJob
	err = client.Post().Namespace(namespace).Resource(Resource.Resource).
		Param("fieldValidation", "Strict").Body(raw).Do(t.Context()).Into(&job)
	return &job, err
}

func update(t *testing.T, client *rest.RESTClient, job *SingletonJob, subresources ...string) error {
	t.Helper()
	job.TypeMeta = metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: Kind} // decoding removes it
	raw, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	return client.Put().Namespace(job.Namespace).Resource(Resource.Resource).Name(job.Name).SubResource(subresources...).
		Body(raw).Do(t.Context()).Error()
}

// problemsOf returns the errors in a rejection by the API server.
func problemsOf(t *testing.T, err error) []problem {
	t.Helper()
	var status *apierrors.StatusError
	if err == nil {
		return nil
	}
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		t.Fatalf("no refusal of the API server: %v", err)
	}
	var got []problem
	for _, cause := range status.ErrStatus.Details.Causes {
		got = append(got, problem{field.ErrorType(cause.Type), cause.Field, cause.Message})
	}
	return got
}

// The API server and Validate decide every case of the table in the same way, with the same messages.
func TestServerValidatesLikeValidate(t *testing.T) {
	_, namespace, client := server(t)
	for name, c := range sharedCases(t) {
		t.Run(name, func(t *testing.T) {
			old, job := c.jobs()
			job.Namespace = namespace
			if old == nil {
				job.Name = uniqueName(job.Name)
				created, err := create(t, client, namespace, job)
				compare(t, c.want, problemsOf(t, err))
				if err == nil {
					if errs := Validate(created); len(errs) > 0 {
						t.Errorf("Validate refuses what the API server stored: %v", errs.ToAggregate())
					}
				}
				return
			}
			old.Name = uniqueName(old.Name)
			stored, err := create(t, client, namespace, old)
			if err != nil {
				t.Fatal(err)
			}
			job.Name, job.ResourceVersion = stored.Name, stored.ResourceVersion
			compare(t, c.want, problemsOf(t, update(t, client, job)))
		})
	}
}

var serial int

// uniqueName keeps names that are a test case themselves, and makes "billing" unique.
func uniqueName(name string) string {
	if name != "billing" {
		return name
	}
	serial++
	return name + "-" + strings.Repeat("i", serial%40) + string(rune('a'+serial/40))
}

// compare checks that got contains exactly the wanted problems. The API server puts the value before the detail.
func compare(t *testing.T, want, got []problem) {
	t.Helper()
	for _, w := range want {
		i := slices.IndexFunc(got, func(g problem) bool {
			return g.Type == w.Type && g.Field == w.Field && strings.HasSuffix(g.Detail, w.Detail)
		})
		if i < 0 {
			t.Errorf("the API server does not say\n%+v\nbut\n%+v", w, got)
			return
		}
		got = slices.Delete(slices.Clone(got), i, i+1)
	}
	for _, g := range got {
		if g.Field != "<nil>" { // "some validation rules were not checked because the object was invalid"
			t.Errorf("the API server also says %+v", g)
		}
	}
}

// malformedCases can't be expressed with Go's types: raw JSON is merged into the spec of a valid job.
var malformedCases = map[string]struct {
	spec string
	want []string
}{
	"duration with a space":    {`{"lease":{"leaseDuration":"10 s"}}`, []string{`spec.lease.leaseDuration: Invalid value: "10 s": "10 s" is not accepted: numbers with units, such as 15s, 500ms or 1m30s (h, m, s or ms; no spaces, no sign)`}},
	"negative duration":        {`{"lease":{"lockDelay":"-5s"}}`, []string{`spec.lease.lockDelay: Invalid value: "-5s": "-5s" is not accepted: numbers with units`}},
	"duration without a unit":  {`{"lease":{"renewDeadline":"10"}}`, []string{`spec.lease.renewDeadline: Invalid value: "10": "10" is not accepted: numbers with units`}},
	"duration in days":         {`{"lease":{"retryPeriod":"1d"}}`, []string{`spec.lease.retryPeriod: Invalid value: "1d": "1d" is not accepted: numbers with units`}},
	"empty duration":           {`{"lease":{"retryPeriod":""}}`, []string{`spec.lease.retryPeriod: Invalid value: "": "" is not accepted: numbers with units`}},
	"duration out of range":    {`{"lease":{"leaseDuration":"1000000h"}}`, []string{`spec.lease.leaseDuration: Invalid value: "1000000h": "1000000h" is not accepted: numbers with units`}},
	"duration near the range":  {`{"lease":{"leaseDuration":"99999h"}}`, []string{`spec.lease.leaseDuration: Invalid value: "99999h": 359996400s is not accepted: whole seconds, from 3s to 1h`}},
	"endless duration":         {`{"lease":{"leaseDuration":"` + strings.Repeat("99999h", 11) + `"}}`, []string{`spec.lease.leaseDuration: Too long: may not be more than 64 bytes`}},
	"duration as a number":     {`{"lease":{"leaseDuration":15}}`, []string{`spec.lease.leaseDuration: Invalid value: "integer"`, `must be of type string`}},
	"zero renewDeadline":       {`{"lease":{"renewDeadline":"0s"}}`, []string{`2s is too long for renewDeadline 0s: at most 0s (renewDeadline / 1.5)`}},
	"deadline with a sign":     {`{"runPolicy":"RunToCompletion","schedule":{"cron":"0 0 * * *","startingDeadline":"-5s"}}`, []string{`spec.schedule.startingDeadline: Invalid value: "-5s": "-5s" is not accepted: numbers with units`}},
	"leadTime in days":         {`{"runPolicy":"RunToCompletion","schedule":{"cron":"0 0 * * *","leadTime":"1d"}}`, []string{`spec.schedule.leadTime: Invalid value: "1d": "1d" is not accepted: numbers with units`}},
	"schedule without cron":    {`{"runPolicy":"RunToCompletion","schedule":{}}`, []string{`spec.schedule.cron: Required value`}},
	"seconds of CronJob":       {`{"runPolicy":"RunToCompletion","schedule":{"cron":"0 0 * * *","startingDeadlineSeconds":60}}`, []string{`strict decoding error: unknown field "spec.schedule.startingDeadlineSeconds"`}},
	"no exit codes, no runs":   {`{"failOnExitCodes":[]}`, nil},
	"none ignored, no runs":    {`{"ignoreOnExitCodes":[]}`, nil},
	"duration in other words":  {`{"lease":{"leaseDuration":"0.25m"}}`, nil},
	"port without a name":      {`{"service":{"ports":[{"port":80}]}}`, nil},
	"port of an empty name":    {`{"service":{"ports":[{"name":"","port":80}]}}`, nil},
	"null is unset":            {`{"lease":null,"historyLimit":null,"fencing":{"tokenBase":null}}`, nil},
	"zero candidates":          {`{"candidates":0}`, []string{`spec.candidates: Invalid value: 0: spec.candidates in body should be greater than or equal to 1`}},
	"empty envVar":             {`{"fencing":{"envVar":""}}`, []string{`spec.fencing.envVar: Invalid value: "": "" is not accepted: a C identifier`}},
	"unknown field":            {`{"lease":{"leaseDurationSeconds":15}}`, []string{`strict decoding error: unknown field "spec.lease.leaseDurationSeconds"`}},
	"unknown field in the pod": {`{"template":{"spec":{"hostPid":true}}}`, []string{`strict decoding error: unknown field "spec.template.spec.hostPid"`}},
	"wrong type in the pod":    {`{"template":{"spec":{"terminationGracePeriodSeconds":"30"}}}`, []string{`spec.template.spec.terminationGracePeriodSeconds`, `must be of type integer`}},
	"a capability of null":     {`{"template":{"spec":{"containers":[{"name":"app","image":"x","command":["x"],"securityContext":{"capabilities":{"drop":["KILL",null]}},"lifecycle":{"preStop":{"exec":{}}}}]}}}`, []string{"the agent cannot run: set exactly one of exec.command", "has SETUID without KILL"}},
	"no pod":                   {`{"template":{"spec":null}}`, []string{`spec.template.spec: Required value`}},
	"no template":              {`{"template":null}`, []string{`spec.template: Required value`}},
}

func TestServerRefusesMalformedText(t *testing.T) {
	_, namespace, client := server(t)
	for name, c := range malformedCases {
		t.Run(name, func(t *testing.T) {
			job := asMap(t, validJob())
			merge(job, object(t, `{"metadata":{"name":null,"generateName":"malformed-"},"spec":`+c.spec+`}`))
			_, err := create(t, client, namespace, job)
			if len(c.want) == 0 && err != nil {
				t.Errorf("refused: %v", err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("want %s\ngot %v", want, err)
				}
			}
			if err != nil && strings.Contains(err.Error(), "evaluat") {
				t.Errorf("a rule failed instead of refusing: %v", err)
			}
		})
	}
}

func asMap(t *testing.T, value any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return object(t, string(raw))
}

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func merge(into, change map[string]any) {
	for key, value := range change {
		inner, isMap := into[key].(map[string]any)
		if changed, ok := value.(map[string]any); ok && isMap {
			merge(inner, changed)
			continue
		}
		into[key] = value
	}
}

// The defaults in the CRD and in Default are the same, for a job that sets no field and for one that sets some.
func TestServerDefaultsLikeDefault(t *testing.T) {
	_, namespace, client := server(t)
	for name, spec := range map[string]string{
		"nothing": `{}`,
		"parts":   `{"lease":{"leaseDuration":"30s"},"fencing":{"tokenBase":7}}`,
		"empty":   `{"lease":{},"fencing":{}}`,
		"service": `{"service":{"ports":[{"port":80}]}}`,
		"ticks":   `{"runPolicy":"RunToCompletion","backoffLimit":3,"schedule":{"cron":"30 2 * * *"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			job := object(t, `{"apiVersion":"singletonjob.io/v1alpha1","kind":"SingletonJob","metadata":{"generateName":"defaults-"},
				"spec":{"template":{"spec":{"containers":[{"name":"app","image":"app","command":["/app"]}]}}}}`)
			merge(job, object(t, `{"spec":`+spec+`}`))
			stored, err := create(t, client, namespace, job)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := json.Marshal(job)
			if err != nil {
				t.Fatal(err)
			}
			var want SingletonJob
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			Default(&want)
			if diff := cmp.Diff(want.Spec, stored.Spec); diff != "" {
				t.Errorf("Default and the CRD differ (-Default +CRD):\n%s", diff)
			}
			if got := stored.Status.ObservedGeneration; got != -1 {
				t.Errorf("a new job has observedGeneration %d, so that tools call it current before the operator has seen it", got)
			}
		})
	}
}

// kubectl apply stores the definition in an annotation of limited size.
func TestTheDefinitionFitsClientSideApply(t *testing.T) {
	plane, _, _ := server(t)
	if _, err := plane.Kubectl(t.Context(), "apply", "--dry-run=server", "-f", crd); err != nil {
		t.Error(err)
	}
}

func TestColumns(t *testing.T) {
	plane, namespace, client := server(t)
	job, err := create(t, client, namespace, validJob())
	if err != nil {
		t.Fatal(err)
	}
	since := metav1.NewTime(time.Now().Add(-3 * time.Hour))
	failed := metav1.NewTime(time.Now().Add(-26 * time.Hour))
	job.Status = SingletonJobStatus{
		ActivePod: "billing-x-0", ActiveNode: "node-b", ActiveSince: &since, FencingToken: 48213,
		Candidates: CandidatesStatus{Total: 2, Ready: 2, Updated: 2, Summary: "2/2"},
		Failovers:  3, Handovers: 5, LastFailoverTime: &failed, LeaseSummary: "15s/10s/2s", Selector: "a=b",
		RunSummary:  RunSummary{Completions: "0/1"},
		LastRunTime: &since, NextTick: new(metav1.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
		History: []TenureChange{{Time: metav1.NowMicro(), Type: Failover, Reason: ChangeNodeLost, Downtime: &metav1.Duration{Duration: time.Second}}},
		Conditions: []metav1.Condition{{
			Type: ConditionActive, Status: metav1.ConditionTrue, Reason: ReasonRunning, LastTransitionTime: since,
		}},
	}
	if err := update(t, client, job, "status"); err != nil {
		t.Fatal(err)
	}
	out, err := plane.Kubectl(t.Context(), "get", "sj", "-o", "wide", "-n", namespace)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	got := map[string][]string{}
	for i, line := range lines {
		got[[]string{"header", "row"}[min(i, 1)]] = strings.Fields(line)
	}
	want := map[string][]string{
		"header": {"NAME", "ACTIVE", "TOKEN", "READY", "FAILOVERS", "LAST-FAILOVER", "STATUS", "AGE", "NODE", "SINCE", "LEASE", "HANDOVERS", "COMPLETIONS", "LAST-RUN", "NEXT"},
		"row":    {"billing", "billing-x-0", "48213", "2/2", "3", "26h", "Running", got["row"][7], "node-b", "3h", "15s/10s/2s", "5", "0/1", "3h", "2030-01-02T03:04:05Z"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kubectl get -o wide (-want +got):\n%s", diff)
	}
	scale, err := plane.Kubectl(t.Context(), "get", "--raw",
		"/apis/singletonjob.io/v1alpha1/namespaces/"+namespace+"/singletonjobs/billing/scale")
	if err != nil || !strings.Contains(scale, `"spec":{"replicas":2},"status":{"replicas":2,"selector":"a=b"}`) {
		t.Errorf("scale: %v %s", err, scale)
	}
}

// kubectl scale changes the candidates, within their limits.
func TestScale(t *testing.T) {
	plane, namespace, client := server(t)
	if _, err := create(t, client, namespace, validJob()); err != nil {
		t.Fatal(err)
	}
	if _, err := plane.Kubectl(t.Context(), "scale", "sj/billing", "--replicas=3", "-n", namespace); err != nil {
		t.Error(err)
	}
	if out, err := plane.Kubectl(t.Context(), "get", "sj/billing", "-o", "jsonpath={.spec.candidates}", "-n", namespace); err != nil || out != "3" {
		t.Errorf("%v, %s candidates", err, out)
	}
	for replicas, want := range map[string]string{"0": "greater than or equal to 1", "17": "less than or equal to 16"} {
		if _, err := plane.Kubectl(t.Context(), "scale", "sj/billing", "--replicas="+replicas, "-n", namespace); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", replicas, err)
		}
	}
}

// kubectl explain describes the fields of this API. Those of the pod template are documented with pods.
func TestExplain(t *testing.T) {
	plane, _, _ := server(t)
	// The API server publishes the schema of a new definition with a delay.
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := plane.Kubectl(t.Context(), "explain", "sj")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for path, words := range map[string][]string{
		"sj.spec":                   {"candidates", "one is active", "suspend"},
		"sj.spec.lease":             {"leaseDuration", "default 15s", "3s to 1h", "at least", "200ms", "KeepRunning"},
		"sj.spec.fencing.tokenBase": {"restore etcd from a backup"},
		"sj.spec.schedule":          {"crontab(5)", "Europe/Berlin", "startingDeadline", "168h", "leadTime", "counts as skipped"},
		"sj.status":                 {"activePod", "worstCaseFailover", "history"},
	} {
		out, err := plane.Kubectl(t.Context(), "explain", path)
		if err != nil {
			t.Fatal(err)
		}
		out = strings.Join(strings.Fields(out), " ")
		for _, word := range words {
			if !strings.Contains(out, word) {
				t.Errorf("explain %s does not say %q:\n%s", path, word, out)
			}
		}
		if strings.Contains(out, "<no description>") {
			t.Errorf("explain %s: a field has no description:\n%s", path, out)
		}
	}
}

// The samples are those in the README. They can be applied unchanged, in any namespace.
func TestSamplesApply(t *testing.T) {
	plane, namespace, _ := server(t)
	var samples []string
	for _, pattern := range []string{"*.yaml", "nightly/nightly.yaml", "migration/migration.yaml", "poller/singleton.yaml", "scheduler/scheduler.yaml", "bot/bot.yaml", "outbox/outbox.yaml", "signer/signer.yaml"} {
		found, err := filepath.Glob("../../config/samples/" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no samples %s: %v", pattern, err)
		}
		samples = append(samples, found...)
	}
	for _, file := range samples {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var job SingletonJob
		if err := yaml.UnmarshalStrict(raw, &job); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if errs := Validate(&job); len(errs) > 0 {
			t.Errorf("%s: %v", file, errs.ToAggregate())
		}
		if bytes.Contains(raw, []byte("namespace:")) {
			t.Errorf("%s names a namespace", file)
		}
		if out, err := plane.Kubectl(t.Context(), "apply", "-n", namespace, "-f", file); err != nil {
			t.Errorf("%s: %v %s", file, err, out)
		}
	}
}
