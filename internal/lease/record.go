package lease

import (
	"math"
	"slices"
	"time"
)

// Record is a Lease as plain values. internal/contract converts it from and to the API object.
type Record struct {
	UID string
	// Revision is the resourceVersion. Its order is the order of the writes (Kubernetes ≥ 1.35, KEP-5504).
	Revision int64

	// Holder is spec.holderIdentity. Empty means that nobody holds the Lease. Only Release shows that nobody acts either.
	Holder string
	// Token is the number of the present or last tenure; 0 before the first.
	Token int64
	// Transitions counts tenures.
	Transitions int32
	// Duration is the holder's leaseDuration. If the Lease contains two values, it is the longer one.
	Duration time.Duration
	// AcquireTime and RenewTime are wall-clock microseconds, for people. RenewTime also tells one write of a holder from another.
	// A release clears AcquireTime (see Free).
	AcquireTime, RenewTime int64
	// TokenBase is added to the token of every new tenure. It is from 0 to MaxTokenBase.
	TokenBase int64
	// BadTokenBase is the text found in place of a valid token base, shortened. While it is set, nobody acquires the Lease: a
	// token without the base can be one that sinks have already seen. Renewals leave it as it is.
	BadTokenBase string

	// Release says how the last tenure ended. It is empty while a tenure lasts. It stays empty if a holder is cleared by anything
	// but a release: then only time frees the Lease.
	Release Release
	// Handover asks the holder to stop in favour of another candidate.
	Handover Handover
	// History holds the last tenures, newest first. It is shared between records and never changed in place.
	History []PastTenure

	// Runs are the runs of a job that runs to completion.
	Runs Runs
}

// Release describes the end of a tenure that its holder ended, or the operator with proof of the holder's death.
type Release struct {
	Reason Reason
	// Unclean is true if the process may have left requests in flight: it was killed or it crashed. Candidates then wait for
	// lockDelay.
	Unclean bool
}

// Handover is a request to hand the Lease over.
type Handover struct {
	// To is the pod that must be the next holder, AnyPod for any pod but the present holder's, empty for no request.
	To string
	// Reason becomes the reason of the release.
	Reason Reason
}

// AnyPod as Handover.To leaves the choice to the candidates.
const AnyPod = "*"

// UnknownHolder is the holder of a Lease that was recreated while an earlier tenure, which the new Lease does not record, may
// last.
const UnknownHolder = "unknown"

// Reason is the reason for the end of a tenure, as shown in the failover history.
type Reason string

// Why tenures end.
const (
	ReasonCreated           Reason = "Created"             // no tenure yet: the operator created the Lease
	ReasonLeaseExpired      Reason = "LeaseExpired"        // the holder stopped renewing for the whole duration
	ReasonProcessExited     Reason = "ProcessExited"       // the process ended by itself
	ReasonPodTerminating    Reason = "PodTerminating"      // the pod was told to stop
	ReasonHolderTerminated  Reason = "HolderTerminated"    // the container is known to be dead
	ReasonNodeLost          Reason = "NodeLost"            // the node is known to be lost
	ReasonRenewFailed       Reason = "RenewFailed"         // the holder could not renew and stopped
	ReasonLeaseDeleted      Reason = "LeaseDeleted"        // the Lease was deleted under the holder
	ReasonLeaseLost         Reason = "LeaseLost"           // someone else wrote the Lease under the holder
	ReasonPreActivateFailed Reason = "PreActivateFailed"   // the preActivate step failed, so the process never ran
	ReasonStartupFailed     Reason = "StartupProbeFailed"  // the process did not start, by its own probe
	ReasonLivenessFailed    Reason = "LivenessProbeFailed" // the process was not alive, by its own probe
	ReasonPostStartFailed   Reason = "PostStartFailed"     // the process's postStart hook failed
	ReasonRollout           Reason = "RolloutHandover"
	ReasonSwitchover        Reason = "SwitchoverRequested"
	ReasonTokenBaseRaised   Reason = "TokenBaseRaised"
)

// PastTenure is one entry in the Lease's own history.
type PastTenure struct {
	Token     int64
	Pod, Node string
	// Acquired and Ended are wall-clock milliseconds of the machines that wrote them. Ended is the last proof that the tenure's
	// process acted: its end if the tenure was released, else its last renewal; 0 while the tenure lasts.
	Acquired, Ended int64
	// Reason is why the tenure ended; empty while it lasts.
	Reason Reason
}

// HistoryLimit bounds Record.History. The codec may keep fewer.
const HistoryLimit = 10

