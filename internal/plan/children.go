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

	"github.com/singletonjob/operator/internal/inject"
)

// ChildName is the name of the objects made for a job, other than its pods and its Lease. It is that of the service
// account that package inject gives to pods whose template names none.
func ChildName(job string) string { return job + "-singletonjob" }

// children are the objects that are missing or not as they should be: those that no pod can be without, and the others,
// with those that do what they are for but lost an owner or a label.
func children(j *job, t *tenure, live Children, pods []*corev1.Pod) (needed, also []Child) {
	accounts := accountsOf(j, pods)
	if len(accounts) == 0 {
		return nil, nil // it is not known what its pods run as, and there are none
	}
	meta := childMeta(j, t)
	sort := func(desired, is Child, exists, fit bool) {
		switch {
		case !exists || !fit || !mine(j, desired, is):
			needed = append(needed, desired)
		case !kept(desired, is):
			also = append(also, desired)
		}
	}
	if account := serviceAccount(meta); hasOwn(j, accounts) {
		sort(account, live.ServiceAccount, live.ServiceAccount != nil, true)
	}
	permissions := role(meta, j.leases())
	sort(permissions, live.Role, live.Role != nil, live.Role != nil && equality.Semantic.DeepEqual(permissions.Rules, live.Role.Rules))
	binding := roleBinding(meta, subjects(j, accounts))
	sort(binding, live.RoleBinding, live.RoleBinding != nil, live.RoleBinding != nil && binding.RoleRef == live.RoleBinding.RoleRef &&
		equality.Semantic.DeepEqual(binding.Subjects, live.RoleBinding.Subjects))
	limit := budget(meta, inject.Selector(j.Name))
	if live.Budget == nil || !mine(j, limit, live.Budget) || !kept(limit, live.Budget) || !equality.Semantic.DeepEqual(limit.Spec, live.Budget.Spec) {
		also = append(also, limit)
	}
	return needed, also
}

// mine reports whether a live object is this job's, or was left by a previous one of its name.
func mine(j *job, desired, live Child) bool {
	for name, value := range desired.GetLabels() {
		if live.GetLabels()[name] != value {
			return false
		}
	}
	return metav1.GetControllerOf(live) == nil || metav1.IsControlledBy(live, j)
}

// kept reports whether a live object still has the owners that it was given.
func kept(desired, live Child) bool {
	for _, owner := range desired.GetOwnerReferences() {
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
func childMeta(j *job, t *tenure) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Namespace: j.Namespace, Name: ChildName(j.Name), Labels: inject.Selector(j.Name),
		OwnerReferences: []metav1.OwnerReference{OwnerReference(j.SingletonJob)},
	}
	if t.Presence == Ours {
		meta.OwnerReferences = append(meta.OwnerReferences, metav1.OwnerReference{
			APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease", Name: t.name, UID: types.UID(t.Record.UID),
		})
	}
	return meta
}

func serviceAccount(meta metav1.ObjectMeta) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: meta,
		// The agent has a token of its own, mounted where the user's process does not look for one.
		AutomountServiceAccountToken: new(false),
	}
}

// role lets an agent do what the protocol needs on exactly the Leases of its job, and nothing else anywhere.
func role(meta metav1.ObjectMeta, leases []string) *rbacv1.Role {
	return &rbacv1.Role{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
		ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: leases,
			Verbs: []string{"get", "watch", "update"},
		}},
	}
}

func roleBinding(meta metav1.ObjectMeta, subjects []rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   subjects,
	}
}

// accountsOf are the accounts that the candidates run as: those to come, as far as the template is known, and those that live, whose
// agents could not renew without, also those that a previous job of the name left behind.
func accountsOf(j *job, pods []*corev1.Pod) []string {
	var accounts []string
	toCome := inject.ServiceAccountName(j.SingletonJob)
	if j.HasTemplate() {
		accounts = append(accounts, toCome)
	}
	for _, pod := range pods {
		if agents(pod) != nil {
			accounts = append(accounts, cmp.Or(pod.Spec.ServiceAccountName, toCome))
		}
	}
	slices.Sort(accounts)
	return slices.Compact(accounts)
}

// hasOwn reports whether candidates run as the account that is made for the job: those to come, or where that is not known, those
// that live.
func hasOwn(j *job, accounts []string) bool {
	own := ChildName(j.Name)
	if j.HasTemplate() {
		return inject.ServiceAccountName(j.SingletonJob) == own
	}
	return slices.Contains(accounts, own)
}

func subjects(j *job, accounts []string) []rbacv1.Subject {
	var subjects []rbacv1.Subject
	for _, account := range accounts {
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: j.Namespace})
	}
	return subjects
}

// budget lets a drain take one candidate at a time. Taking the active one is a handover to the standby, and the next may
// go only when its replacement is ready, so the active one and the last standby never go together. A candidate that is
// not ready protects nothing and never holds up a drain, and neither does the only candidate of a job: there is
// nothing that waiting would bring.
func budget(meta metav1.ObjectMeta, selector map[string]string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: meta,
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             new(intstr.FromInt32(1)),
			Selector:                   &metav1.LabelSelector{MatchLabels: selector},
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}
