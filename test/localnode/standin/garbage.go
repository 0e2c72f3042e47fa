//go:build linux

package standin

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
)

// collected are the kinds whose owners are looked for. The list is short on purpose: one list request each, every period.
var collected = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "secrets"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
}

// collectGarbage deletes what all owners of are gone, and has what has others forget those that are. An owner is gone when
// nothing of its name has its UID.
func (s *StandIn) collectGarbage(ctx context.Context) error {
	var errs []error
	alive := map[types.UID]bool{} // of this round
	for _, resource := range collected {
		list, err := s.metadata.Resource(resource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for i := range list.Items {
			o := &list.Items[i]
			if len(o.OwnerReferences) == 0 || o.DeletionTimestamp != nil {
				continue
			}
			errs = append(errs, s.collect(ctx, resource, o, alive))
		}
	}
	return errors.Join(errs...)
}

func (s *StandIn) collect(ctx context.Context, resource schema.GroupVersionResource, o *metav1.PartialObjectMetadata, alive map[types.UID]bool) error {
	owners, err := s.owners(ctx, o, alive)
	objects := s.metadata.Resource(resource).Namespace(o.Namespace)
	switch {
	case err != nil || len(owners) == len(o.OwnerReferences):
		return err
	case len(owners) == 0:
		return ignoreStale(objects.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID}}))
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": o.UID, "resourceVersion": o.ResourceVersion, "ownerReferences": owners,
	}})
	if err != nil {
		return err
	}
	_, err = objects.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return ignoreStale(err)
}

// owners are those of an object that are not gone.
func (s *StandIn) owners(ctx context.Context, o *metav1.PartialObjectMetadata, alive map[types.UID]bool) ([]metav1.OwnerReference, error) {
	var left []metav1.OwnerReference
	for _, owner := range o.OwnerReferences {
		if _, known := alive[owner.UID]; !known {
			lives, err := s.lives(ctx, o.Namespace, owner)
			if err != nil {
				return nil, err
			}
			alive[owner.UID] = lives
		}
		if alive[owner.UID] {
			left = append(left, owner)
		}
	}
	return left, nil
}

func (s *StandIn) lives(ctx context.Context, namespace string, owner metav1.OwnerReference) (bool, error) {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return false, err
	}
	mapping, err := s.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: owner.Kind}, gv.Version)
	if meta.IsNoMatchError(err) {
		s.mapper.Reset() // the kind may be new
	}
	if err != nil {
		return false, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		namespace = ""
	}
	// Not from a cache: what has just been made would look gone.
	found, err := s.metadata.Resource(mapping.Resource).Namespace(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && found.UID == owner.UID, err
}

// lookAfterNamespaces gives each namespace its default service account and kube-root-ca.crt, and empties and ends those
// that are being deleted.
func (s *StandIn) lookAfterNamespaces(ctx context.Context) error {
	all, err := s.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	if s.rounds++; s.rounds%refill == 0 {
		clear(s.filled)
	}
	var errs []error
	for i := range all.Items {
		ns := &all.Items[i]
		switch {
		case ns.DeletionTimestamp != nil:
			errs = append(errs, s.endNamespace(ctx, ns))
		case !s.filled[ns.UID]:
			err := s.fillNamespace(ctx, ns.Name)
			s.filled[ns.UID] = err == nil
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// refill is in how many rounds what a namespace was given is looked for again.
const refill = 10

const rootCA = "kube-root-ca.crt"

func (s *StandIn) fillNamespace(ctx context.Context, namespace string) error {
	var errs []error
	accounts := s.client.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Get(ctx, "default", metav1.GetOptions{ResourceVersion: "0"}); apierrors.IsNotFound(err) {
		_, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		errs = append(errs, ignoreExisting(err))
	}
	maps := s.client.CoreV1().ConfigMaps(namespace)
	if _, err := maps.Get(ctx, rootCA, metav1.GetOptions{ResourceVersion: "0"}); apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: rootCA}, Data: map[string]string{"ca.crt": string(s.options.CA)}}, metav1.CreateOptions{})
		errs = append(errs, ignoreExisting(err))
	}
	return errors.Join(errs...)
}

func ignoreExisting(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return ignoreStale(err)
}

// endNamespace deletes everything in a namespace, and the namespace itself when nothing is left. Pods are given their
// grace period, so this takes several rounds.
func (s *StandIn) endNamespace(ctx context.Context, ns *corev1.Namespace) error {
	s.discovery.Invalidate() // a kind may be new
	lists, err := s.discovery.ServerPreferredNamespacedResources()
	if err != nil {
		return err
	}
	var errs []error
	left := 0
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") {
				n, err := s.deleteAll(ctx, gv.WithResource(r.Name), ns.Name)
				left += n
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil || left > 0 {
		return err
	}
	ended := ns.DeepCopy()
	ended.Spec.Finalizers = slices.DeleteFunc(ended.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err = s.client.CoreV1().Namespaces().Finalize(ctx, ended, metav1.UpdateOptions{})
	return ignoreStale(err)
}

// deleteAll deletes what a namespace holds of a kind, and says how much there was.
func (s *StandIn) deleteAll(ctx context.Context, resource schema.GroupVersionResource, namespace string) (int, error) {
	found, err := s.metadata.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, ignoreStale(err)
	}
	var errs []error
	for i := range found.Items {
		if o := &found.Items[i]; o.DeletionTimestamp == nil {
			err := s.metadata.Resource(resource).Namespace(namespace).Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID}})
			errs = append(errs, ignoreStale(err))
		}
	}
	return len(found.Items), errors.Join(errs...)
}
