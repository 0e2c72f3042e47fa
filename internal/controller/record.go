package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plan"
)

// record writes the status, then emits the Events for what the status made true, and finally clears from the Lease what is now
// recorded. The status write is conditional on the observed version of the job: a decision on an older version is refused, so that
// nothing is counted twice. A refused Event blocks nothing, and is written later.
func (r *Reconciler) record(ctx context.Context, o *observation, p *plan.Plan) []error {
	if o.Job == nil {
		return nil
	}
	key, job := client.ObjectKeyFromObject(o.Job), o.Job
	// The status may be stored even if the response is an error or missing. Until all Events are written, this process does not
	// know which of them exist.
	r.memory.announce(key, job.UID)
	if p.Status != nil {
		job = job.DeepCopy()
		job.Status = *p.Status
		switch err := r.Client.Status().Update(ctx, job, fieldOwner); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return []error{errStale}
		case err != nil:
			return []error{asRefusal(plan.Update, fmt.Errorf("write the status of %s/%s: %w", o.Namespace, o.Name, err))}
		}
		r.memory.setWritten(key, job.ResourceVersion)
		r.memory.agrees(key)
		r.metrics.show(job, p.Changes)
		r.metrics.runs.count(job.Namespace, job.Name, o.Job.Status.Runs, job.Status.Runs)
	} else {
		r.metrics.show(job, nil)
	}
	var errs []error
	for _, e := range p.Events {
		if err := r.emit(ctx, job, e); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		r.memory.hasAnnounced(key, job.UID, plan.Recorded(&job.Status))
	}
	if err := r.writeLease(ctx, o, p.Told); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// emit writes an Event under a name that is derived from its content. Unlike with a recorder, the Event is written when emit
// returns, and only once.
func (r *Reconciler) emit(ctx context.Context, job *v1alpha1.SingletonJob, e plan.Event) error {
	now := metav1.NewTime(r.Clock.Now())
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: e.Name},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind,
			Namespace: job.Namespace, Name: job.Name, UID: job.UID,
		},
		Type: e.Type, Reason: e.Reason, Message: e.Message,
		Source:         corev1.EventSource{Component: string(fieldOwner)},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	switch err := r.Client.Create(ctx, event, fieldOwner); {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // it would be deleted with the namespace
	default:
		return asRefusal(plan.Create, fmt.Errorf("write the Event %s/%s: %w", job.Namespace, e.Name, err))
	}
}
