package plan

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// tenure is what a Lease says of the present tenure, and how far this process believes it.
type tenure struct {
	// The Lease as it was observed, its record empty unless it is ours.
	Lease
	// name is the Lease's.
	name string
	// desired is what the Lease should say of the job, and badTokenBase the token base that stands in it, if it is none.
	desired      desired
	badTokenBase string
	holder       holder
	death        *death
	// past are the tenures that the Lease tells of, oldest first, with the present one, and tried the last ones, with those before them that
	// the status tells of.
	past, tried []lease.PastTenure
	// age is how long the tenure has lasted, by wall clocks.
	age time.Duration
	// seemsOver: the last renewal is, by wall clocks, older than the lease lasts, and this process has not seen it.
	seemsOver bool
	// shown: the holder is reported as acting.
	shown bool
	// minReady is the job's strategy's.
	minReady time.Duration
}

// desired is what a Lease should say of its job.
type desired struct {
	claim            Claim
	tokenBase, token int64
}

func tenureOf(j *job, name string, o *Observed) *tenure {
	t := &tenure{Lease: o.Lease, name: name, minReady: j.strategy.minReady}
	if t.Presence != Ours {
		t.Record = lease.Record{}
	}
	id, _ := lease.ParseIdentity(t.Record.Holder)
	pod := podOf(o.Pods, id)
	t.badTokenBase = badTokenBase(t.Record)
	t.desired = desired{claimOf(j, t.Lease, pod), tokenBaseOf(j, t.Record), tokenOf(j, t.Lease)}
	t.holder = holderOf(t.Record, t.desired.claim.Before, pod, j.limits)
	t.death = deathOf(t.Record, t.holder, pod, o.OutOfService)
	t.past = pastOf(t.Record, t.holder)
	t.tried = withTold(t.past, &j.Status, t.Record.Token)
	t.age = time.Duration(o.Now.UnixMilli()-t.holder.since) * time.Millisecond
	t.seemsOver = !t.Renewed && o.Now.UnixMicro()-t.Record.RenewTime >= t.holder.limits.duration.Microseconds()
	t.shown = t.isShown(j.Status.ActivePod, j.Status.FencingToken)
	return t
}

// claimOf is the claim that a Lease should carry. pod is the holder's.
func claimOf(j *job, l Lease, pod *corev1.Pod) Claim {
	c := Claim{JobUID: string(j.UID)}
	reported := j.Status.FencingToken
	switch was := l.Claim; {
	case was.JobUID == c.JobUID && was.Before <= l.Record.Token && (reported == 0 || was.Before < reported):
		return was // else somebody has written it: this job's tenures would be taken for a previous one's
	case reported == 0:
		c.Before = l.Record.Token
		if isTakenOver(j, pod) {
			c.Before = max(0, c.Before-1)
		}
	}
	return c
}

