package controller

import (
	"encoding/json"
	"hash/maphash"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// words are the strings that the metadata of most cached objects have in common. A decoder makes a copy of them for each object. It begins
// with the operator's own, so that those of users do not take their place.
var words = newPool(
	contract.ManagedByLabel, contract.ManagedBy, contract.NameLabel, contract.PodLabel, contract.TemplateHashLabel, contract.RoleLabel,
	contract.RoleActive, contract.RoleStandby, v1alpha1.GroupVersion.String(), v1alpha1.Kind,
)

// mostWords and longestWord bound the pool, because users choose keys of labels, and kinds of owners. Other strings are not shared. The
// longest key is a DNS subdomain, a slash and a label.
const (
	mostWords   = 1024
	longestWord = 253 + 1 + 63
)

// pool keeps one copy of each string, and of values that are made of several.
type pool struct {
	mu     sync.Mutex
	of     map[string]string
	values *values
}

func newPool(known ...string) *pool {
	p := &pool{of: map[string]string{}, values: newValues()}
	for _, s := range known {
		p.of[s] = s
	}
	return p
}

func (p *pool) shared(s string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	is, known := p.of[s]
	switch {
	case known:
		return is
	case len(p.of) < mostWords && len(s) <= longestWord:
		p.of[s] = s
	}
	return s
}

// share returns metadata with equal contents. Its keys, and its values that are the same for all jobs, are shared. Owners that several
// objects have are shared, too.
func (p *pool) share(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.Annotations = p.keys(m.Annotations)
	m.Labels = p.keys(m.Labels)
	for _, key := range []string{contract.ManagedByLabel, contract.RoleLabel} {
		if value, has := m.Labels[key]; has {
			m.Labels[key] = p.shared(value)
		}
	}
	m.OwnerReferences = slices.Clone(m.OwnerReferences)
	for i := range m.OwnerReferences {
		owner := &m.OwnerReferences[i]
		owner.APIVersion, owner.Kind = p.shared(owner.APIVersion), p.shared(owner.Kind)
	}
	m.Annotations, m.OwnerReferences = oneOf(p.values, m.Annotations), oneOf(p.values, m.OwnerReferences)
	return m
}

// shareAll also shares the labels, which all children of a job have in common. It is not for Pods: no two have the same labels.
func (p *pool) shareAll(m metav1.ObjectMeta) metav1.ObjectMeta {
	m = p.share(m)
	m.Labels = oneOf(p.values, m.Labels)
	return m
}

// shareRules: only the names differ between the Roles of two jobs.
func (p *pool) shareRules(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for i := range rules {
		r := &rules[i]
		r.Verbs, r.APIGroups, r.Resources = oneOf(p.values, r.Verbs), oneOf(p.values, r.APIGroups), oneOf(p.values, r.Resources)
	}
	return rules
}

// shareBudget: a budget selects its Pods by the labels that it has.
func (p *pool) shareBudget(spec policyv1.PodDisruptionBudgetSpec) policyv1.PodDisruptionBudgetSpec {
	if spec.Selector != nil {
		spec.Selector = &metav1.LabelSelector{MatchLabels: oneOf(p.values, p.keys(spec.Selector.MatchLabels)), MatchExpressions: spec.Selector.MatchExpressions}
	}
	spec.MaxUnavailable, spec.UnhealthyPodEvictionPolicy = oneOf(p.values, spec.MaxUnavailable), oneOf(p.values, spec.UnhealthyPodEvictionPolicy)
	return spec
}

// sharePod shares what the Pods of a job have in common, in a Pod that belongs to the caller. The configurations of their agents differ.
func (p *pool) sharePod(pod *corev1.Pod) *corev1.Pod {
	v := p.values
	pod.ObjectMeta = p.share(pod.ObjectMeta)
	spec, status := &pod.Spec, &pod.Status
	spec.NodeName, spec.ServiceAccountName = oneOf(v, spec.NodeName), oneOf(v, spec.ServiceAccountName)
	spec.NodeSelector, spec.Tolerations, spec.Affinity = oneOf(v, spec.NodeSelector), oneOf(v, spec.Tolerations), oneOf(v, spec.Affinity)
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Name, c.Command = oneOf(v, c.Name), oneOf(v, c.Command)
			c.Resources.Requests, c.Resources.Limits = oneOf(v, c.Resources.Requests), oneOf(v, c.Resources.Limits)
		}
	}
	status.Conditions = slices.Clone(status.Conditions)
	for i := range status.Conditions {
		c := &status.Conditions[i]
		c.Type, c.Reason = oneOf(v, c.Type), oneOf(v, c.Reason)
	}
	return pod
}

func (p *pool) keys(of map[string]string) map[string]string {
	if of == nil {
		return nil
	}
	all := make(map[string]string, len(of))
	for key, value := range of {
		all[p.shared(key)] = value
	}
	return all
}

// longestValue is the largest size of a shared value, in bytes of JSON. mostValues is the size of a generation of values, in bytes of memory.
// They bound the memory for values that no object has any more: users choose labels and selectors.
const (
	longestValue = 2 << 10
	mostValues   = 16 << 20
)

// sizeOf estimates the memory of a value from its JSON. A map or a struct is larger than its text.
func sizeOf(text []byte) int { return 256 + 4*len(text) }

// values keeps one copy of equal values, of those that were seen lately: in the last two generations. They must not be changed.
type values struct {
	mu         sync.Mutex
	seed       maphash.Seed
	size       int // of the young generation
	young, old map[uint64]any
}

func newValues() *values { return &values{seed: maphash.MakeSeed(), young: map[uint64]any{}} }

// oneOf returns an equal value that was seen before, or this one.
func oneOf[T any](v *values, value T) T {
	if m, isMap := any(value).(map[string]string); isMap && len(m)*len(`"":"",`) > longestValue { // to marshal all of it could take long
		return value
	}
	text, err := json.Marshal(value)
	if err != nil || len(text) > longestValue {
		return value
	}
	sum := maphash.Bytes(v.seed, text)
	v.mu.Lock()
	defer v.mu.Unlock()
	is, young := v.young[sum]
	if !young {
		is = v.old[sum]
	}
	// Two values can have the same sum. A nil and an empty field can have the same text.
	if known, alike := is.(T); alike && reflect.DeepEqual(known, value) {
		value = known
	}
	if young {
		return value
	}
	if v.size += sizeOf(text); v.size > mostValues {
		v.size, v.young, v.old = sizeOf(text), map[uint64]any{}, v.young
	}
	v.young[sum] = value
	return value
}
