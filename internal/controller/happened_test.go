package controller

import (
	"slices"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// tenure is a tenure as the agents know it, independent of operator and Lease.
type tenure struct {
	token     int64
	pod, node string
	// why it ended; empty while it lasts.
	why lease.Reason
	// deleted: its Lease was.
	deleted bool
}

func (w *world) ended(e lease.TenureEnded) {
	w.t.Helper()
	for i := range w.acted {
		if t := &w.acted[i]; t.token == e.Token {
			t.why = e.Reason
			if t.deleted && t.why == lease.ReasonLeaseLost { // it may see the next Lease first
				t.why = lease.ReasonLeaseDeleted
			}
			return
		}
	}
	w.t.Fatalf("the tenure of token %d ended, and had not begun", e.Token)
}

// planned are the reasons of handovers.
var planned = []lease.Reason{lease.ReasonRollout, lease.ReasonSwitchover, lease.ReasonTokenBaseRaised, lease.ReasonPodTerminating}

// recordsWhatHappened fails unless the status records each tenure with its holder, its predecessor and its reason.
func (w *world) recordsWhatHappened() {
	w.t.Helper()
	var want, got []v1alpha1.TenureChange
	var before tenure
	for _, t := range w.acted {
		change := v1alpha1.TenureChange{
			Type: v1alpha1.Failover, Reason: string(before.why), From: before.pod, FromToken: before.token, To: t.pod, Token: t.token,
		}
		switch {
		case before.token == 0:
			change.Type, change.Reason = v1alpha1.Elected, "Elected"
		case slices.Contains(planned, before.why):
			change.Type = v1alpha1.Handover
		}
		want, before = append(want, change), t
	}
	for _, h := range slices.Backward(w.status().History) {
		got = append(got, v1alpha1.TenureChange{Type: h.Type, Reason: h.Reason, From: h.From, FromToken: h.FromToken, To: h.To, Token: h.Token})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("the history (-what happened +what is recorded):\n%s\n%s", diff, w.describe())
	}
	w.announces()
}
