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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
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

// previousError: what a previous job of the name had is in the way until the garbage collector has deleted it.
type previousError struct{ object string }

func (e previousError) Error() string { return e.object + " is a previous job's, and not deleted yet" }

// refusal is an answer of the API server that trying again at once does not change: quota, Pod Security, admission, also
// by a webhook that can't be reached.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// outcome is what became of a plan.
type outcome struct {
	errs []error
	// refused are the refusals among errs.
	refused []plan.Refusal
	// previous are the objects for whose deletion some of errs wait.
	previous []string
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
	var (
		answer   apierrors.APIStatus
		previous previousError
	)
	switch refused := (refusal{}); {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false // there is nothing to be made here any more
	case errors.As(err, &refused):
		d.refused = append(d.refused, plan.Refusal{Text: refused.Error(), Pods: needed})
	case errors.As(err, &previous):
		d.previous = append(d.previous, previous.object)
	case !errors.As(err, &answer):
		d.ended = true
	}
	d.errs = append(d.errs, err)
	return false
}

// act carries out a plan: first the Lease, the Service and the roles, on which takeovers and traffic wait, then what no pod can be
// without, then pods, then the rest. What the API server refuses holds up only what needs it. A plan that was carried out
// in part is found so by the next observation.
func (r *Reconciler) act(ctx context.Context, o *observation, p *plan.Plan) outcome {
	var d outcome
	if d.try(true, func() error { return r.writeLease(ctx, o, p.Lease) }) && p.Lease != nil && p.Lease.Event != nil {
		d.try(false, func() error { return r.emit(ctx, o.Job, *p.Lease.Event) })
	}
	d.try(false, func() error { return r.writeService(ctx, o, p.Service) })
	for _, pod := range p.Relabel {
		d.try(false, func() error { return r.relabel(ctx, o, pod) })
	}
	equipped := true
	for _, child := range p.Apply {
		equipped = d.try(true, func() error { return r.apply(ctx, o, child) }) && equipped
	}
	for _, pod := range p.Adopt {
		d.try(false, func() error { return r.adopt(ctx, o, pod) })
	}
	if equipped || len(p.Create) == 0 {
		r.changePods(ctx, o, p, &d)
	}
	for _, child := range p.Also {
		d.try(false, func() error { return r.apply(ctx, o, child) })
	}
	if p.Move != nil && len(d.errs) == 0 {
		r.move(ctx, o, p.Move, &d)
	}
	if p.Expired {
		d.try(false, func() error { return r.expire(ctx, o) })
	}
	return d
}

// adopt makes a pod the job's. Who deletes a job and keeps its pods has their owner taken away before the job is gone, and an operator
// may see that first: then they would be given to a job that is not there any more, and be deleted as its garbage.
func (r *Reconciler) adopt(ctx context.Context, o *observation, pod plan.PodRef) error {
	now, err := r.sameJob(ctx, o)
	if err != nil {
		return err
	}
	if now.DeletionTimestamp != nil {
		return errStale
	}
	return r.patchPod(ctx, o, pod, map[string]any{"ownerReferences": []metav1.OwnerReference{plan.OwnerReference(o.Job)}})
}

