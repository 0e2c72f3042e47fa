// Command controller keeps a table of routes in one ConfigMap, from ConfigMaps with the label example.com/route. It is an ordinary controller
// of controller-runtime under a SingletonJob: the agent elects, and the API server refuses what a past tenure writes.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencekube"
)

// routeLabel is on the ConfigMaps that are routes. The table has the name of the job.
const routeLabel = "example.com/route"

// pastTenure is the exit status when a later tenure has written.
const pastTenure = 3

func main() {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)))
	err := run(ctrl.SetupSignalHandler(), os.Getenv(fence.EnvNamespace), os.Getenv(fence.EnvName), os.Getenv(fence.EnvToken))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	switch {
	case errors.Is(err, fence.ErrStale):
		os.Exit(pastTenure)
	case err != nil:
		os.Exit(1)
	}
}

func run(ctx context.Context, namespace, name, text string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	fenced, err := fencekube.Fence{Job: name, Token: token}.Config(config)
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		LeaderElection: false, // by the agent
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Cache:          cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		// Everything that this controller writes carries the token. The HTTP client in the options is the manager's, which adds none.
		NewClient: func(_ *rest.Config, o client.Options) (client.Client, error) {
			o.HTTPClient = nil
			return client.New(fenced, o)
		},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	table := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}
	toTable := func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{table} }
	// A tenure writes once at its beginning, whatever there is to do: from then on, past tenures are refused.
	first := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(table)
		return nil
	})
	err = ctrl.NewControllerManagedBy(manager).Named("routes").
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(toTable)).WatchesRawSource(first).
		Complete(&routes{Client: manager.GetClient(), stop: stop})
	if err != nil {
		return err
	}
	if err := manager.Start(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); errors.Is(err, fence.ErrStale) {
		return err
	}
	return nil
}

// routes is the controller. It reads from a cache and applies what it has computed from it. So if it is late, its table is old.
type routes struct {
	client.Client
	stop context.CancelCauseFunc
}

func (r *routes) Reconcile(ctx context.Context, table reconcile.Request) (reconcile.Result, error) {
	var all corev1.ConfigMapList
	if err := r.List(ctx, &all, client.InNamespace(table.Namespace), client.HasLabels{routeLabel}); err != nil {
		return reconcile.Result{}, err
	}
	targets := make(map[string]string, len(all.Items))
	for _, route := range all.Items {
		targets[route.Name] = route.Data["target"]
	}
	err := r.Apply(ctx, applycorev1.ConfigMap(table.Name, table.Namespace).WithData(targets), client.FieldOwner("routes"), client.ForceOwnership)
	if errors.Is(err, fence.ErrStale) {
		r.stop(err)
		return reconcile.Result{}, reconcile.TerminalError(err)
	}
	return reconcile.Result{}, err
}
