// Package controller reads the state on which package plan decides, and carries out the decisions. It decides nothing itself.
package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/internal/entrypoint"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

const (
	// staleRetry is the wait after a write that was based on an old state. The change that it missed may be a renewal, which
	// triggers no reconcile.
	staleRetry = 50 * time.Millisecond
	// previousRetry is the wait before the next check whether a previous job's objects still exist.
	previousRetry = time.Second
	// refusalRetry is the first wait after the API server refused something. The wait then grows with the time since the first
	// refusal, up to refusalLimit.
	refusalRetry = 2 * time.Second
	refusalLimit = 5 * time.Minute
	// statusDelay is longer than a takeover by a warm standby takes, and too short to be noticed in a status.
	statusDelay = 500 * time.Millisecond
)

// Reconciler brings SingletonJobs to the state that their specs ask for.
type Reconciler struct {
	// Client writes, and reads from the cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Clock provides the timestamps of writes, and measures how long Leases stay unchanged.
	Clock clock.PassiveClock
	// ServerTime is the API server's time, or zero if no recent response contained it. It is nil if the operator does not know the
	// time; such an operator neither changes nor suspends schedules.
	ServerTime func() time.Time
	// Settings apply to all Pods.
	Settings inject.Settings
	// WithoutNodes is set if the operator may not read nodes. It then treats no node as out of service, so it waits until the lease
	// of a holder on a lost node runs out.
	WithoutNodes bool
	// Entrypoints looks up what images run; nil if look-ups are disabled.
	Entrypoints *entrypoint.Lookups
	// OneNamespace: all jobs are in one namespace, so its jobs may occupy all workers.
	OneNamespace bool
	// FleetRollouts is the maximum number of jobs that replace, at a time, Pods that only the operator made outdated; 0 for no
	// limit.
	FleetRollouts int
	// StatusDelay is how long a change waits for more changes before the status is stored, so that one write stores all. 0 for no wait.
	StatusDelay time.Duration

	memory   *memory
	metrics  *metrics
	silences *silences
	turns    *turns
	lanes    *lanes
}

// New returns a Reconciler with an empty memory.
func New(c client.Client, live client.Reader, now clock.PassiveClock, settings inject.Settings) *Reconciler {
	return &Reconciler{
		Client: logged{c}, lanes: newLanes(), Live: live, Clock: now, Settings: settings, FleetRollouts: DefaultFleetRollouts, StatusDelay: statusDelay,
		memory: newMemory(), metrics: newMetrics(), silences: newSilences(), turns: newTurns(),
	}
}

// Reconcile looks at a job, unless enough workers look at slow jobs of its namespace.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	leave := r.lanes.enter(ctx, request.Namespace)
	if leave == nil {
		return ctrl.Result{RequeueAfter: busyRetry}, nil // with the same priority
	}
	began := time.Now()
	defer func() { leave(time.Since(began)) }()
	return r.reconcile(ctx, request)
}

// reconcile observes, decides and acts, and always tries to record the result.
func (r *Reconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
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
		// It is unknown whether the refused requests would still be refused.
		o.Refused = r.memory.refusals(request.NamespacedName)
	}
	if o.Previous = done.previous; len(o.Refused)+len(o.Previous) > 0 {
		p = plan.Decide(o.Observed)
	}
	if o.Job != nil && p.Status == nil && r.memory.precedes(request.NamespacedName, o.Job.ResourceVersion) {
		done.errs = append(done.errs, errStale)
	}
	if err != nil { // of the turn
		done.errs = append(done.errs, err)
	}
	errs := slices.Concat(done.errs, r.report(withReasons(ctx, p.Reasons), &o, &p, &done))
	if !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, errStale) }) { // the stored status may show a place that was not seen
		r.turns.settle(request.NamespacedName, &p)
	}
	refused := slices.ContainsFunc(errs, func(err error) bool { return errors.As(err, new(refusal)) }) // for example an Event
	retry := r.memory.refuse(request.NamespacedName, refused, o.Refused, r.Clock.Now())
	r.silences.await(request.NamespacedName, awaited{p.Silence, p.Renewal}, o.Lease.Unchanged)
	return result(p.Due, max(retry, refusalRetry), errs...)
}

// report records the result, or sets when that is due.
func (r *Reconciler) report(ctx context.Context, o *observation, p *plan.Plan, done *outcome) []error {
	wait := r.waits(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o, p, done)
	switch {
	case o.unread && len(done.errs) > 0: // there may be a Lease that the plan does not know
		return nil
	case wait > 0:
		p.Due = cmp.Or(min(p.Due, wait), wait)
		return nil
	default:
		return r.record(ctx, o, p)
	}
}

// waits returns how long the status is not stored yet, because more changes may follow. An error says that something is not as decided,
// and the next attempt may come much later, so nothing waits then.
func (r *Reconciler) waits(key types.NamespacedName, o *observation, p *plan.Plan, done *outcome) time.Duration {
	if o.Job == nil || p.Status == nil {
		r.memory.agrees(key)
		return 0
	}
	if since := r.memory.differs(key, o.Now); !p.Prompt && len(done.errs) == 0 {
		return max(0, r.StatusDelay-o.Now.Sub(since))
	}
	return 0
}

// result decides when to reconcile again: soon after a stale state, later after a refusal, with a growing backoff after an error.
func result(wake, retry time.Duration, errs ...error) (ctrl.Result, error) {
	var failed []error
	var least time.Duration // a request that was just refused is not repeated at once, whatever else is due
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
		next.Priority = nil // the same priority as before, because the work is not done
	}
	return next, nil
}
