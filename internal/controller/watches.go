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

// Indexes of the cache. With them a reconcile costs the same however many jobs there are.
const (
	jobIndex  = "job"  // pods and Services by the name of their job
	nodeIndex = "node" // pods by the node they are on
	// workloadIndex has the jobs by the workload whose template they take.
	workloadIndex = "workload"
	// fleetIndex has the jobs by their part in a rollout of all.
	fleetIndex = "fleetRollout"
)

// CacheOptions keep in memory only what the operator works with, and nothing that it does not read.
func CacheOptions(namespaces []string) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{contract.ManagedByLabel: contract.ManagedBy})}
	lean := cache.ByObject{Label: ours.Label, Transform: leanChild}
	o := cache.Options{
		// Leases and Services are written as they were read, so that no more may be missing of them.
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

// leanPod is what decisions read of a pod.
func leanPod(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		return plan.LeanPod(pod), nil
	}
	return object, nil
}

// leanChild is an object of which nothing is written but by server-side apply, or its status, without what nobody reads.
func leanChild(object any) (any, error) {
	switch o := object.(type) {
	case *v1alpha1.SingletonJob:
		o.ObjectMeta = plan.LeanMeta(o.ObjectMeta)
	case *corev1.ServiceAccount:
		return &corev1.ServiceAccount{ObjectMeta: plan.LeanMeta(o.ObjectMeta)}, nil
	case *rbacv1.Role:
		o.ObjectMeta = plan.LeanMeta(o.ObjectMeta)
	case *rbacv1.RoleBinding:
		o.ObjectMeta = plan.LeanMeta(o.ObjectMeta)
	case *policyv1.PodDisruptionBudget:
		return &policyv1.PodDisruptionBudget{ObjectMeta: plan.LeanMeta(o.ObjectMeta), Spec: o.Spec}, nil
	}
	return object, nil
}

// leanNode is all of a node that matters here: what images it runs, and what pods it takes.
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

// watchedKind is a kind of objects that is kept in memory, and whom a change of one wakes.
type watchedKind struct {
	object client.Object
	wakes  handler.EventHandler
	when   []builder.WatchesOption
}

// watches are all that there are.
func (r *Reconciler) watches() []watchedKind {
	named := handler.EnqueueRequestsFromMapFunc(jobNamed)
	of := func(kind v1alpha1.WorkloadKind) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(r.jobsOf(kind))
	}
	// The status of a budget changes with every pod, that of a job is the operator's own.
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

// namesOf is a kind of apps/v1 of which onlyNames are kept.
func namesOf(kind string) client.Object {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kind))
	return object
}

// Watched are the kinds of objects that an operator keeps in its caches, and is woken by.
func (r *Reconciler) Watched() []client.Object {
	var all []client.Object
	for _, w := range r.watches() {
		all = append(all, w.object)
	}
	return all
}

// SetupWithManager has a manager run the Reconciler.
func (r *Reconciler) SetupWithManager(ctx context.Context, m ctrl.Manager, concurrency int) error {
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
			// By default a job that failed for a while is left alone for up to a quarter of an hour, and a renewal,
			// which may be all that happens when the API server is back, wakes nobody.
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

// jobsOnNode are the jobs that have a pod on a node, or whose holder was there: its pod may be gone, and its process not.
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

// jobsCrowded are the jobs which another node may be of use to. What their statuses say comes too late: a node that changes between the look
// and the status would wake nobody.
func (r *Reconciler) jobsCrowded(context.Context, client.Object) []reconcile.Request {
	var found []reconcile.Request
	for _, key := range r.memory.allCrowded() {
		found = append(found, reconcile.Request{NamespacedName: key})
	}
	return found
}

// leaseHandler wakes the job of a Lease that changed in more than a renewal. Every version is noted, so that the time without
// one is measured from the renewal and not from when somebody last looked.
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
	CreateFunc: func(event.CreateEvent) bool { return false }, // it waits with newJobs
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

// lostOrFound: a node is out of service, or not ready, or no longer so. The pods that were not ready before, nobody changes with it.
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

// takesOthers: what a node takes has changed. At the operator's start every job is looked at anyway.
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
