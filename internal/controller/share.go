package controller

import (
	"slices"
	"sync"

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

// pool keeps one copy of each string.
type pool struct {
	mu sync.Mutex
	of map[string]string
}

func newPool(known ...string) *pool {
	p := &pool{of: map[string]string{}}
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

// share returns metadata with equal contents, whose keys, and whose values that are the same for all jobs, are shared.
func (p *pool) share(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.Labels, m.Annotations = p.keys(m.Labels), p.keys(m.Annotations)
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
	return m
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
