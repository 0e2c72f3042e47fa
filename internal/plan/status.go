package plan

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// statusOf returns the status to store, nil if it is already stored, and the changes of holder that are new in it.
func statusOf(
	state State, j *job, t *tenure, m *members, r *runs, c changes, o *Observed, fleet v1alpha1.FleetRollout, h handover,
) (*v1alpha1.SingletonJobStatus, []v1alpha1.TenureChange) {
	status := j.Status.DeepCopy()
	status.FleetRollout = fleet
	record(status, c.news, int(*j.Spec.HistoryLimit))
	if t.Record.Token > t.desired.claim.Before {
		status.FencingToken = max(status.FencingToken, t.Record.Token)
	}
	status.Tenures = max(status.Tenures, int64(t.Record.Transitions))
	describeTenure(status, t)
	describeCandidates(status, state, m)
	describeSpec(status, j)
	describeEntrypoint(status, j)
	describeRuns(status, r, int(*j.Spec.HistoryLimit))
	for _, c := range append(runConditions(state, j, t, m, r),
		active(state, j, t, m, r, o.Refused).condition(v1alpha1.ConditionActive),
		protected(state, j, t, m, r).condition(v1alpha1.ConditionProtected),
		progressing(state, j, t, m, r, o.Refused, h).withBeside(o.Job, o.Workload).condition(v1alpha1.ConditionProgressing),
		timely(state, j, m).condition(v1alpha1.ConditionTimely),
		ready(state, j, t, m, r, o.Refused).condition(v1alpha1.ConditionReady),
	) {
		c.ObservedGeneration, c.LastTransitionTime = j.Generation, metav1.NewTime(o.Now.UTC().Truncate(time.Second))
		set(status, c)
	}
	if v := stalled(state, j, r); v != well {
		c := v.condition(v1alpha1.ConditionStalled)
		c.ObservedGeneration, c.LastTransitionTime = j.Generation, metav1.NewTime(o.Now.UTC().Truncate(time.Second))
		set(status, c)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionStalled)
	}
	for _, other := range otherConditions(j) {
		meta.RemoveStatusCondition(&status.Conditions, other)
	}
	if equality.Semantic.DeepEqual(status, &j.Status) {
		return nil, nil
	}
	return status, c.news
}

// record adds changes of holder, oldest first, to the history and the counters. One write stores all of them, and the token up to which
// they reach, so that each change is counted once.
func record(status *v1alpha1.SingletonJobStatus, changes []v1alpha1.TenureChange, limit int) {
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
	status.History = status.History[:min(len(status.History), limit)]
	if len(status.History) == 0 {
		status.History = nil
	}
}

func describeTenure(status *v1alpha1.SingletonJobStatus, t *tenure) {
	status.ActivePod, status.ActiveNode, status.ActiveSince = "", "", nil
	if t.shown {
		status.ActivePod, status.ActiveNode = t.holder.Pod, t.holder.node
		status.ActiveSince = &metav1.Time{Time: microTime(t.holder.since).Truncate(time.Second)}
	}
}

func describeCandidates(status *v1alpha1.SingletonJobStatus, state State, m *members) {
	c := v1alpha1.CandidatesStatus{
		Total:   int32(m.count(candidate.live)),
		Ready:   int32(m.count(candidate.available)),
		Updated: int32(m.count(func(c candidate) bool { return c.live() && c.updated })),
	}
	desired := m.fleet.Desired
	if state == Resting {
		desired = 0
	}
	c.Summary = fmt.Sprintf("%d/%d", c.Ready, desired)
	status.Candidates = c
}

func describeSpec(status *v1alpha1.SingletonJobStatus, j *job) {
	l := j.Spec.Lease
	status.ObservedGeneration = j.Generation
	status.Selector = labels.SelectorFromSet(inject.Selector(j.Name)).String()
	status.WorstCaseFailover = &metav1.Duration{Duration: l.LeaseDuration.Duration + l.LockDelay.Duration}
	status.LeaseSummary = fmt.Sprintf("%v/%v/%v", l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration)
}

// set sets a condition. A rejection whose text differs each time is recorded once.
func set(status *v1alpha1.SingletonJobStatus, c metav1.Condition) {
	old := meta.FindStatusCondition(status.Conditions, c.Type)
	rejection := c.Reason == v1alpha1.ReasonFailedCreate || c.Reason == v1alpha1.ReasonFailedUpdate || c.Reason == v1alpha1.ReasonFailedDelete
	if old != nil && old.Reason == c.Reason && rejection && alike(old.Message, c.Message) {
		c.Message = old.Message
	}
	meta.SetStatusCondition(&status.Conditions, c)
}
