package controller

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/plan"
)

// observation is the input of package plan, and the Lease object on which a write is based.
type observation struct {
	plan.Observed
	lease *coordinationv1.Lease
	// unread: the API server was not asked for the Lease. It fails to create one if there is one.
	unread bool
	// released: the operator has since released the Lease.
	released bool
}

// over is the highest token of a tenure that has ended.
func (o *observation) over() int64 {
	if r := o.Lease.Record; !o.released && !r.Free() {
		return r.Token - 1
	}
	return o.Lease.Record.Token
}

// observe reads everything that a decision depends on: from the cache, except where the data must be current.
func (r *Reconciler) observe(ctx context.Context, key types.NamespacedName) (observation, error) {
	o := observation{Observed: plan.Observed{
		Namespace: key.Namespace, Name: key.Name, Now: r.Clock.Now(), Settings: r.Settings,
	}}
	job, err := get(ctx, r.Client, key, &v1alpha1.SingletonJob{})
	if err != nil {
		return o, err
	}
	o.Job = job
	if o.Pods, err = r.pods(ctx, r.Client, key, client.MatchingFields{jobIndex: key.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return o, err
	}
	if err := r.observeLease(ctx, key, &o); err != nil {
		return o, err
	}
	if o.Job == nil {
		r.forgetEntrypoint(key)
		o.Remembered = r.memory.jobGone(key, o.Lease.Presence != plan.Ours, o.Now)
		return o, nil
	}
	o.Trials = r.memory.tried(key, &o.Lease, o.Pods, r.Clock.Now())
	o.Hashed = r.memory.hashed(key)
	o.OverQuota = r.memory.overQuota(key, o.Now)
	o.EventsUnknown, o.Unannounced = r.memory.announcements(key, o.Job.UID)
	if err := r.observeChildren(ctx, key, &o); err != nil {
		return o, err
	}
	if err := r.observeWorkload(ctx, &o); err != nil {
		return o, err
	}
	if err := r.observeVolumes(ctx, &o); err != nil {
		return o, err
	}
	if err := r.observeNodes(ctx, &o); err != nil {
		return o, err
	}
	if err := r.observeTime(ctx, key, &o); err != nil {
		return o, err
	}
	return o, r.observeEntrypoint(ctx, key, &o)
}

func (r *Reconciler) pods(ctx context.Context, from client.Reader, key types.NamespacedName, options ...client.ListOption) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := from.List(ctx, &list, append(options, client.InNamespace(key.Namespace))...); err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", key, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// observeLease reads the Lease. The cache holds only Leases with the operator's label, and it lags. If it has none, the Lease may be created
// now, and whether it may start free depends on the job and the Pods. So observeLease asks the API server for them, and for the Lease
// unless the job starts afresh: the write that creates a Lease fails if there is one. It also asks before the holder is reported to have
// stopped renewing, because only the cache may have stopped.
func (r *Reconciler) observeLease(ctx context.Context, key types.NamespacedName, o *observation) error {
	l, err := get(ctx, r.Client, key, &coordinationv1.Lease{})
	if err != nil {
		return err
	}
	if l == nil {
		return r.observeMissing(ctx, key, o)
	}
	if err := r.take(o, l); err != nil || o.Job == nil {
		return err
	}
	if o.Lease.Presence == plan.Ours && o.Lease.Claim.JobUID != string(o.Job.UID) { // wait for the Pods of a previous job, if there are any
		if err := r.observeLivePods(ctx, key, o); err != nil {
			return err
		}
	}
	if o.Lease.Unchanged < cacheLimit(o.Job) {
		return nil
	}
	if l, err = get(ctx, r.Live, key, &coordinationv1.Lease{}); err != nil {
		return err
	}
	if l == nil {
		return r.observeMissing(ctx, key, o)
	}
	return r.take(o, l)
}

// observeMissing reads the job and the Pods from the API server, and the Lease that the cache does not have, if the job may have one.
func (r *Reconciler) observeMissing(ctx context.Context, key types.NamespacedName, o *observation) (err error) {
	if o.Job == nil {
		return nil
	}
	o.Lease, o.lease = plan.Lease{Last: r.memory.last(key)}, nil
	if o.Job, err = get(ctx, r.Live, key, &v1alpha1.SingletonJob{}); err != nil {
		return err
	}
	if err := r.observeLivePods(ctx, key, o); err != nil || o.Job == nil {
		return err
	}
	if o.unread = plan.StartsAfresh(&o.Observed) && !r.memory.isHidden(key); o.unread {
		return nil
	}
	l, err := get(ctx, r.Live, key, &coordinationv1.Lease{})
	if err != nil || l == nil {
		return err
	}
	return r.take(o, l)
}

// observeLivePods reads the Pods from the API server instead of the cache.
func (r *Reconciler) observeLivePods(ctx context.Context, key types.NamespacedName, o *observation) (err error) {
	o.Pods, err = r.pods(ctx, r.Live, key, client.MatchingLabels{contract.NameLabel: key.Name})
	return err
}

// cacheLimit is the time after which an unchanged Lease is read from the API server instead of the cache. It ends before the holder
// is reported to have stopped renewing.
func cacheLimit(job *v1alpha1.SingletonJob) time.Duration {
	d := job.Spec.Lease.RenewDeadline.Duration
	if d <= 0 {
		d = v1alpha1.DefaultRenewDeadline
	}
	return d / 2
}

func (r *Reconciler) take(o *observation, l *coordinationv1.Lease) error {
	decoded, err := decode(l)
	if err != nil {
		return fmt.Errorf("read the Lease %s/%s: %w", l.Namespace, l.Name, err)
	}
	if decoded.Presence == plan.Ours {
		decoded = r.memory.observe(l, decoded, r.Clock.Now())
	}
	o.Lease, o.lease = decoded, l
	return nil
}

// observeChildren reads objects that are only compared, so no copies are made of those in the cache.
func (r *Reconciler) observeChildren(ctx context.Context, key types.NamespacedName, o *observation) (err error) {
	child := types.NamespacedName{Namespace: key.Namespace, Name: plan.ChildName(key.Name)}
	c := &o.Children
	if c.ServiceAccount, err = get(ctx, r.Client, child, &corev1.ServiceAccount{}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	if c.Role, err = get(ctx, r.Client, child, &rbacv1.Role{}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	if c.RoleBinding, err = get(ctx, r.Client, child, &rbacv1.RoleBinding{}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	if c.Budget, err = get(ctx, r.Client, child, &policyv1.PodDisruptionBudget{}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{jobIndex: key.Name}); err != nil {
		return fmt.Errorf("list the Services of %s: %w", key, err)
	}
	var services []*corev1.Service
	for i := range list.Items {
		services = append(services, &list.Items[i])
	}
	c.Service, c.OtherService = plan.ServicesOf(o.Job, services)
	return nil
}

// observeVolumes reads the claims of the Pods from the API server. Caching all claims of a cluster for the few that jobs use would
// cost too much memory. An operator without this right, with the roles of an earlier release, reports less and still works.
func (r *Reconciler) observeVolumes(ctx context.Context, o *observation) error {
	for _, name := range plan.Claims(o.Pods) {
		claim, err := get(ctx, r.Live, types.NamespacedName{Namespace: o.Namespace, Name: name}, &corev1.PersistentVolumeClaim{})
		switch {
		case apierrors.IsForbidden(err), err == nil && claim == nil:
		case err != nil:
			return err
		default:
			o.Volumes = append(o.Volumes, plan.Volume{Claim: name, Asked: claim.Spec.AccessModes, Has: claim.Status.AccessModes})
		}
	}
	return nil
}

// observeTime reads the API server's time, which dates ticks and suspensions. If no recent response contained it, observeTime sends
// a request.
func (r *Reconciler) observeTime(ctx context.Context, key types.NamespacedName, o *observation) error {
	if r.ServerTime == nil || o.Job == nil || o.Job.Spec.RunPolicy != v1alpha1.RunPolicyRunToCompletion {
		return nil
	}
	if o.Server = r.ServerTime(); !o.Server.IsZero() {
		return nil
	}
	if _, err := get(ctx, r.Live, key, &coordinationv1.Lease{}); err != nil {
		return err
	}
	o.Server = r.ServerTime()
	return nil
}

// observeNodes reads the nodes on which the holder may be. If two Pods share a node, it reads all nodes, so that one Pod can move.
func (r *Reconciler) observeNodes(ctx context.Context, o *observation) error {
	o.OutOfService, o.NotReady = map[string]bool{}, map[string]bool{}
	if o.NodesUnknown = r.WithoutNodes; r.WithoutNodes {
		return nil
	}
	crowded := shareNode(o.Pods)
	r.memory.setCrowded(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, crowded)
	if crowded {
		var list corev1.NodeList
		if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list the nodes: %w", err)
		}
		for i := range list.Items {
			o.Nodes = append(o.Nodes, &list.Items[i])
		}
	}
	names := map[string]bool{}
	for _, pod := range o.Pods {
		names[pod.Spec.NodeName] = true
	}
	if past := o.Lease.Record.History; len(past) > 0 {
		names[past[0].Node] = true
	}
	delete(names, "")
	for name := range names {
		node, err := get(ctx, r.Client, types.NamespacedName{Name: name}, &corev1.Node{}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return err
		}
		o.OutOfService[name] = node != nil && outOfService(node)
		o.NotReady[name] = node != nil && !plan.NodeReady(node)
	}
	return nil
}

func shareNode(pods []*corev1.Pod) bool {
	seen := map[string]bool{"": false}
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		if seen[pod.Spec.NodeName] {
			return true
		}
		seen[pod.Spec.NodeName] = pod.Spec.NodeName != ""
	}
	return false
}

func outOfService(node *corev1.Node) bool {
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

// get reads an object; nil if it does not exist.
func get[T client.Object](ctx context.Context, from client.Reader, key types.NamespacedName, into T, opts ...client.GetOption) (T, error) {
	var none T
	switch err := from.Get(ctx, key, into, opts...); {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read %T %s: %w", into, key, err)
	}
	return into, nil
}
