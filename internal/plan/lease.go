package plan

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// newLease creates the Lease. It is free if nothing indicates an earlier tenure. Otherwise it has an unknown holder, for which candidates
// wait as long as any holder could have been promised. A mistake here cannot be undone: a Lease that is free too early starts a second
// process. So anything counts as an indication: a token in the status, or a Lease that this process remembers as held. Any pod with the
// job's label counts too, whatever created it and whatever its state. The caller reads the job and the pods from the API server, not from
// a cache, before it lets a Lease start free.
func newLease(j *job, o *Observed) *LeaseWrite {
	r := lease.Record{
		Duration:  j.Spec.Lease.LeaseDuration.Duration,
		TokenBase: j.Spec.Fencing.TokenBase,
		Release:   lease.Release{Reason: lease.ReasonCreated},
	}
	r.Runs.Schedule = j.schedule
	if !StartsAfresh(o) {
		r = unknownHolder(j, o, r)
		if j.Spec.RunPolicy == v1alpha1.RunPolicyRunToCompletion {
			r.Runs = restored(j, o)
		}
	}
	return &LeaseWrite{Verb: Create, Record: r, Claim: newClaim(j, o.Lease.Last)}
}

// StartsAfresh reports whether nothing indicates an earlier tenure of an existing job. The Lease itself must not exist: the write that
// creates it ensures that.
func StartsAfresh(o *Observed) bool {
	return o.Job.Status.FencingToken == 0 && len(o.Pods) == 0 && (o.Lease.Last == nil || o.Lease.Last.Record.Token == 0)
}

// unknownHolder adds what is remembered of the earlier tenures, so that the history has no gap. Tokens would increase without that, because
// of the revision.
func unknownHolder(j *job, o *Observed, r lease.Record) lease.Record {
	status := j.Status
	r.Holder, r.Release = lease.UnknownHolder, lease.Release{}
	r.Token, r.Transitions = max(0, status.FencingToken), int32(min(max(0, status.Tenures), math.MaxInt32))
	r.AcquireTime, r.RenewTime = o.Now.UnixMicro(), o.Now.UnixMicro()
	for _, pod := range o.Pods {
		r.Duration = max(r.Duration, longest(pod))
	}
	if last := o.Lease.Last; last != nil {
		was := last.Record
		r.Duration = max(r.Duration, was.Duration)
		r.Token, r.Transitions = max(r.Token, was.Token), max(r.Transitions, was.Transitions)
		if was.TokenBase <= v1alpha1.MaxTokenBase {
			r.TokenBase = max(r.TokenBase, was.TokenBase)
		}
		if was.Token == r.Token {
			r.RenewTime = cmp.Or(was.RenewTime, r.RenewTime)
		}
		r.History = was.History
	}
	r.History = upToReported(&j.Status, r.History)
	return r
}

// upToReported adds the last tenure in the status to a history that ends before it. That happens if this process remembers the Lease from a
// stale cache, or remembers nothing. The next tenure must follow on the reported one. The time when its process last acted is then unknown,
// and is left out, because no time is better than a wrong one.
func upToReported(status *v1alpha1.SingletonJobStatus, past []lease.PastTenure) []lease.PastTenure {
	if status.FencingToken <= 0 || len(past) > 0 && past[0].Token >= status.FencingToken {
		return past
	}
	reported, past := lease.PastTenure{Token: status.FencingToken, Reason: lease.ReasonLeaseDeleted}, slices.Clone(past)
	if len(status.History) > 0 && status.History[0].Token == reported.Token {
		h := status.History[0]
		reported.Pod, reported.Node, reported.Acquired = h.To, h.ToNode, h.Time.UnixMilli()
		if len(past) > 0 && past[0].Token == h.FromToken {
			past[0].Reason = cmp.Or(past[0].Reason, lease.Reason(h.Reason))
		}
	}
	return append([]lease.PastTenure{reported}, past...)
}

// newClaim returns the claim of a new Lease.
func newClaim(j *job, last *Lease) Claim {
	c := Claim{JobUID: string(j.UID)}
	if last != nil && j.Status.FencingToken == 0 {
		c.Before = last.Record.Token
		if last.Claim.JobUID == c.JobUID {
			c.Before = last.Claim.Before
		}
	}
	return c
}