// Free reports whether the Lease is free by proof rather than by time: it has no holder, and the release marker is that of its
// last tenure. A release clears the acquire time, and every acquire sets one. A client-go elector's acquire does so too; it
// leaves an earlier tenure's marker in place, and somebody else can clear its holder.
func (r Record) Free() bool {
	return r.Holder == "" && r.Release.Reason != "" && r.AcquireTime == 0
}

// MaxTokenBase is the greatest token base that the API accepts. With it, tokens stay below 2^53, up to which a double is exact.
const MaxTokenBase = 1 << 52

// NextToken returns the token of a tenure won by replacing r. The token is known before the write is sent and is part of the
// write. Since only one compare-and-swap on a revision succeeds, no two tenures share a token. The token is greater than every
// token in the record and its history, because the record's token itself may have been edited. If there is no such token, ok is false,
// and nobody acquires the Lease.
func (r Record) NextToken() (next int64, ok bool) {
	last := r.Token
	for _, past := range r.History {
		if past.Token <= 2*MaxTokenBase { // a greater token is forged, and must not block every later acquire
			last = max(last, past.Token)
		}
	}
	if r.BadTokenBase != "" || last == math.MaxInt64 || r.TokenBase > math.MaxInt64-max(0, r.Revision) {
		return 0, false
	}
	return max(r.Revision+r.TokenBase, last+1), true
}

// acquired returns the record that makes c the holder. presumed is the reason for the end of the previous tenure if nobody
// released it.
func (r Record) acquired(c Config, presumed Reason, wall, nonce int64) Record {
	past := r.closed(presumed)
	r.Token, _ = r.NextToken() // seek has checked that there is one
	r.Holder = c.Identity.String()
	if r.Transitions < math.MaxInt32 { // the API refuses a negative count, which would block every later tenure
		r.Transitions++
	}
	r.Duration = c.Duration
	r.AcquireTime, r.RenewTime = wall, nonce
	r.Release, r.Handover = Release{}, Handover{}
	if c.Runs != nil {
		r.Runs.Now.Token, r.Runs.Now.Pod, r.Runs.Now.PodUID = r.Token, c.Identity.Pod, c.Identity.PodUID
	}
	mine := PastTenure{Token: r.Token, Pod: c.Identity.Pod, Node: c.Node, Acquired: wall / 1000}
	r.History = append([]PastTenure{mine}, past[:min(len(past), HistoryLimit-1)]...)
	return r
}

// closed returns the history with the end of a tenure that nobody released. presumed is the presumed reason for that end.
func (r Record) closed(presumed Reason) []PastTenure {
	past := slices.Clone(r.History)
	if len(past) > 0 && past[0].Reason == "" {
		past[0].Ended = max(0, r.RenewTime/1000) // the field may hold any value
		past[0].Reason = presumed
	}
	return past
}

// changedHands reports whether somebody has replaced or cleared the holder without starting a tenure: the newest tenure's pod is
// not the holder's.
func (r Record) changedHands() bool {
	id, _ := ParseIdentity(r.Holder)
	return len(r.History) > 0 && r.History[0].Token == r.Token && r.History[0].Pod != id.Pod
}

// renewed returns the record of the same tenure, one renewal later. It restores the duration and the acquire time, and removes
// any release marker. If somebody has written parts of a release under a holder, clearing the holder, perhaps days later, must
// not complete that release.
func (r Record) renewed(c Config, acquired, nonce int64) Record {
	r.RenewTime, r.Duration = nonce, c.Duration
	r.AcquireTime, r.Release = acquired, Release{}
	if r.Handover.To == c.Identity.Pod {
		r.Handover = Handover{}
	}
	return r
}

// vacated returns the record without a holder, for a Lease that is free by time or by proof. The argument presumed is the reason for
// the end of its tenure if nobody released it.
func (r Record) vacated(presumed Reason, nonce int64) Record {
	if !r.Free() {
		r.History = r.closed(presumed)
		r.Release = Release{Reason: presumed}
	}
	r.Holder = ""
	r.AcquireTime, r.RenewTime = 0, nonce
	return r
}

// Released returns the record without its holder. The operator also calls it, with proof that the holder is dead. wall and nonce
// are microseconds.
func (r Record) Released(why Release, wall, nonce int64) Record {
	r.Holder = ""
	r.AcquireTime, r.RenewTime = 0, nonce
	r.Release = why
	if len(r.History) > 0 && r.History[0].Reason == "" && r.History[0].Token == r.Token {
		past := slices.Clone(r.History)
		past[0].Ended, past[0].Reason = wall/1000, why.Reason
		r.History = past
	}
	return r
}
