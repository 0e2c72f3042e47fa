//go:build linux

// Package standin does, as simply as tests can bear, what a scheduler and a controller manager do in a cluster: bind pods
// to nodes, notice lost nodes and evict from them, delete dependents of deleted owners, fill and empty namespaces, and
// count what a PodDisruptionBudget allows. None of them runs beside localnode.
package standin

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
)

const (
	// period is how often the tasks run that no event calls for.
	period = time.Second
	// requestTimeout bounds one round of a task.
	requestTimeout = 10 * time.Second
	// DefaultNodeGrace is how long a node may miss its heartbeats before it counts as lost. The controller manager's is 50 s.
	DefaultNodeGrace = 8 * time.Second
)

// Options of Start.
type Options struct {
	// Config is the administrator's.
	Config *rest.Config
	// CA is the content of kube-root-ca.crt.
	CA []byte
	// NodeGrace is how long a node may be silent; by default DefaultNodeGrace.
	NodeGrace time.Duration
	// Failed is told of tasks that failed; they are tried again. May be nil.
	Failed func(error)
}

// StandIn is running. Stop ends it.
type StandIn struct {
	options   Options
	client    kubernetes.Interface
	metadata  metadata.Interface
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.ResettableRESTMapper
	pods      cache.SharedIndexInformer
	nodes     cache.SharedIndexInformer
	budgets   cache.SharedIndexInformer
	heard     map[string]heartbeat // by node; the node task's own
	bound     map[types.UID]string // pods to nodes, as long as the cache does not tell; the binding task's own
	filled    map[types.UID]bool   // namespaces; like the rounds, the task's that looks after them
	rounds    int
	cancel    context.CancelFunc
	tasks     sync.WaitGroup
}

// Start starts all tasks. They end with Stop.
func Start(o Options) (*StandIn, error) {
	if o.NodeGrace == 0 {
		o.NodeGrace = DefaultNodeGrace
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	o.Config = rest.CopyConfig(o.Config)
	o.Config.WarningHandler = rest.NoWarnings{} // it has to list old kinds too
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, err
	}
	md, err := metadata.NewForConfig(o.Config)
	if err != nil {
		return nil, err
	}
	cached := memory.NewMemCacheClient(client.Discovery())
	factory := informers.NewSharedInformerFactory(client, 0)
	s := &StandIn{
		options: o, client: client, metadata: md, discovery: cached, mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached),
		pods: factory.Core().V1().Pods().Informer(), nodes: factory.Core().V1().Nodes().Informer(),
		budgets: factory.Policy().V1().PodDisruptionBudgets().Informer(), heard: map[string]heartbeat{}, filled: map[types.UID]bool{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }, DeleteFunc: func(any) { wake() }}
	for _, informer := range []cache.SharedIndexInformer{s.pods, s.nodes, s.budgets} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			cancel()
			return nil, err
		}
	}
	factory.StartWithContext(ctx)
	s.tasks.Go(func() { s.loop(ctx, changed, s.onChange) })
	s.tasks.Go(func() { s.loop(ctx, nil, s.onTick) })
	s.tasks.Go(func() { <-ctx.Done(); factory.Shutdown() })
	return s, nil
}

// Stop ends all tasks and waits for them.
func (s *StandIn) Stop() {
	s.cancel()
	s.tasks.Wait()
}

// loop runs task at every wake and every period.
func (s *StandIn) loop(ctx context.Context, wake <-chan struct{}, task func(context.Context) []error) {
	if !cache.WaitForCacheSync(ctx.Done(), s.pods.HasSynced, s.nodes.HasSynced, s.budgets.HasSynced) {
		return
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		round, cancel := context.WithTimeout(ctx, requestTimeout)
		for _, err := range task(round) {
			if err != nil && ctx.Err() == nil {
				s.options.Failed(err)
			}
		}
		cancel()
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// onChange is what somebody waits for.
func (s *StandIn) onChange(ctx context.Context) []error {
	return []error{named("watching nodes", s.watchNodes(ctx)), named("binding pods", s.bindPods(ctx)), named("counting disruptions", s.countDisruptions(ctx))}
}

// onTick is what may take a moment.
func (s *StandIn) onTick(ctx context.Context) []error {
	return []error{
		named("evicting pods", s.evictPods(ctx)),
		named("collecting garbage", s.collectGarbage(ctx)),
		named("looking after namespaces", s.lookAfterNamespaces(ctx)),
	}
}

func named(task string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", task, err)
}

func (s *StandIn) allPods() []*corev1.Pod { return listed[*corev1.Pod](s.pods) }

func (s *StandIn) allNodes() []*corev1.Node { return listed[*corev1.Node](s.nodes) }

func (s *StandIn) allBudgets() []*policyv1.PodDisruptionBudget {
	return listed[*policyv1.PodDisruptionBudget](s.budgets)
}

func listed[T any](informer cache.SharedIndexInformer) []T {
	var all []T
	for _, o := range informer.GetStore().List() {
		all = append(all, o.(T))
	}
	return all
}
