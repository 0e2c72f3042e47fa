package plan

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// ClaimAnnotation on the Lease holds its Claim. It is between operators only; agents leave it as it is.
const ClaimAnnotation = "singletonjob.io/claim"

// Claim says for which job a Lease is kept, since it outlives its job.
type Claim struct {
	// JobUID is the job's.
	JobUID string
	// Before is the token of the last tenure before the job's first: that and lower ones are not in its history.
	Before int64
}

func (c Claim) String() string { return c.JobUID + "," + strconv.FormatInt(c.Before, 10) }

// ParseClaim reads String's result; what can't be read claims nothing.
func ParseClaim(s string) Claim {
	uid, number, _ := strings.Cut(s, ",")
	before, err := strconv.ParseInt(number, 10, 64)
	if err != nil || uid == "" || before < 0 {
		return Claim{}
	}
	return Claim{JobUID: uid, Before: before}
}

// newLease makes the Lease: free if nothing speaks for an earlier tenure, else with an unknown holder, for whom the
// candidates wait as long as any holder may have been promised. A mistake here cannot be undone: a Lease that is free too
// early starts a second process. So anything at all counts as speaking for an earlier tenure: a token in the status, any
// pod with the job's label, whoever made it and whatever became of it, and a Lease that this process remembers to have
// been held. The caller reads the job and the pods from the API server itself, not from a cache, before it lets a Lease
// start free.
func (f *facts) newLease() *LeaseWrite {
	r := lease.Record{
		Duration:  f.job.Spec.Lease.LeaseDuration.Duration,
		TokenBase: f.job.Spec.Fencing.TokenBase,
		Release:   lease.Release{Reason: lease.ReasonCreated},
	}
	if !f.freshStart() {
		r = f.unknownHolder(r)
	}
	return &LeaseWrite{Op: CreateLease, Record: r, Claim: f.newClaim()}
}

func (f *facts) freshStart() bool {
	return f.job.Status.FencingToken == 0 && len(f.Pods) == 0 && (f.Lease.Last == nil || f.Lease.Last.Record.Token == 0)
}

