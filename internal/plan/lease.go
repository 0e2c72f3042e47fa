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

// newLease makes the Lease: free if nothing speaks for an earlier tenure, else with an unknown holder, for which the
// candidates wait as long as any holder may have been promised. A mistake here cannot be undone: a Lease that is free too
// early starts a second process. So anything at all counts as speaking for an earlier tenure: a token in the status, any
// pod with the job's label, no matter who made it and what became of it, and a Lease that this process remembers to have
// been held. The caller reads the job and the pods from the API server itself, not from a cache, before it lets a Lease
// start free.
func newLease(j *job, o *Observed) *LeaseWrite {
	r := lease.Record{
		Duration:  j.Spec.Lease.LeaseDuration.Duration,
		TokenBase: j.Spec.Fencing.TokenBase,
		Release:   lease.Release{Reason: lease.ReasonCreated},
	}
	r.Runs.Schedule = j.schedule
	if !freshStart(j, o) {
		r = unknownHolder(j, o, r)
		if j.Spec.RunPolicy == v1alpha1.RunPolicyRunToCompletion {
			r.Runs = restored(j, o)
		}
	}
	return &LeaseWrite{Op: CreateLease, Record: r, Claim: newClaim(j, o.Lease.Last)}
}

func freshStart(j *job, o *Observed) bool {
	return j.Status.FencingToken == 0 && len(o.Pods) == 0 && (o.Lease.Last == nil || o.Lease.Last.Record.Token == 0)
}

// unknownHolder fills in what is remembered of the tenures before, so that the history has no gap. The tokens would grow
// without it, by the revision alone.
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

// upToReported adds the last tenure that the status reports to a history that ends before it, because what this process
// remembers of the Lease is from an old cache, or it remembers nothing: the next tenure is to follow on that one. When its process
// acted last is not known then, and no time is better than a wrong one.
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

// newClaim is the claim of a new Lease.
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

// keepFor keeps the Lease for its job, with the token base that the spec asks for. A base that was raised counts from the
// next tenure on, so the present one is asked to end by the same write.
//
// Of a job that runs to completion it says the runs, too, or none: a previous job's are not this one's. That is not urgent, so it waits
// until nobody waits for the holder.
func keepFor(t *tenure, runs *runs) *LeaseWrite {
	if runs != nil && (runs.blind || t.quiet() && !t.expired() && t.badTokenBase == "") {
		return nil
	}
	r := t.Record
	switch {
	case runs != nil && runs.why != "":
		r.Runs = runs.next
	case runs == nil && t.Claim.JobUID != t.desired.claim.JobUID:
		r.Runs = lease.Runs{Facts: schedule.Facts{Settled: r.Runs.Facts.Settled}} // no tick is taken back
	}
	r.BadTokenBase, r.Token = "", t.desired.token
	if base := t.desired.tokenBase; base != r.TokenBase {
		raised := base > r.TokenBase && t.badTokenBase == ""
		r.TokenBase = base
		if raised && t.holder.ours {
			r.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}
		}
	}
	return &LeaseWrite{Op: UpdateLease, Record: r, Claim: t.desired.claim, Event: runs.told()}
}

// handOver asks the holder to hand over. A zero desired withdraws a request that a rollout made, or that somebody has
// made for a pod that can't follow it. The holder may have followed that already, which is one handover.
func handOver(t *tenure, m *members, desired lease.Handover) *LeaseWrite {
	is := t.Record.Handover
	able := is.To == lease.AnyPod || m.any(func(c candidate) bool { return c.live() && c.pod.Name == is.To })
	if !t.holder.ours || is == desired || is.To != "" && is.Reason != lease.ReasonRollout && able {
		return nil
	}
	r := t.Record
	r.Handover = desired
	return &LeaseWrite{Op: UpdateLease, Record: r, Claim: t.Claim}
}

// forget takes from the Lease's history what a status that is stored tells as well; nil for nothing. Every renewal would store it again.
// Where fewer changes are kept in the status than in a Lease, or what ends a tenure is told elsewhere, as of runs, it stays. It is not
// worth a write that could be in anybody's way: a free Lease is somebody's to acquire, and of a holder that may be dead see quiet.
func forget(j *job, t *tenure, r *runs, stored *v1alpha1.SingletonJobStatus) *LeaseWrite {
	if r != nil || *j.Spec.HistoryLimit < lease.HistoryLimit || t.unclaimed() || !t.acts() {
		return nil
	}
	record := t.Record
	record.History = untold(t.Record.History, stored, t.Claim.Before)
	if len(record.History) == len(t.Record.History) {
		return nil
	}
	return &LeaseWrite{Op: UpdateLease, Record: record, Claim: t.Claim}
}