// expire deletes a job that is finished, as it was observed: who asks for another run meanwhile keeps it. Its pods go with it.
func (r *Reconciler) expire(ctx context.Context, o *observation) error {
	uid, version := o.Job.UID, o.Job.ResourceVersion
	err := r.Client.Delete(ctx, o.Job.DeepCopy(), client.Preconditions{UID: &uid, ResourceVersion: &version},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	switch {
	case apierrors.IsConflict(err):
		return errStale
	case !ignorable(err):
		return asRefusal(fmt.Errorf("delete the finished job %s/%s: %w", o.Namespace, o.Name, err))
	}
	return nil
}

// move makes one pod more, once it is noted that this is tried. What is refused then, by an exact quota perhaps, is nobody's trouble:
// it is not asked for again soon, and the log says it.
func (r *Reconciler) move(ctx context.Context, o *observation, m *plan.Move, d *outcome) {
	note := map[string]any{"annotations": map[string]string{plan.MoveAnnotation: m.Note}}
	for _, do := range []func() error{
		func() error { return r.patchPod(ctx, o, m.Beside, note) },
		func() error { return r.create(ctx, o, m.Pod) },
	} {
		err := do()
		if errors.As(err, new(refusal)) {
			ctrl.LoggerFrom(ctx).Info("no standby is moved to another node", "refused", err.Error())
			return
		}
		if !d.try(false, func() error { return err }) {
			return
		}
	}
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

// overQuota is in the text of an answer by which a quota refuses.
const overQuota = "exceeded quota"

// admissible asks whether a pod could be created, before another goes for its sake. A quota may be used up by the one
// that goes.
func (r *Reconciler) admissible(ctx context.Context, pod *corev1.Pod) error {
	err := r.Client.Create(ctx, pod.DeepCopy(), fieldOwner, client.DryRunAll)
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), overQuota) {
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

// apply creates a child, or writes it by server-side apply. One of that name that is not this job's is left alone: taking it over would
// change it now and delete it with the job.
func (r *Reconciler) apply(ctx context.Context, o *observation, child plan.Child) error {
	object, ok := child.(client.Object)
	if !ok {
		return fmt.Errorf("%T is not an object", child)
	}
	kind := object.GetObjectKind().GroupVersionKind()
	known := o.Children.Has(child)
	var refused error
	if !known { // then it is not there, as a rule
		var answer apierrors.APIStatus
		if refused = r.Client.Create(ctx, object, fieldOwner); refused == nil || !errors.As(refused, &answer) {
			return refused
		}
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(kind)
	live, err := get(ctx, r.Live, client.ObjectKeyFromObject(object), live)
	switch {
	case err != nil:
		return err
	case live == nil && refused != nil && !apierrors.IsAlreadyExists(refused):
		return asRefusal(fmt.Errorf("create %s %s/%s: %w", kind.Kind, object.GetNamespace(), object.GetName(), refused))
	case live != nil:
		if err := mayApply(o.Job, kind.Kind, live); err != nil {
			return err
		}
		if !known && live.Labels[contract.ManagedByLabel] == contract.ManagedBy {
			return errStale // the cache will know it
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
	if err := r.ownByApply(ctx, live); err != nil {
		return asRefusal(fmt.Errorf("change the managed fields of %s: %w", what, err))
	}
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

// ownByApply has what was created be as if it had been applied, once: else what a later apply leaves out would stay.
func (r *Reconciler) ownByApply(ctx context.Context, live *metav1.PartialObjectMetadata) error {
	if live == nil {
		return nil
	}
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, sets.New(string(fieldOwner)), string(fieldOwner))
	if err != nil || len(patch) == 0 {
		return err
	}
	err = r.Client.Patch(ctx, live.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return errStale
	}
	return err
}

// mayApply reports whether an object that exists is the job's, or one that a previous job of its name left without an owner.
func mayApply(job *v1alpha1.SingletonJob, kind string, live *metav1.PartialObjectMetadata) error {
	labelled := live.Labels[contract.ManagedByLabel] == contract.ManagedBy && live.Labels[contract.NameLabel] == job.Name
	switch owner := metav1.GetControllerOf(live); {
	case owner == nil && labelled, owner != nil && owner.UID == job.UID:
		return nil
	case owner != nil && labelled && owner.Kind == v1alpha1.Kind:
		return previousError{fmt.Sprintf("%s %s/%s", kind, live.Namespace, live.Name)}
	}
	remedy := "give the SingletonJob another name"
	if kind == "Service" {
		remedy = "set another spec.service.name"
	}
	return refusal{fmt.Errorf("%s %s/%s exists and is not of this SingletonJob: delete it, or %s", kind, live.Namespace, live.Name, remedy)}
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
			if err := r.patchPod(ctx, o, plan.PodRef{Name: other.Name, UID: other.UID}, role(other.Name, contract.RoleStandby)); err != nil {
				return err
			}
		}
	}
	return r.patchPod(ctx, o, pod.PodRef, role(pod.Name, pod.Role))
}

// sameHolder asks the API server whether the Lease still names the holder that was observed.
func (r *Reconciler) sameHolder(ctx context.Context, o *observation) error {
	now, err := get(ctx, r.Live, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, &coordinationv1.Lease{})
	if err != nil {
		return err
	}
	if now == nil && o.lease == nil {
		return nil
	}
	if now == nil || o.lease == nil || now.UID != o.lease.UID || ptr.Deref(now.Spec.HolderIdentity, "") != o.Lease.Record.Holder {
		return errStale
	}
	return nil
}

func role(pod, role string) map[string]any {
	return map[string]any{"labels": map[string]string{contract.RoleLabel: role, contract.PodLabel: pod}}
}

// sameJob asks the API server for the job that was observed, and not another of its name.
func (r *Reconciler) sameJob(ctx context.Context, o *observation) (*v1alpha1.SingletonJob, error) {
	now, err := get(ctx, r.Live, client.ObjectKeyFromObject(o.Job), &v1alpha1.SingletonJob{})
	if err == nil && (now == nil || now.UID != o.Job.UID) {
		err = errStale
	}
	return now, err
}

// sameDecision asks whether spec and holder are still what was observed, before pods are deleted. On an old spec, an operator
// that does not know yet that it is deposed would undo what the other does; with an old Lease it might take the holder for
// one of those that may go.
func (r *Reconciler) sameDecision(ctx context.Context, o *observation) error {
	now, err := r.sameJob(ctx, o)
	if err != nil {
		return err
	}
	restarted := func(job *v1alpha1.SingletonJob) string { return job.Annotations[contract.RestartedAtAnnotation] } // of no generation
	if now.Generation != o.Job.Generation || restarted(now) != restarted(o.Job) {
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
		// There is no better sign of a webhook that fails, nor of addresses that are used up.
		if text := err.Error(); strings.Contains(text, "webhook") || strings.Contains(text, "failed to allocate") {
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
