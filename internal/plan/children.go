package plan

import (
	"cmp"
	"slices"
	"strings"

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

// ChildName returns the name of the objects of a job other than its pods and its Lease. It is also the name of the service account that
// package inject sets for pods whose template names none.
func ChildName(job string) string { return job + "-singletonjob" }

// children returns the objects that are missing or differ. The result needed has those without which no pod can work. The result named
// also has the others, including those that work but lost an owner or a label.
func children(j *job, t *tenure, live Children, pods []*corev1.Pod) (needed, also []Child) {
	accounts := accountsOf(j, pods)
	if len(accounts) == 0 {
		return nil, nil // the service account of its pods is unknown, and there are no pods
	}
	meta := childMeta(j, t)
	sort := func(desired, is Child, exists, fit, whole bool) {
		switch {
		case !exists || !fit || !mine(j, desired, is):
			needed = append(needed, desired)
		case !whole || !kept(desired, is):
			also = append(also, desired)
		}
	}
	if account := serviceAccount(meta); hasOwn(j, accounts) {
		sort(account, live.ServiceAccount, live.ServiceAccount != nil, true, true)
	}
	permissions := role(meta, j.leases(), podNames(j, pods))
	locks, whole := grants(j, live.Role, permissions)
	sort(permissions, live.Role, live.Role != nil, locks, whole)
	binding := roleBinding(meta, subjects(j, accounts))
	sort(binding, live.RoleBinding, live.RoleBinding != nil, live.RoleBinding != nil && binding.RoleRef == live.RoleBinding.RoleRef &&
		equality.Semantic.DeepEqual(binding.Subjects, live.RoleBinding.Subjects), true)
	limit := budget(meta, inject.Selector(j.Name))
	if live.Budget == nil || !mine(j, limit, live.Budget) || !kept(limit, live.Budget) || !equality.Semantic.DeepEqual(limit.Spec, live.Budget.Spec) {
		also = append(also, limit)
	}
	return needed, also
}

// mine reports whether a live object belongs to this job, and not to a previous one with the same name.
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

// childMeta gives these objects two owners: the job and the Lease. The garbage collector deletes an object when both owners no longer
// exist. The Lease stays until no pod is left and no tenure can last. So a pod's permission to renew outlives the job while its pods stop,
// or continue without it (--cascade=orphan), and no finalizer has to wait for an operator. The pods are not owners, because a foreground
// deletion would delete their Role before them. The Lease alone is not enough either: deleting the Lease must not delete the account, or no
// candidate could ever renew again.
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
		// The agent has its own token, mounted where the user's process does not look for one.
		AutomountServiceAccountToken: new(false),
	}
}

// spareNames is the number of Pods that a Role names beyond the candidates, so that a rollout writes it once.
const spareNames = 2

// podNames returns the names of the existing Pods with an agent, and those that the next Pods of the current template get. While nothing can
// be started, the next template is unknown.
func podNames(j *job, pods []*corev1.Pod) []string {
	var names []string
	for _, pod := range pods {
		if agents(pod) != nil {
			names = append(names, pod.Name)
		}
	}
	known := j.hash != "" && j.blocked.reason == ""
	for ordinal := 0; known && ordinal < int(j.Spec.Candidates)+spareNames; ordinal++ {
		names = append(names, inject.PodName(j.Name, j.hash, ordinal))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// grants reports whether a live Role gives access to the Leases, without which no Pod works, and whether it has exactly the desired rules. It
// may name more Pods of the job: those have been deleted, and the next change removes their names. The last rule is the one about Pods.
func grants(j *job, live, desired *rbacv1.Role) (locks, whole bool) {
	if live == nil || len(live.Rules) == 0 {
		return false, false
	}
	is, wanted := slices.Clone(live.Rules), desired.Rules
	last := len(is) - 1
	if last > 0 && len(wanted) == len(is) && namesEnough(j, is[last].ResourceNames, wanted[last].ResourceNames) {
		is[last].ResourceNames = wanted[last].ResourceNames
	}
	return equality.Semantic.DeepEqual(is[0], wanted[0]), equality.Semantic.DeepEqual(is, wanted)
}

// namesEnough reports whether names has all wanted ones, and otherwise only names that Pods of the job can have.
func namesEnough(j *job, names, wanted []string) bool {
	lacks := slices.ContainsFunc(wanted, func(name string) bool { return !slices.Contains(names, name) })
	strange := slices.ContainsFunc(names, func(name string) bool {
		return !slices.Contains(wanted, name) && !strings.HasPrefix(name, j.Name+"-")
	})
	return !lacks && !strange
}

// role allows an agent what the protocol needs on exactly the Leases of its job, and to ask whether its Pod is being deleted. RBAC cannot
// limit an agent to its own Pod, because the Pods of a job share an account, or to metadata. A rule without names would grant all Pods.
func role(meta metav1.ObjectMeta, leases, pods []string) *rbacv1.Role {
	rules := []rbacv1.PolicyRule{{
		APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: leases,
		Verbs: []string{"get", "watch", "update"},
	}}
	if len(pods) > 0 {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{corev1.GroupName}, Resources: []string{"pods"}, ResourceNames: pods, Verbs: []string{"get"},
		})
	}
	return &rbacv1.Role{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
		ObjectMeta: meta,
		Rules:      rules,
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

// accountsOf returns the service accounts that the candidates run as: those of future pods, if the template is known, and those of existing
// pods, whose agents could not renew otherwise. It includes those of pods that a previous job with this name left behind.
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

// hasOwn reports whether candidates run as the account that is created for the job: future candidates, or, if their account is unknown, the
// existing ones.
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

// budget lets a drain evict one candidate at a time. Evicting the active pod is a handover to the standby, and the next eviction is allowed
// only when the replacement is ready. So the active pod and the last standby are never evicted together. A candidate that is not ready
// protects nothing, so it never blocks a drain. The only candidate of a job does not block a drain either, because waiting would not help.
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
