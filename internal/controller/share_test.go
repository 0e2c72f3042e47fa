package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// TestShare: shared metadata is equal to the decoded, and equal keys are in memory once. A pool that is full changes nothing.
func TestShare(t *testing.T) {
	decoded := func() metav1.ObjectMeta {
		s := strings.Clone
		return metav1.ObjectMeta{
			Name: "job-0", UID: "1", Labels: map[string]string{s(contract.ManagedByLabel): s(contract.ManagedBy), s(contract.NameLabel): "job"},
			Annotations:     map[string]string{s("note"): "of a user"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: s("v1"), Kind: s("ServiceAccount"), Name: "job", UID: "2"}, {Kind: s("Role")}},
		}
	}
	of := func(m metav1.ObjectMeta) map[*byte]bool {
		at := map[*byte]bool{}
		add := func(texts ...string) {
			for _, text := range texts {
				at[unsafe.StringData(text)] = true
			}
		}
		for key := range m.Labels {
			add(key)
		}
		for key := range m.Annotations {
			add(key)
		}
		add(m.Labels[contract.ManagedByLabel])
		for _, owner := range m.OwnerReferences {
			add(owner.APIVersion, owner.Kind)
		}
		return at
	}
	p := newPool()
	one, two := p.share(decoded()), p.share(decoded())
	for _, m := range []metav1.ObjectMeta{one, two} {
		if diff := cmp.Diff(decoded(), m); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff(of(one), of(two)); diff != "" {
		t.Errorf("in memory twice: %s", diff)
	}
	long := strings.Repeat("x", longestWord+1)
	if p.shared(long) != long || p.of[long] != "" {
		t.Error("a long string is kept")
	}
	for i := range 2 * mostWords {
		p.shared(fmt.Sprint(i))
	}
	if diff := cmp.Diff(metav1.ObjectMeta{Labels: map[string]string{"new": "x"}}, p.share(metav1.ObjectMeta{Labels: map[string]string{"new": "x"}})); diff != "" || len(p.of) > mostWords {
		t.Errorf("%d words; %s", len(p.of), diff)
	}
}

