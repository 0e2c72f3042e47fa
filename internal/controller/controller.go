// Package controller reads what package plan decides on and carries out what it decided. It decides nothing itself.
package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

const (
	// staleRetry is when to look again after a write that came too late. The change that it missed may be a renewal,
	// which wakes nobody.
	staleRetry = 50 * time.Millisecond
	// previousRetry is when to look again whether a previous job's objects are gone.
	previousRetry = time.Second
	// refusalRetry is when to ask again for what the API server refused; later after as long as it has refused, up to
	// refusalLimit.
	refusalRetry = 2 * time.Second
	refusalLimit = 5 * time.Minute
)

// Reconciler brings SingletonJobs to what their specs ask for.
type Reconciler struct {
	// Client writes, and reads from the cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Clock dates what is written and measures how long Leases stay unchanged.
	Clock clock.PassiveClock
	// Settings are what all pods get.
	Settings inject.Settings

	memory  *memory
	metrics *metrics
}

// New makes a Reconciler that remembers nothing yet.
func New(c client.Client, live client.Reader, now clock.PassiveClock, settings inject.Settings) *Reconciler {
	return &Reconciler{Client: logged{c}, Live: live, Clock: now, Settings: settings, memory: newMemory(), metrics: newMetrics()}
}

// Reconcile observes, decides and acts, and always tries to record what became of it.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	o, err := r.observe(ctx, request.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if o.Job == nil {
		r.metrics.forget(request.NamespacedName)
	}
	p := plan.Decide(o.Observed)
	done := r.act(withReasons(ctx, p.Reasons), &o, &p)
	if o.Refused = done.refused; done.ended {
		// It is not known whether what was refused would still be.
		o.Refused = r.memory.refusals(request.NamespacedName)
	}
	if len(o.Refused) > 0 {
		p = plan.Decide(o.Observed)
	}
	errs := slices.Concat(done.errs, r.record(withReasons(ctx, p.Reasons), &o, &p))
	refused := slices.ContainsFunc(errs, func(err error) bool { return errors.As(err, new(refusal)) }) // an Event, say
	retry := r.memory.refuse(request.NamespacedName, refused, o.Refused, r.Clock.Now())
	return result(p.Wake, max(retry, refusalRetry), errs...)
}

// result says when to come back: at once where the state was old, in a while where something was refused, after a growing
// delay where something failed.
func result(wake, retry time.Duration, errs ...error) (ctrl.Result, error) {
	var failed []error
	sooner := func(d time.Duration) {
		if wake == 0 || d < wake {
			wake = d
		}
	}
	for _, err := range errs {
		switch refused := (refusal{}); {
		case err == nil:
		case errors.Is(err, errStale):
			sooner(staleRetry)
		case errors.Is(err, errPrevious):
			sooner(previousRetry)
		case errors.As(err, &refused):
			sooner(retry)
		default:
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return ctrl.Result{}, errors.Join(failed...)
	}
	return ctrl.Result{RequeueAfter: wake}, nil
}