// keepFor keeps the Lease for its job, with the token base of the spec. A raised base takes effect with the next tenure, so the same write
// asks the current holder to end its tenure.
//
// If the job runs to completion, the write also sets the record of runs. Runs of a previous job are removed, because they are not this
// job's. That is not urgent, so it waits until no candidate waits for the holder.
func keepFor(t *tenure, runs *runs) *LeaseWrite {
	if runs != nil && (runs.blind || t.quiet() && !t.expired() && t.badTokenBase == "") {
		return nil
	}
	r := t.Record
	switch {
	case runs != nil && runs.why != "":
		r.Runs = runs.next
	case runs == nil && t.Claim.JobUID != t.desired.claim.JobUID:
		r.Runs = lease.Runs{Facts: schedule.Facts{Settled: r.Runs.Facts.Settled}} // no tick becomes unsettled again
	}
	r.BadTokenBase, r.Token = "", t.desired.token
	if base := t.desired.tokenBase; base != r.TokenBase {
		raised := base > r.TokenBase && t.badTokenBase == ""
		r.TokenBase = base
		if raised && t.holder.ours {
			r.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}
		}
	}
	return &LeaseWrite{Verb: Update, Record: r, Claim: t.desired.claim, Event: runs.told()}
}

// handOver asks the holder to hand over. A zero desired withdraws a request that a rollout made, or one for a pod that can't take over. If
// the holder has already followed that request, it costs one handover.
func handOver(t *tenure, m *members, desired lease.Handover) *LeaseWrite {
	is := t.Record.Handover
	able := is.To == lease.AnyPod || m.any(func(c candidate) bool { return c.live() && c.pod.Name == is.To })
	if !t.holder.ours || is == desired || is.To != "" && is.Reason != lease.ReasonRollout && able {
		return nil
	}
	r := t.Record
	r.Handover = desired
	return &LeaseWrite{Verb: Update, Record: r, Claim: t.Claim}
}

// forget removes from the Lease's history what the stored status also records; it returns nil if there is nothing to remove. Without that,
// every renewal would store it again. The history stays if the status keeps fewer changes than a Lease, or if the end of a tenure is
// recorded elsewhere, as it is for runs. It makes no write that could conflict with another component: any candidate can acquire a free
// Lease, and for a holder that may be dead see quiet.
func forget(j *job, t *tenure, r *runs, stored *v1alpha1.SingletonJobStatus) *LeaseWrite {
	if r != nil || *j.Spec.HistoryLimit < lease.HistoryLimit || t.unclaimed() || !t.acts() {
		return nil
	}
	record := t.Record
	record.History = untold(t.Record.History, stored, t.Claim.Before)
	if len(record.History) == len(t.Record.History) {
		return nil
	}
	return &LeaseWrite{Verb: Update, Record: record, Claim: t.Claim}
}

// release frees the Lease of a holder that is proven dead. It names the exact revision, which identifies the holder and token that the
// proof is about. Requests of the dead process may still be in transit.
func release(t *tenure, now time.Time) *LeaseWrite {
	why := lease.Release{Reason: t.death.reason, Unclean: true}
	nonce := max(now.UnixMicro(), t.Record.RenewTime+1)
	if nonce > lastMilli*1000 { // the API server would reject the year, and so this release, every time
		nonce = now.UnixMicro()
	}
	return &LeaseWrite{Verb: Update, Record: t.Record.Released(why, t.death.ended, nonce), Claim: t.Claim}
}

// collect deletes the Lease of a job that no longer exists, once no tenure of it can last. Either it was released, or it did not change for
// its full duration while this process watched it. The write is conditional on the revision that was decided on, so a candidate that takes
// the Lease at the same moment keeps it. While pods are left, the Lease stays too: a job that is recreated in the meantime can then see that
// the tenure was released, and need not wait.
func collect(o *Observed) *LeaseWrite {
	l := o.Lease
	if l.Presence != Ours || len(o.Pods) > 0 || !Over(l.Record, l.Unchanged) {
		return nil
	}
	return &LeaseWrite{Verb: Delete, Record: l.Record, Claim: l.Claim}
}

// Over reports whether no tenure can last of a Lease that was observed unchanged for that long.
func Over(r lease.Record, unchanged time.Duration) bool { return Left(r, unchanged) == 0 }

// Left returns how long a tenure can still last of a Lease that was observed unchanged for that long.
func Left(r lease.Record, unchanged time.Duration) time.Duration {
	if r.Free() {
		return 0
	}
	return max(0, duration(r)-unchanged)
}

