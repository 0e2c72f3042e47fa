package plan

import (
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// maxReason is the API's limit for a reason.
const maxReason = 64

// changes are the changes of holder that a Lease records, oldest first. Their source is the Lease's own history, so they are complete
// whether an operator was running or not. The token says which ones are new, so that none is recorded twice.
type changes struct {
	// told are changes that the status has, or has had; news are not in it yet.
	told, news []v1alpha1.TenureChange
	// incomplete: there were more new changes than the Lease could keep.
	incomplete bool
}

func changesOf(j *job, t *tenure, r *runs) changes {
	recorded := Recorded(&j.Status)
	var c changes
	var before *lease.PastTenure
	first := true
	known := t.knowsFirst() // whether the Lease records what came before the current tenure
	last := lastTold(&j.Status)
	for i := range t.past {
		past := &t.past[i]
		news := past.Token > recorded
		switch {
		case past.Token <= t.desired.claim.Before: // of a previous job
		case first && known && !(news && recorded > 0):
			c.add(news, elected(past))
		case before == nil:
			c.incomplete = c.incomplete || news
		case r.begins(&j.Status, before):
		case news && last != nil && before.Token < last.Token:
			c.add(news, changed(last, past))
		default:
			c.add(news, changed(before, past))
		}
		first = first && past.Token <= t.desired.claim.Before
		before, known = past, true
	}
	return c
}

// knowsFirst reports whether there was no tenure of this job before the oldest tenure that the Lease records.
func (t *tenure) knowsFirst() bool {
	return int(t.Record.Transitions) == len(t.past) || len(t.past) > 0 && t.past[0].Token == t.desired.claim.Before+1
}

func (c *changes) add(news bool, change v1alpha1.TenureChange) {
	if news {
		c.news = append(c.news, change)
	} else {
		c.told = append(c.told, change)
	}
}

// Recorded returns the token up to which a status records tenures. It checks both places, because someone may have edited one part of the
// status and not the other.
func Recorded(s *v1alpha1.SingletonJobStatus) int64 {
	token := s.FencingToken
	for _, h := range s.History {
		token = max(token, h.Token)
	}
	return token
}

// lastTold returns the last tenure that a status records, nil if it has none. If the Lease does not contain that tenure although it was
// recorded, the Lease was put back to an earlier state under its holder, for example from a backup. The next tenure still follows on that
// one.
func lastTold(s *v1alpha1.SingletonJobStatus) *lease.PastTenure {
	if len(s.History) == 0 || s.History[0].Token != Recorded(s) {
		return nil
	}
	h := s.History[0]
	return &lease.PastTenure{
		Token: h.Token, Pod: h.To, Node: h.ToNode, Acquired: h.Time.UnixMilli(), Reason: lease.ReasonLeaseLost,
	}
}

func elected(t *lease.PastTenure) v1alpha1.TenureChange {
	return v1alpha1.TenureChange{
		Time: microTime(t.Acquired), Type: v1alpha1.Elected, Reason: v1alpha1.ChangeElected,
		To: t.Pod, ToNode: t.Node, Token: t.Token,
	}
}

func changed(from, to *lease.PastTenure) v1alpha1.TenureChange {
	reason := string(from.Reason)
	if reason == "" { // no component recorded the end: the next tenure began because the lease had expired
		reason = v1alpha1.ChangeLeaseExpired
	}
	c := v1alpha1.TenureChange{
		Time: microTime(to.Acquired), Type: changeType(reason), Reason: Shorten(reason, maxReason),
		From: from.Pod, FromNode: from.Node, FromToken: from.Token,
		To: to.Pod, ToNode: to.Node, Token: to.Token,
	}
	if from.Ended > 0 {
		// The times come from the clocks of two nodes, so the difference can be wrong, but it is never negative.
		const longest = math.MaxInt64 / int64(time.Millisecond)
		down := time.Duration(min(longest, max(0, to.Acquired-from.Ended))) * time.Millisecond
		c.Downtime = &metav1.Duration{Duration: down}
	}
	return c
}

// changeType returns the type that a reason belongs to. An unknown reason counts as unplanned.
func changeType(reason string) v1alpha1.TenureChangeType {
	for _, r := range v1alpha1.ChangeReasons() {
		if r.Reason == reason {
			return r.Type
		}
	}
	return v1alpha1.Failover
}

// microTime converts a recorded time. It limits the year, because the API has no years with five digits.
func microTime(millis int64) metav1.MicroTime {
	return metav1.NewMicroTime(time.UnixMilli(min(max(millis, 0), lastMilli)).UTC())
}

var lastMilli = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli()

// begins reports whether the tenure after before is a new run, or the next attempt of a run whose process ended. status.runs records that.
// Such a tenure is no change of holder, and there was no downtime.
func (r *runs) begins(status *v1alpha1.SingletonJobStatus, before *lease.PastTenure) bool {
	if r == nil {
		return false
	}
	if slices.Contains(attemptEnds, before.Reason) {
		return true
	}
	over := func(run lease.Run) bool { return run.Token == before.Token && !run.Open() }
	return over(r.Now) || slices.ContainsFunc(r.Past, over) ||
		slices.ContainsFunc(status.Runs, func(s v1alpha1.RunStatus) bool { return over(RunOf(&s)) })
}

// attemptEnds are the reasons with which an attempt ends by itself, or with its run.
var attemptEnds = []lease.Reason{
	lease.ReasonProcessExited, lease.ReasonPreActivateFailed, lease.ReasonStartupFailed, lease.ReasonLivenessFailed, lease.ReasonPostStartFailed,
	lease.ReasonDeadlineExceeded, lease.ReasonReplaced, lease.ReasonNotBegun,
}
