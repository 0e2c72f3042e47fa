package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

// fieldOwner is the operator's name in managed fields.
const fieldOwner = client.FieldOwner("singletonjob")

// errStale: something was decided on an old state, and the API server refused it. Nothing is wrong; it is decided anew.
var errStale = errors.New("decided on an old state")

// errPrevious: what a previous job of the name had is in the way until the garbage collector has deleted it.
var errPrevious = errors.New("a previous job's object is being deleted")

// refusal is an answer of the API server that trying again at once does not change: quota, Pod Security, admission, also
// by a webhook that can't be reached.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// outcome is what became of a plan.
type outcome struct {
	errs []error
	// refused are the refusals among errs.
	refused []plan.Refusal
	// ended: what was decided on is old, or the API server gives no answer. What was to come is left for the next time.
	ended bool
}

// try does a step unless the plan has ended. needed: without it there are no new pods.
func (d *outcome) try(needed bool, do func() error) (done bool) {
	if d.ended {
		return false
	}
	err := do()
	if err == nil {
		return true
	}
	var answer apierrors.APIStatus
	switch refused := (refusal{}); {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false // there is nothing to be made here any more
	case errors.As(err, &refused):
		d.refused = append(d.refused, plan.Refusal{Text: refused.Error(), Pods: needed})
	case !errors.Is(err, errPrevious) && !errors.As(err, &answer):
		d.ended = true
	}
	d.errs = append(d.errs, err)
	return false
}

// act carries out a plan: first the Lease and the roles, on which takeovers and traffic wait, then what no pod can be
// without, then pods, then the rest. What the API server refuses holds up only what needs it. A plan that was carried out
// in part is found so by the next observation.
func (r *Reconciler) act(ctx context.Context, o *observation, p *plan.Plan) outcome {
	var d outcome
	d.try(true, func() error { return r.writeLease(ctx, o, p.Lease) })
	for _, pod := range p.Relabel {
		d.try(false, func() error { return r.relabel(ctx, o, pod) })
	}
	equipped := true
	for _, child := range p.Apply {
		equipped = d.try(true, func() error { return r.apply(ctx, o, child) }) && equipped
	}
	for _, pod := range p.Adopt {
		patch := map[string]any{"ownerReferences": []metav1.OwnerReference{plan.OwnerReference(o.Job)}}
		d.try(false, func() error { return r.patchPod(ctx, o, pod, patch) })
	}
	if equipped || len(p.Create) == 0 {
		r.changePods(ctx, o, p, &d)
	}
	for _, child := range p.Also {
		d.try(false, func() error { return r.apply(ctx, o, child) })
	}
	return d
}

// changePods deletes pods and makes others. None goes for the sake of one that can't come.
func (r *Reconciler) changePods(ctx context.Context, o *observation, p *plan.Plan, d *outcome) {
	if len(p.Delete) > 0 && len(p.Create) > 0 && !d.try(true, func() error { return r.admissible(ctx, p.Create[0]) }) {
		return
	}
	if len(p.Delete) > 0 && d.try(false, func() error { return r.sameDecision(ctx, o) }) {
		for _, pod := range p.Delete {
			d.try(false, func() error { return r.deletePod(ctx, o, pod) })
		}
	}
	for _, pod := range p.Create {
		if !d.try(true, func() error { return r.create(ctx, o, pod) }) {
			return
		}
	}
}

func (r *Reconciler) create(ctx context.Context, o *observation, pod *corev1.Pod) error {
	err := r.Client.Create(ctx, pod, fieldOwner)
	if apierrors.IsAlreadyExists(err) {
		return r.nameTaken(ctx, o, pod)
	}
	if err != nil {
		return refusedPod(pod, err)
	}
	return nil
}

// admissible asks whether a pod could be created, before another goes for its sake. A quota may be used up by the one
// that goes.
func (r *Reconciler) admissible(ctx context.Context, pod *corev1.Pod) error {
	err := r.Client.Create(ctx, pod.DeepCopy(), fieldOwner, client.DryRunAll)
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota") {
		return nil
	}
	return refusedPod(pod, err)
}