// unknownHolder fills in what is remembered of the tenures before, so that the history has no gap. The tokens would grow
// without it, by the revision alone.
func (f *facts) unknownHolder(r lease.Record) lease.Record {
	status := f.job.Status
	r.Holder, r.Release = lease.UnknownHolder, lease.Release{}
	r.Token, r.Transitions = max(0, status.FencingToken), int32(min(max(0, status.Tenures), math.MaxInt32))
	r.AcquireTime, r.RenewTime = f.Now.UnixMicro(), f.Now.UnixMicro()
	for _, pod := range f.Pods {
		r.Duration = max(r.Duration, longest(pod))
	}
	if last := f.Lease.Last; last != nil {
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
	r.History = f.upToTold(r.History)
	return r
}

// upToTold adds the last tenure that the status tells of to a history that ends before it, because what this process
// remembers of the Lease is from an old cache: the next tenure is to follow on that one.
func (f *facts) upToTold(past []lease.PastTenure) []lease.PastTenure {
	status := f.job.Status
	if status.FencingToken <= 0 || len(past) > 0 && past[0].Token >= status.FencingToken {
		return past
	}
	told, past := lease.PastTenure{Token: status.FencingToken}, slices.Clone(past)
	if len(status.History) > 0 && status.History[0].Token == told.Token {
		h := status.History[0]
		told.Pod, told.Node, told.Acquired = h.To, h.ToNode, h.Time.UnixMilli()
		if len(past) > 0 && past[0].Token == h.FromToken {
			past[0].Reason = cmp.Or(past[0].Reason, lease.Reason(h.Reason))
		}
	}
	return append([]lease.PastTenure{told}, past...)
}

// newClaim is the claim of a Lease that is made anew.
func (f *facts) newClaim() Claim {
	c := Claim{JobUID: string(f.job.UID)}
	if last := f.Lease.Last; last != nil && f.job.Status.FencingToken == 0 {
		c.Before = last.Record.Token
		if last.Claim.JobUID == c.JobUID {
			c.Before = last.Claim.Before
		}
	}
	return c
}

// claimed is the claim that the Lease should carry.
func (f *facts) claimed() Claim {
	c := Claim{JobUID: string(f.job.UID)}
	told := f.job.Status.FencingToken
	switch was := f.Lease.Claim; {
	case was.JobUID == c.JobUID && was.Before <= f.record.Token && (told == 0 || was.Before < told):
		return was // else somebody has written it: this job's tenures would be taken for an earlier one's
	case f.job.Status.FencingToken == 0:
		c.Before = f.record.Token
		if f.holderIsTakenOver() {
			c.Before = max(0, c.Before-1)
		}
	}
	return c
}

// holderIsTakenOver tells whether the Lease is held by a pod that an earlier job left behind for this one to adopt: then
// the present tenure is this job's first.
func (f *facts) holderIsTakenOver() bool {
	id, _ := lease.ParseIdentity(f.record.Holder)
	pod := f.podOf(id)
	if pod == nil {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner == nil || owner.UID == f.job.UID
}

// tokenBase is never lowered, also not for a job that was made anew with less: sinks have seen the higher tokens. One that the
// API would not accept somebody else has written, and it would use up the numbers there are; what was given out by it stands
// in the Lease as its last token, above which the next one is.
func (f *facts) tokenBase() int64 {
	if f.badTokenBase() != "" {
		return f.job.Spec.Fencing.TokenBase
	}
	return max(f.record.TokenBase, f.job.Spec.Fencing.TokenBase)
}

// toldToken is the token of a Lease that is below what the status told of this job, because somebody has lowered it: that
// one's, below which no token may be given out again. It is not for a tenure that was acquired with less, which could
// only be killed by it: its own entry in the history tells it apart. Nor is it believed beyond what tokens become.
func (f *facts) toldToken() int64 {
	r, told := f.record, f.job.Status.FencingToken
	acquired := r.Holder != "" && len(r.History) > 0 && r.History[0].Token == r.Token
	if acquired || told > 2*v1alpha1.MaxTokenBase || f.Lease.Claim.JobUID != string(f.job.UID) {
		return r.Token
	}
	return max(r.Token, told)
}

// badTokenBase is the token base that stands in the Lease, if it is none.
func (f *facts) badTokenBase() string {
	if bad := f.record.BadTokenBase; bad != "" {
		return bad
	}
	if base := f.record.TokenBase; base < 0 || base > v1alpha1.MaxTokenBase {
		return strconv.FormatInt(base, 10)
	}
	return ""
}

// unclaimed tells whether the Lease is kept for another job, or lacks what the spec says of it.
func (f *facts) unclaimed() bool {
	return f.claim != f.Lease.Claim || f.tokenBase() != f.record.TokenBase || f.badTokenBase() != "" || f.toldToken() != f.record.Token
}

// quiet tells whether the Lease is to be left as it is because its holder may be dead: candidates wait until it has not
// changed for the whole duration, so that any write makes them wait anew. A holder renews every retryPeriod, so one that
// this process has not heard of for half as long again has missed a renewal; the longest retryPeriod that the API accepts
// makes that renewDeadline. What is put off comes with the next renewal, or with the next holder's.
func (f *facts) quiet() bool {
	switch {
	case f.record.Free():
		return false
	case f.holder.Pod == "":
		return true // nobody whose renewals could be waited for
	}
	return !f.Lease.Renewed || f.Lease.Silent >= f.holder.settings.retryPeriod*3/2
}

// putOff tells whether a write to the Lease waits for the next renewal.
func (f *facts) putOff(state State) bool {
	if f.Lease.Presence != Ours || f.holder.Pod == "" || !f.quiet() || !f.acts() {
		return false
	}
	switch state {
	case Suspending, Suspended:
		return f.unclaimed()
	case Serving:
		return f.unclaimed() || f.holder.ours && f.handOver(f.successor(Next(f.fleet()))) != nil
	default:
		return false
	}
}

// keepFor keeps the Lease for this job, with the token base that its spec asks for. A base that was raised counts from the
// next tenure on, so the present one is asked to end by the same write.
func (f *facts) keepFor() *LeaseWrite {
	r := f.record
	r.BadTokenBase, r.Token = "", f.toldToken()
	if base := f.tokenBase(); base != r.TokenBase {
		raised := base > r.TokenBase && f.badTokenBase() == ""
		r.TokenBase = base
		if raised && f.holder.ours {
			r.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}
		}
	}
	return &LeaseWrite{Op: UpdateLease, Record: r, Claim: f.claim}
}

// handOver asks the holder to hand over to a pod. An empty to withdraws a request that a rollout made, or that somebody has
// made for a pod that can't follow it. The holder may have followed that already, which is one handover.
func (f *facts) handOver(to string) *LeaseWrite {
	want := lease.Handover{}
	if to != "" {
		want = lease.Handover{To: to, Reason: lease.ReasonRollout}
	}
	is := f.record.Handover
	able := is.To == lease.AnyPod || f.any(func(c candidate) bool { return c.live() && c.pod.Name == is.To })
	if is == want || is.To != "" && is.Reason != lease.ReasonRollout && able {
		return nil
	}
	r := f.record
	r.Handover = want
	return &LeaseWrite{Op: UpdateLease, Record: r, Claim: f.Lease.Claim}
}

// collect deletes the Lease of a job that is gone once no tenure of it can last: it was released, or it did not change
// for its full duration while this process looked on. The write is conditional on the very revision that was judged, so
// a candidate that takes the Lease in the same instant keeps it. While pods are left the Lease stays too: a job made anew
// meanwhile can then see that the tenure was released, and need not wait.
func (f *facts) collect() *LeaseWrite {
	r := f.record
	if f.Lease.Presence != Ours || len(f.Pods) > 0 {
		return nil
	}
	if !Over(r, f.Lease.Unchanged) {
		return nil
	}
	return &LeaseWrite{Op: DeleteLease, Record: r, Claim: f.Lease.Claim}
}

// Over tells whether no tenure can last of a Lease that somebody has seen unchanged for so long.
func Over(r lease.Record, unchanged time.Duration) bool { return Left(r, unchanged) == 0 }

// Left is how long a tenure can last still of a Lease that somebody has seen unchanged for so long.
func Left(r lease.Record, unchanged time.Duration) time.Duration {
	if r.Free() {
		return 0
	}
	return max(0, duration(r)-unchanged)
}
