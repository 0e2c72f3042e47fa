package controller

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/plan"
)

// TestFewRequests counts the operator's requests except watches. It counts from a job's creation until it is as its spec asks, and from
// its holder's death until the next holder is reported and has a standby. A busy machine adds some requests in some runs, because the
// cache shows writes late. A defect adds them in every run.
func TestFewRequests(t *testing.T) {
	t.Parallel()
	const (
		attempts           = 20
		toCreate, failOver = 15, 9 // two more than on a quiet machine
	)
	created, failedOver := math.MaxInt, math.MaxInt // the minimum of all attempts
	for attempt := 1; ; attempt++ {
		w := newWorld(t)
		_, sent := w.manage()
		w.operators = nil // except the one that runs by itself
		const patience = 5 * time.Minute
		w.job(nil)
		if !w.live(patience, w.serving) {
			t.Fatalf("not served in time\n%s", w.describe())
		}
		w.settle()
		created = min(created, w.cost(sent.take(), "a job's creation"))

		var before *agent
		if !w.live(patience, func() bool { before = w.holder(); return before != nil }) { // a holder that was too busy to renew has stepped down
			t.Fatalf("nobody acts in time\n%s", w.describe())
		}
		w.kill(before)
		if !w.live(patience, func() bool { a := w.holder(); return a != nil && a != before && w.status().ActivePod == a.name }) {
			t.Fatalf("no other acts in time\n%s", w.describe())
		}
		w.settle()
		failedOver = min(failedOver, w.cost(sent.take(), "a failover"))
		if created <= toCreate && failedOver <= failOver {
			return
		}
		if attempt == attempts {
			t.Fatalf("a job's creation costs %d requests, of at most %d, and a failover %d, of at most %d", created, toCreate, failedOver, failOver)
		}
	}
}

// settle runs a few rounds in which nothing is waited for.
func (w *world) settle() {
	w.t.Helper()
	w.live(3*time.Second, func() bool { return false })
}

func (w *world) cost(sent map[string]int, of string) (total int) {
	w.t.Helper()
	delete(sent, "get ") // discovery, once for all jobs
	for _, what := range slices.Sorted(maps.Keys(sent)) {
		total += sent[what]
		w.t.Logf("%s: %d x %s", of, sent[what], what)
	}
	return total
}

// TestCreatedObjectsCountAsApplied: a created object counts as applied once it changes. Otherwise fields that a later version leaves out
// would stay.
func TestCreatedObjectsCountAsApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.job(nil)
	w.until("it serves", w.serving)
	role := &rbacv1.Role{}
	read := func() {
		w.must(w.api.Get(t.Context(), types.NamespacedName{Namespace: w.key.Namespace, Name: plan.ChildName(w.key.Name)}, role))
	}
	operations := func() (all []metav1.ManagedFieldsOperationType) {
		read()
		for _, f := range role.ManagedFields {
			if f.Manager == string(fieldOwner) {
				all = append(all, f.Operation)
			}
		}
		return all
	}
	if got := operations(); !slices.Equal(got, []metav1.ManagedFieldsOperationType{metav1.ManagedFieldsOperationUpdate}) {
		t.Errorf("created by %v", got)
	}
	asked := role.Rules
	role.Rules = nil
	w.must(w.api.Update(t.Context(), role))
	w.until("the role is as it was", func() bool { read(); return len(role.Rules) == len(asked) })
	if got := operations(); !slices.Equal(got, []metav1.ManagedFieldsOperationType{metav1.ManagedFieldsOperationApply}) {
		t.Errorf("changed by %v", got)
	}
}

// TestLostLabelIsRestoredWithoutCreate: an object that has lost the label is not in the cache, and creating it is refused
// before the API server notices that it exists.
func TestLostLabelIsRestoredWithoutCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manage()
	w.operators = nil
	const patience = 5 * time.Minute
	w.job(nil)
	if !w.live(patience, w.serving) {
		t.Fatal(w.describe())
	}
	full := corev1.ResourceList{"count/roles.rbac.authorization.k8s.io": resource.MustParse("1")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "roles"}, Spec: corev1.ResourceQuotaSpec{Hard: full}}
	w.must(w.api.Create(t.Context(), quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: full, Used: full}
	w.must(w.api.Status().Update(t.Context(), quota))
	another := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "another"}}
	if !w.live(patience, func() bool {
		return apierrors.IsForbidden(w.api.Create(t.Context(), another.DeepCopy(), client.DryRunAll))
	}) {
		t.Fatal("no quota refuses another role")
	}
	role := &rbacv1.Role{}
	key := types.NamespacedName{Namespace: w.key.Namespace, Name: plan.ChildName(w.key.Name)}
	w.must(w.api.Get(t.Context(), key, role))
	delete(role.Labels, contract.ManagedByLabel)
	w.must(w.api.Update(t.Context(), role))
	if !w.live(patience, func() bool {
		w.must(w.api.Get(t.Context(), key, role))
		return role.Labels[contract.ManagedByLabel] == contract.ManagedBy
	}) {
		t.Errorf("the label stays away\n%s", w.describe())
	}
}
