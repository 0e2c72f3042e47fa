package plan

import (
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

// Event is a Kubernetes Event about the job. Its name follows from what it tells, so that it is written once, however
// often it is tried.
type Event struct {
	Name    string
	Type    string
	Reason  string
	Message string
}

// recent is how far back the changes are announced again by a process that does not know which were: less than the hour
// for which an API server keeps Events, so that none appears twice.
const recent = 30 * time.Minute

// events are those of changes of holder that were not announced, oldest first, and of conditions that turned bad.
func (f *facts) events(status *v1alpha1.SingletonJobStatus, changes []v1alpha1.TenureChange) []Event {
	events := f.allEvents(status, changes)
	for i := range events {
		events[i].Message = Shorten(events[i].Message, maxEvent)
	}
	return events
}

func (f *facts) allEvents(status *v1alpha1.SingletonJobStatus, changes []v1alpha1.TenureChange) []Event {
	var events []Event
	if f.Untold {
		for _, c := range slices.Backward(f.job.Status.History) {
			if f.Now.Sub(c.Time.Time) < recent {
				events = append(events, holderChanged(f.Name, c))
			}
		}
	}
	for _, c := range changes {
		events = append(events, holderChanged(f.Name, c))
	}
	if f.Lease.Presence == Ours && f.badTokenBase() != "" {
		events = append(events, tokenBaseReset(f.Name, f.badTokenBase(), f.tokenBase()))
	}
	if status == nil {
		return events
	}
	if _, incomplete := f.changes(); incomplete {
		events = append(events, historyLost(f.Name, status.FencingToken))
	}
	if status.FencingToken > 0 && f.Lease.Presence == Absent {
		events = append(events, leaseMissed(f.Name, status.FencingToken))
	}
	events = append(events, f.foreigner(status)...)
	for i := range status.Conditions {
		told := func(e Event) bool { return e.Reason == status.Conditions[i].Reason }
		if c := &status.Conditions[i]; turned(f.job.Status.Conditions, c) && !slices.ContainsFunc(events, told) {
			events = append(events, conditionTurned(f.Name, c))
		}
	}
	return events
}

// alarming are the reasons of conditions that a person should hear of.
var alarming = map[string]bool{
	v1alpha1.ReasonHolderUnreachable: true, v1alpha1.ReasonProcessBackOff: true, v1alpha1.ReasonPodsRefused: true,
	v1alpha1.ReasonAgentMisconfigured: true, v1alpha1.ReasonLeaseConflict: true, v1alpha1.ReasonInvalidSpec: true,
	v1alpha1.ReasonRolloutStalled: true, v1alpha1.ReasonPodsFailing: true, v1alpha1.ReasonCandidateStuck: true,
	v1alpha1.ReasonCPULimitTooSmall: true,
}

// turned tells whether a condition has an alarming reason that no condition had.
func turned(before []metav1.Condition, now *metav1.Condition) bool {
	if !alarming[now.Reason] || now.Type == v1alpha1.ConditionProtected {
		return false
	}
	for i := range before {
		if before[i].Reason == now.Reason {
			return false
		}
	}
	return true
}

func holderChanged(job string, c v1alpha1.TenureChange) Event {
	e := Event{
		Name: fmt.Sprintf("%s.tenure-%d", job, c.Token), Type: corev1.EventTypeNormal, Reason: string(c.Type),
	}
	to := place(c.To, c.ToNode, c.Token)
	e.Message = to + " is the first holder"
	if c.Type != v1alpha1.Elected {
		e.Message = fmt.Sprintf("%s took over from %s: %s", to, place(c.From, c.FromNode, c.FromToken), c.Reason)
	}
	if c.Type == v1alpha1.Failover {
		e.Type = corev1.EventTypeWarning
	}
	if c.Downtime != nil {
		e.Message += fmt.Sprintf(", %v without an active process", c.Downtime.Duration)
	}
	return e
}

func place(pod, node string, token int64) string {
	if pod == "" {
		pod = "an unknown pod"
	}
	if node == "" {
		return fmt.Sprintf("%s (token %d)", pod, token)
	}
	return fmt.Sprintf("%s (node %s, token %d)", pod, node, token)
}

func historyLost(job string, token int64) Event {
	return Event{
		Name: fmt.Sprintf("%s.history-%d", job, token), Type: corev1.EventTypeWarning, Reason: "HistoryIncomplete",
		Message: "the holder changed more often than the Lease can tell while no operator ran; the oldest of these changes are not counted",
	}
}

func tokenBaseReset(job, was string, is int64) Event {
	id := fnv.New32()
	_, _ = id.Write([]byte(was))
	return Event{
		Name: fmt.Sprintf("%s.token-base-%x", job, id.Sum32()), Type: corev1.EventTypeWarning, Reason: "TokenBaseInvalid",
		Message: fmt.Sprintf("the Lease's annotation %s was %q, which is no number from 0 to %d (2^52): it is reset to %d; set "+
			"spec.fencing.tokenBase instead", contract.TokenBaseAnnotation, was, v1alpha1.MaxTokenBase, is),
	}
}

func leaseMissed(job string, token int64) Event {
	return Event{
		Name: fmt.Sprintf("%s.lease-%d", job, token), Type: corev1.EventTypeWarning, Reason: "LeaseMissing",
		Message: "the Lease was deleted; it is made anew, and nobody may take it before a full lease duration is over",
	}
}

func conditionTurned(job string, c *metav1.Condition) Event {
	return Event{
		Name: fmt.Sprintf("%s.%s-%d", job, strings.ToLower(c.Reason), c.LastTransitionTime.Unix()),
		Type: corev1.EventTypeWarning, Reason: c.Reason, Message: c.Message,
	}
}
