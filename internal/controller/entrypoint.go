package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/entrypoint"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

// observeEntrypoint asks what the image runs, for a job that has to know, and takes what is known now: the look-up goes on beside,
// and wakes the job when it ends.
func (r *Reconciler) observeEntrypoint(ctx context.Context, key types.NamespacedName, o *observation) error {
	job := plan.AsksForEntrypoint(&o.Observed)
	if job == nil {
		r.forgetEntrypoint(key)
		return nil
	}
	if r.Entrypoints == nil {
		o.Entrypoint.Problem = "the operator looks up no images (entrypoint.enabled)"
		return nil
	}
	want, err := r.wanted(ctx, job)
	if err != nil {
		return err
	}
	answer := r.Entrypoints.Ask(key, want)
	o.Entrypoint = plan.Lookup{Found: answer.Found, Problem: answer.Problem, Retry: answer.Retry}
	return nil
}

func (r *Reconciler) forgetEntrypoint(key types.NamespacedName) {
	if r.Entrypoints != nil {
		r.Entrypoints.Forget(key)
	}
}

func (r *Reconciler) wanted(ctx context.Context, job *v1alpha1.SingletonJob) (entrypoint.Want, error) {
	pod := &job.Spec.Template.Spec
	gated := &pod.Containers[job.GatedContainer()]
	architectures, err := r.architectures(ctx, pod.NodeSelector[corev1.LabelArchStable])
	if err != nil {
		return entrypoint.Want{}, err
	}
	want := entrypoint.Want{
		Namespace: job.Namespace, TemplateHash: inject.EntrypointHash(job), Image: gated.Image, Args: len(gated.Args) > 0,
		Architectures: architectures, ServiceAccount: inject.ServiceAccountName(job),
	}
	for _, secret := range pod.ImagePullSecrets {
		want.PullSecrets = append(want.PullSecrets, secret.Name)
	}
	return want, nil
}

// architectures are those of the nodes that run Linux; only the one that a template selects, if it does. There are none where nodes
// may not be read: then all that an image is for have to run the same.
func (r *Reconciler) architectures(ctx context.Context, selected string) ([]string, error) {
	if selected != "" {
		return []string{selected}, nil
	}
	if r.WithoutNodes {
		return nil, nil
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	found := map[string]bool{}
	for i := range nodes.Items {
		if node := &nodes.Items[i].Status.NodeInfo; node.OperatingSystem == "linux" && node.Architecture != "" {
			found[node.Architecture] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// wakeByLookups has the queue take the jobs whose look-ups have ended.
func (r *Reconciler) wakeByLookups(ctx context.Context, q queue) error {
	r.Entrypoints.Start(ctx, func(job types.NamespacedName) { q.Add(reconcile.Request{NamespacedName: job}) })
	return nil
}

// Pull reads pull secrets for look-ups: of the API server itself, since none is to stay in memory.
type Pull struct {
	Live client.Reader
	// Secrets: they may be read.
	Secrets bool
}

// Credentials are what the kubelets would pull with: the pod's secrets, or those of its service account where it has none. A secret
// that does not exist is no error, as for a kubelet.
func (p Pull) Credentials(ctx context.Context, want entrypoint.Want) (entrypoint.Credentials, error) {
	var c entrypoint.Credentials
	if !p.Secrets {
		c.Note = "it is asked without credentials, since the operator may not read pull secrets: entrypoint.pullSecrets"
		return c, nil
	}
	names, err := p.names(ctx, want)
	if err != nil {
		return c, err
	}
	c.Note = "the pod has no pull secret"
	var missing []string
	for _, name := range names {
		secret, err := get(ctx, p.Live, types.NamespacedName{Namespace: want.Namespace, Name: name}, &corev1.Secret{})
		switch {
		case err != nil:
			return c, err
		case secret == nil:
			missing = append(missing, name)
		default:
			c.Add(secret)
		}
	}
	if len(names) > 0 {
		c.Note = "it was asked with what these pull secrets have for it: " + strings.Join(names, ", ")
	}
	if len(missing) > 0 {
		c.Note += "; there is none named " + strings.Join(missing, ", ")
	}
	return c, nil
}

func (p Pull) names(ctx context.Context, want entrypoint.Want) ([]string, error) {
	if len(want.PullSecrets) > 0 {
		return want.PullSecrets, nil
	}
	key := types.NamespacedName{Namespace: want.Namespace, Name: want.ServiceAccount}
	account, err := get(ctx, p.Live, key, &corev1.ServiceAccount{})
	if err != nil || account == nil {
		return nil, err
	}
	var names []string
	for _, secret := range account.ImagePullSecrets {
		names = append(names, secret.Name)
	}
	return names, nil
}

// Finder looks into registries with the credentials of the pods.
func (p Pull) Finder(registry *entrypoint.Registry) entrypoint.Finder {
	return func(ctx context.Context, want entrypoint.Want) (*v1alpha1.Entrypoint, error) {
		credentials, err := p.Credentials(ctx, want)
		if err != nil {
			return nil, fmt.Errorf("its pull secrets can't be read: %w", err)
		}
		return registry.Find(ctx, want, credentials)
	}
}
