package plan

import (
	"cmp"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// Children are the objects that stand beside the pods; nil for one that is missing.
type Children struct {
	ServiceAccount *corev1.ServiceAccount
	Role           *rbacv1.Role
	RoleBinding    *rbacv1.RoleBinding
	Budget         *policyv1.PodDisruptionBudget
}

// ChildName is the name of the objects made for a job, other than its pods and its Lease. It is that of the service
// account that package inject gives to pods whose template names none.
func ChildName(job string) string { return job + "-singletonjob" }

// children are the objects that are missing or not as they should be.
func (f *facts) children() []Child {
	var apply []Child
	live := f.Children
	if account := f.serviceAccount(); inject.ServiceAccountName(f.job) == account.Name &&
		(live.ServiceAccount == nil || !f.kept(account, live.ServiceAccount)) {
		apply = append(apply, account)
	}
	if role := f.role(); live.Role == nil || !f.kept(role, live.Role) ||
		!equality.Semantic.DeepEqual(role.Rules, live.Role.Rules) {
		apply = append(apply, role)
	}
	if binding := f.roleBinding(); live.RoleBinding == nil || !f.kept(binding, live.RoleBinding) ||
		!equality.Semantic.DeepEqual(binding.Subjects, live.RoleBinding.Subjects) {
		apply = append(apply, binding)
	}
	if budget := f.budget(); live.Budget == nil || !f.kept(budget, live.Budget) ||
		!equality.Semantic.DeepEqual(budget.Spec, live.Budget.Spec) {
		apply = append(apply, budget)
	}
	return apply
}

// kept tells whether a live object still has the owner and labels that it was given.
func (f *facts) kept(want, live Child) bool {
	for name, value := range want.GetLabels() {
		if live.GetLabels()[name] != value {
			return false
		}
	}
	return metav1.IsControlledBy(live, f.job)
}

func (f *facts) childMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: f.Namespace, Name: ChildName(f.Name), Labels: inject.Selector(f.Name),
		OwnerReferences: []metav1.OwnerReference{OwnerReference(f.job)},
	}
}

// OwnerReference makes a job the controller of what carries it.
func OwnerReference(job *v1alpha1.SingletonJob) metav1.OwnerReference {
	return *metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
}

func (f *facts) serviceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: f.childMeta(),
		// The agent has a token of its own, mounted where the user's process does not look for one.
		AutomountServiceAccountToken: new(false),
	}
}

// role lets an agent do what the protocol needs on exactly this one Lease, and nothing else anywhere.
func (f *facts) role() *rbacv1.Role {
	return &rbacv1.Role{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
		ObjectMeta: f.childMeta(),
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{f.Name},
			Verbs: []string{"get", "watch", "update"},
		}},
	}
}

func (f *facts) roleBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: f.childMeta(),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: ChildName(f.Name)},
		Subjects:   f.subjects(),
	}
}

// subjects are whom the candidates run as: those to come, and those that live, whose agents could not renew without.
func (f *facts) subjects() []rbacv1.Subject {
	accounts := []string{inject.ServiceAccountName(f.job)}
	for _, c := range f.candidates {
		accounts = append(accounts, cmp.Or(c.pod.Spec.ServiceAccountName, accounts[0]))
	}
	slices.Sort(accounts)
	var subjects []rbacv1.Subject
	for _, account := range slices.Compact(accounts) {
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: f.Namespace})
	}
	return subjects
}

// budget lets a drain take one candidate at a time. Taking the active one is a handover to the standby, and the next may
// go only when its replacement is ready, so the active one and the last standby never go together. A candidate that is
// not ready protects nothing and never holds up a drain, and neither does the only candidate of a job: there is
// nothing that waiting would bring.
func (f *facts) budget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: f.childMeta(),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             new(intstr.FromInt32(1)),
			Selector:                   &metav1.LabelSelector{MatchLabels: inject.Selector(f.Name)},
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}
