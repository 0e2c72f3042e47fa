package controller

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
)

// small is the maximum size of a Lease in etcd, in bytes, with names of their length.
const small = 700

// shorter is the number of bytes by which a Lease of these tests is shorter than one of a cluster. There the token, which occurs twice,
// has 9 digits, and an agent's nonce has 12 characters instead of 2.
func shorter(l *coordinationv1.Lease) int {
	return 2*(9-len(l.Annotations[contract.TokenAnnotation])) + 12 - 2
}

// TestALeaseIsSmall: whatever has happened to a job, once it is recorded each renewal stores little, with one write of the operator
// per change of holder. The agents' state machine writes with the agents' own client, and the sizes are those in etcd.
func TestALeaseIsSmall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.key.Name = "settlement-of-all-accounts-eur"
	w.writeByAgentsClient()
	told := w.countForgetting()
	w.job(nil)
	w.until("the first tenure is recorded", func() bool { return w.serving() && w.told() })
	w.isSmall("the election")
	for _, end := range []struct {
		name string
		end  func(*agent)
	}{
		{"the process has ended", func(a *agent) { a.exit(1) }},
		{"a failover", func(a *agent) { w.kill(a) }},
		{"a handover", func(a *agent) { w.deletePod(a.name) }},
		{"a node was lost", func(a *agent) { w.cutOffNode(a.node) }},
		{"a rollout", func(*agent) { w.image("v2") }},
	} {
		holder, token := w.holder(), w.highest
		end.end(holder)
		w.until("another tenure, told, after: "+end.name, func() bool { return w.highest > token && w.told() && w.holder() != nil })
		holder.frozen = false
		w.reachNode(holder.node)
		w.until("serving after: "+end.name, w.serving)
		for range 10 { // two renewals
			w.round()
		}
		w.isSmall(end.name)
		if changes := len(w.tenures) - 1; len(*told) != changes {
			t.Errorf("%d writes for %d changes of holder, each told at once: %v", len(*told), changes, *told)
		}
	}
	if h := w.status().History; len(h) != len(w.tenures) {
		t.Errorf("%d tenures, and the status tells of %d", len(w.tenures), len(h))
	}
}

// TestLeaseShrinksAfterAnOutage: changes that happened while no operator ran, or that an operator recorded just before it ended, are
// cleared at the next renewal with one write.
func TestLeaseShrinksAfterAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.key.Name = "settlement-of-all-accounts-eur"
	w.writeByAgentsClient()
	told := w.countForgetting()
	w.job(nil)
	w.until("the first tenure is recorded", func() bool { return w.serving() && w.told() })
	op := w.operators[0]
	w.operators = nil
	for range 3 {
		token := w.highest
		w.holder().exit(1)
		w.until("another tenure", func() bool { return w.highest > token && w.holder() != nil })
	}
	w.operators = []*operator{op}
	op.restart()
	op.dies = func(call string) (ends, after bool) { // right before it clears the Lease's history
		return call == kindOfWrite(fmt.Sprintf("update %T x", &coordinationv1.Lease{})) && len(op.crashes) == 0, false
	}
	w.until("it ends", func() bool { return len(op.crashes) == 1 })
	if !w.told() {
		t.Fatalf("it has the Lease forget what is not told: %+v", w.status())
	}
	was := w.lease()
	op.reconcile()
	if is := w.lease(); is.ResourceVersion != was.ResourceVersion {
		t.Error("it has written before it has seen the holder renew")
	}
	w.until("it is forgotten", func() bool { return len(*told) > 0 })
	for range 10 {
		w.round()
	}
	w.isSmall("what it missed")
	if len(*told) != 1 {
		t.Errorf("it took %d writes: %v", len(*told), *told)
	}
	if s := w.status(); len(s.History) != 4 || s.Failovers != 3 {
		t.Errorf("the status tells of %d tenures and %d failovers: %+v", len(s.History), s.Failovers, s.History)
	}
}

