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
	"k8s.io/apimachinery/pkg/types"
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

// children are the objects that are missing or not as they should be: those that no pod can be without, and the others,
// with those that do what they are for but lost an owner or a label.
func (f *facts) children() (needed, also []Child) {
	live := f.Children
	sort := func(want, is Child, exists, fit bool) {
		switch {
		case !exists || !fit || !f.mine(want, is):
			needed = append(needed, want)
		case !kept(want, is):
			also = append(also, want)
		}
	}
	if account := f.serviceAccount(); inject.ServiceAccountName(f.job) == account.Name {
		sort(account, live.ServiceAccount, live.ServiceAccount != nil, true)
	}
	role := f.role()
	sort(role, live.Role, live.Role != nil, live.Role != nil && equality.Semantic.DeepEqual(role.Rules, live.Role.Rules))
	binding := f.roleBinding()
	sort(binding, live.RoleBinding, live.RoleBinding != nil, live.RoleBinding != nil && binding.RoleRef == live.RoleBinding.RoleRef &&
		equality.Semantic.DeepEqual(binding.Subjects, live.RoleBinding.Subjects))
	budget := f.budget()
	if live.Budget == nil || !f.mine(budget, live.Budget) || !kept(budget, live.Budget) || !equality.Semantic.DeepEqual(budget.Spec, live.Budget.Spec) {
		also = append(also, budget)
	}
	return needed, also
}

// mine tells whether a live object is this job's, or was left by an earlier one of its name.
func (f *facts) mine(want, live Child) bool {
	for name, value := range want.GetLabels() {
		if live.GetLabels()[name] != value {
			return false
		}
	}
	return metav1.GetControllerOf(live) == nil || metav1.IsControlledBy(live, f.job)
}

// kept tells whether a live object still has the owners that it was given.
func kept(want, live Child) bool {
	for _, owner := range want.GetOwnerReferences() {
		if !slices.ContainsFunc(live.GetOwnerReferences(), func(has metav1.OwnerReference) bool {
			return has.UID == owner.UID && equality.Semantic.DeepEqual(has.Controller, owner.Controller)
		}) {
			return false
		}
	}
	return true
}

// childMeta gives what stands beside the pods two owners, and the garbage collector deletes it when both are gone: the job,
// and the Lease, which stays until no pod is left and no tenure can last. So what a pod needs to renew outlives the job
// while its pods stop, or live on without it (--cascade=orphan), with no finalizer that waits for an operator. Not the pods
// themselves: a foreground deletion would take their Role before them. And not the Lease alone: who deletes a Lease must
// not take the account with it, or no candidate could ever renew again.
func (f *facts) childMeta() metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Namespace: f.Namespace, Name: ChildName(f.Name), Labels: inject.Selector(f.Name),
		OwnerReferences: []metav1.OwnerReference{OwnerReference(f.job)},
	}
	if f.Lease.Presence == Ours {
		meta.OwnerReferences = append(meta.OwnerReferences, metav1.OwnerReference{
			APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease", Name: f.Name, UID: types.UID(f.record.UID),
		})
	}
	return meta
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

// subjects are whom the candidates run as: those to come, and those that live, whose agents could not renew without, also
// those that an earlier job of the name left behind.
func (f *facts) subjects() []rbacv1.Subject {
	accounts := []string{inject.ServiceAccountName(f.job)}
	for _, pod := range f.Pods {
		if gated(pod) != "" {
			accounts = append(accounts, cmp.Or(pod.Spec.ServiceAccountName, accounts[0]))
		}
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
