package controller

import (
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/plan"
)

// TestOperatorWithRightsInOneNamespace: the operator has the generated rules as a Role in the job's namespace, without nodes and without
// rights elsewhere. It manages the whole life of a job, and nothing is refused.
func TestOperatorWithRightsInOneNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operators[0]
	o.api = w.memo.of(w.confined())
	o.restart()
	o.r.WithoutNodes = true
	w.job(nil)
	w.until("serving", w.serving)
	w.bindElsewhere()
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = 3 })
	w.until("three candidates", w.serving)
	w.image("v2")
	w.until("the rollout is over", func() bool { return w.serving() && w.status().Handovers == 1 })
	w.holder().exit(3)
	w.until("another has taken over", func() bool { return w.serving() && w.status().Failovers == 1 })

	// The test reports the node's loss where this operator may not read.
	lost := w.holder()
	lost.alive, lost.stopped, lost.frozen = false, true, true
	w.cutOffNode(lost.node)
	w.outOfService(lost.node)
	w.until("the lease has run out", func() bool { return w.status().Failovers == 2 })
	if last := w.status().History[0]; last.Reason != string(lease.ReasonLeaseExpired) {
		t.Errorf("the failover is told as %+v", last)
	}
	lost.frozen = false
	w.reachNode(lost.node)

	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	w.until("suspended", func() bool { return len(w.pods()) == 0 })
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = false })
	w.until("resumed", w.serving)
	job := w.read()
	w.must(w.api.Delete(t.Context(), job))
	w.collectGarbage(job.UID)
	w.until("its Lease is gone", func() bool { return w.lease() == nil })

	elsewhere := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: w.plane.Namespace(t), Name: "job"}, Spec: job.Spec}
	w.must(w.api.Create(t.Context(), elsewhere))
	written := o.stored
	_, err := o.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(elsewhere)})
	if !apierrors.IsForbidden(err) || o.stored != written {
		t.Errorf("of a job in another namespace it is told %v, and writes %d times", err, o.stored-written)
	}
}

// confined is a client with the rights that the chart grants in each of watchNamespaces, in the job's namespace only.
func (w *world) confined() client.WithWatch {
	w.t.Helper()
	generated, err := os.ReadFile("../../config/rbac/role.yaml")
	w.must(err)
	var role rbacv1.Role
	w.must(yaml.Unmarshal(generated, &role))
	at := metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "operator"}
	role.TypeMeta, role.ObjectMeta = metav1.TypeMeta{}, at
	for i := range role.Rules {
		role.Rules[i].Resources = slices.DeleteFunc(role.Rules[i].Resources, func(r string) bool { return r == "nodes" })
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return len(r.Resources) == 0 })
	w.must(w.api.Create(w.t.Context(), &role))
	who := "operator-of-" + w.key.Namespace
	w.must(w.api.Create(w.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: at,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: who}},
	}))
	config := w.plane.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: who, Groups: []string{"system:authenticated"}}
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme(w.t)})
	w.must(err)
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		_, err := get(w.t.Context(), api, types.NamespacedName{Namespace: w.key.Namespace, Name: "any"}, &corev1.Pod{})
		if err == nil {
			return api
		}
		if !apierrors.IsForbidden(err) || time.Since(began) > 5*time.Minute {
			w.t.Fatalf("the Role does not count: %v", err)
		}
	}
}

// bindElsewhere binds the job's account to another role. Only another binding can undo that.
func (w *world) bindElsewhere() {
	w.t.Helper()
	var binding rbacv1.RoleBinding
	w.must(w.api.Get(w.t.Context(), types.NamespacedName{Namespace: w.key.Namespace, Name: plan.ChildName(w.key.Name)}, &binding))
	w.must(w.api.Delete(w.t.Context(), &binding))
	binding.UID, binding.ResourceVersion, binding.RoleRef.Name = "", "", "another"
	w.must(w.api.Create(w.t.Context(), &binding))
}

// outOfService marks a node as out of service, as an administrator.
func (w *world) outOfService(name string) {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	taint := []byte(`{"spec": {"taints": [{"key": "` + corev1.TaintNodeOutOfService + `", "effect": "NoExecute"}]}}`)
	w.must(w.api.Patch(w.t.Context(), node, client.RawPatch(types.MergePatchType, taint)))
}
