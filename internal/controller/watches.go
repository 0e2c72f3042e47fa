package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/plan"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Indexes of the cache. With them a reconcile costs the same however many jobs there are.
const (
	jobIndex  = "job"  // pods by the name of their job
	nodeIndex = "node" // pods by the node they are on
)

// CacheOptions keep in memory only what the operator works with, and nothing that it does not read.
func CacheOptions(namespaces []string) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{contract.ManagedByLabel: contract.ManagedBy})}
	o := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: ours, &coordinationv1.Lease{}: ours, &corev1.ServiceAccount{}: ours,
			&rbacv1.Role{}: ours, &rbacv1.RoleBinding{}: ours, &policyv1.PodDisruptionBudget{}: ours,
			&corev1.Node{}: {Transform: onlyTaints},
		},
	}
	for _, namespace := range namespaces {
		if o.DefaultNamespaces == nil {
			o.DefaultNamespaces = map[string]cache.Config{}
		}
		o.DefaultNamespaces[namespace] = cache.Config{}
	}
	return o
}

// onlyTaints is all of a node that matters here.
func onlyTaints(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	lean := &corev1.Node{Spec: corev1.NodeSpec{Taints: node.Spec.Taints}}
	lean.Name, lean.UID, lean.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	return lean, nil
}

// SetupWithManager has a manager run the Reconciler.
func (r *Reconciler) SetupWithManager(ctx context.Context, m ctrl.Manager, concurrency int) error {
	pods := m.GetFieldIndexer()
	byJob := func(o client.Object) []string { return []string{o.GetLabels()[contract.NameLabel]} }
	if err := pods.IndexField(ctx, &corev1.Pod{}, jobIndex, byJob); err != nil {
		return err
	}
	if err := pods.IndexField(ctx, &corev1.Pod{}, nodeIndex, nodeOf); err != nil {
		return err
	}
	named := handler.EnqueueRequestsFromMapFunc(jobNamed)
	return ctrl.NewControllerManagedBy(m).
		Named("singletonjob").
		For(&v1alpha1.SingletonJob{}, builder.WithPredicates(jobChanged)).
		Watches(&corev1.Pod{}, named).
		Watches(&coordinationv1.Lease{}, r.leaseHandler(handler.EnqueueRequestsFromMapFunc(r.jobOfLease))).
		Watches(&corev1.ServiceAccount{}, named).
		Watches(&rbacv1.Role{}, named).
		Watches(&rbacv1.RoleBinding{}, named).
		// The status of a budget changes with every pod.
		Watches(&policyv1.PodDisruptionBudget{}, named, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.jobsOnNode), builder.WithPredicates(outOfServiceChanged)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			// By default a job that failed for a while is left alone for up to a quarter of an hour, and a renewal,
			// which may be all that happens when the API server is back, wakes nobody.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 30*time.Second),
		}).
		Complete(r)
}

func nodeOf(o client.Object) []string {
	if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}
	}
	return nil
}

// jobOfLease is the job of a Lease's own name, whatever somebody has made of its label. Only a Lease without such a job, which
// may have to go, is known by the label.
func (r *Reconciler) jobOfLease(ctx context.Context, o client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(o)
	job, err := get(ctx, r.Client, key, &v1alpha1.SingletonJob{})
	if err != nil || job == nil {
		return jobNamed(ctx, o)
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// jobNamed is the job that an object's label names.
func jobNamed(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[contract.NameLabel]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

func (r *Reconciler) jobsOnNode(ctx context.Context, node client.Object) []reconcile.Request {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.MatchingFields{nodeIndex: node.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list the pods of a node", "node", node.GetName())
		return nil
	}
	found := map[reconcile.Request]bool{}
	for i := range pods.Items {
		for _, request := range jobNamed(ctx, &pods.Items[i]) {
			found[request] = true
		}
	}
	return slices.Collect(maps.Keys(found))
}

// leaseHandler wakes the job of a Lease that changed in more than a renewal. Every version is noted, so that the time without
// one is measured from the renewal and not from when somebody last looked.
func (r *Reconciler) leaseHandler(named handler.EventHandler) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			r.note(e.Object)
			named.Create(ctx, e, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if late := r.note(e.ObjectNew); late || !onlyRenewed(e.ObjectOld, e.ObjectNew) {
				named.Update(ctx, e, q)
			}
		},
		DeleteFunc: named.Delete,
	}
}

// note remembers a Lease, and reports whether its last renewal was long before: then a renewal is news.
func (r *Reconciler) note(o client.Object) (late bool) {
	l, ok := o.(*coordinationv1.Lease)
	if !ok {
		return false
	}
	decoded, err := decode(l)
	if err != nil || decoded.Presence != plan.Ours {
		return false
	}
	now := r.Clock.Now()
	since := r.memory.sinceRenewal(client.ObjectKeyFromObject(l), now)
	r.memory.observe(l, decoded, now)
	return since > decoded.Record.Duration/3
}

// jobChanged leaves out what the operator writes itself: a status that wakes the one who wrote it goes round for ever if a
// text in it differs each time. A status that says less than before somebody else has written.
var jobChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld, e.ObjectNew
		return was.GetUID() != is.GetUID() || was.GetGeneration() != is.GetGeneration() ||
			!was.GetDeletionTimestamp().Equal(is.GetDeletionTimestamp()) ||
			!maps.Equal(was.GetLabels(), is.GetLabels()) || !maps.Equal(was.GetAnnotations(), is.GetAnnotations()) || saysLess(was, is)
	},
}

func saysLess(before, after client.Object) bool {
	was, ok := before.(*v1alpha1.SingletonJob)
	is, alike := after.(*v1alpha1.SingletonJob)
	return ok && alike && (is.Status.FencingToken < was.Status.FencingToken || is.Status.ObservedGeneration < was.Status.ObservedGeneration)
}

// onlyRenewed reports whether nothing has changed of a Lease but its renewTime.
func onlyRenewed(before, after client.Object) bool {
	a, ok := before.(*coordinationv1.Lease)
	b, alike := after.(*coordinationv1.Lease)
	if !ok || !alike || a.UID != b.UID {
		return false
	}
	was := a.Spec
	was.RenewTime = b.Spec.RenewTime
	return equality.Semantic.DeepEqual(was, b.Spec) && maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Labels, b.Labels)
}

var outOfServiceChanged = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return isOutOfService(e.Object) },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return isOutOfService(e.ObjectOld) != isOutOfService(e.ObjectNew)
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func isOutOfService(o client.Object) bool {
	node, ok := o.(*corev1.Node)
	return ok && outOfService(node)
}
