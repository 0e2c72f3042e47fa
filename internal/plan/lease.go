package plan

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
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
	if !freshStart(j, o) {
		r = unknownHolder(j, o, r)
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
// remembers of the Lease is from an old cache: the next tenure is to follow on that one.
func upToReported(status *v1alpha1.SingletonJobStatus, past []lease.PastTenure) []lease.PastTenure {
	if status.FencingToken <= 0 || len(past) > 0 && past[0].Token >= status.FencingToken {
		return past
	}
	reported, past := lease.PastTenure{Token: status.FencingToken}, slices.Clone(past)
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
func keepFor(t *tenure) *LeaseWrite {
	r := t.Record
	r.BadTokenBase, r.Token = "", t.desired.token
	if base := t.desired.tokenBase; base != r.TokenBase {
		raised := base > r.TokenBase && t.badTokenBase == ""
		r.TokenBase = base
		if raised && t.holder.ours {
			r.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}
		}
	}
	return &LeaseWrite{Op: UpdateLease, Record: r, Claim: t.desired.claim}
}

// handOver asks the holder to hand over to a pod. An empty to withdraws a request that a rollout made, or that somebody has
// made for a pod that can't follow it. The holder may have followed that already, which is one handover.
func handOver(t *tenure, m *members, to string) *LeaseWrite {
	desired := lease.Handover{}
	if to != "" {
		desired = lease.Handover{To: to, Reason: lease.ReasonRollout}
	}
	is := t.Record.Handover
	able := is.To == lease.AnyPod || m.any(func(c candidate) bool { return c.live() && c.pod.Name == is.To })
	if !t.holder.ours || is == desired || is.To != "" && is.Reason != lease.ReasonRollout && able {
		return nil
	}
	r := t.Record
	r.Handover = desired
	return &LeaseWrite{Op: UpdateLease, Record: r, Claim: t.Claim}
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
