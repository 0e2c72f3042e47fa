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

// observeEntrypoint looks up what the image runs, for a job that needs it, and takes the current result. The look-up continues in
// the background and triggers the job when it ends.
func (r *Reconciler) observeEntrypoint(ctx context.Context, key types.NamespacedName, o *observation) error {
	job := plan.AsksForEntrypoint(&o.Observed)
	if job == nil {
		r.forgetEntrypoint(key)
		return nil
	}
	if r.Entrypoints == nil {
		o.Entrypoint.Problem = "look-ups of images are disabled in the operator (entrypoint.enabled)"
		return nil
	}
	want, err := r.wanted(ctx, job)
	if err != nil {
		return err
	}
	answer := r.Entrypoints.Ask(key, want)
	o.Entrypoint = plan.Lookup{Found: answer.Found, Reason: answer.Problem.Reason, Problem: answer.Problem.Text, Retry: answer.Retry}
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
	architectures, err := r.architectures(ctx, &corev1.Pod{Spec: *pod})
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

// architectures are those of the Linux nodes that may run the Pod, or only the one that its nodeSelector names. The list is empty if there
// is no such node, or if the operator may not read nodes: then all images of an index must run the same command.
func (r *Reconciler) architectures(ctx context.Context, pod *corev1.Pod) ([]string, error) {
	if selected := pod.Spec.NodeSelector[corev1.LabelArchStable]; selected != "" {
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
		if node := &nodes.Items[i].Status.NodeInfo; node.OperatingSystem == "linux" && node.Architecture != "" && plan.MayRun(&nodes.Items[i], pod) {
			found[node.Architecture] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// wakeByLookups puts jobs into the queue when their look-ups end.
func (r *Reconciler) wakeByLookups(ctx context.Context, q queue) error {
	r.Entrypoints.Start(ctx, func(job types.NamespacedName) { q.Add(reconcile.Request{NamespacedName: job}) })
	return nil
}

// Pull reads pull secrets for look-ups. It reads them from the API server, because no secret must stay in memory.
type Pull struct {
	Live client.Reader
	// Secrets: the operator may read pull secrets.
	Secrets bool
}

// Credentials are the credentials with which kubelets would pull: the Pod's secrets, or those of its service account if it has
// none. A missing secret is not an error, as for a kubelet.
func (p Pull) Credentials(ctx context.Context, want entrypoint.Want) (entrypoint.Credentials, error) {
	var c entrypoint.Credentials
	if !p.Secrets {
		c.Note = "the operator sends no credentials, because it may not read pull secrets: entrypoint.pullSecrets"
		return c, nil
	}
	names, err := p.names(ctx, want)
	if err != nil {
		return c, err
	}
	c.Note = "the Pod has no pull secret"
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
		c.Note = "the operator tried the credentials of these pull secrets: " + strings.Join(names, ", ")
	}
	if len(missing) > 0 {
		c.Note += "; these pull secrets do not exist: " + strings.Join(missing, ", ")
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

// Finder returns a Finder that asks registries with the Pods' credentials.
func (p Pull) Finder(registry *entrypoint.Registry) entrypoint.Finder {
	return func(ctx context.Context, want entrypoint.Want) (*v1alpha1.Entrypoint, error) {
		credentials, err := p.Credentials(ctx, want)
		if err != nil {
			return nil, fmt.Errorf("cannot read its pull secrets: %w", err)
		}
		return registry.Find(ctx, want, credentials)
	}
}
