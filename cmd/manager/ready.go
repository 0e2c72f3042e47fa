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
	// readyPeriod is how often it is looked whether the operator can work: often until it can, then seldom.
	readyPeriod, readyPeriodLater = time.Second, 10 * time.Second
	// readyTimeout bounds one question to the API server.
	readyTimeout = 10 * time.Second
)

// readiness is whether the operator can do its work: the API server shows it SingletonJobs in each of its namespaces, and if it
// leads, its caches hold what there is. It looks by itself, so that a probe is answered at once. An API server that gives no answer
// changes nothing: then nobody can work, and what was true is true again when it does.
type readiness struct {
	live       client.Reader
	namespaces []string // none for all
	// synced asks whether the caches hold what there is.
	synced func(context.Context) error

	mu  sync.Mutex
	why error
}

func newReadiness(m ctrl.Manager, namespaces []string, watched []client.Object) *readiness {
	return &readiness{
		live: m.GetAPIReader(), namespaces: namespaces, why: errors.New("the API server has not been asked yet"),
		synced: func(ctx context.Context) error {
			select {
			case <-m.Elected():
				return synced(ctx, m.GetCache(), watched)
			default:
				return nil // who does not lead keeps none
			}
		},
	}
}

// NeedLeaderElection is false: who may lead next is ready, too.
func (r *readiness) NeedLeaderElection() bool { return false }

// Start looks until the context ends.
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
		// Probes withhold reasons.
		ctrl.LoggerFrom(ctx).Info("readiness", "ready", why == nil, "why", fmt.Sprint(why))
	}
	r.why = why
}

// shown asks for SingletonJobs. What keeps them from this operator is known, what keeps the API server from answering is not.
func (r *readiness) shown(ctx context.Context) (known bool, why error) {
	namespaces := r.namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		switch err := r.live.List(ctx, &v1alpha1.SingletonJobList{}, client.InNamespace(namespace), client.Limit(1)); {
		case err == nil:
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return true, fmt.Errorf("the API server knows no SingletonJobs, install their definition: %w", err)
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return true, fmt.Errorf("the operator may not do its work in namespace %q: %w", namespace, err)
		default:
			return false, nil
		}
	}
	return true, nil
}

// synced asks each cache, and makes those that are not there yet, as the controller does.
func synced(ctx context.Context, c cache.Cache, watched []client.Object) error {
	for _, object := range watched {
		informer, err := c.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("the cache of %T: %w", object, err)
		}
		if !informer.HasSynced() {
			return fmt.Errorf("the cache of %T is not filled yet", object)
		}
	}
	return nil
}