// nameTaken says why a pod of that name was not seen: the cache lags behind an earlier reconcile, or another operator's,
// or the pod has lost what the operator knows its pods by.
func (r *Reconciler) nameTaken(ctx context.Context, o *observation, pod *corev1.Pod) error {
	live, err := get(ctx, r.Live, client.ObjectKeyFromObject(pod), &corev1.Pod{})
	if err != nil {
		return err
	}
	if live == nil {
		return errStale
	}
	for name, value := range inject.Selector(o.Name) {
		if live.Labels[name] != value {
			return refusal{fmt.Errorf("pod %s/%s exists without the label %s=%s: restore the label, or delete the pod",
				pod.Namespace, pod.Name, name, value)}
		}
	}
	return errStale
}

func refusedPod(pod *corev1.Pod, err error) error {
	return asRefusal(fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err))
}

// writeLease is the only place where the operator writes a Lease. Each write is conditional on exactly what was decided on.
func (r *Reconciler) writeLease(ctx context.Context, o *observation, w *plan.LeaseWrite) (err error) {
	if w == nil {
		return nil
	}
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	switch w.Op {
	case plan.CreateLease:
		err = r.Client.Create(ctx, newLease(key, w), fieldOwner)
	case plan.UpdateLease:
		err = r.Client.Update(ctx, written(o.lease, w.Record, w.Claim), fieldOwner)
	case plan.DeleteLease:
		uid, version := o.lease.UID, o.lease.ResourceVersion
		err = r.Client.Delete(ctx, o.lease.DeepCopy(), client.Preconditions{UID: &uid, ResourceVersion: &version})
		if err == nil || apierrors.IsNotFound(err) {
			r.memory.forget(key)
		}
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		return errStale
	}
	return asRefusal(fmt.Errorf("write the Lease %s: %w", key, err))
}

// apply writes a child by server-side apply. One of that name that is not this job's is left alone: taking it over would
// change it now and delete it with the job.
func (r *Reconciler) apply(ctx context.Context, o *observation, child plan.Child) error {
	object, ok := child.(client.Object)
	if !ok {
		return fmt.Errorf("%T is not an object", child)
	}
	kind := object.GetObjectKind().GroupVersionKind()
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(kind)
	live, err := get(ctx, r.Live, client.ObjectKeyFromObject(object), live)
	if err != nil {
		return err
	}
	if live != nil {
		if err := mayApply(o.Job, kind.Kind, live); err != nil {
			return err
		}
	}
	return r.patchChild(ctx, object, live)
}

// patchChild writes a child over what there is. To which role a binding binds can't be changed, so that one is recreated.
func (r *Reconciler) patchChild(ctx context.Context, object client.Object, live *metav1.PartialObjectMetadata) error {
	what := fmt.Sprintf("%s %s/%s", object.GetObjectKind().GroupVersionKind().Kind, object.GetNamespace(), object.GetName())
	patch := func(object client.Object) error {
		//nolint:staticcheck // typed apply configurations would say everything twice
		return r.Client.Patch(ctx, object, client.Apply, fieldOwner, client.ForceOwnership)
	}
	binding, isBinding := object.(*rbacv1.RoleBinding)
	err := patch(object)
	if isBinding && live != nil && apierrors.IsInvalid(err) {
		if err := r.Client.Delete(ctx, live, client.Preconditions{UID: &live.UID}); !ignorable(err) {
			return asRefusal(fmt.Errorf("delete %s: %w", what, err))
		}
		err = patch(binding)
	}
	if err != nil {
		return asRefusal(fmt.Errorf("apply %s: %w", what, err))
	}
	return nil
}

// mayApply reports whether an object that exists is the job's, or one that a previous job of its name left without an owner.
func mayApply(job *v1alpha1.SingletonJob, kind string, live *metav1.PartialObjectMetadata) error {
	labelled := live.Labels[contract.ManagedByLabel] == contract.ManagedBy && live.Labels[contract.NameLabel] == job.Name
	switch owner := metav1.GetControllerOf(live); {
	case owner == nil && labelled, owner != nil && owner.UID == job.UID:
		return nil
	case owner != nil && labelled && owner.Kind == v1alpha1.Kind:
		return errPrevious
	}
	return refusal{fmt.Errorf("%s %s/%s exists and is not of this SingletonJob: delete it, or give the SingletonJob another name",
		kind, live.Namespace, live.Name)}
}

