package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

// TestStatusWaits: a status waits for more changes, from the first of them on. What would not be seen again does not wait, and neither does
// the report of an error.
func TestStatusWaits(t *testing.T) {
	r := New(nil, nil, nil, inject.Settings{})
	key, start := types.NamespacedName{Namespace: "ns", Name: "job"}, time.Unix(1_000_000, 0)
	o := &observation{Observed: plan.Observed{Job: &v1alpha1.SingletonJob{}}}
	for _, c := range []struct {
		at   time.Duration
		what string
		plan plan.Plan
		done outcome
		want time.Duration
	}{
		{0, "a change", plan.Plan{Status: &v1alpha1.SingletonJobStatus{}}, outcome{}, statusDelay},
		{200 * time.Millisecond, "another", plan.Plan{Status: &v1alpha1.SingletonJobStatus{}}, outcome{}, statusDelay - 200*time.Millisecond},
		{200 * time.Millisecond, "one that is not seen again", plan.Plan{Status: &v1alpha1.SingletonJobStatus{}, Prompt: true}, outcome{}, 0},
		{200 * time.Millisecond, "an error", plan.Plan{Status: &v1alpha1.SingletonJobStatus{}}, outcome{errs: []error{errStale}}, 0},
		{statusDelay, "the first is due", plan.Plan{Status: &v1alpha1.SingletonJobStatus{}}, outcome{}, 0},
		{time.Second, "long ago", plan.Plan{Status: &v1alpha1.SingletonJobStatus{}}, outcome{}, 0},
		{time.Second, "none", plan.Plan{}, outcome{}, 0},
		{2 * time.Second, "the next", plan.Plan{Status: &v1alpha1.SingletonJobStatus{}}, outcome{}, statusDelay},
	} {
		o.Now = start.Add(c.at)
		if got := r.waits(key, o, &c.plan, &c.done); got != c.want {
			t.Errorf("%s at %v: it waits for %v, want %v", c.what, c.at, got, c.want)
		}
	}
}
