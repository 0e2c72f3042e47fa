package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

// writeService makes the job's Service select the active Pod. The write is conditional on the observed version of the Service, and
// the API server is asked after that observation whether the holder is still the one of the decision. A lagging operator therefore
// never sets a Service back: a later change of the Service has changed its version.
func (r *Reconciler) writeService(ctx context.Context, o *observation, w *plan.ServiceWrite) (err error) {
	if w == nil {
		return nil
	}
	if o.lease != nil && o.Lease.Presence == plan.Ours {
		if _, err := r.sameHolder(ctx, o); err != nil {
			return err
		}
	}
	switch w.Verb {
	case plan.Create:
		if err = r.Client.Create(ctx, w.Service, fieldOwner); apierrors.IsAlreadyExists(err) {
			return r.serviceTaken(ctx, o, w.Service)
		}
	case plan.Update:
		err = r.Client.Update(ctx, w.Service, fieldOwner)
	case plan.Delete:
		if err := r.sameDecision(ctx, o); err != nil {
			return err
		}
		uid, version := w.Service.UID, w.Service.ResourceVersion
		err = r.Client.Delete(ctx, w.Service, client.Preconditions{UID: &uid, ResourceVersion: &version})
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return errStale
	}
	return asRefusal(w.Verb, fmt.Errorf("write the Service %s/%s: %w", o.Namespace, w.Service.Name, err))
}

// serviceTaken finds out why the operator did not see a Service of that name. The cache lags, another owner has the Service, or the
// Service has lost the labels by which the operator knows it.
func (r *Reconciler) serviceTaken(ctx context.Context, o *observation, wanted *corev1.Service) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	live, err := get(ctx, r.Live, client.ObjectKeyFromObject(wanted), live)
	if err != nil {
		return err
	}
	if live == nil {
		return errStale
	}
	if err := mayApply(o.Job, "Service", live); err != nil {
		return err
	}
	for name, value := range inject.Selector(o.Name) {
		if live.Labels[name] != value {
			return refusal{plan.Create, fmt.Errorf("the Service %s/%s exists without the label %s=%s: restore the label, or delete the Service",
				o.Namespace, wanted.Name, name, value)}
		}
	}
	return errStale
}