// relabel gives a pod its role. Traffic follows "active", so before a pod gets it everyone else loses it, by what the API
// server says and not an old cache.
func (r *Reconciler) relabel(ctx context.Context, o *observation, pod plan.Relabel) error {
	if pod.Role == contract.RoleActive {
		if err := r.sameHolder(ctx, o); err != nil {
			return err
		}
		others, err := r.pods(ctx, r.Live, client.ObjectKeyFromObject(o.lease), client.MatchingLabels{
			contract.NameLabel: o.Name, contract.RoleLabel: contract.RoleActive,
		})
		if err != nil {
			return err
		}
		for _, other := range others {
			if err := r.patchPod(ctx, o, plan.PodRef{Name: other.Name, UID: other.UID}, role(contract.RoleStandby)); err != nil {
				return err
			}
		}
	}
	return r.patchPod(ctx, o, pod.PodRef, role(pod.Role))
}

// sameHolder asks the API server whether the Lease still names the holder that was observed.
func (r *Reconciler) sameHolder(ctx context.Context, o *observation) error {
	now, err := get(ctx, r.Live, client.ObjectKeyFromObject(o.lease), &coordinationv1.Lease{})
	if err != nil {
		return err
	}
	if now == nil || now.UID != o.lease.UID || ptr.Deref(now.Spec.HolderIdentity, "") != o.Lease.Record.Holder {
		return errStale
	}
	return nil
}

func role(name string) map[string]any {
	return map[string]any{"labels": map[string]string{contract.RoleLabel: name}}
}

// sameDecision asks whether spec and holder are still what was observed, before pods are deleted. On an old spec, an operator
// that does not know yet that it is deposed would undo what the other does; with an old Lease it might take the holder for
// one of those that may go.
func (r *Reconciler) sameDecision(ctx context.Context, o *observation) error {
	now, err := get(ctx, r.Live, client.ObjectKeyFromObject(o.Job), &v1alpha1.SingletonJob{})
	if err != nil {
		return err
	}
	if now == nil || now.UID != o.Job.UID || now.Generation != o.Job.Generation {
		return errStale
	}
	return r.sameHolder(ctx, o)
}

// deletePod deletes exactly that pod.
func (r *Reconciler) deletePod(ctx context.Context, o *observation, pod plan.PodRef) error {
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: pod.Name}}
	if err := r.Client.Delete(ctx, target, client.Preconditions{UID: &pod.UID}); !ignorable(err) {
		return asRefusal(fmt.Errorf("delete pod %s/%s: %w", o.Namespace, pod.Name, err))
	}
	return nil
}

// patchPod changes the metadata of exactly that pod. Owners that it has from others stay.
func (r *Reconciler) patchPod(ctx context.Context, o *observation, pod plan.PodRef, metadata map[string]any) error {
	metadata["uid"] = pod.UID // a precondition: the API server refuses to change it
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: pod.Name}}
	err = r.Client.Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, body), fieldOwner)
	if _, another := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid); another && apierrors.IsInvalid(err) {
		return errStale // the name is another pod's now
	}
	if !ignorable(err) {
		return asRefusal(fmt.Errorf("change pod %s/%s: %w", o.Namespace, pod.Name, err))
	}
	return nil
}

// ignorable reports whether a write to an object has succeeded or found that the object is no longer the one that was meant.
func ignorable(err error) bool {
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err)
}

// asRefusal marks errors that trying again at once does not heal.
func asRefusal(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	switch code := int(status.Status().Code); code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return err
	case http.StatusInternalServerError:
		if strings.Contains(err.Error(), "webhook") { // there is no better sign of it
			return refusal{err}
		}
		return err
	default:
		if code >= http.StatusBadRequest && code < http.StatusInternalServerError {
			return refusal{err}
		}
		return err
	}
}
