package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/adopt"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/show"
)

// cluster is the API server that a command uses.
type cluster struct {
	client.WithWatch
	config    *rest.Config
	namespace string
	now       func() time.Time
	// answered is the time of the last answer, by the clock of the API server.
	answered *atomic.Pointer[time.Time]
	// renewed holds, by job, when this program first saw the last renewal. With it, the time left on a lease is known without
	// comparing clocks.
	renewed map[string]renewal
	// zones holds the zones of nodes, by node; empty for a node without one, or if the user may not read Nodes.
	zones map[string]string
}

type renewal struct {
	stamp int64
	seen  time.Time
}

func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{adopt.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// nowhere is the address that kubectl's libraries use if none is configured.
const nowhere = "http://localhost:8080"

var errNowhere = errors.New("no cluster is configured: set KUBECONFIG or use --kubeconfig")

// connect finds the API server and discovers which resources it serves.
func (c *cli) connect() (*cluster, error) {
	namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // the API server has its own limits; a client limit could end a wait too early
	if raw, err := c.flags.ToRawKubeConfigLoader().RawConfig(); err == nil && len(raw.Clusters) == 0 && config.Host == nowhere && *c.flags.APIServer == "" {
		return nil, errNowhere
	}
	s, err := scheme()
	if err != nil {
		return nil, err
	}
	answered := &atomic.Pointer[time.Time]{}
	observed := rest.CopyConfig(config)
	observed.Wrap(func(transport http.RoundTripper) http.RoundTripper { return dated{transport, answered} })
	api, err := client.NewWithWatch(observed, client.Options{Scheme: s})
	if err != nil {
		return nil, err
	}
	return &cluster{WithWatch: api, answered: answered, config: config, namespace: namespace, now: c.now, renewed: map[string]renewal{}, zones: map[string]string{}}, nil
}

func (c *cluster) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.namespace, Name: name}
}

// job reads a job. If it does not exist, the error lists the jobs that do.
func (c *cluster) job(ctx context.Context, name string) (*v1alpha1.SingletonJob, error) {
	job := &v1alpha1.SingletonJob{}
	err := c.Get(ctx, c.key(name), job)
	if apierrors.IsNotFound(err) && !noSuchKind(err) {
		return nil, c.notFound(ctx, name)
	}
	return job, err
}

// notFound returns an error that suggests what the user may have meant.
func (c *cluster) notFound(ctx context.Context, name string) error {
	var here, elsewhere []string
	var all v1alpha1.SingletonJobList
	if c.List(ctx, &all) != nil && c.List(ctx, &all, client.InNamespace(c.namespace)) != nil {
		return fmt.Errorf("there is no SingletonJob %q in namespace %s", name, c.namespace)
	}
	for _, job := range all.Items {
		switch {
		case job.Namespace == c.namespace:
			here = append(here, job.Name)
		case job.Name == name:
			elsewhere = append(elsewhere, job.Namespace)
		}
	}
	return errors.New(show.NotFound(name, c.namespace, here, elsewhere))
}

// one connects and reads the job that an argument names, without its Events.
func (c *cli) one(ctx context.Context, arg string) (*cluster, show.Facts, error) {
	api, err := c.connect()
	if err != nil {
		return nil, show.Facts{}, err
	}
	f, err := api.facts(ctx, bare(arg))
	return api, f, err
}

// facts reads what a status shows of a job.
func (c *cluster) facts(ctx context.Context, name string) (show.Facts, error) {
	job, err := c.job(ctx, name)
	if err != nil {
		return show.Facts{}, err
	}
	return c.factsOf(ctx, job)
}

func (c *cluster) factsOf(ctx context.Context, job *v1alpha1.SingletonJob) (show.Facts, error) {
	f := show.Facts{Job: job}
	if err := c.readLease(ctx, &f); err != nil {
		return f, err
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{contract.NameLabel: job.Name}); err != nil {
		return f, err
	}
	f.Pods = pods.Items
	f.Now = c.now()
	return f, nil
}

// withZones reads the facts of a job, and in which zones its candidates are.
func (c *cluster) withZones(ctx context.Context, job *v1alpha1.SingletonJob) (show.Facts, error) {
	f, err := c.factsOf(ctx, job)
	f.Zones = c.zonesOf(ctx, f.Pods)
	return f, err
}

