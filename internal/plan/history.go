package plan

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// maxReason is the API's limit.
const maxReason = 64

// changes are the changes of holder that the status does not have yet, oldest first. Their source is the Lease's own history,
// so they are complete whether an operator looked on or not; the token says which are new, so that none is recorded twice.
type changes struct {
	news []v1alpha1.TenureChange
	// incomplete: there were more than the Lease could keep.
	incomplete bool
}

func changesOf(j *job, t *tenure) changes {
	recorded := j.Status.FencingToken
	for _, h := range j.Status.History {
		recorded = max(recorded, h.Token) // somebody may have edited one without the other
	}
	first := recorded == 0
	since := max(recorded, t.desired.claim.Before)
	var c changes
	var before *lease.PastTenure
	known := int(t.Record.Transitions) == len(t.past) // whether the Lease says what came before the tenure at hand
	for i := range t.past {
		past := &t.past[i]
		switch {
		case past.Token <= since:
		case first && known:
			c.news = append(c.news, elected(past))
			first = false
		case first:
			c.incomplete, first = true, false
		case before == nil:
			c.incomplete = true
		default:
			c.news = append(c.news, changed(before, past))
		}
		before, known = past, true
	}
	return c
}

func elected(t *lease.PastTenure) v1alpha1.TenureChange {
	return v1alpha1.TenureChange{
		Time: microTime(t.Acquired), Type: v1alpha1.Elected, Reason: v1alpha1.ChangeElected,
		To: t.Pod, ToNode: t.Node, Token: t.Token,
	}
}

func changed(from, to *lease.PastTenure) v1alpha1.TenureChange {
	reason := string(from.Reason)
	if reason == "" { // nobody noted the end: the next tenure began because the lease had run out
		reason = v1alpha1.ChangeLeaseExpired
	}
	c := v1alpha1.TenureChange{
		Time: microTime(to.Acquired), Type: changeType(reason), Reason: Shorten(reason, maxReason),
		From: from.Pod, FromNode: from.Node, FromToken: from.Token,
		To: to.Pod, ToNode: to.Node, Token: to.Token,
	}
	if from.Ended > 0 {
		// The clocks of two nodes: the difference may be off, but never less than nothing.
		const longest = math.MaxInt64 / int64(time.Millisecond)
		down := time.Duration(min(longest, max(0, to.Acquired-from.Ended))) * time.Millisecond
		c.Downtime = &metav1.Duration{Duration: down}
	}
	return c
}

// changeType is the type that a reason belongs to; what is not known as planned was not.
func changeType(reason string) v1alpha1.TenureChangeType {
	for _, r := range v1alpha1.ChangeReasons() {
		if r.Reason == reason {
			return r.Type
		}
	}
	return v1alpha1.Failover
}

// microTime is a time that somebody wrote down; the API has no years of five digits.
func microTime(millis int64) metav1.MicroTime {
	return metav1.NewMicroTime(time.UnixMilli(min(max(millis, 0), lastMilli)).UTC())
}

var lastMilli = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli()