// isTakenOver reports whether the holder is a pod that a previous job left behind for this one to adopt: then the present
// tenure is this job's first.
func isTakenOver(j *job, pod *corev1.Pod) bool {
	if pod == nil || isStranger(pod, j) {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner == nil || owner.UID == j.UID
}

// tokenBaseOf is never lowered, also not for a job that was recreated with less: sinks have seen the higher tokens. One that
// the API would not accept somebody else has written, and it would use up the numbers there are; what was given out by it
// stands in the Lease as its last token, above which the next one is.
func tokenBaseOf(j *job, r lease.Record) int64 {
	if badTokenBase(r) != "" {
		return j.Spec.Fencing.TokenBase
	}
	return max(r.TokenBase, j.Spec.Fencing.TokenBase)
}

// tokenOf is the token of a Lease that is below what the status reported of this job, because somebody has lowered it: that
// one's, below which no token may be given out again. It is not for a tenure that was acquired with less, which could
// only be killed by it: its own entry in the history distinguishes it. Nor is it believed beyond what tokens become.
func tokenOf(j *job, l Lease) int64 {
	r, reported := l.Record, j.Status.FencingToken
	acquired := r.Holder != "" && len(r.History) > 0 && r.History[0].Token == r.Token
	if acquired || reported > 2*v1alpha1.MaxTokenBase || l.Claim.JobUID != string(j.UID) {
		return r.Token
	}
	return max(r.Token, reported)
}

// badTokenBase is the token base that stands in a Lease, if it is none.
func badTokenBase(r lease.Record) string {
	if r.BadTokenBase != "" {
		return r.BadTokenBase
	}
	if r.TokenBase < 0 || r.TokenBase > v1alpha1.MaxTokenBase {
		return strconv.FormatInt(r.TokenBase, 10)
	}
	return ""
}

// pastOf is the Lease's history, oldest first, with the present tenure though somebody may have removed the history.
func pastOf(r lease.Record, h holder) []lease.PastTenure {
	past := slices.Clone(r.History)
	// The present tenure is the newest: what claims to be newer, somebody has written, and the next tenure would be reported again.
	past = slices.DeleteFunc(past, func(t lease.PastTenure) bool { return t.Token > r.Token })
	slices.SortStableFunc(past, func(a, b lease.PastTenure) int { return int(max(-1, min(1, a.Token-b.Token))) })
	past = slices.CompactFunc(past, func(a, b lease.PastTenure) bool { return a.Token == b.Token })
	if h.Pod != "" && (len(past) == 0 || past[len(past)-1].Token < r.Token) {
		past = append(past, lease.PastTenure{Token: r.Token, Pod: h.Pod, Node: h.node, Acquired: h.since})
	}
	return past
}

// dead reports whether there is proof of the holder's death that is believed by now.
func (t *tenure) dead() bool { return t.death != nil && t.death.after <= t.Unchanged }

// expired reports whether the tenure is over by time: unchanged for the whole duration, as this process saw it.
func (t *tenure) expired() bool { return t.Unchanged >= t.holder.limits.duration }

// silent reports whether the holder has not renewed for so long that it has stopped.
func (t *tenure) silent() bool { return t.Unchanged >= t.holder.limits.renewDeadline }

// acts reports whether the holder's process may be taken to run: its tenure is this job's, it renews, and it is not known to
// be dead.
func (t *tenure) acts() bool {
	return t.holder.ours && !t.dead() && !t.silent() && !t.expired()
}

// isShown reports whether the holder is reported as acting. After a restart this process has not seen for how long the Lease
// has been unchanged, and the tenure may have ended hours ago: then a wall clock may say so. It may be wrong by hours
// itself, as may that of the holder's node, so it is only heard when two renewals are due that did not come, and until
// then what was reported of this tenure before stays. Nothing is decided by it.
func (t *tenure) isShown(reported string, token int64) bool {
	switch {
	case !t.acts():
		return false
	case !t.seemsOver:
		return true
	case t.unheard() > 0:
		return reported == t.holder.Pod && token == t.Record.Token
	}
	return false
}

// unheard is how long a renewal of a holder that renews may let itself be waited for.
func (t *tenure) unheard() time.Duration {
	return max(0, 2*t.holder.limits.retryPeriod-t.Unchanged)
}

// stopped reports whether the holder stopped renewing and its lease may not have run out.
func (t *tenure) stopped() bool {
	return t.holder.ours && !t.shown && !t.expired() && !t.seemsOver
}

// keepsRunning reports whether the holder may run on when its lease has run out (KeepRunning): then time proves nothing of its process.
func (t *tenure) keepsRunning() bool { return t.holder.Pod != "" && t.holder.limits.keepRunning }

// lasts reports whether somebody may act by the Lease still, whoever that is: it is not free, and there is no proof of death.
func (t *tenure) lasts() bool {
	switch {
	case t.Record.Free(), t.dead():
		return false
	case t.keepsRunning(), t.shown:
		return true
	}
	return !t.expired() && !t.seemsOver
}

// unclaimed reports whether the Lease is kept for another job, or lacks what the spec says of it.
func (t *tenure) unclaimed() bool {
	return t.badTokenBase != "" || t.desired != desired{t.Claim, t.Record.TokenBase, t.Record.Token}
}

// quiet reports whether the Lease is to be left as it is because its holder may be dead: candidates wait until it has not
// changed for the whole duration, so that any write makes them wait anew. A holder renews every retryPeriod, so one that
// this process has not heard of for half as long again has missed a renewal; the longest retryPeriod that the API accepts
// makes that renewDeadline. What is put off comes with the next renewal, or with the next holder's.
func (t *tenure) quiet() bool {
	switch {
	case t.Record.Free():
		return false
	case t.holder.Pod == "":
		return true // nobody whose renewals could be waited for
	}
	return !t.Renewed || t.SinceRenewal >= t.missed()
}

// missed is how long after a renewal another is missing.
func (t *tenure) missed() time.Duration { return t.holder.limits.retryPeriod * 3 / 2 }

// unsoaked is how long the present tenure must last still to be soaked, 0 if it is. Where a process normally ends by itself before
// that, its version is as good as the one before when it has been tried for as long in all.
func (t *tenure) unsoaked(version string, preparation time.Duration) time.Duration {
	lasted := t.age
	if t.trial(version, preparation) < t.minReady+preparation {
		for _, past := range t.tried {
			if strings.HasPrefix(past.Pod, version) {
				lasted = max(lasted, t.age+time.Duration(t.holder.since-past.Acquired)*time.Millisecond)
			}
		}
	}
	return max(0, t.minReady-lasted)
}

// trial is how long a tenure of a version must last for its end by itself not to count against the version: for minReady after
// what comes before its start, which is no proof of it and takes up to preparation, unless the other versions always end by
// themselves before that. Half as long as these will do then.
func (t *tenure) trial(version string, preparation time.Duration) time.Duration {
	full := t.minReady + preparation
	var longest time.Duration
	for _, past := range t.tried {
		if strings.HasPrefix(past.Pod, version) {
			continue
		}
		ran := time.Duration(past.Ended-past.Acquired) * time.Millisecond
		if past.Token == t.Record.Token && past.Ended == 0 {
			ran = t.age
		}
		switch {
		case ran >= full:
			return full
		case slices.Contains(ownFaults, past.Reason):
			longest = max(longest, ran)
		}
	}
	if longest == 0 {
		return full
	}
	return longest / 2
}

// untried is how long the present tenure, of another version, must last still for trial to be the full one; 0 if it makes no difference.
func (t *tenure) untried(version string, preparation time.Duration) time.Duration {
	if strings.HasPrefix(t.holder.Pod, version) {
		return 0
	}
	return max(0, t.minReady+preparation-t.age)
}

// failedEarly reports whether a version, whose pods' names begin so, was tried and its process ended by itself, or by its own
// probes, before its trial was over. Trying again would be another failover, so the rollout waits for another template. What ends
// by its liveness probe has had up to grace to end since it failed that.
func (t *tenure) failedEarly(version string, preparation, grace time.Duration) bool {
	failed := false
	trial := t.trial(version, preparation).Milliseconds()
	for _, past := range t.tried {
		if !strings.HasPrefix(past.Pod, version) {
			continue
		}
		soaked := trial
		if past.Reason == lease.ReasonLivenessFailed {
			soaked += grace.Milliseconds()
		}
		switch {
		case past.Reason == lease.ReasonStartupFailed, past.Reason == lease.ReasonPreActivateFailed: // however long it took
			failed = true
		case past.Ended-past.Acquired >= soaked:
			failed = false
		case slices.Contains(ownFaults, past.Reason):
			failed = true
		}
	}
	return failed
}

// ownFaults end a tenure because of what the template asks for.
var ownFaults = []lease.Reason{
	lease.ReasonProcessExited, lease.ReasonPostStartFailed, lease.ReasonLivenessFailed, lease.ReasonHolderTerminated,
}

// notTakenFor is how long a handover is not asked for again that was not taken.
const notTakenFor = 30 * time.Second

// wasNotTaken reports whether a handover was asked for not long ago and the one that was asked has the Lease again: the pod
// that was to take it did not, as a standby does that is cut off and still called ready. Each attempt costs a restart of
// the process.
func (t *tenure) wasNotTaken() bool {
	last := len(t.tried) - 1
	if t.age >= notTakenFor || last < 1 || t.tried[last].Token != t.Record.Token {
		return false
	}
	return t.tried[last-1].Reason == lease.ReasonRollout && t.tried[last-1].Pod == t.tried[last].Pod
}