// readLease reads the job's Lease. A user who may not read it still sees the rest.
func (c *cluster) readLease(ctx context.Context, f *show.Facts) error {
	var l coordinationv1.Lease
	switch err := c.Get(ctx, client.ObjectKeyFromObject(f.Job), &l); {
	case apierrors.IsNotFound(err):
		f.NoLease = "there is no Lease"
		return nil
	case apierrors.IsForbidden(err):
		f.NoLease = "unknown: you may not read Leases in this namespace"
		return nil
	case err != nil:
		return err
	}
	c.decode(&l, f)
	return nil
}

func (c *cluster) decode(l *coordinationv1.Lease, f *show.Facts) {
	if l.Labels[contract.ManagedByLabel] != contract.ManagedBy {
		f.NoLease = "the Lease of this name does not belong to this job"
		return
	}
	fields := contract.Fields{
		UID: string(l.UID), ResourceVersion: l.ResourceVersion, Annotations: l.Annotations,
		HolderIdentity:       ptr.Deref(l.Spec.HolderIdentity, ""),
		LeaseDurationSeconds: ptr.Deref(l.Spec.LeaseDurationSeconds, 0),
		LeaseTransitions:     ptr.Deref(l.Spec.LeaseTransitions, 0),
	}
	if at := l.CreationTimestamp; !at.IsZero() {
		fields.CreationTimestamp = at.UTC().Format(time.RFC3339)
	}
	if at := l.Spec.AcquireTime; at != nil {
		fields.AcquireTime = at.UTC().Format(time.RFC3339Nano)
	}
	if at := l.Spec.RenewTime; at != nil {
		fields.RenewTime = at.UTC().Format(time.RFC3339Nano)
	}
	record, err := contract.DecodeLease(fields)
	if err != nil {
		f.NoLease = err.Error()
		return
	}
	f.Lease, f.Renewed = &record, c.renewal(l.Namespace+"/"+l.Name, record.RenewTime)
}

// renewal is the time of a Lease's last renewal: its own timestamp at first sight, later the time at which this program saw it
// change.
func (c *cluster) renewal(name string, stamp int64) time.Time {
	if stamp == 0 {
		return time.Time{}
	}
	last, known := c.renewed[name]
	switch {
	case !known:
		last = renewal{stamp, time.UnixMicro(stamp)}
	case last.stamp != stamp:
		last = renewal{stamp, c.now()}
	}
	c.renewed[name] = last
	return last.seen
}

// jobs lists the selected jobs, by namespace and name.
func (c *cluster) jobs(ctx context.Context, which selection) ([]v1alpha1.SingletonJob, error) {
	labelled, err := labels.Parse(which.labels)
	if err != nil {
		return nil, err
	}
	options := []client.ListOption{client.MatchingLabelsSelector{Selector: labelled}}
	if !which.everywhere {
		options = append(options, client.InNamespace(c.namespace))
	}
	var all v1alpha1.SingletonJobList
	if err := c.List(ctx, &all, options...); err != nil {
		return nil, err
	}
	slices.SortFunc(all.Items, func(a, b v1alpha1.SingletonJob) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all.Items, nil
}

// zonesOf returns the zones of the nodes of some Pods, by node. It is empty for a user who may not read Nodes.
func (c *cluster) zonesOf(ctx context.Context, pods []corev1.Pod) map[string]string {
	for i := range pods {
		name := pods[i].Spec.NodeName
		if _, known := c.zones[name]; known || name == "" {
			continue
		}
		node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
		if err := c.Get(ctx, types.NamespacedName{Name: name}, node); err != nil && !apierrors.IsForbidden(err) {
			continue // it may be known the next time
		}
		c.zones[name] = node.Labels[corev1.LabelTopologyZone]
	}
	return c.zones
}

// completeJob completes the first argument with the names of jobs.
func (c *cli) completeJob(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	api, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	jobs, err := api.jobs(cmd.Context(), selection{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range jobs {
		if strings.HasPrefix(jobs[i].Name, begin) {
			names = append(names, jobs[i].Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