// TestTheHistoryStaysUntilItIsStored: while the status cannot be written, the Lease keeps the changes.
func TestTheHistoryStaysUntilItIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.job(nil)
	w.until("the first tenure is recorded", func() bool { return w.serving() && w.told() })
	w.operators[0].refuses = func(verb string, _ client.Object) bool { return verb == "update status" }
	first := w.highest
	w.holder().exit(1)
	w.until("another tenure", func() bool { return w.highest > first && w.holder() != nil })
	for range 10 {
		w.round()
	}
	if past := w.lease().Annotations[contract.HistoryAnnotation]; w.told() || strings.Count(past, ";") != 1 {
		t.Errorf("told up to %d, and the Lease has %q", w.status().FencingToken, past)
	}
	w.operators[0].refuses = nil
	w.until("it is recorded and cleared from the Lease", func() bool {
		return w.told() && !strings.Contains(w.lease().Annotations[contract.HistoryAnnotation], ";")
	})
	if h := w.status().History; len(h) != 2 || h[0].FromToken != first || h[0].Reason != v1alpha1.ChangeProcessExited {
		t.Errorf("told: %+v", h)
	}
}

// writeByAgentsClient makes the agents write with their real client.
func (w *world) writeByAgentsClient() {
	w.t.Helper()
	dir := w.t.TempDir()
	for name, content := range map[string][]byte{"ca.crt": w.plane.CA(), "token": []byte(w.plane.Config().BearerToken)} {
		w.must(os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	c, err := kubelease.New(kubelease.Config{Server: w.plane.URL(), Namespace: w.key.Namespace, Name: w.key.Name, Credentials: dir})
	w.must(err)
	w.store = func(attempt lease.Attempt) lease.WriteDone {
		done := lease.WriteDone{Nonce: attempt.Nonce}
		answer, err := c.Get(w.t.Context(), 0)
		w.must(err)
		if answer.Object == nil {
			done.Outcome = lease.Gone
			return done
		}
		if answer.Object.Record.Revision != attempt.Record.Revision {
			done.Outcome = lease.Conflict // an agent keeps the object on which it decided
			return done
		}
		outcome, stored, err := c.Update(w.t.Context(), answer.Object, attempt.Record)
		w.memo.drop(&coordinationv1.Lease{})
		if done.Outcome = outcome; outcome == lease.Confirmed {
			done.Record = &stored.Record
		} else {
			w.t.Log(err)
		}
		return done
	}
}

// countForgetting records each write with which the operator clears history from the Lease, and checks that it belongs to a holder
// that renews.
func (w *world) countForgetting() *[]string {
	var all []string
	for _, op := range w.operators {
		op.around = func(verb string, obj client.Object, do func() error) error {
			next, ok := obj.(*coordinationv1.Lease)
			was := w.lease()
			err := do()
			if !ok || verb != "update" || err != nil || was == nil || ptr.Deref(was.Spec.HolderIdentity, "") != ptr.Deref(next.Spec.HolderIdentity, "") {
				return err
			}
			if from, to := was.Annotations[contract.HistoryAnnotation], next.Annotations[contract.HistoryAnnotation]; len(to) < len(from) {
				all = append(all, to)
				if since := w.clock.Now().Sub(was.Spec.RenewTime.Time); since > 1500*time.Millisecond {
					w.t.Errorf("the Lease is written %v after its last renewal", since)
				}
			}
			return nil
		}
	}
	return &all
}

// told reports whether the status shows the current tenure.
func (w *world) told() bool { return w.status().FencingToken == w.highest }

// isSmall reads the size of the Lease in etcd.
func (w *world) isSmall(after string) {
	w.t.Helper()
	stored, err := w.plane.Stored(w.t.Context(), "/registry/leases/"+w.key.Namespace+"/"+w.key.Name)
	w.must(err)
	l := w.lease()
	size := len(stored) + shorter(l)
	w.t.Logf("%d bytes after: %s", size, after)
	if len(stored) == 0 || size > small || len(l.ManagedFields) > 0 {
		w.t.Errorf("after: %s, a Lease has %d bytes in etcd, want %d at most: managedFields %v, annotations %v, holder %v", after, size, small,
			l.ManagedFields, l.Annotations, *l.Spec.HolderIdentity)
	}
}
