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
