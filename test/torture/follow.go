//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/torture/judge"
)

// editMark is the annotation of a Lease that this run changes with each of its own edits. No other component changes it.
const editMark = "torture/edit"

// chronicle keeps every version of the Leases and of the jobs' histories. A broken watch continues where it broke, if the API server still
// has that version. A restarted API server has no version from before its restart. Then the chronicle records that versions are missing.
type chronicle struct {
	client    client.WithWatch
	namespace string

	mu     sync.Mutex
	leases []judge.LeaseVersion
	told   []judge.Told
	edits  map[string]string // the last mark of an edit, for every Lease that was ever seen
}

func newChronicle(c client.WithWatch, namespace string) *chronicle {
	return &chronicle{client: c, namespace: namespace, edits: map[string]string{}}
}

// follow follows a kind until the context ends.
func (c *chronicle) follow(ctx context.Context, list client.ObjectList) {
	from := ""
	for ctx.Err() == nil {
		if from == "" {
			if err := c.client.List(ctx, list, client.InNamespace(c.namespace)); err == nil {
				from = list.GetResourceVersion()
				c.goesOn(list)
			}
		}
		if from != "" {
			from = c.watch(ctx, list, from)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// watch returns the version from which to continue; empty if the API server no longer has it.
func (c *chronicle) watch(ctx context.Context, list client.ObjectList, from string) string {
	w, err := c.client.Watch(ctx, list, client.InNamespace(c.namespace), &client.ListOptions{
		Raw: &metav1.ListOptions{ResourceVersion: from, AllowWatchBookmarks: true},
	})
	if err != nil {
		return c.resume(err, from)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		object, ok := event.Object.(client.Object)
		if !ok {
			return c.resume(apierrors.FromObject(event.Object), from)
		}
		from = object.GetResourceVersion()
		if event.Type != watch.Bookmark {
			c.saw(object, event.Type == watch.Deleted)
		}
	}
	return from
}

func (c *chronicle) resume(err error, from string) string {
	if !apierrors.IsGone(err) && !apierrors.IsResourceExpired(err) {
		return from
	}
	return ""
}

// goesOn records for every known Lease that versions of it may be missing, unless the list is the first one.
func (c *chronicle) goesOn(list client.ObjectList) {
	if _, leases := list.(*coordinationv1.LeaseList); !leases {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.edits {
		c.leases = append(c.leases, judge.LeaseVersion{Name: name, Revision: revisionOf(list), Seen: fencetest.Boottime(), Missing: true})
	}
}

func (c *chronicle) saw(o client.Object, deleted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o := o.(type) {
	case *coordinationv1.Lease:
		version, mark := versionOf(o, deleted), o.Annotations[editMark]
		version.Foreign = mark != "" && mark != c.edits[o.Name]
		c.edits[o.Name] = mark
		c.leases = append(c.leases, version)
	case *v1alpha1.SingletonJob:
		told := judge.Told{Name: o.Name, UID: string(o.UID), Revision: revisionOf(o), Seen: fencetest.Boottime()}
		for _, change := range o.Status.History {
			told.Tokens = append(told.Tokens, change.Token)
		}
		c.told = append(c.told, told)
	}
}

func revisionOf(o interface{ GetResourceVersion() string }) int64 {
	revision, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("resourceVersion %q: %v", o.GetResourceVersion(), err))
	}
	return revision
}

func versionOf(o *coordinationv1.Lease, deleted bool) judge.LeaseVersion {
	version := judge.LeaseVersion{Name: o.Name, Revision: revisionOf(o), Seen: fencetest.Boottime(), Deleted: deleted}
	fields := contract.Fields{UID: string(o.UID), ResourceVersion: o.ResourceVersion, Annotations: o.Annotations}
	if record, err := contract.DecodeLease(fields); err == nil {
		version.Token = record.Token
		for _, past := range record.History[:min(2, len(record.History))] { // the first one may take long
			if past.Reason != "" && version.Ended.Reason == "" {
				version.Ended = judge.Ended{Token: past.Token, Reason: past.Reason}
			}
		}
	}
	if o.Spec.HolderIdentity != nil {
		version.Holder = *o.Spec.HolderIdentity
	}
	if o.Spec.AcquireTime != nil {
		version.Acquired = o.Spec.AcquireTime.Time
	}
	return version
}

// tellInto copies the recorded versions.
func (c *chronicle) tellInto(h *judge.History) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.Leases = append([]judge.LeaseVersion{}, c.leases...)
	h.Told = append([]judge.Told{}, c.told...)
}