// TestEqualValuesAreOne: what objects have in common is in memory once, and nothing of it is changed by sharing.
func TestEqualValuesAreOne(t *testing.T) {
	c := strings.Clone
	job := func() []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: c("SingletonJob"), Name: c("job"), UID: "1"}}
	}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{contract.PodLabel: name}, Annotations: map[string]string{"note": "x"}, OwnerReferences: job(),
			},
			Spec: corev1.PodSpec{
				NodeName: c("node"), ServiceAccountName: c("job"), NodeSelector: map[string]string{"disk": "ssd"},
				Affinity:       &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
				Tolerations:    []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", TolerationSeconds: new(int64(300))}},
				InitContainers: []corev1.Container{{Name: c("first"), Command: []string{"sh"}}},
				Containers: []corev1.Container{{
					Name: c("app"), Command: []string{"run"}, Env: []corev1.EnvVar{{Name: contract.ConfigEnv, Value: name}},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
				}},
			},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodConditionType(c("Ready")), Reason: c("Because"), Status: corev1.ConditionTrue}}},
		}
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Labels: map[string]string{contract.NameLabel: "job"}, OwnerReferences: job()}
	}
	objects := func() []any {
		return []any{
			pod("0"), pod("1"), &corev1.ServiceAccount{ObjectMeta: meta("a")}, &policyv1.PodDisruptionBudget{
				ObjectMeta: meta("b"), Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{contract.NameLabel: "job"}}},
			},
			&rbacv1.Role{ObjectMeta: meta("c"), Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, Resources: []string{"leases"}, APIGroups: []string{"x"}, ResourceNames: []string{"job"}}}},
			&rbacv1.Role{ObjectMeta: meta("d"), Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, Resources: []string{"leases"}, APIGroups: []string{"x"}, ResourceNames: []string{"other"}}}},
			&rbacv1.RoleBinding{ObjectMeta: meta("e"), Subjects: []rbacv1.Subject{{Name: "job"}}},
			&rbacv1.RoleBinding{ObjectMeta: meta("f"), Subjects: []rbacv1.Subject{{Name: "job"}}},
		}
	}
	var is []any
	for i, object := range objects() {
		transform := leanChild
		if i < 2 {
			transform = leanPod
		}
		lean, err := transform(object)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(objects()[i], lean); diff != "" {
			t.Error(diff)
		}
		is = append(is, lean)
	}
	first, second := is[0].(*corev1.Pod), is[1].(*corev1.Pod)
	account, limit := is[2].(*corev1.ServiceAccount), is[3].(*policyv1.PodDisruptionBudget)
	role, other := is[4].(*rbacv1.Role), is[5].(*rbacv1.Role)
	binding, another := is[6].(*rbacv1.RoleBinding), is[7].(*rbacv1.RoleBinding)
	text := func(s string) any { return unsafe.StringData(s) }
	labels := func(of map[string]string) any { return reflect.ValueOf(of).Pointer() }
	for what, pair := range map[string][2]any{
		"owners of Pods":     {&first.OwnerReferences[0], &second.OwnerReferences[0]},
		"owners":             {&first.OwnerReferences[0], &role.OwnerReferences[0]},
		"annotations":        {labels(first.Annotations), labels(second.Annotations)},
		"node":               {text(first.Spec.NodeName), text(second.Spec.NodeName)},
		"account":            {text(first.Spec.ServiceAccountName), text(second.Spec.ServiceAccountName)},
		"node selector":      {labels(first.Spec.NodeSelector), labels(second.Spec.NodeSelector)},
		"affinity":           {first.Spec.Affinity, second.Spec.Affinity},
		"tolerations":        {&first.Spec.Tolerations[0], &second.Spec.Tolerations[0]},
		"name":               {text(first.Spec.InitContainers[0].Name), text(second.Spec.InitContainers[0].Name)},
		"command":            {&first.Spec.Containers[0].Command[0], &second.Spec.Containers[0].Command[0]},
		"requests":           {reflect.ValueOf(first.Spec.Containers[0].Resources.Requests).Pointer(), reflect.ValueOf(second.Spec.Containers[0].Resources.Requests).Pointer()},
		"type of condition":  {text(string(first.Status.Conditions[0].Type)), text(string(second.Status.Conditions[0].Type))},
		"reason":             {text(first.Status.Conditions[0].Reason), text(second.Status.Conditions[0].Reason)},
		"labels":             {labels(account.Labels), labels(role.Labels)},
		"labels of a budget": {labels(account.Labels), labels(limit.Spec.Selector.MatchLabels)},
		"verbs":              {&role.Rules[0].Verbs[0], &other.Rules[0].Verbs[0]},
		"resources":          {&role.Rules[0].Resources[0], &other.Rules[0].Resources[0]},
		"groups":             {&role.Rules[0].APIGroups[0], &other.Rules[0].APIGroups[0]},
		"subjects":           {&binding.Subjects[0], &another.Subjects[0]},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: in memory twice", what)
		}
	}
}

// TestValuesAreBounded: a value that is used stays, others are forgotten, and a large one is never kept. A value with the text of another
// stays what it is.
func TestValuesAreBounded(t *testing.T) {
	v := newValues()
	used := func() *string { return oneOf(v, new("used")) }
	first, once := used(), oneOf(v, new("once"))
	most := 2 * mostValues / sizeOf(make([]byte, longestValue))
	for i := range 2 * most {
		oneOf(v, fmt.Sprintf("%0*d", longestValue-len(`""`), i))
		if used() != first {
			t.Fatalf("after %d others: forgotten", i)
		}
	}
	if oneOf(v, new("once")) == once {
		t.Error("kept for ever")
	}
	if n := len(v.young) + len(v.old); n > most+2 {
		t.Errorf("%d values of %d bytes", n, longestValue)
	}
	large := strings.Repeat("x", longestValue)
	if one := oneOf(v, new(large)); oneOf(v, new(large)) == one {
		t.Error("a large one is kept")
	}
	oneOf(v, []corev1.Container{{Name: "a"}})
	if is := oneOf(v, []corev1.Container{{Name: "a", Command: []string{}}}); is[0].Command == nil {
		t.Error("nil and empty are mixed up")
	}
}