// release frees the Lease of a holder that is proven dead: by its exact revision, which is the holder and token that the
// proof is about. Requests of the dead process may still be on the wire.
func release(t *tenure, now time.Time) *LeaseWrite {
	why := lease.Release{Reason: t.death.reason, Unclean: true}
	nonce := max(now.UnixMicro(), t.Record.RenewTime+1)
	if nonce > lastMilli*1000 { // the API server would refuse the year, and the release with it, for ever
		nonce = now.UnixMicro()
	}
	return &LeaseWrite{Op: UpdateLease, Record: t.Record.Released(why, t.death.ended, nonce), Claim: t.Claim}
}

// collect deletes the Lease of a job that is gone once no tenure of it can last: it was released, or it did not change
// for its full duration while this process looked on. The write is conditional on the very revision that was decided on, so
// a candidate that takes the Lease in the same instant keeps it. While pods are left the Lease stays too: a job that is
// recreated meanwhile can then see that the tenure was released, and need not wait.
func collect(o *Observed) *LeaseWrite {
	l := o.Lease
	if l.Presence != Ours || len(o.Pods) > 0 || !Over(l.Record, l.Unchanged) {
		return nil
	}
	return &LeaseWrite{Op: DeleteLease, Record: l.Record, Claim: l.Claim}
}

// Over reports whether no tenure can last of a Lease that somebody has seen unchanged for so long.
func Over(r lease.Record, unchanged time.Duration) bool { return Left(r, unchanged) == 0 }

// Left is how long a tenure can last still of a Lease that somebody has seen unchanged for so long.
func Left(r lease.Record, unchanged time.Duration) time.Duration {
	if r.Free() {
		return 0
	}
	return max(0, duration(r)-unchanged)
}

// duration is how long a record's holder may act after its last renewal; one that does not say may for the longest.
func duration(r lease.Record) time.Duration {
	if r.Duration <= 0 || r.Duration > lease.MaxDuration {
		return lease.MaxDuration
	}
	return r.Duration
}

// restored are the runs for a Lease that takes the place of one that was deleted. Of the run under way nobody can tell how far it has
// got: its attempt is over, as that of a holder that vanished. A job whose run is over is not run again.
func restored(j *job, o *Observed) lease.Runs {
	last := o.Lease.Last
	asked := contract.ParseRequest(j.Annotations[contract.RunNowAnnotation]).Name
	var was lease.Runs
	if last != nil && last.tellsOf(string(j.UID)) && last.Record.Runs.Bad == "" {
		was = last.Record.Runs
	} else {
		// Whether the run that is asked for was run nobody knows: at most once rather than twice.
		was.Answered = asked
	}
	if slices.ContainsFunc(j.Status.Runs, func(s v1alpha1.RunStatus) bool { return s.ID == string(j.UID)+"/"+asked }) {
		was.Answered = asked
	}
	if len(j.Status.Runs) > 0 {
		// What this process remembers may be older than what was told, by another one perhaps.
		if told := RunOf(&j.Status.Runs[0]); told.Token > was.Now.Token || told.Token == was.Now.Token && was.Now.Open() {
			was.Now = told
		}
		was.Missed, was.Skipped = max(was.Missed, j.Status.Missed), max(was.Skipped, j.Status.Skipped)
	}
	if j.schedule == nil && mayHaveRun(j, o) {
		was.Now = restoredOnce(j, was.Now)
	}
	if was.Now.Open() {
		was.Now.State = lease.RunRunning
	}
	was.Facts.Running = was.Now.Open()
	was.Schedule = j.schedule
	return was
}

// mayHaveRun reports whether anything speaks for a run of this job: else what is left is a previous one's.
func mayHaveRun(j *job, o *Observed) bool {
	last := o.Lease.Last
	return j.Status.FencingToken > 0 || len(j.Status.Runs) > 0 || last != nil && last.tellsOf(string(j.UID)) ||
		slices.ContainsFunc(o.Pods, func(pod *corev1.Pod) bool { return !isStranger(pod, j) })
}

// restoredOnce is the run of a job that is run once. Where status.runs tells nothing, its conditions do still, as of the newest token that
// was told.
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

// runsWrite is the write that has the Lease say of runs what it should, nil for none.
func runsWrite(t *tenure, r *runs) *LeaseWrite {
	if r == nil || r.why == "" {
		return nil
	}
	record := t.Record
	record.Runs = r.next
	return &LeaseWrite{Op: UpdateLease, Record: record, Claim: t.Claim, Event: r.told()}
}
