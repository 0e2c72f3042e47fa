package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/plan"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Indexes of the cache. With them, the cost of a reconcile does not depend on the number of jobs.
const (
	jobIndex  = "job"  // pods and Services by the name of their job
	nodeIndex = "node" // pods by the node they are on
	// workloadIndex finds the jobs that take their template from a workload.
	workloadIndex = "workload"
	// fleetIndex finds the jobs by their state in a fleet-wide rollout.
	fleetIndex = "fleetRollout"
)

// CacheOptions limit the caches to the objects and fields that the operator reads.
func CacheOptions(namespaces []string) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{contract.ManagedByLabel: contract.ManagedBy})}
	lean := cache.ByObject{Label: ours.Label, Transform: leanChild}
	o := cache.Options{
		// The operator writes Leases and Services back as it read them, so no other fields may be removed from them.
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.SingletonJob{}: {Transform: leanChild},
			&corev1.Pod{}:            {Label: ours.Label, Transform: leanPod}, &coordinationv1.Lease{}: ours, &corev1.Service{}: ours,
			&corev1.ServiceAccount{}: lean, &rbacv1.Role{}: lean, &rbacv1.RoleBinding{}: lean, &policyv1.PodDisruptionBudget{}: lean,
			&corev1.Node{}: {Transform: leanNode}, &appsv1.Deployment{}: {Transform: onlyNames}, &appsv1.StatefulSet{}: {Transform: onlyNames},
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

// leanPod keeps the fields of a Pod that decisions use.
func leanPod(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		return words.sharePod(plan.LeanPod(pod)), nil
	}
	return object, nil
}

// leanChild removes unused fields from an object that the operator changes only by server-side apply or through its status.
func leanChild(object any) (any, error) {
	switch o := object.(type) {
	case *v1alpha1.SingletonJob:
		o.ObjectMeta = words.shareAll(plan.LeanMeta(o.ObjectMeta))
	case *corev1.ServiceAccount:
		return &corev1.ServiceAccount{ObjectMeta: words.shareAll(plan.LeanMeta(o.ObjectMeta))}, nil
	case *rbacv1.Role:
		o.ObjectMeta, o.Rules = words.shareAll(plan.LeanMeta(o.ObjectMeta)), words.shareRules(o.Rules)
	case *rbacv1.RoleBinding:
		o.ObjectMeta, o.Subjects = words.shareAll(plan.LeanMeta(o.ObjectMeta)), oneOf(words.values, o.Subjects)
	case *policyv1.PodDisruptionBudget:
		return &policyv1.PodDisruptionBudget{ObjectMeta: words.shareAll(plan.LeanMeta(o.ObjectMeta)), Spec: words.shareBudget(o.Spec)}, nil
	}
	return object, nil
}

// leanNode keeps the fields of a node that are used: which images it runs, and which Pods it accepts.
func leanNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	lean := &corev1.Node{Spec: corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable}}
	if plan.NodeReady(node) {
		lean.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	lean.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: node.Status.NodeInfo.OperatingSystem, Architecture: node.Status.NodeInfo.Architecture}
	lean.Name, lean.UID, lean.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	lean.Labels, lean.DeletionTimestamp = node.Labels, node.DeletionTimestamp
	return lean, nil
}

// watchedKind is a kind of object in the caches, with the jobs that a change of it triggers.
type watchedKind struct {
	object client.Object
	wakes  handler.EventHandler
	when   []builder.WatchesOption
}

// watches lists all watches.
func (r *Reconciler) watches() []watchedKind {
	named := handler.EnqueueRequestsFromMapFunc(jobNamed)
	of := func(kind v1alpha1.WorkloadKind) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(r.jobsOf(kind))
	}
	// A budget's status changes with every Pod, and the operator itself writes a job's status.
	changed := []builder.WatchesOption{builder.WithPredicates(predicate.GenerationChangedPredicate{})}
	all := []watchedKind{
		{&v1alpha1.SingletonJob{}, newJobs, nil},
		{&v1alpha1.SingletonJob{}, handler.EnqueueRequestsFromMapFunc(r.jobsBeside), changed},
		{&v1alpha1.SingletonJob{}, r.turnHandler(), nil},
		{namesOf("Deployment"), of(v1alpha1.WorkloadDeployment), nil},
		{namesOf("StatefulSet"), of(v1alpha1.WorkloadStatefulSet), nil},
		{&corev1.Pod{}, named, nil},
		{&coordinationv1.Lease{}, r.leaseHandler(), nil},
		{&corev1.ServiceAccount{}, named, nil},
		{&rbacv1.Role{}, named, nil},
		{&rbacv1.RoleBinding{}, named, nil},
		{&policyv1.PodDisruptionBudget{}, named, changed},
		{&corev1.Service{}, named, nil},
	}
	if !r.WithoutNodes {
		all = append(all, watchedKind{
			&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.jobsOnNode), []builder.WatchesOption{builder.WithPredicates(lostOrFound)},
		}, watchedKind{
			&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.jobsCrowded), []builder.WatchesOption{builder.WithPredicates(takesOthers)},
		})
	}
	return all
}

// namesOf is a kind of apps/v1 whose objects are reduced by onlyNames.
func namesOf(kind string) client.Object {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kind))
	return object
}

