package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plan"
)

// TestAJobIsRecreated: the job is recreated before the garbage collector, which does not run here, has deleted its predecessor's
// objects.
func TestAJobIsRecreated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.job(nil)
	w.until("serving", w.serving)
	w.must(w.api.Delete(t.Context(), w.read()))
	w.job(nil)
	account := "ServiceAccount " + w.key.Namespace + "/" + plan.ChildName(w.key.Name)
	for _, about := range []string{v1alpha1.ConditionActive, v1alpha1.ConditionProgressing} {
		w.until(about+" says what is waited for", func() bool {
			c := condition(w.status(), about)
			return strings.Contains(c.Message, "garbage collector") && strings.Contains(c.Message, account)
		})
	}
	writes := w.operators[0].writes
	for range 5 {
		w.round()
	}
	if now := w.operators[0].writes; now != writes {
		t.Errorf("%d writes while there is nothing to do but wait", now-writes)
	}

	for _, kind := range []client.Object{&corev1.Pod{}, &rbacv1.RoleBinding{}, &rbacv1.Role{}, &corev1.ServiceAccount{}} {
		w.must(w.api.DeleteAllOf(t.Context(), kind, client.InNamespace(w.key.Namespace)))
	}
	w.until("serving again", w.serving)
}

// TestAJobFromAnotherCluster: this store has never had the job, and its revision is lower than the tokens that sinks have seen. Tokens begin
// above them because of the token base in the manifest, or of a status that was stored with the job. Nothing else can know.
func TestAJobFromAnotherCluster(t *testing.T) {
	t.Parallel()
	const seen = 1 << 40
	for name, c := range map[string]struct {
		base, told int64
		above      bool
	}{
		"by its base":   {base: seen, above: true},
		"by its status": {told: seen, above: true},
		"by nothing":    {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.job(func(spec *v1alpha1.SingletonJobSpec) { spec.Fencing.TokenBase = c.base })
			job := w.read()
			job.Status.FencingToken = c.told
			w.must(w.api.Status().Update(t.Context(), job))
			w.until("serving", w.serving)
			if got := w.status().FencingToken; (got > seen) != c.above {
				t.Errorf("the first token here is %d, and sinks have seen %d", got, int64(seen))
			}
		})
	}
}
