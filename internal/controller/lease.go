package controller

import (
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/plan"
)

// decode decodes a Lease object. A Lease without the operator's label is foreign, whatever it contains.
func decode(l *coordinationv1.Lease) (plan.Lease, error) {
	if l.Labels[contract.ManagedByLabel] != contract.ManagedBy {
		return plan.Lease{Presence: plan.Foreign}, nil
	}
	record, err := contract.DecodeLease(fields(l))
	if err != nil {
		return plan.Lease{}, err
	}
	claim := plan.ParseClaim(l.Annotations[plan.ClaimAnnotation])
	return plan.Lease{Presence: plan.Ours, Record: record, Claim: claim}, nil
}

// fields are the fields of a Lease object as package contract takes them.
func fields(l *coordinationv1.Lease) contract.Fields {
	return contract.Fields{
		UID:                  string(l.UID),
		ResourceVersion:      l.ResourceVersion,
		Annotations:          l.Annotations,
		CreationTimestamp:    formatCreation(l.CreationTimestamp),
		HolderIdentity:       ptr.Deref(l.Spec.HolderIdentity, ""),
		LeaseDurationSeconds: ptr.Deref(l.Spec.LeaseDurationSeconds, 0),
		LeaseTransitions:     ptr.Deref(l.Spec.LeaseTransitions, 0),
		AcquireTime:          formatTime(l.Spec.AcquireTime),
		RenewTime:            formatTime(l.Spec.RenewTime),
	}
}

// written is base with a record's values. Its UID and resourceVersion are the precondition of the write.
func written(base *coordinationv1.Lease, r lease.Record, c plan.Claim) *coordinationv1.Lease {
	l := base.DeepCopy()
	f := contract.EncodeLease(r, fields(base))
	l.UID, l.ResourceVersion = types.UID(f.UID), f.ResourceVersion
	l.Annotations = maps.Clone(f.Annotations)
	l.Annotations[plan.ClaimAnnotation] = c.String()
	l.Spec.HolderIdentity = &f.HolderIdentity
	l.Spec.LeaseTransitions = &f.LeaseTransitions
	l.Spec.LeaseDurationSeconds = nil
	if f.LeaseDurationSeconds > 0 { // the API server refuses 0
		l.Spec.LeaseDurationSeconds = &f.LeaseDurationSeconds
	}
	l.Spec.AcquireTime, l.Spec.RenewTime = parseTime(f.AcquireTime), parseTime(f.RenewTime)
	return l
}

// newLease is the object for a Lease that does not exist yet. It has no owner: see package plan.
func newLease(key types.NamespacedName, w *plan.LeaseWrite) *coordinationv1.Lease {
	l := written(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name,
		Labels: map[string]string{contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: key.Name},
	}}, w.Record, w.Claim)
	l.UID, l.ResourceVersion = "", ""
	return l
}

// formatCreation is empty for an object that is not stored yet.
func formatCreation(t metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func formatTime(t *metav1.MicroTime) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func parseTime(s string) *metav1.MicroTime {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return nil
	}
	return &metav1.MicroTime{Time: t}
}
