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

// errStale: the API server refused a write that was decided on an old state. This is not a fault; the decision is made again.
var errStale = errors.New("decided on an old state")

// previousError: an object of a previous job with the same name is in the way until the garbage collector deletes it.
type previousError struct{ object string }

func (e previousError) Error() string {
	return e.object + " belongs to a previous job of this name and is not deleted yet"
}

// refusal is an answer of the API server that an immediate retry does not change: quota, Pod Security, admission, or an unreachable
// webhook.
type refusal struct {
	verb plan.Verb
	error
}

func (r refusal) Unwrap() error { return r.error }

// outcome is the result of carrying out a plan.
type outcome struct {
	errs []error
	// refused are the refusals among errs.
	refused []plan.Refusal
	// previous are the objects that block some of errs until they are deleted.
	previous []string
	// ended: the decision is outdated, or the API server does not answer. The remaining steps are left for the next reconcile.
	ended bool
}

// try does a step unless the plan has ended. needed means that no Pod can be created without the step.
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
		return false // nothing can be created here any more
	case errors.As(err, &refused):
		d.refused = append(d.refused, plan.Refusal{Verb: refused.verb, Text: refused.Error(), Pods: needed})
	case errors.As(err, &previous):
		d.previous = append(d.previous, previous.object)
	case !errors.As(err, &answer):
		d.ended = true
	}
	d.errs = append(d.errs, err)
	return false
}

// act carries out a plan. First come the Lease, the Service and the roles, because takeovers and traffic wait for them. Then come the
// objects that every Pod needs, then Pods, then the rest. A refusal blocks only the steps that depend on it. The next observation shows
// which part of a plan was carried out.
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

// adopt makes the job the owner of a Pod. If a user deletes a job but keeps its Pods, the Pods lose their owner before the job is
// deleted, and the operator can see that first. It would then give the Pods to a job that no longer exists, and the garbage
// collector would delete them.
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

// expire deletes a finished job, but only in the observed version: a user who asks for another run in the meantime keeps the job.
// Its Pods are deleted with it.
func (r *Reconciler) expire(ctx context.Context, o *observation) error {
	uid, version := o.Job.UID, o.Job.ResourceVersion
	err := r.Client.Delete(ctx, o.Job.DeepCopy(), client.Preconditions{UID: &uid, ResourceVersion: &version},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	switch {
	case apierrors.IsConflict(err):
		return errStale
	case !ignorable(err):
		return asRefusal(plan.Delete, fmt.Errorf("delete the finished job %s/%s: %w", o.Namespace, o.Name, err))
	}
	return nil
}

// move creates one more Pod, after noting the attempt on a Pod. The API server may refuse it, for example because of an exact
// quota. That is not a problem of the job: move logs the refusal and does not try again soon.
func (r *Reconciler) move(ctx context.Context, o *observation, m *plan.Move, d *outcome) {
	note := map[string]any{"annotations": map[string]string{plan.MoveAnnotation: m.Note}}
	for _, do := range []func() error{
		func() error { return r.patchPod(ctx, o, m.Beside, note) },
		func() error { return r.create(ctx, o, m.Pod) },
	} {
		err := do()
		if errors.As(err, new(refusal)) {
			ctrl.LoggerFrom(ctx).Info("did not move a standby to another node", "refused", err.Error())
			return
		}
		if !d.try(false, func() error { return err }) {
			return
		}
	}
}

// changePods deletes Pods and creates others. It deletes no Pod whose replacement cannot be created.
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

// overQuota is a part of the message with which a quota refuses.
const overQuota = "exceeded quota"

// admissible checks with a dry run whether a Pod could be created, before another Pod is deleted to make room for it. A quota may
// be used up by the Pod that will be deleted.
func (r *Reconciler) admissible(ctx context.Context, pod *corev1.Pod) error {
	err := r.Client.Create(ctx, pod.DeepCopy(), fieldOwner, client.DryRunAll)
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), overQuota) {
		return nil
	}
	return refusedPod(pod, err)
}

// nameTaken finds out why the operator did not see a Pod of that name. Either the cache lags behind an earlier reconcile or another
// operator, or the Pod has lost the labels by which the operator knows its Pods.
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
			return refusal{plan.Create, fmt.Errorf("the Pod %s/%s exists without the label %s=%s: restore the label, or delete the Pod",
				pod.Namespace, pod.Name, name, value)}
		}
	}
	return errStale
}

func refusedPod(pod *corev1.Pod, err error) error {
	return asRefusal(plan.Create, fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err))
}