// Watched are the kinds of objects that the operator caches and watches.
func (r *Reconciler) Watched() []client.Object {
	var all []client.Object
	for _, w := range r.watches() {
		all = append(all, w.object)
	}
	return all
}

// SetupWithManager registers the Reconciler with a manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, m ctrl.Manager, concurrency int) error {
	r.lanes.share(concurrency, r.OneNamespace)
	indexes := m.GetFieldIndexer()
	byJob := func(o client.Object) []string { return []string{o.GetLabels()[contract.NameLabel]} }
	for _, i := range []struct {
		of    client.Object
		field string
		by    client.IndexerFunc
	}{
		{&corev1.Pod{}, jobIndex, byJob},
		{&corev1.Pod{}, nodeIndex, nodeOf},
		{&corev1.Service{}, jobIndex, byJob},
		{&v1alpha1.SingletonJob{}, workloadIndex, workloadOf},
		{&v1alpha1.SingletonJob{}, fleetIndex, fleetRolloutOf},
	} {
		if err := indexes.IndexField(ctx, i.of, i.field, i.by); err != nil {
			return err
		}
	}
	build := ctrl.NewControllerManagedBy(m).
		Named("singletonjob").
		For(&v1alpha1.SingletonJob{}, builder.WithPredicates(jobChanged)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			// By default, the backoff of a failing job grows to a quarter of an hour. When the API server is back, the only change
			// may be a renewal, which triggers no reconcile.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 30*time.Second),
		})
	for _, w := range r.watches() {
		build.Watches(w.object, w.wakes, w.when...)
	}
	build.WatchesRawSource(source.Func(r.wakeBySilence))
	build.WatchesRawSource(source.Func(r.wakeByTurns))
	if r.Entrypoints != nil {
		build.WatchesRawSource(source.Func(r.wakeByLookups))
	}
	return build.Complete(r)
}

func nodeOf(o client.Object) []string {
	if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}
	}
	return nil
}

// jobOfLease is the job with the Lease's name, whatever its label says. The label counts only for a Lease without such a job, which
// may have to be deleted.
func (r *Reconciler) jobOfLease(ctx context.Context, o client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(o)
	job, err := get(ctx, r.Client, key, &v1alpha1.SingletonJob{}, client.UnsafeDisableDeepCopy)
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

// jobsOnNode are the jobs that have a Pod on a node, and those whose holder was there: its Pod may no longer exist while its
// process still runs.
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
	for _, key := range r.memory.lastOn(node.GetName()) {
		found[reconcile.Request{NamespacedName: key}] = true
	}
	return slices.Collect(maps.Keys(found))
}

// jobsCrowded are the jobs that could use another node. It does not use their statuses: a node that changes between the observation
// and the status would trigger no reconcile.
func (r *Reconciler) jobsCrowded(context.Context, client.Object) []reconcile.Request {
	var found []reconcile.Request
	for _, key := range r.memory.allCrowded() {
		found = append(found, reconcile.Request{NamespacedName: key})
	}
	return found
}

// leaseHandler triggers the job of a Lease if more than renewTime changed. It records every version, so that the time without a
// renewal is measured from the renewal and not from the last reconcile.
func (r *Reconciler) leaseHandler() handler.EventHandler {
	named := handler.EnqueueRequestsFromMapFunc(r.jobOfLease)
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			r.note(e.Object)
			named.Create(ctx, e, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			awaited := r.silences.of(client.ObjectKeyFromObject(e.ObjectNew)).renewal
			if late := r.note(e.ObjectNew); late || awaited || !onlyRenewed(e.ObjectOld, e.ObjectNew) {
				add(q, failoverPriority, append(r.jobOfLease(ctx, e.ObjectOld), r.jobOfLease(ctx, e.ObjectNew)...)...)
			}
		},
		DeleteFunc: named.Delete,
	}
}

// note records a Lease, and reports whether the previous renewal was long ago. If so, the renewal is news.
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

// jobChanged ignores the operator's own writes: if each status update triggered a reconcile, a text that differs each time would
// cause an endless loop. A status with less information than before was written by somebody else.
var jobChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, // newJobs handles it
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

// onlyRenewed reports whether renewTime is the only change to a Lease.
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

// lostOrFound: a node became out of service or not ready, or recovered. The status of its Pods that were not ready before does not
// change with it.
var lostOrFound = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return isOutOfService(e.Object) },
	UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(*corev1.Node)
		is, alike := e.ObjectNew.(*corev1.Node)
		return ok && alike && (outOfService(was) != outOfService(is) || plan.NodeReady(was) != plan.NodeReady(is))
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// takesOthers: the set of Pods that a node accepts has changed. At the operator's start, every job is reconciled anyway.
var takesOthers = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
	UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(*corev1.Node)
		is, alike := e.ObjectNew.(*corev1.Node)
		return ok && alike && (was.Spec.Unschedulable != is.Spec.Unschedulable || plan.NodeReady(was) != plan.NodeReady(is) ||
			!equality.Semantic.DeepEqual(was.Spec.Taints, is.Spec.Taints) || !maps.Equal(was.Labels, is.Labels))
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func isOutOfService(o client.Object) bool {
	node, ok := o.(*corev1.Node)
	return ok && outOfService(node)
}
