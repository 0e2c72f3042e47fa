package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
)

const (
	// readyPeriod is the time between checks: short until the operator can work, then longer.
	readyPeriod, readyPeriodLater = time.Second, 10 * time.Second
	// readyTimeout bounds one request to the API server.
	readyTimeout = 10 * time.Second
)

// readiness records whether the operator can work: the API server serves SingletonJobs in each of its namespaces, and if it is the
// leader, its caches are synced. It checks in the background, so that it can answer a probe at once. If the API server does not
// answer, the result does not change: no operator can work then, and the earlier result applies again once the API server answers.
type readiness struct {
	live       client.Reader
	namespaces []string // empty for all
	// synced checks whether the caches are synced.
	synced func(context.Context) error

	mu  sync.Mutex
	why error
}

func newReadiness(m ctrl.Manager, namespaces []string, watched []client.Object) *readiness {
	return &readiness{
		live: m.GetAPIReader(), namespaces: namespaces, why: errors.New("the API server has not been checked yet"),
		synced: func(ctx context.Context) error {
			select {
			case <-m.Elected():
				return synced(ctx, m.GetCache(), watched)
			default:
				return nil // a replica that does not lead has no caches
			}
		},
	}
}

// NeedLeaderElection is false: a replica that could lead next is ready too.
func (r *readiness) NeedLeaderElection() bool { return false }

// Start checks until the context ends.
func (r *readiness) Start(ctx context.Context) error {
	for {
		r.look(ctx)
		period := readyPeriod
		if r.Check(nil) == nil {
			period = readyPeriodLater
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(period):
		}
	}
}

// Check is a healthz.Checker.
func (r *readiness) Check(*http.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

func (r *readiness) look(ctx context.Context) {
	ctx, end := context.WithTimeout(ctx, readyTimeout)
	defer end()
	known, why := r.shown(ctx)
	if !known {
		return
	}
	if why == nil {
		why = r.synced(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if (why == nil) != (r.why == nil) {
		// The response to a probe does not include the reason.
		ctrl.LoggerFrom(ctx).Info("readiness", "ready", why == nil, "why", fmt.Sprint(why))
	}
	r.why = why
}

// shown lists SingletonJobs. known is true if the answer shows whether this operator can work, and false if the API server gave no
// such answer.
func (r *readiness) shown(ctx context.Context) (known bool, why error) {
	namespaces := r.namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		switch err := r.live.List(ctx, &v1alpha1.SingletonJobList{}, client.InNamespace(namespace), client.Limit(1)); {
		case err == nil:
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return true, fmt.Errorf("the API server does not know SingletonJobs: install their CustomResourceDefinition: %w", err)
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return true, fmt.Errorf("the operator lacks rights in namespace %q: %w", namespace, err)
		default:
			return false, nil
		}
	}
	return true, nil
}

// synced checks each cache, and creates missing caches as the controller does.
func synced(ctx context.Context, c cache.Cache, watched []client.Object) error {
	for _, object := range watched {
		informer, err := c.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("the cache of %T: %w", object, err)
		}
		if !informer.HasSynced() {
			return fmt.Errorf("the cache of %T is not synced yet", object)
		}
	}
	return nil
}