// writeLease is the only place at which the operator writes a Lease. Each write is conditional on exactly the version of the
// decision.
func (r *Reconciler) writeLease(ctx context.Context, o *observation, w *plan.LeaseWrite) (err error) {
	if w == nil {
		return nil
	}
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	switch w.Verb {
	case plan.Create:
		err = r.Client.Create(ctx, newLease(key, w), fieldOwner)
		r.memory.hide(key)
		if r.memory.promotes(key); err == nil && plan.StartsAfresh(&o.Observed) {
			r.memory.startsAfresh(key)
		}
	case plan.Update:
		err = r.Client.Update(ctx, written(o.lease, w.Record, w.Claim), fieldOwner)
		o.released = err == nil && w.Record.Free()
	case plan.Delete:
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
	return asRefusal(w.Verb, fmt.Errorf("write the Lease %s: %w", key, err))
}

// apply creates a child or updates it with server-side apply. It leaves an object of that name alone if another owner controls it:
// taking it over would change it now and delete it with the job.
func (r *Reconciler) apply(ctx context.Context, o *observation, child plan.Child) error {
	object, ok := child.(client.Object)
	if !ok {
		return fmt.Errorf("%T is not an object", child)
	}
	kind := object.GetObjectKind().GroupVersionKind()
	known := o.Children.Has(child)
	var refused error
	if !known { // then it usually does not exist
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
		return asRefusal(plan.Create, fmt.Errorf("create %s %s/%s: %w", kind.Kind, object.GetNamespace(), object.GetName(), refused))
	case live != nil:
		if err := mayApply(o.Job, kind.Kind, live); err != nil {
			return err
		}
		if !known && live.Labels[contract.ManagedByLabel] == contract.ManagedBy {
			return errStale // the cache will show it
		}
	}
	return r.patchChild(ctx, object, live)
}

// patchChild applies a child over the existing object. The role of a binding is immutable, so such a binding is recreated.
func (r *Reconciler) patchChild(ctx context.Context, object client.Object, live *metav1.PartialObjectMetadata) error {
	what := fmt.Sprintf("%s %s/%s", object.GetObjectKind().GroupVersionKind().Kind, object.GetNamespace(), object.GetName())
	patch := func(object client.Object) error {
		//nolint:staticcheck // typed apply configurations would duplicate every field
		return r.Client.Patch(ctx, object, client.Apply, fieldOwner, client.ForceOwnership)
	}
	binding, isBinding := object.(*rbacv1.RoleBinding)
	verb := plan.Update
	if live == nil {
		verb = plan.Create
	}
	if err := r.ownByApply(ctx, live); err != nil {
		return asRefusal(plan.Update, fmt.Errorf("change the managed fields of %s: %w", what, err))
	}
	err := patch(object)
	if isBinding && live != nil && apierrors.IsInvalid(err) {
		if err := r.Client.Delete(ctx, live, client.Preconditions{UID: &live.UID}); !ignorable(err) {
			return asRefusal(plan.Delete, fmt.Errorf("delete %s: %w", what, err))
		}
		err = patch(binding)
	}
	if err != nil {
		return asRefusal(verb, fmt.Errorf("apply %s: %w", what, err))
	}
	return nil
}

// ownByApply converts the managed fields of a created object, once, as if it had been applied. Otherwise fields that a later apply
// leaves out would stay.
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

// mayApply returns nil if an existing object belongs to the job, or a previous job of its name left it without an owner.
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
	return refusal{plan.Create, fmt.Errorf("%s %s/%s exists and does not belong to this SingletonJob: delete it, or %s", kind, live.Namespace, live.Name, remedy)}
}

// relabel sets a Pod's role label. Traffic follows "active", so before a Pod gets that role all others lose it. This uses the API
// server's current state, not a stale cache.
func (r *Reconciler) relabel(ctx context.Context, o *observation, pod plan.Relabel) error {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if pod.Role != contract.RoleActive {
		err := r.patchPod(ctx, o, pod.PodRef, role(pod.Name, pod.Role))
		if err == nil {
			r.memory.demoted(key, pod.UID, o.over())
		}
		return err
	}
	now, err := r.sameHolder(ctx, o)
	if err != nil {
		return err
	}
	if now.Presence != o.Lease.Presence || now.Record.Token != o.Lease.Record.Token {
		return errStale // the same process has another tenure
	}
	if !r.memory.noneActive(key, &now.Record) {
		if err := r.demoteAll(ctx, o, key); err != nil {
			return err
		}
	}
	r.memory.promotes(key)
	err = r.patchPod(ctx, o, pod.PodRef, role(pod.Name, pod.Role))
	if err == nil {
		r.memory.promoted(key, pod.UID, &now.Record)
	}
	return err
}

