package plan

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// recent is how old a change can be to be announced again by a process that does not know which changes were announced. That is longer than
// another replica needs to take over from an operator that stopped between the write of a status and its Events. It also bounds what a new
// operator writes in vain. The Event of an older change is not written again.
const recent = 5 * time.Minute

// retried is how old the last change of a run can be to be announced again by a process that failed to announce something. An API server keeps
// Events for an hour, so none appears twice.
const retried = 30 * time.Minute

// eventsOf returns the Events about changes of holder that were not announced, oldest first, and about conditions that became bad.
func eventsOf(j *job, t *tenure, r *runs, c changes, o *Observed, p *Plan) []Event {
	events := eventsOfRuns(j, r, p.Status, o)
	for _, old := range unannounced(j, c, o) {
		events = append(events, holderChanged(j.Name, old))
	}
	for _, news := range p.Changes {
		events = append(events, holderChanged(j.Name, news))
	}
	if t.badTokenBase != "" {
		events = append(events, tokenBaseReset(j.Name, t.badTokenBase, t.desired.tokenBase))
	}
	if p.Status != nil {
		if c.incomplete {
			events = append(events, historyLost(j.Name, p.Status.FencingToken))
		}
		if p.Status.FencingToken > 0 && t.Presence == Absent {
			events = append(events, leaseMissed(j.Name, p.Status.FencingToken, j.schedule != nil))
		}
		events = append(events, ofConditions(j, t, o.Workload, p.Status.Conditions)...)
	}
	now := j.Status.Conditions
	if p.Status != nil {
		now = p.Status.Conditions
	}
	events = append(events, ofProtection(j, now, o)...)
	for i := range events {
		events[i].Message = Shorten(events[i].Message, maxEvent)
	}
	return events
}

// unannounced returns the recorded changes that may have no Event, oldest first. The status keeps as many as spec.historyLimit; the Lease
// may still have the ones that the status dropped.
func unannounced(j *job, c changes, o *Observed) []v1alpha1.TenureChange {
	all := slices.Clone(j.Status.History)
	for _, told := range c.told {
		if !slices.ContainsFunc(all, func(h v1alpha1.TenureChange) bool { return h.Token == told.Token }) {
			all = append(all, told)
		}
	}
	slices.SortStableFunc(all, func(a, b v1alpha1.TenureChange) int { return cmp.Compare(a.Token, b.Token) })
	return slices.DeleteFunc(all, func(old v1alpha1.TenureChange) bool {
		if o.EventsUnknown {
			return o.Now.Sub(old.Time.Time) >= recent
		}
		return o.Unannounced == 0 || old.Token < o.Unannounced
	})
}

// ofConditions announces each alarming reason once, whichever conditions have it, and each holder that is not an agent.
func ofConditions(j *job, t *tenure, w *Workload, conditions []metav1.Condition) []Event {
	var events []Event
	announced := map[string]bool{}
	for i := range conditions {
		if c := &conditions[i]; c.Type == v1alpha1.ConditionActive && c.Reason == v1alpha1.ReasonForeignHolder && !said(j.Status.Conditions, c) {
			events = append(events, foreignHolder(j.Name, t.Record.Holder, c))
		}
	}
	for i := range conditions {
		if c := &conditions[i]; turned(j.Status.Conditions, c) && !announced[c.Reason] {
			announced[c.Reason] = true
			if c.Reason == j.blocked.reason {
				events = append(events, blockedTurned(j, w, c))
			} else {
				events = append(events, conditionTurned(j.Name, c))
			}
		}
	}
	return events
}

// alarming are the reasons of conditions that users should be notified of.
var alarming = map[string]bool{
	v1alpha1.ReasonHolderUnreachable: true, v1alpha1.ReasonProcessBackOff: true, v1alpha1.ReasonFailedCreate: true,
	v1alpha1.ReasonFailedUpdate: true, v1alpha1.ReasonFailedDelete: true,
	v1alpha1.ReasonAgentMisconfigured: true, v1alpha1.ReasonLeaseConflict: true, v1alpha1.ReasonInvalidSpec: true,
	v1alpha1.ReasonRolloutStalled: true, v1alpha1.ReasonPodsFailing: true, v1alpha1.ReasonCandidateStuck: true,
	v1alpha1.ReasonCPULimitTooSmall: true, v1alpha1.ReasonSwitchoverBlocked: true, v1alpha1.ReasonWorkloadMissing: true,
	v1alpha1.ReasonWorkloadDenied: true, v1alpha1.ReasonWorkloadTaken: true, v1alpha1.ReasonWorkloadRunning: true, v1alpha1.ReasonUnmanagedHolder: true,
	v1alpha1.ReasonProgressDeadlineExceeded: true, v1alpha1.ReasonRunRequestInvalid: true,
	v1alpha1.ReasonOverdue: true, v1alpha1.ReasonNoServerTime: true,
	v1alpha1.ReasonClocksDisagree: true, v1alpha1.ReasonAhead: true, v1alpha1.ReasonBadRun: true,
}

