package controller

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
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
