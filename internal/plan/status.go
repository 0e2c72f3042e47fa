package plan

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// status is the status to store, nil if it is stored already, and what it tells for the first time.
func (f *facts) status(p Plan) (*v1alpha1.SingletonJobStatus, []v1alpha1.TenureChange) {
	status := f.job.Status.DeepCopy()
	changes, _ := f.changes()
	f.tell(status, changes)
	f.describeTenure(status)
	f.describeCandidates(status)
	f.describeSettings(status)
	for _, c := range f.conditions(p) {
		f.set(status, c)
	}
	if equality.Semantic.DeepEqual(status, &f.Job.Status) {
		return nil, nil
	}
	return status, changes
}

// tell adds changes of holder, oldest first, to the history and to the counters. All of it, and the token up to which it
// reaches, is stored by one write, so that each change is counted once.
func (f *facts) tell(status *v1alpha1.SingletonJobStatus, changes []v1alpha1.TenureChange) {
	for _, c := range changes {
		status.History = slices.Insert(status.History, 0, c)
		switch c.Type {
		case v1alpha1.Failover:
			status.Failovers++
			status.LastFailoverTime = &metav1.Time{Time: c.Time.Truncate(time.Second)}
		case v1alpha1.Handover:
			status.Handovers++
		case v1alpha1.Elected:
		}
	}
	status.History = status.History[:min(len(status.History), int(*f.job.Spec.HistoryLimit))]
	if len(status.History) == 0 {
		status.History = nil
	}
	if f.record.Token > f.claim.Before {
		status.FencingToken = max(status.FencingToken, f.record.Token)
	}
	status.Tenures = max(status.Tenures, int64(f.record.Transitions))
}

func (f *facts) describeTenure(status *v1alpha1.SingletonJobStatus) {
	status.ActivePod, status.ActiveNode, status.ActiveSince = "", "", nil
	if f.shown() {
		status.ActivePod, status.ActiveNode = f.holder.Pod, f.holder.node
		status.ActiveSince = &metav1.Time{Time: microTime(f.holder.since).Truncate(time.Second)}
	}
}

func (f *facts) describeCandidates(status *v1alpha1.SingletonJobStatus) {
	c := v1alpha1.CandidatesStatus{
		Total:   int32(f.count(candidate.live)),
		Ready:   int32(f.count(func(c candidate) bool { return c.live() && c.ready })),
		Updated: int32(f.count(func(c candidate) bool { return c.live() && c.updated })),
	}
	c.Summary = fmt.Sprintf("%d/%d", c.Ready, f.job.Spec.Candidates)
	status.Candidates = c
}

func (f *facts) describeSettings(status *v1alpha1.SingletonJobStatus) {
	l := f.job.Spec.Lease
	status.ObservedGeneration = f.job.Generation
	status.Selector = labels.SelectorFromSet(inject.Selector(f.Name)).String()
	status.WorstCaseFailover = &metav1.Duration{Duration: l.LeaseDuration.Duration + l.LockDelay.Duration}
	status.LeaseSummary = fmt.Sprintf("%v/%v/%v", l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration)
}

// set changes a condition; its time only moves when its status does.
func (f *facts) set(status *v1alpha1.SingletonJobStatus, c metav1.Condition) {
	c.ObservedGeneration = f.job.Generation
	c.LastTransitionTime = metav1.NewTime(f.Now.UTC().Truncate(time.Second))
	at := slices.IndexFunc(status.Conditions, func(old metav1.Condition) bool { return old.Type == c.Type })
	switch {
	case at < 0:
		status.Conditions = append(status.Conditions, c)
	default:
		if status.Conditions[at].Status == c.Status {
			c.LastTransitionTime = status.Conditions[at].LastTransitionTime
		}
		if old := status.Conditions[at]; old.Reason == c.Reason && c.Reason == v1alpha1.ReasonPodsRefused && alike(old.Message, c.Message) {
			c.Message = old.Message
		}
		status.Conditions[at] = c
	}
}
