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

// observation is what package plan decides on, and the object that a write to the Lease starts from.
type observation struct {
	plan.Observed
	lease *coordinationv1.Lease
}

// observe reads everything that a decision depends on: from the cache, but for what must not be old.
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
		o.Remembered = r.memory.jobGone(key, o.Lease.Presence != plan.Ours, o.Now)
		return o, nil
	}
	o.EventsUnknown = !r.memory.hasEmitted(key, o.Job.UID)
	if err := r.observeChildren(ctx, key, &o); err != nil {
		return o, err
	}
	return o, r.observeNodes(ctx, &o)
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

// observeLease reads the Lease. The cache holds only those with the operator's label, and lags: where it has none, the API
// server is asked, and for the job and the pods too, because the Lease may now be made, and whether it may start free
// depends on them. It is also asked before a holder is said to have stopped renewing, which the cache alone may be.
func (r *Reconciler) observeLease(ctx context.Context, key types.NamespacedName, o *observation) error {
	l, err := get(ctx, r.Client, key, &coordinationv1.Lease{})
	if err != nil {
		return err
	}
	if l != nil {
		if err := r.take(o, l); err != nil || o.Job == nil || o.Lease.Unchanged < cacheLimit(o.Job) {
			return err
		}
	}
	if o.Job == nil {
		return nil
	}
	if l, err = get(ctx, r.Live, key, &coordinationv1.Lease{}); err != nil {
		return err
	}
	if l != nil {
		return r.take(o, l)
	}
	o.Lease, o.lease = plan.Lease{Last: r.memory.last(key)}, nil
	if o.Job, err = get(ctx, r.Live, key, &v1alpha1.SingletonJob{}); err != nil {
		return err
	}
	o.Pods, err = r.pods(ctx, r.Live, key, client.MatchingLabels{contract.NameLabel: key.Name})
	return err
}

// cacheLimit is when a Lease that does not change is no longer taken from the cache: before its holder is said to have
// stopped renewing.
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

func (r *Reconciler) observeChildren(ctx context.Context, key types.NamespacedName, o *observation) (err error) {
	child := types.NamespacedName{Namespace: key.Namespace, Name: plan.ChildName(key.Name)}
	c := &o.Children
	if c.ServiceAccount, err = get(ctx, r.Client, child, &corev1.ServiceAccount{}); err != nil {
		return err
	}
	if c.Role, err = get(ctx, r.Client, child, &rbacv1.Role{}); err != nil {
		return err
	}
	if c.RoleBinding, err = get(ctx, r.Client, child, &rbacv1.RoleBinding{}); err != nil {
		return err
	}
	c.Budget, err = get(ctx, r.Client, child, &policyv1.PodDisruptionBudget{})
	return err
}

// observeNodes looks at the nodes on which the holder may be.
func (r *Reconciler) observeNodes(ctx context.Context, o *observation) error {
	names := map[string]bool{}
	for _, pod := range o.Pods {
		names[pod.Spec.NodeName] = true
	}
	if past := o.Lease.Record.History; len(past) > 0 {
		names[past[0].Node] = true
	}
	delete(names, "")
	o.OutOfService = map[string]bool{}
	for name := range names {
		node, err := get(ctx, r.Client, types.NamespacedName{Name: name}, &corev1.Node{})
		if err != nil {
			return err
		}
		o.OutOfService[name] = node != nil && outOfService(node)
	}
	return nil
}

func outOfService(node *corev1.Node) bool {
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

// get reads an object into place; nil if there is none.
func get[T client.Object](ctx context.Context, from client.Reader, key types.NamespacedName, into T) (T, error) {
	var none T
	switch err := from.Get(ctx, key, into); {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read %T %s: %w", into, key, err)
	}
	return into, nil
}
