package controller

import (
	"context"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// laggingCache answers like informers that lag, each kind separately: with a past state, and never with an older one than before.
// Like the operator's cache, it holds only objects with its label.
type laggingCache struct {
	w     *world
	rand  *rand.Rand
	kinds map[string]client.ObjectList
}

func newLaggingCache(w *world, r *rand.Rand) *laggingCache {
	return &laggingCache{w: w, rand: r, kinds: map[string]client.ObjectList{}}
}

// lag lets some kinds catch up.
func (c *laggingCache) lag() {
	c.w.t.Helper()
	ours := client.MatchingLabels{contract.ManagedByLabel: contract.ManagedBy}
	in := client.InNamespace(c.w.key.Namespace)
	for _, kind := range []struct {
		list    client.ObjectList
		options []client.ListOption
	}{
		{&v1alpha1.SingletonJobList{}, []client.ListOption{in}},
		{&corev1.PodList{}, []client.ListOption{in, ours}},
		{&coordinationv1.LeaseList{}, []client.ListOption{in, ours}},
		{&corev1.ServiceAccountList{}, []client.ListOption{in, ours}},
		{&rbacv1.RoleList{}, []client.ListOption{in, ours}},
		{&rbacv1.RoleBindingList{}, []client.ListOption{in, ours}},
		{&policyv1.PodDisruptionBudgetList{}, []client.ListOption{in, ours}},
		{&corev1.ServiceList{}, []client.ListOption{in, ours}},
		{&corev1.NodeList{}, nil},
	} {
		name := kindOf(kind.list)
		if _, synced := c.kinds[name]; synced && c.rand.IntN(3) > 0 {
			continue
		}
		c.catchUp(kind.list, kind.options...)
	}
}

// catchUp brings one kind up to date.
func (c *laggingCache) catchUp(list client.ObjectList, options ...client.ListOption) {
	c.w.t.Helper()
	c.w.must(c.w.api.List(c.w.t.Context(), list, options...))
	leanAll(c.w.t, list)
	c.kinds[kindOf(list)] = list
}

// TestStatusConvergesAfterStaleReads: a decision on an old version of a job needs no other status than that version has. The newer version,
// written in the meantime, triggers no reconcile when the cache shows it.
func TestStatusConvergesAfterStaleReads(t *testing.T) {
	w := served(t, nil)
	o := w.operators[0]
	o.cache = newLaggingCache(w, rand.New(rand.NewPCG(1, 2)))
	o.cache.lag()
	in := client.InNamespace(w.key.Namespace)
	standby := func(ready corev1.ConditionStatus) {
		t.Helper()
		for _, pod := range w.pods() {
			if pod.Name == w.holder().name {
				continue
			}
			for i := range pod.Status.Conditions {
				if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
					c.Status = ready
				}
			}
			w.must(w.api.Status().Update(t.Context(), &pod))
		}
		o.cache.catchUp(&corev1.PodList{}, in)
	}
	look := func(ready int32) time.Duration {
		t.Helper()
		result, err := o.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key})
		w.must(err)
		if got := w.status().Candidates.Ready; got != ready {
			t.Fatalf("%d are ready, want %d\n%s", got, ready, w.describe())
		}
		return result.RequeueAfter
	}
	standby(corev1.ConditionFalse)
	look(1)
	standby(corev1.ConditionTrue)
	if wake := look(1); wake == 0 || wake > staleRetry {
		t.Errorf("it is looked at again in %v", wake)
	}
	o.cache.catchUp(&v1alpha1.SingletonJobList{}, in)
	if wake := look(2); wake > 0 && wake <= staleRetry {
		t.Errorf("it is looked at again in %v, though all is seen", wake)
	}
	if wake := look(2); wake == 0 || wake > staleRetry {
		t.Errorf("until its own status is seen it is looked at again in %v", wake)
	}
}

// Get implements client.Reader.
func (c *laggingCache) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	for _, o := range objects(c.w.t, c.kinds[kindOf(into)]) {
		if client.ObjectKeyFromObject(o) == key {
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o.DeepCopyObject()).Elem())
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(into)}, key.Name)
}

// List implements client.Reader.
func (c *laggingCache) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	selector := o.LabelSelector
	if o.FieldSelector != nil {
		for _, r := range o.FieldSelector.Requirements() {
			if r.Field == jobIndex {
				selector = labels.SelectorFromSet(labels.Set{contract.NameLabel: r.Value})
			}
		}
	}
	var found []runtime.Object
	for _, object := range objects(c.w.t, c.kinds[kindOf(into)]) {
		if selector == nil || selector.Matches(labels.Set(object.GetLabels())) {
			found = append(found, object.DeepCopyObject())
		}
	}
	return meta.SetList(into, found)
}
