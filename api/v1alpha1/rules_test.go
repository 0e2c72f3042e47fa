package v1alpha1

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/test/tier"
)

// celRules evaluates the CRD's rules with the API server's evaluator, without an API server. Compiling takes seconds, so it is done once
// for all tests.
func celRules(t *testing.T) (*cel.Validator, *schema.Structural) {
	t.Helper()
	compiled, err := compileRules()
	if err != nil {
		t.Fatal(err)
	}
	return compiled.validator, compiled.structural
}

type compiledRules struct {
	validator  *cel.Validator
	structural *schema.Structural
}

var compileRules = sync.OnceValues(func() (compiledRules, error) {
	raw, err := os.ReadFile("../../config/crd/singletonjob.io_singletonjobs.yaml")
	if err != nil {
		return compiledRules{}, err
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &definition); err != nil {
		return compiledRules{}, err
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		definition.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		return compiledRules{}, err
	}
	structural, err := schema.NewStructural(&props)
	if err != nil {
		return compiledRules{}, err
	}
	return compiledRules{cel.NewValidator(structural, true, celconfig.PerCallLimit), structural}, nil
})

// The table holds the known cases. Here both sides check the same random lease settings, many of them at the limit of a rule. The rules of
// the rest of the job take most of the time, so they check only every tenth setting.
func TestRulesAgreeOnRandomLeases(t *testing.T) {
	ofAll := judgeOf(celRules(t))
	_, structural := celRules(t)
	leases := structural.Properties["spec"].Properties["lease"]
	rules := cel.NewValidator(&leases, false, celconfig.PerCallLimit)
	ofLeases := func(sent map[string]any) field.ErrorList {
		lease := sent["spec"].(map[string]any)["lease"]
		errs, _ := rules.Validate(context.Background(), field.NewPath("spec", "lease"), &leases, lease, nil, celconfig.RuntimeCELCostBudget)
		return errs
	}
	seed := tier.Seed(t, 1)
	random := rand.New(rand.NewPCG(seed, 0))
	// Never zero, which in Go means unset.
	around := func(d time.Duration) time.Duration {
		return max(1, d+time.Duration(random.IntN(3)-1)*[]time.Duration{time.Nanosecond, time.Millisecond, 100 * ms, time.Second}[random.IntN(4)])
	}
	accepted := 0
	const cases = 1000
	for i := range cases {
		job := validJob()
		Default(job)
		l := &job.Spec.Lease
		l.LeaseDuration.Duration = around(time.Duration(2+random.IntN([]int{5, 20, 3600}[random.IntN(3)])) * time.Second)
		l.RenewDeadline.Duration = around(max(0, MaxRenewDeadline(l.LeaseDuration.Duration)).Round(ms) / time.Duration(1+random.IntN(3)))
		l.RetryPeriod.Duration = around((l.RenewDeadline.Duration * 2 / 3).Round(ms) / time.Duration(1+random.IntN(4)))
		l.LockDelay.Duration = []time.Duration{0, 0, 1, time.Hour, time.Hour + 1}[random.IntN(5)]
		l.OnRenewFailure = []OnRenewFailure{OnRenewFailureStop, OnRenewFailureKeepRunning}[random.IntN(2)]

		judge := ofLeases
		if i%10 == 0 {
			judge = ofAll
		}
		inCRD, inGo := decide(t, judge, job)
		if !slices.Equal(inCRD, inGo) {
			t.Fatalf("seed %d: %+v\nCRD: %q\nGo:  %q", seed, *l, inCRD, inGo)
		}
		if len(inGo) == 0 {
			accepted++
		}
	}
	if accepted < cases/50 || accepted > cases*49/50 {
		t.Errorf("seed %d: %d of %d cases were accepted; the test tells too little", seed, accepted, cases)
	}
}

// decide returns the results of the CRD's rules and of Validate for a job.
func decide(t *testing.T, judge func(sent map[string]any) field.ErrorList, job *SingletonJob) (inCRD, inGo []string) {
	t.Helper()
	for _, err := range judge(lexical(t, job)) {
		inCRD = append(inCRD, err.Field+" "+strings.TrimPrefix(err.Detail, err.Field+" in body "))
	}
	for _, err := range Validate(job) {
		inGo = append(inGo, err.Field+" "+err.Detail)
	}
	slices.Sort(inCRD)
	slices.Sort(inGo)
	return inCRD, inGo
}

// judgeOf returns the results of a schema's rules for what was sent.
func judgeOf(validator *cel.Validator, structural *schema.Structural) func(sent map[string]any) field.ErrorList {
	return func(sent map[string]any) field.ErrorList {
		errs, _ := validator.Validate(context.Background(), nil, structural, sent, nil, celconfig.RuntimeCELCostBudget)
		return errs
	}
}

// Both sides accept the eight stop signals that an agent handles, and no others.
func TestRulesAgreeOnStopSignals(t *testing.T) {
	judge := judgeOf(celRules(t))
	heard := []string{"SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGRTMIN+3"}
	for _, name := range append(heard, "SIGKILL", "SIGSTOP", "SIGURG", "SIGRTMIN", "SIGRTMIN+4", "SIGRTMAX", "SIGTERM ", "TERM", "15", "") {
		job := validJob()
		Default(job)
		job.Spec.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.Signal(name))}
		inCRD, inGo := decide(t, judge, job)
		if accepted := len(inGo) == 0; !slices.Equal(inCRD, inGo) || accepted != slices.Contains(heard, name) {
			t.Errorf("%q\nCRD: %q\nGo:  %q", name, inCRD, inGo)
		}
	}
}

// lexical returns the job as it is sent, with every value written out. JSON omits typed zeros, which the API server would replace with the
// default.
func lexical(t testing.TB, job *SingletonJob) map[string]any {
	t.Helper()
	raw, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       map[string]any `json:"spec"`
	}
	if err := utiljson.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	l := job.Spec.Lease
	out.Spec["lease"] = map[string]any{
		"leaseDuration": l.LeaseDuration.Duration.String(), "renewDeadline": l.RenewDeadline.Duration.String(),
		"retryPeriod": l.RetryPeriod.Duration.String(), "lockDelay": l.LockDelay.Duration.String(),
		"onRenewFailure": string(l.OnRenewFailure),
	}
	out.Spec["fencing"] = map[string]any{"envVar": job.Spec.Fencing.EnvVar, "tokenBase": job.Spec.Fencing.TokenBase}
	return map[string]any{"apiVersion": out.APIVersion, "kind": out.Kind, "metadata": out.Metadata, "spec": out.Spec}
}
