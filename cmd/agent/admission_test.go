//go:build linux

package main

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A renewal that admission refuses is a failed renewal, not a loss. The process runs on, the log gives the full reason, and the tenure
// continues when the API server accepts renewals again.
func TestRefusedByAdmission(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder("a", steadyConfig())
	allow := w.refuse("nobody renews here today, says a rule with quite a long name")
	a.await("renew failing", "403", "nobody renews here today, says a rule with quite a long name")
	allow()
	a.await("writing again")
	if lives := w.checkLives(); len(lives) != 1 {
		t.Errorf("%d processes, want 1 that continues", len(lives))
	}
}

// refuse makes the API server refuse all updates of this world's Leases, from as soon as possible until the returned function is called.
func (w *world) refuse(why string) (allow func()) {
	w.t.Helper()
	api := w.client.AdmissionregistrationV1()
	name := w.ns + "-with-a-name-as-long-as-a-release-of-the-chart-may-make-it"
	_, err := api.ValidatingAdmissionPolicies().Create(w.t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.ns}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"}},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "false", Message: why, Reason: new(metav1.StatusReasonForbidden)}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	_, err = api.ValidatingAdmissionPolicyBindings().Create(w.t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	w.must(err)
	return func() {
		w.t.Helper()
		w.must(api.ValidatingAdmissionPolicyBindings().Delete(w.t.Context(), name, metav1.DeleteOptions{}))
		w.must(api.ValidatingAdmissionPolicies().Delete(w.t.Context(), name, metav1.DeleteOptions{}))
	}
}
