package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
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

// TestEqualValuesAreOne: what objects of a job have in common is in memory once, and nothing of it is changed by sharing. Values that were not
// seen for long are forgotten.
func TestEqualValuesAreOne(t *testing.T) {
	p := newPool()
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{contract.PodLabel: name},
				OwnerReferences: []metav1.OwnerReference{{Kind: "SingletonJob", Name: "job", UID: "1"}},
			},
			Spec: corev1.PodSpec{
				NodeName: "node-" + name, ServiceAccountName: "job",
				Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", TolerationSeconds: new(int64(300))}},
				Containers:  []corev1.Container{{Name: "app", Command: []string{"run"}, Env: []corev1.EnvVar{{Name: contract.ConfigEnv, Value: "{}"}}}},
			},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodConditionType(strings.Clone("Ready")), Status: corev1.ConditionTrue}}},
		}
	}
	one, two := p.sharePod(pod("0")), p.sharePod(pod("1"))
	for _, is := range []*corev1.Pod{one, two} {
		if diff := cmp.Diff(pod(is.Name), is); diff != "" {
			t.Error(diff)
		}
	}
	for what, pair := range map[string][2]any{
		"owners":      {&one.OwnerReferences[0], &two.OwnerReferences[0]},
		"tolerations": {&one.Spec.Tolerations[0], &two.Spec.Tolerations[0]},
		"containers":  {&one.Spec.Containers[0], &two.Spec.Containers[0]},
		"account":     {unsafe.StringData(one.Spec.ServiceAccountName), unsafe.StringData(two.Spec.ServiceAccountName)},
		"condition":   {unsafe.StringData(string(one.Status.Conditions[0].Type)), unsafe.StringData(string(two.Status.Conditions[0].Type))},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: in memory twice", what)
		}
	}
	child := func(name string) metav1.ObjectMeta {
		return p.shareChild(metav1.ObjectMeta{Name: name, Labels: map[string]string{contract.NameLabel: "job"}})
	}
	account, role := child("account"), child("role")
	if reflect.ValueOf(account.Labels).Pointer() != reflect.ValueOf(role.Labels).Pointer() || account.Labels[contract.NameLabel] != "job" {
		t.Errorf("labels: %v, %v", account.Labels, role.Labels)
	}
}

// TestValuesAreBounded: a value that is used stays, others are forgotten, and a large one is never kept. An empty value stays what it is,
// though nil has the same text.
func TestValuesAreBounded(t *testing.T) {
	v := newValues()
	used := func() *string { return oneOf(v, new("used")) }
	first, once := used(), oneOf(v, new("once"))
	for i := range 3 * mostValues / longestValue {
		oneOf(v, fmt.Sprintf("%0*d", longestValue-len(`""`), i))
		if used() != first {
			t.Fatalf("after %d others: forgotten", i)
		}
	}
	if oneOf(v, new("once")) == once {
		t.Error("kept for ever")
	}
	if n := len(v.young) + len(v.old); n > 2*mostValues/longestValue+2 {
		t.Errorf("%d values of %d bytes", n, longestValue)
	}
	if large := strings.Repeat("x", longestValue); oneOf(v, &large) == oneOf(v, new(strings.Clone(large))) {
		t.Error("a large one is kept")
	}
	if oneOf(v, []string(nil)) != nil || oneOf(v, []string{}) == nil || oneOf(v, map[string]string(nil)) != nil || oneOf(v, map[string]string{}) == nil {
		t.Error("nil and empty are mixed up")
	}
}
