//go:build linux

package kubelease

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/apiserver"
)

// cluster is a namespace of a real API server.
type cluster struct {
	*testing.T
	client kubernetes.Interface
	ns     string
	// ours is the client under test.
	ours *Client
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	plane := apiserver.ForTest(t)
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	ns := plane.Namespace(t)
	dir := credentials(t, plane.CA(), plane.Config().BearerToken)
	return &cluster{T: t, client: client, ns: ns, ours: newClient(t, Config{Server: plane.URL(), Namespace: ns, Name: "job", Credentials: dir})}
}

func (c *cluster) leases() interface {
	Create(context.Context, *coordinationv1.Lease, metav1.CreateOptions) (*coordinationv1.Lease, error)
	Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
} {
	return c.client.CoordinationV1().Leases(c.ns)
}

func (c *cluster) create() *Object {
	c.Helper()
	_, err := c.leases().Create(c.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name:            "job",
		Labels:          map[string]string{contract.ManagedByLabel: contract.ManagedBy, "theirs": "label"},
		Annotations:     map[string]string{contract.ReleaseReasonAnnotation: "Created", "theirs": "a <b> & c"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "some-uid"}},
		Finalizers:      []string{"example.com/theirs"},
	}}, metav1.CreateOptions{FieldManager: "someone"})
	if err != nil {
		c.Fatal(err)
	}
	return c.get()
}

func (c *cluster) get() *Object {
	c.Helper()
	answer, err := c.ours.Get(within(c.T, 3*time.Minute), 0)
	if err != nil || answer.Object == nil {
		c.Fatalf("%+v, %v", answer, err)
	}
	return answer.Object
}

