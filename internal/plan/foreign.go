package plan

import (
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// isForeign tells whether something holds the job's Lease that is no agent, such as an elector of client-go. Candidates
// wait for its full duration, but it does not do as much for them: it compares renewals by the second, and takes a Lease
// without a holder at once.
func (f *facts) isForeign() bool {
	if f.record.Holder == "" || f.record.Holder == lease.UnknownHolder {
		return false
	}
	_, agent := lease.ParseIdentity(f.record.Holder)
	return !agent
}

// maxIdentity bounds what is shown of a holder's identity, which may be as long as an object.
const maxIdentity = 128

func (s *situation) foreignText() string {
	id := s.record.Holder
	return fmt.Sprintf("%q holds the Lease and is no agent of this SingletonJob: another elector on the same Lease is not supported, "+
		"stop it or give it a Lease of its own; a candidate takes over when it has not renewed for its full lease duration", id[:min(len(id), maxIdentity)])
}

// foreigner announces a holder that is no agent: once for each.
func (f *facts) foreigner(status *v1alpha1.SingletonJobStatus) []Event {
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == v1alpha1.ConditionActive && c.Reason == v1alpha1.ReasonForeignHolder && !said(f.job.Status.Conditions, c) {
			return []Event{{
				Name: fmt.Sprintf("%s.foreignholder-%x", f.Name, sha256.Sum256([]byte(f.record.Holder)))[:len(f.Name)+len(".foreignholder-")+16],
				Type: corev1.EventTypeWarning, Reason: c.Reason, Message: c.Message,
			}}
		}
	}
	return nil
}

// said tells whether a condition says already what it says now.
func said(before []metav1.Condition, now *metav1.Condition) bool {
	for i := range before {
		if before[i].Type == now.Type && before[i].Reason == now.Reason && before[i].Message == now.Message {
			return true
		}
	}
	return false
}
