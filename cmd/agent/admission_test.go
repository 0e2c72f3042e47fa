//go:build linux

package main

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What admission refuses is a renewal that failed, no loss: the process runs on, the log says why, to the end of what was said,
// and the tenure goes on when the API server thinks better of it.
func TestRefusedByAdmission(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder("a", steadyConfig())
	allow := w.refuse("nobody renews here today, says a rule with quite a long name")
	a.await("renew failing", "403", "nobody renews here today, says a rule with quite a long name")
	allow()
	a.await("writing again")
	if lives := w.checkLives(); len(lives) != 1 {
		t.Errorf("%d processes, want 1 that goes on", len(lives))
	}
}

// refuse has the API server refuse all updates of this world's Leases, as soon as it may be, until the function that it
// returns is called.
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
