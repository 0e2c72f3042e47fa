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

// tenure is what a Lease says about the current tenure, and how far this process believes it.
type tenure struct {
	// The Lease as observed. Its record is empty unless the Lease is ours.
	Lease
	// name is the name of the Lease.
	name string
	// desired is what the Lease should say about the job. badTokenBase is the token base in the Lease if that is not valid.
	desired      desired
	badTokenBase string
	holder       holder
	death        *death
	// past are the tenures that the Lease records, including the current one, oldest first. tried are the last tenures, including earlier
	// ones that only the status records.
	past, tried []lease.PastTenure
	// trials are what this process has seen of tenures. It has seen the current one for the time seen. The current one is as old as age by
	// wall clocks, or older if this process has seen it for longer.
	trials    []Trial
	seen, age time.Duration
	// seemsOver: by wall clocks, the last renewal is older than the lease duration, and this process has not seen it.
	seemsOver bool
	// shown: the holder is reported as acting.
	shown bool
	// minReady is the minReady of the job's strategy.
	minReady time.Duration
}

// desired is what a Lease should say about its job.
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
	t.trials = o.Trials
	if now := t.trialOf(t.Record.Token); now != nil {
		t.seen = now.Seen
	}
	t.age = max(t.seen, time.Duration(o.Now.UnixMilli()-t.holder.since)*time.Millisecond)
	t.seemsOver = !t.Renewed && o.Now.UnixMicro()-t.Record.RenewTime >= t.holder.limits.duration.Microseconds()
	t.shown = t.isShown(j.Status.ActivePod, j.Status.FencingToken)
	return t
}

// claimOf returns the claim that a Lease should have. pod is the holder's pod.
func claimOf(j *job, l Lease, pod *corev1.Pod) Claim {
	c := Claim{JobUID: string(j.UID)}
	reported := j.Status.FencingToken
	switch was := l.Claim; {
	case was.JobUID == c.JobUID && was.Before <= l.Record.Token && (reported == 0 || was.Before < reported):
		return was // otherwise the claim was edited, and this job's tenures would count as those of a previous job
	case reported == 0:
		c.Before = l.Record.Token
		if isTakenOver(j, pod) {
			c.Before = max(0, c.Before-1)
		}
	}
	return c
}

