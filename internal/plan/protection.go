package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// The reasons of the Events about protection.
const (
	eventUnprotected = "Unprotected"
	eventProtected   = "Protected"
)

// unprotected are the reasons with which a running job lacks a standby that it should have. With the other reasons, the lack is intended,
// as with SingleCandidate, or has its own Event.
var unprotected = []string{v1alpha1.ReasonNoStandby, v1alpha1.ReasonStandbyOnSameNode, v1alpha1.ReasonVolumeNotShared}

// Unprotected returns the reasons of the condition Protected with which a running job lacks a standby that it should have.
func Unprotected() []string { return slices.Clone(unprotected) }

// ofProtection announces that a job is not protected, including a job that never was, and that it is protected again. A gap that will close
// by itself, as in a rollout and after a failover, is expected. It is announced only when Progressing says that it will not close, or not
// in time. The name of the Event contains the start of the gap. So each gap is announced once, whatever Progressing says later, and
// whichever operator announces it.
func ofProtection(j *job, now []metav1.Condition, o *Observed) []Event {
	before := j.Status.Conditions
	c := meta.FindStatusCondition(now, v1alpha1.ConditionProtected)
	switch was := meta.FindStatusCondition(before, v1alpha1.ConditionProtected); {
	case c == nil:
		return nil
	case isLost(now) && (!isLost(before) || o.EventsUnknown && o.Now.Sub(lostSince(now)) < recent):
		return []Event{{
			Name: protectionEvent(j, eventUnprotected, c), Type: corev1.EventTypeWarning, Reason: eventUnprotected, Message: lostText(now),
		}}
	case c.Status == metav1.ConditionTrue && was != nil && slices.Contains(unprotected, was.Reason) &&
		(isLost(before) || o.Now.Sub(was.LastTransitionTime.Time) >= j.strategy.deadline):
		return []Event{{
			Name: protectionEvent(j, eventProtected, c), Type: corev1.EventTypeNormal, Reason: eventProtected, Message: c.Message,
		}}
	}
	return nil
}

// isLost reports whether no standby protects the active process, and nothing in progress will change that soon. A blocked handover does not
// count as a sign of that: it may be blocked because a standby is being replaced.
func isLost(conditions []metav1.Condition) bool {
	protected := meta.FindStatusCondition(conditions, v1alpha1.ConditionProtected)
	progressing := meta.FindStatusCondition(conditions, v1alpha1.ConditionProgressing)
	return protected != nil && slices.Contains(unprotected, protected.Reason) &&
		progressing != nil && progressing.Status == metav1.ConditionFalse && progressing.Reason != v1alpha1.ReasonSwitchoverBlocked
}

// lostSince returns the time since which the conditions show that.
func lostSince(conditions []metav1.Condition) (since time.Time) {
	for _, condition := range []string{v1alpha1.ConditionProtected, v1alpha1.ConditionProgressing} {
		if c := meta.FindStatusCondition(conditions, condition); c != nil && c.LastTransitionTime.After(since) {
			since = c.LastTransitionTime.Time
		}
	}
	return since
}

// lostText says why, and what prevents an end.
func lostText(conditions []metav1.Condition) string {
	protected := meta.FindStatusCondition(conditions, v1alpha1.ConditionProtected)
	text := fmt.Sprintf("%s: %s", protected.Reason, protected.Message)
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionProgressing)
	if c.Reason != v1alpha1.ReasonUpToDate && c.Reason != v1alpha1.ReasonRolloutWaits {
		text += fmt.Sprintf("; %s: %s", c.Reason, c.Message)
	}
	return text
}

func protectionEvent(j *job, reason string, c *metav1.Condition) string {
	return fmt.Sprintf("%s.%s-%d", j.Name, strings.ToLower(reason), c.LastTransitionTime.Unix())
}