// turned reports whether a condition has an alarming reason that no condition had before.
func turned(before []metav1.Condition, now *metav1.Condition) bool {
	if !alarming[now.Reason] || now.Type == v1alpha1.ConditionProtected {
		return false
	}
	return !slices.ContainsFunc(before, func(c metav1.Condition) bool { return c.Reason == now.Reason })
}

// said reports whether the condition already had this reason and message.
func said(before []metav1.Condition, now *metav1.Condition) bool {
	return slices.ContainsFunc(before, func(c metav1.Condition) bool {
		return c.Type == now.Type && c.Reason == now.Reason && c.Message == now.Message
	})
}

func holderChanged(job string, c v1alpha1.TenureChange) Event {
	e := Event{
		Name: fmt.Sprintf("%s.tenure-%d", job, c.Token), Type: corev1.EventTypeNormal, Reason: string(c.Type),
	}
	to := at(c.To, c.ToNode, c.Token)
	e.Message = to + " is the first holder"
	if c.Type != v1alpha1.Elected {
		e.Message = fmt.Sprintf("%s took over from %s: %s", to, at(c.From, c.FromNode, c.FromToken), c.Reason)
	}
	if c.Type == v1alpha1.Failover {
		e.Type = corev1.EventTypeWarning
	}
	if c.Downtime != nil {
		e.Message += fmt.Sprintf(", %v without an active process", c.Downtime.Duration)
	}
	return e
}

const unknownPod = "an unknown pod"

func at(pod, node string, token int64) string {
	if pod == "" {
		pod = unknownPod
	}
	if node == "" {
		return fmt.Sprintf("%s (token %d)", pod, token)
	}
	return fmt.Sprintf("%s (node %s, token %d)", pod, node, token)
}

func historyLost(job string, token int64) Event {
	return Event{
		Name: fmt.Sprintf("%s.history-%d", job, token), Type: corev1.EventTypeWarning, Reason: "HistoryIncomplete",
		Message: "the holder changed more often than the Lease can record while no operator ran; the oldest of these changes are not counted",
	}
}

func tokenBaseReset(job, was string, is int64) Event {
	id := fnv.New32()
	_, _ = id.Write([]byte(was))
	return Event{
		Name: fmt.Sprintf("%s.token-base-%x", job, id.Sum32()), Type: corev1.EventTypeWarning, Reason: "TokenBaseInvalid",
		Message: fmt.Sprintf("the Lease's annotation %s was %q, which is not a number from 0 to %d (2^52): it is reset to %d; set "+
			"spec.fencing.tokenBase instead", contract.TokenBaseAnnotation, was, v1alpha1.MaxTokenBase, is),
	}
}

func leaseMissed(job string, token int64, ticks bool) Event {
	e := Event{
		Name: fmt.Sprintf("%s.lease-%d", job, token), Type: corev1.EventTypeWarning, Reason: "LeaseMissing",
		Message: "the Lease was deleted; it is recreated, and no candidate can take it before a full lease duration has passed",
	}
	if ticks {
		e.Message += "; earlier ticks that were not run are not run later"
	}
	return e
}

func conditionTurned(job string, c *metav1.Condition) Event {
	return Event{
		Name: fmt.Sprintf("%s.%s-%d", job, strings.ToLower(c.Reason), c.LastTransitionTime.Unix()),
		Type: corev1.EventTypeWarning, Reason: c.Reason, Message: c.Message,
	}
}

func foreignHolder(job, holder string, c *metav1.Condition) Event {
	id := sha256.Sum256([]byte(holder))
	return Event{
		Name: fmt.Sprintf("%s.foreignholder-%x", job, id[:8]), Type: corev1.EventTypeWarning, Reason: c.Reason, Message: c.Message,
	}
}