// demoteAll takes the role "active" from every Pod that has it.
func (r *Reconciler) demoteAll(ctx context.Context, o *observation, key types.NamespacedName) error {
	active, err := r.pods(ctx, r.Live, key, client.MatchingLabels{contract.NameLabel: o.Name, contract.RoleLabel: contract.RoleActive})
	if err != nil {
		return err
	}
	for _, pod := range active {
		if err := r.patchPod(ctx, o, plan.PodRef{Name: pod.Name, UID: pod.UID}, role(pod.Name, contract.RoleStandby)); err != nil {
			return err
		}
	}
	return nil
}

// sameHolder checks with the API server that the Lease still names the observed holder, and returns what it says.
func (r *Reconciler) sameHolder(ctx context.Context, o *observation) (plan.Lease, error) {
	now, err := get(ctx, r.Live, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, &coordinationv1.Lease{})
	if err != nil || now == nil && o.lease == nil {
		return plan.Lease{}, err
	}
	if now == nil || o.lease == nil || now.UID != o.lease.UID || ptr.Deref(now.Spec.HolderIdentity, "") != o.Lease.Record.Holder {
		return plan.Lease{}, errStale
	}
	return decode(now)
}

func role(pod, role string) map[string]any {
	return map[string]any{"labels": map[string]string{contract.RoleLabel: role, contract.PodLabel: pod}}
}

// sameJob reads the job from the API server and checks that it is the observed one, not another of its name.
func (r *Reconciler) sameJob(ctx context.Context, o *observation) (*v1alpha1.SingletonJob, error) {
	now, err := get(ctx, r.Live, client.ObjectKeyFromObject(o.Job), &v1alpha1.SingletonJob{})
	if err == nil && (now == nil || now.UID != o.Job.UID) {
		err = errStale
	}
	return now, err
}

// sameDecision checks before Pods are deleted that spec and holder are still the observed ones. With an old spec, an operator that
// does not know yet that another one leads would undo the other's work. With an old Lease, it could delete the holder.
func (r *Reconciler) sameDecision(ctx context.Context, o *observation) error {
	now, err := r.sameJob(ctx, o)
	if err != nil {
		return err
	}
	restarted := func(job *v1alpha1.SingletonJob) string { return job.Annotations[contract.RestartedAtAnnotation] } // an annotation does not change the generation
	if now.Generation != o.Job.Generation || restarted(now) != restarted(o.Job) {
		return errStale
	}
	_, err = r.sameHolder(ctx, o)
	return err
}

// deletePod deletes exactly this Pod.
func (r *Reconciler) deletePod(ctx context.Context, o *observation, pod plan.PodRef) error {
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: pod.Name}}
	if err := r.Client.Delete(ctx, target, client.Preconditions{UID: &pod.UID}); !ignorable(err) {
		return asRefusal(plan.Delete, fmt.Errorf("delete pod %s/%s: %w", o.Namespace, pod.Name, err))
	}
	return nil
}

// patchPod changes the metadata of exactly this Pod. Its other owners stay.
func (r *Reconciler) patchPod(ctx context.Context, o *observation, pod plan.PodRef, metadata map[string]any) error {
	metadata["uid"] = pod.UID // a precondition: the API server refuses to change it
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: pod.Name}}
	err = r.Client.Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, body), fieldOwner)
	if _, another := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid); another && apierrors.IsInvalid(err) {
		return errStale // another Pod has the name now
	}
	switch {
	case apierrors.IsConflict(err): // the API server's own attempts met other changes
		return errStale
	case !ignorable(err):
		return asRefusal(plan.Update, fmt.Errorf("change pod %s/%s: %w", o.Namespace, pod.Name, err))
	}
	return nil
}

// ignorable reports whether a write succeeded, or found that the object no longer exists or is another one.
func ignorable(err error) bool {
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err)
}

// asRefusal marks errors that an immediate retry does not fix.
func asRefusal(verb plan.Verb, err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	switch code := int(status.Status().Code); code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return err
	case http.StatusInternalServerError:
		// The text is the only sign of a failing webhook or of exhausted addresses.
		if text := err.Error(); strings.Contains(text, "webhook") || strings.Contains(text, "failed to allocate") {
			return refusal{verb, err}
		}
		return err
	default:
		if code >= http.StatusBadRequest && code < http.StatusInternalServerError {
			return refusal{verb, err}
		}
		return err
	}
}
