package plan

import (
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

// maxReason is the API's limit.
const maxReason = 64

// changes are the changes of holder that the status does not tell of yet, oldest first. Their source is the Lease's own
// history, so they are complete whether or not an operator looked on; the token tells which are new, so that none is told
// twice. incomplete says that there were more than the Lease could keep.
func (f *facts) changes() (news []v1alpha1.TenureChange, incomplete bool) {
	told := f.job.Status.FencingToken
	for _, h := range f.job.Status.History {
		told = max(told, h.Token) // somebody may have edited one without the other
	}
	first := told == 0
	since := max(told, f.claim.Before)
	past := f.tenures()
	var before *lease.PastTenure
	known := false // whether the Lease tells what came before the tenure at hand
	for i := range past {
		t := &past[i]
		switch {
		case t.Token <= since:
		case first:
			if known = known || int(f.record.Transitions) == len(past); known {
				news = append(news, elected(t))
			} else {
				incomplete = true
			}
			first = false
		case before == nil:
			incomplete = true
		default:
			news = append(news, changed(before, t))
		}
		before, known = t, true
	}
	return news, incomplete
}

// tenures is the Lease's history, oldest first, with the present tenure though somebody may have removed the history.
func (f *facts) tenures() []lease.PastTenure {
	past := slices.Clone(f.record.History)
	// The present tenure is the newest: what claims to be newer, somebody has written, and the next tenure would tell again.
	past = slices.DeleteFunc(past, func(t lease.PastTenure) bool { return t.Token > f.record.Token })
	slices.SortStableFunc(past, func(a, b lease.PastTenure) int { return int(max(-1, min(1, a.Token-b.Token))) })
	past = slices.CompactFunc(past, func(a, b lease.PastTenure) bool { return a.Token == b.Token })
	if f.holder.Pod != "" && (len(past) == 0 || past[len(past)-1].Token < f.record.Token) {
		past = append(past, lease.PastTenure{Token: f.record.Token, Pod: f.holder.Pod, Node: f.holder.node, Acquired: f.holder.since})
	}
	return past
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

// trial is how long a tenure of a new version must last before the old version's last standby is given up, and before
// its end by itself no longer counts against the version.
const trial = 30 * time.Second

// failedTrial tells whether the present version was tried and its process ended by itself within the trial. Trying again
// would be another failover, so the rollout waits for another template.
func (f *facts) failedTrial() bool {
	failed := false
	for _, t := range f.tenures() {
		if !strings.HasPrefix(t.Pod, inject.PodPrefix(f.job.Name, f.hash)) {
			continue
		}
		own := t.Reason == lease.ReasonProcessExited || t.Reason == lease.ReasonHolderTerminated
		lasted := t.Ended-t.Acquired >= trial.Milliseconds()
		switch {
		case lasted:
			failed = false
		case own:
			failed = true
		}
	}
	return failed
}

// wasNotTaken tells whether a handover was asked for not long ago and the one who was asked has the Lease again: who was to
// take it did not, as a standby does that is cut off and still called ready. Each attempt costs a restart of the process.
func (f *facts) wasNotTaken() bool {
	past := f.record.History
	again, _ := f.vetted()
	return !again && len(past) > 1 && past[0].Token == f.record.Token && past[1].Reason == lease.ReasonRollout && past[1].Pod == past[0].Pod
}

// vetted tells whether the present tenure is one of the present version that has outlasted its trial, and how long until
// it is.
func (f *facts) vetted() (bool, time.Duration) {
	left := trial - time.Duration(f.Now.UnixMilli()-f.holder.since)*time.Millisecond
	return left <= 0, max(0, left)
}
