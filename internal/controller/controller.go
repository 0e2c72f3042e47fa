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

	"github.com/singletonjob/operator/internal/entrypoint"
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
	// ServerTime is the API server's time, zero while no recent answer has told it; nil for an operator that does not know it, and
	// that neither changes nor suspends schedules.
	ServerTime func() time.Time
	// Settings are what all pods get.
	Settings inject.Settings
	// WithoutNodes is for an operator that may not read nodes. None is known to be out of service then, so that a holder on
	// a lost node is waited for until its lease runs out.
	WithoutNodes bool
	// Entrypoints looks up what images run by themselves; nil for an operator that does not.
	Entrypoints *entrypoint.Lookups
	// FleetRollouts is of how many jobs at a time pods are replaced that the operator alone made outdated; 0 for no limit.
	FleetRollouts int

	memory   *memory
	metrics  *metrics
	silences *silences
	turns    *turns
}

// New makes a Reconciler that remembers nothing yet.
func New(c client.Client, live client.Reader, now clock.PassiveClock, settings inject.Settings) *Reconciler {
	return &Reconciler{
		Client: logged{c}, Live: live, Clock: now, Settings: settings, FleetRollouts: DefaultFleetRollouts,
		memory: newMemory(), metrics: newMetrics(), silences: newSilences(), turns: newTurns(),
	}
}

// Reconcile observes, decides and acts, and always tries to record what became of it.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	o, err := r.observe(ctx, request.NamespacedName)
	if err != nil {
		r.turns.failed(request.NamespacedName)
		return ctrl.Result{}, err
	}
	if o.Job == nil {
		r.metrics.forget(request.NamespacedName)
	}
	p := plan.Decide(o.Observed)
	if p.AsksTurn {
		if o.Turn, err = r.turn(ctx, request.NamespacedName); o.Turn {
			p = plan.Decide(o.Observed)
		}
	}
	if o.Job != nil {
		r.memory.setHashed(request.NamespacedName, p.Hashed)
		r.metrics.showAgents(request.NamespacedName, p.Agents)
	}
	done := r.act(withReasons(ctx, p.Reasons), &o, &p)
	if o.Refused = done.refused; done.ended {
		// It is not known whether what was refused would still be.
		o.Refused = r.memory.refusals(request.NamespacedName)
	}
	if o.Previous = done.previous; len(o.Refused)+len(o.Previous) > 0 {
		p = plan.Decide(o.Observed)
	}
	if o.Job != nil && p.Status == nil && r.memory.precedes(request.NamespacedName, o.Job.ResourceVersion) {
		done.errs = append(done.errs, errStale)
	}
	errs := slices.Concat([]error{err}, done.errs, r.record(withReasons(ctx, p.Reasons), &o, &p))
	if !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, errStale) }) { // a place may be stored that was not seen
		r.turns.settle(request.NamespacedName, &p)
	}
	refused := slices.ContainsFunc(errs, func(err error) bool { return errors.As(err, new(refusal)) }) // an Event, say
	retry := r.memory.refuse(request.NamespacedName, refused, o.Refused, r.Clock.Now())
	r.silences.await(request.NamespacedName, awaited{p.Silence, p.Renewal}, o.Lease.Unchanged)
	return result(p.Due, max(retry, refusalRetry), errs...)
}

// result says when to come back: at once where the state was old, in a while where something was refused, after a growing
// delay where something failed.
func result(wake, retry time.Duration, errs ...error) (ctrl.Result, error) {
	var failed []error
	var least time.Duration // what was refused just now is not asked for again at once, whatever else is due
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
			least = max(least, staleRetry)
		case errors.As(err, new(previousError)):
			sooner(previousRetry)
		case errors.As(err, &refused):
			sooner(retry)
			least = max(least, refusalRetry/4)
		default:
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return ctrl.Result{}, errors.Join(failed...)
	}
	next := ctrl.Result{RequeueAfter: max(wake, least), Priority: new(0)}
	if stale := slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, errStale) }); stale {
		next.Priority = nil // as the one before: it is not done
	}
	return next, nil
}