// duration returns how long a record's holder can act after its last renewal. If the record does not say, that is the maximum.
func duration(r lease.Record) time.Duration {
	if r.Duration <= 0 || r.Duration > lease.MaxDuration {
		return lease.MaxDuration
	}
	return r.Duration
}

// restored returns the runs for a Lease that replaces a deleted one. The progress of the current run is unknown: its attempt is over, as if
// the holder had vanished. A job whose run is over is not run again.
func restored(j *job, o *Observed) lease.Runs {
	last := o.Lease.Last
	asked := contract.ParseRequest(j.Annotations[contract.RunNowAnnotation]).Name
	var was lease.Runs
	if last != nil && last.tellsOf(string(j.UID)) && last.Record.Runs.Bad == "" {
		was = last.Record.Runs
	} else {
		// It is unknown whether the requested run took place. Running it at most once is better than running it twice.
		was.Answered = asked
	}
	if slices.ContainsFunc(j.Status.Runs, func(s v1alpha1.RunStatus) bool { return s.ID == string(j.UID)+"/"+asked }) {
		was.Answered = asked
	}
	if len(j.Status.Runs) > 0 {
		// This process's memory may be older than the status, which another operator may have written.
		if told := RunOf(&j.Status.Runs[0]); told.Token > was.Now.Token || told.Token == was.Now.Token && was.Now.Open() {
			if told.ID == was.Now.ID { // what a status does not have, or had no time to say
				told.Until, told.Ignored = was.Now.Until, max(told.Ignored, was.Now.Ignored)
			}
			was.Now = told
		}
		was.Missed, was.Skipped = max(was.Missed, j.Status.Missed), max(was.Skipped, j.Status.Skipped)
	}
	if j.schedule == nil && mayHaveRun(j, o) {
		was.Now = restoredOnce(j, was.Now)
	}
	if was.Now.Open() {
		was.Now.State = lease.RunRunning
		was.Now.Until = cmp.Or(was.Now.Until, untilOf(j, was.Now))
	}
	was.Facts.Running = was.Now.Open()
	was.Schedule = j.schedule
	return was
}

// untilOf returns the time after which no attempt of a run may run, from the start that the status has; 0 for none.
func untilOf(j *job, run lease.Run) schedule.Stamp {
	limit := j.Spec.ActiveDeadlineSeconds
	if limit == nil || run.Began <= 0 {
		return 0
	}
	until, _ := schedule.StampOf(time.UnixMilli(run.Began).Add(time.Duration(*limit)*time.Second + time.Second - 1))
	return until
}

// mayHaveRun reports whether anything indicates a run of this job. Otherwise all remains belong to a previous job.
func mayHaveRun(j *job, o *Observed) bool {
	last := o.Lease.Last
	return j.Status.FencingToken > 0 || len(j.Status.Runs) > 0 || last != nil && last.tellsOf(string(j.UID)) ||
		slices.ContainsFunc(o.Pods, func(pod *corev1.Pod) bool { return !isStranger(pod, j) })
}

// restoredOnce returns the run of a job that is run once. If status.runs has no entry, the conditions still say how it ended, for the
// newest token in the status.
func restoredOnce(j *job, was lease.Run) lease.Run {
	if was.ID == "" {
		was = lease.Run{ID: string(j.UID), Attempt: 1, State: lease.RunRunning}
	}
	if !was.Open() || was.Token > j.Status.FencingToken || len(j.Status.Runs) > 0 {
		return was
	}
	for condition, state := range map[string]lease.RunState{
		v1alpha1.ConditionComplete: lease.RunComplete, v1alpha1.ConditionFailed: lease.RunGivenUp,
	} {
		if c := meta.FindStatusCondition(j.Status.Conditions, condition); c != nil && c.Status == metav1.ConditionTrue {
			was.State, was.Ended = state, c.LastTransitionTime.UnixMilli()
		}
	}
	return was
}

// runsWrite returns the write that brings the record of runs in the Lease up to date, nil if there is none.
func runsWrite(t *tenure, r *runs) *LeaseWrite {
	if r == nil || r.why == "" {
		return nil
	}
	record := t.Record
	record.Runs = r.next
	return &LeaseWrite{Verb: Update, Record: record, Claim: t.Claim, Event: r.told()}
}