func (c *cluster) remove() {
	c.Helper()
	// Without its finalizer, so that it is gone at once.
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := c.client.CoordinationV1().Leases(c.ns).Patch(c.Context(), "job", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		c.Fatal(err)
	}
	if err := c.leases().Delete(c.Context(), "job", metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) update(base *Object, r lease.Record) (lease.Outcome, *Object) {
	c.Helper()
	outcome, stored, err := c.ours.Update(within(c.T, 3*time.Minute), base, r)
	c.Logf("%v: %v", outcome, err)
	return outcome, stored
}

// held is a record of a tenure that replaces o.
func held(o *Object) lease.Record {
	r := o.Record
	r.Holder, r.Token, r.Transitions, r.Duration = "a/u/n", r.Revision, 1, 15*time.Second
	r.AcquireTime, r.RenewTime, r.Release = 1_700_000_000_000_001, 1_700_000_000_000_002, lease.Release{}
	return r
}

func TestRealUpdate(t *testing.T) {
	c := newCluster(t)
	o := c.create()
	before, err := c.leases().Get(t.Context(), "job", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := held(o)
	outcome, stored := c.update(o, want)
	if outcome != lease.Confirmed {
		t.Fatal(outcome)
	}
	if stored.Record.Revision <= o.Record.Revision {
		t.Errorf("revision %d after %d", stored.Record.Revision, o.Record.Revision)
	}
	want.Revision = stored.Record.Revision
	if diff := cmp.Diff(want, stored.Record); diff != "" {
		t.Errorf("the reply (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, c.get().Record); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
	after, err := c.leases().Get(t.Context(), "job", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// All but what the protocol owns is as it was.
	for _, l := range []*coordinationv1.Lease{before, after} {
		l.Spec, l.ManagedFields, l.ResourceVersion = coordinationv1.LeaseSpec{}, nil, ""
		delete(l.Annotations, contract.TokenAnnotation)
		delete(l.Annotations, contract.ReleaseReasonAnnotation)
		delete(l.Annotations, contract.LeaseDurationAnnotation)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("not ours, but changed (-before +after):\n%s", diff)
	}
}

// TestRealTracking: the agent's first write ends the record of who wrote which field. Other clients' writes do not restore it. If a
// server-side apply does, the next renewal ends it again.
func TestRealTracking(t *testing.T) {
	c := newCluster(t)
	tracked := func(want bool, after string) {
		t.Helper()
		l, err := c.leases().Get(t.Context(), "job", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(l.ManagedFields) > 0; got != want {
			t.Errorf("tracked after %s: %v, want %v: %v", after, got, want, l.ManagedFields)
		}
	}
	renew := func(o *Object) *Object {
		t.Helper()
		r := o.Record
		r.RenewTime += 1_000_000
		outcome, stored := c.update(o, r)
		if outcome != lease.Confirmed {
			t.Fatal(outcome)
		}
		return stored
	}
	patch := func(kind types.PatchType, text string, o metav1.PatchOptions) {
		t.Helper()
		if _, err := c.client.CoordinationV1().Leases(c.ns).Patch(t.Context(), "job", kind, []byte(text), o); err != nil {
			t.Fatal(err)
		}
	}
	o := c.create()
	tracked(true, "it was created")
	_, o = c.update(o, held(o))
	tracked(false, "an acquire")
	renew(o)
	tracked(false, "a renewal")

	l, err := c.leases().Get(t.Context(), "job", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.Annotations["operator"] = "was here"
	if _, err := c.client.CoordinationV1().Leases(c.ns).Update(t.Context(), l, metav1.UpdateOptions{FieldManager: "operator"}); err != nil {
		t.Fatal(err)
	}
	tracked(false, "an update by somebody else")
	patch(types.MergePatchType, `{"metadata":{"annotations":{"person":"was here"}}}`, metav1.PatchOptions{FieldManager: "kubectl-annotate"})
	tracked(false, "kubectl annotate")

	force := true
	patch(types.ApplyPatchType, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"job","annotations":{"applied":"yes"}}}`,
		metav1.PatchOptions{FieldManager: "somebody", Force: &force})
	tracked(true, "a server-side apply")
	renew(c.get())
	tracked(false, "the renewal after it")
	l, err = c.leases().Get(t.Context(), "job", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"operator", "person", "applied"} {
		if l.Annotations[name] == "" {
			t.Errorf("the annotation %q is gone: %v", name, l.Annotations)
		}
	}
}

func TestRealCompareAndSwap(t *testing.T) {
	t.Run("stale revision", func(t *testing.T) {
		c := newCluster(t)
		o := c.create()
		if outcome, _ := c.update(o, held(o)); outcome != lease.Confirmed {
			t.Fatal(outcome)
		}
		if outcome, _ := c.update(o, held(o)); outcome != lease.Conflict {
			t.Errorf("outcome %v, want Conflict", outcome)
		}
	})
	// The API server creates a Lease that is PUT and does not exist: the agent must never do that.
	t.Run("deleted", func(t *testing.T) {
		c := newCluster(t)
		o := c.create()
		c.remove()
		if outcome, _ := c.update(o, held(o)); outcome != lease.Conflict && outcome != lease.Gone {
			t.Errorf("outcome %v, want Conflict or Gone", outcome)
		}
		if _, err := c.leases().Get(t.Context(), "job", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a write of a deleted Lease made one: %v", err)
		}
		answer, err := c.ours.Get(within(t, 3*time.Minute), o.Record.Revision)
		if err != nil || !answer.Absent {
			t.Errorf("read: %+v, %v; want absent", answer, err)
		}
	})
	t.Run("deleted and recreated", func(t *testing.T) {
		c := newCluster(t)
		o := c.create()
		c.remove()
		c.create()
		if outcome, _ := c.update(o, held(o)); outcome != lease.Conflict {
			t.Errorf("outcome %v, want Conflict", outcome)
		}
		if got := c.get().Record.Holder; got != "" {
			t.Errorf("the new Lease has holder %q", got)
		}
	})
	t.Run("no namespace", func(t *testing.T) {
		c := newCluster(t)
		o := c.create()
		c.ours = newClient(t, Config{Server: apiserver.ForTest(t).URL(), Namespace: "nowhere", Name: "job", Credentials: c.ours.config.Credentials})
		if outcome, _ := c.update(o, held(o)); outcome == lease.Confirmed {
			t.Errorf("outcome %v", outcome)
		}
		answer, err := c.ours.Get(within(t, 3*time.Minute), o.Record.Revision)
		if err != nil || !answer.Absent {
			t.Errorf("read: %+v, %v; want absent", answer, err)
		}
	})
}

func TestRealRefusals(t *testing.T) {
	c := newCluster(t)
	o := c.create()
	plane := apiserver.ForTest(t)
	t.Run("unknown token", func(t *testing.T) {
		c.ours = newClient(t, Config{Server: plane.URL(), Namespace: c.ns, Name: "job", Credentials: credentials(t, plane.CA(), "nonsense")})
		if outcome, _ := c.update(o, held(o)); outcome != lease.Refused {
			t.Errorf("outcome %v, want Refused", outcome)
		}
		if _, err := c.ours.Get(within(t, 3*time.Minute), 0); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("read: %v, want 401", err)
		}
	})
	t.Run("invalid", func(t *testing.T) {
		c := newCluster(t)
		o := c.create()
		r := held(o)
		r.Transitions = -1
		if outcome, _ := c.update(o, r); outcome != lease.Refused {
			t.Errorf("outcome %v, want Refused", outcome)
		}
	})
}

// A release leaves what client-go's elector takes for a free Lease.
func TestRealRelease(t *testing.T) {
	c := newCluster(t)
	o := c.create()
	_, o = c.update(o, held(o))
	r := o.Record.Released(lease.Release{Reason: lease.ReasonSwitchover}, 1_700_000_000_000_003, 1_700_000_000_000_004)
	outcome, stored := c.update(o, r)
	if outcome != lease.Confirmed {
		t.Fatal(outcome)
	}
	if stored.Record.Holder != "" || stored.Record.Release.Reason != lease.ReasonSwitchover {
		t.Errorf("stored %+v", stored.Record)
	}
	l, err := c.leases().Get(t.Context(), "job", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != "" {
		text, _ := json.Marshal(l.Spec)
		t.Errorf("spec %s, want an empty holderIdentity", text)
	}
}

func TestRealWatch(t *testing.T) {
	c := newCluster(t)
	events, _ := watching(t, c.ours)
	for next(t, events) != "opened" { // a busy API server lets it try again
	}
	o := c.create()
	awaitRevision(t, events, Changed, o.Record.Revision)
	_, o = c.update(o, held(o))
	awaitRevision(t, events, Changed, o.Record.Revision)
	c.remove()
	for e := range events {
		if e.Kind != Deleted {
			continue
		}
		if e.Object.Record.Revision <= o.Record.Revision {
			t.Errorf("deleted at revision %d, want one after %d: it orders deletion and writes", e.Object.Record.Revision, o.Record.Revision)
		}
		return
	}
}

func awaitRevision(t *testing.T, events <-chan WatchEvent, kind WatchKind, revision int64) {
	t.Helper()
	for {
		select {
		case e := <-events:
			if e.Kind == kind && e.Object.Record.Revision == revision {
				return
			}
		case <-time.After(3 * time.Minute):
			t.Fatalf("no event about revision %d", revision)
		}
	}
}