// isTakenOver reports whether the holder is a pod that a previous job left behind and this one adopts. Then the current tenure is this
// job's first.
func isTakenOver(j *job, pod *corev1.Pod) bool {
	if pod == nil || isStranger(pod, j) {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner == nil || owner.UID == j.UID
}

// tokenBaseOf returns the token base that the Lease should have. It is never lowered, not even for a job that was recreated with a lower
// base, because sinks have seen the higher tokens. If the base in the Lease is one that the API would reject, some other component wrote
// it, and it would use up the available numbers. The tokens that were issued with it remain: the Lease has the last of them, and the next
// token is greater.
func tokenBaseOf(j *job, r lease.Record) int64 {
	if badTokenBase(r) != "" {
		return j.Spec.Fencing.TokenBase
	}
	return max(r.TokenBase, j.Spec.Fencing.TokenBase)
}

// tokenOf returns the token that the Lease should have. If the Lease's token was lowered below the one that the status reported for this
// job, it is the reported one, because no token may be issued twice. It does not change a tenure that was acquired with a lower token,
// because that would only kill the tenure; such a tenure has its own entry in the history. A reported token beyond the possible range is
// ignored.
func tokenOf(j *job, l Lease) int64 {
	r, reported := l.Record, j.Status.FencingToken
	acquired := r.Holder != "" && len(r.History) > 0 && r.History[0].Token == r.Token
	if acquired || reported > 2*v1alpha1.MaxTokenBase || l.Claim.JobUID != string(j.UID) {
		return r.Token
	}
	return max(r.Token, reported)
}

// badTokenBase returns the token base in a Lease if it is not valid, else an empty string.
func badTokenBase(r lease.Record) string {
	if r.BadTokenBase != "" {
		return r.BadTokenBase
	}
	if r.TokenBase < 0 || r.TokenBase > v1alpha1.MaxTokenBase {
		return strconv.FormatInt(r.TokenBase, 10)
	}
	return ""
}

// pastOf returns the Lease's history, oldest first. It includes the current tenure even if the history was removed.
func pastOf(r lease.Record, h holder) []lease.PastTenure {
	past := slices.Clone(r.History)
	// The current tenure is the newest. Entries that claim to be newer were written by another component, and would make the next tenure be
	// reported twice.
	past = slices.DeleteFunc(past, func(t lease.PastTenure) bool { return t.Token > r.Token })
	slices.SortStableFunc(past, func(a, b lease.PastTenure) int { return int(max(-1, min(1, a.Token-b.Token))) })
	past = slices.CompactFunc(past, func(a, b lease.PastTenure) bool { return a.Token == b.Token })
	if h.Pod != "" && (len(past) == 0 || past[len(past)-1].Token < r.Token) {
		past = append(past, lease.PastTenure{Token: r.Token, Pod: h.Pod, Node: h.node, Acquired: h.since})
	}
	return past
}

// dead reports whether there is proof of the holder's death that is accepted by now.
func (t *tenure) dead() bool { return t.death != nil && t.death.after <= t.Unchanged }

// expired reports whether the tenure is over by time: this process saw the Lease unchanged for the whole duration.
func (t *tenure) expired() bool { return t.Unchanged >= t.holder.limits.duration }

// silent reports whether the holder has not renewed for so long that it has stopped.
func (t *tenure) silent() bool { return t.Unchanged >= t.holder.limits.renewDeadline }

// acts reports whether the holder's process is assumed to run: its tenure is this job's, it renews, and it is not known to be dead.
func (t *tenure) acts() bool {
	return t.holder.ours && !t.dead() && !t.silent() && !t.expired()
}

// isShown reports whether the holder is reported as acting. After a restart, this process does not know how long the Lease has been
// unchanged, and the tenure may have ended hours ago. Only a wall clock can indicate that. That clock, and the clock of the holder's node,
// can be wrong by hours. So it counts only when two renewals are overdue. Until then the earlier report about this tenure stays. No
// decision depends on it.
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

// unheard returns the remaining time in which a renewal must arrive if the holder renews.
func (t *tenure) unheard() time.Duration {
	return max(0, 2*t.holder.limits.retryPeriod-t.Unchanged)
}

// stopped reports whether the holder stopped renewing and its lease may not have expired.
func (t *tenure) stopped() bool {
	return t.holder.ours && !t.shown && !t.expired() && !t.seemsOver
}

// keepsRunning reports whether the holder may continue to run after its lease has expired (KeepRunning). Then time proves nothing about its
// process.
func (t *tenure) keepsRunning() bool { return t.holder.Pod != "" && t.holder.limits.keepRunning }

// lasts reports whether any process may still act by the Lease: the Lease is not free, and there is no proof of death.
func (t *tenure) lasts() bool {
	switch {
	case t.Record.Free(), t.dead():
		return false
	case t.keepsRunning(), t.shown:
		return true
	}
	return !t.expired() && !t.seemsOver
}

// unclaimed reports whether the Lease is kept for another job, or lacks something that the spec says.
func (t *tenure) unclaimed() bool {
	return t.badTokenBase != "" || t.desired != desired{t.Claim, t.Record.TokenBase, t.Record.Token}
}

// quiet reports whether the Lease must not be written because its holder may be dead. Candidates wait until the Lease has not changed for
// the whole duration, so any write makes them wait again. A holder renews every retryPeriod. If this process has seen no renewal for 1.5
// times that, the holder has missed one; with the longest retryPeriod that the API accepts, that is renewDeadline. A postponed write is
// done after the next renewal, or after the next holder's.
func (t *tenure) quiet() bool {
	switch {
	case t.Record.Free():
		return false
	case t.holder.Pod == "":
		return true // there is no holder whose renewal could come
	}
	return !t.Renewed || t.SinceRenewal >= t.missed()
}

// missed returns the time after a renewal at which the next one counts as missed.
func (t *tenure) missed() time.Duration { return t.holder.limits.retryPeriod * 3 / 2 }

// trialOf returns what this process has seen of a tenure, nil if nothing.
func (t *tenure) trialOf(token int64) *Trial {
	if i := slices.IndexFunc(t.trials, func(of Trial) bool { return of.Token == token }); i >= 0 {
		return &t.trials[i]
	}
	return nil
}

// judged returns what this process has seen of a tenure that is over, nil if that is not enough to judge it.
func (t *tenure) judged(token int64) *Trial {
	if seen := t.trialOf(token); seen != nil && (!seen.Partly || seen.ran() >= t.minReady) {
		return seen
	}
	return nil
}

// ran returns how long a tenure ran, and how long is enough to prove its version. That is how long its pod was ready. Of a tenure that this
// process did not see, only the length is known, and the preparation in it proves nothing.
func (t *tenure) ran(past *lease.PastTenure, preparation time.Duration) (ran, enough time.Duration) {
	if seen := t.judged(past.Token); seen != nil {
		return seen.ran(), t.minReady
	}
	return time.Duration(past.Ended-past.Acquired) * time.Millisecond, t.minReady + preparation
}

// isCurrent reports whether an entry of the history is the current tenure.
func (t *tenure) isCurrent(past *lease.PastTenure) bool {
	return past.Token == t.Record.Token && past.Ended == 0
}

// soaked reports whether the version of the holder is proven.
func (t *tenure) soaked(version string, preparation time.Duration) bool {
	left, ready := t.unsoaked(version, preparation)
	return ready && left == 0
}

// unsoaked returns how much longer the holder's pod must be ready to be soaked, 0 if it is soaked. It is soaked when it was ready for
// minReady without a break. If a process normally ends by itself before that, its version is soaked when it has been tried for that long in
// total.
func (t *tenure) unsoaked(version string, preparation time.Duration) (left time.Duration, ready bool) {
	now := t.trialOf(t.Record.Token)
	if now == nil || !now.Ready {
		return 0, false
	}
	lasted := now.For
	if short := t.short(version, preparation); short > 0 {
		for i := range t.tried {
			past := &t.tried[i]
			if seen := t.trialOf(past.Token); seen != nil && strings.HasPrefix(past.Pod, version) && seen.ran() >= short {
				lasted = max(lasted, seen.Seen)
			}
		}
	}
	return max(0, -now.For, t.minReady-lasted), true
}

// short returns how long a tenure of a version must run so that its end by itself does not count against the version. It is half of the
// longest time of the other versions, if those always end by themselves before they have run for long enough. Otherwise it is 0.
func (t *tenure) short(version string, preparation time.Duration) time.Duration {
	var longest time.Duration
	for i := range t.tried {
		past := &t.tried[i]
		if strings.HasPrefix(past.Pod, version) {
			continue
		}
		ran, enough := t.ran(past, preparation)
		if t.isCurrent(past) {
			ran, enough = t.age, t.minReady+preparation
		}
		switch {
		case ran >= enough:
			return 0
		case slices.Contains(ownFaults, past.Reason):
			longest = max(longest, ran)
		}
	}
	return longest / 2
}

// untried returns how much longer the current tenure, of another version, must last for no short time to be enough; 0 if it makes no
// difference.
func (t *tenure) untried(version string, preparation time.Duration) time.Duration {
	if strings.HasPrefix(t.holder.Pod, version) {
		return 0
	}
	return max(0, t.minReady+preparation-t.age)
}

// failedEarly reports whether a version was tried and its process ended by itself, or because of its own probes and hooks, before it had
// run for long enough. The version is given by the prefix of its pods' names. Another try would be another failover, so the rollout waits
// for another template. If this process did not see the tenure, its length counts, and a process that fails its liveness probe has up to
// grace to end after that.
func (t *tenure) failedEarly(version string, preparation, grace time.Duration) bool {
	failed := false
	short := t.short(version, preparation)
	for i := range t.tried {
		past := &t.tried[i]
		if !strings.HasPrefix(past.Pod, version) || t.isCurrent(past) {
			continue
		}
		ran, enough := t.ran(past, preparation)
		if short > 0 {
			enough = short
		}
		if past.Reason == lease.ReasonLivenessFailed && t.judged(past.Token) == nil {
			enough += grace
		}
		switch {
		case slices.Contains(neverReady, past.Reason): // no matter how long it took
			failed = true
		case ran >= enough:
			failed = false
		case slices.Contains(ownFaults, past.Reason):
			failed = true
		}
	}
	return failed
}

// ownFaults are reasons for the end of a tenure that the template causes. With neverReady, its process was never ready.
var (
	ownFaults  = []lease.Reason{lease.ReasonProcessExited, lease.ReasonLivenessFailed, lease.ReasonHolderTerminated}
	neverReady = []lease.Reason{lease.ReasonStartupFailed, lease.ReasonPreActivateFailed, lease.ReasonPostStartFailed}
)

// notTakenFor is the time before a handover that was not taken is requested again.
const notTakenFor = 30 * time.Second

// wasNotTaken reports whether a handover was requested recently and the same holder has the Lease again. The pod that should have taken it
// did not, for example because it is cut off but still reported as ready. Each attempt costs a restart of the process.
func (t *tenure) wasNotTaken() bool {
	last := len(t.tried) - 1
	if t.seen >= notTakenFor || last < 1 || t.tried[last].Token != t.Record.Token {
		return false
	}
	return t.tried[last-1].Reason == lease.ReasonRollout && t.tried[last-1].Pod == t.tried[last].Pod
}
