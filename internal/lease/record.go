package lease

import (
	"math"
	"slices"
	"time"
)

// Record is a Lease as plain values. internal/contract converts it from and to the API object.
type Record struct {
	UID string
	// Revision is the resourceVersion. Its order is that of the writes (Kubernetes ≥ 1.35, KEP-5504).
	Revision int64

	// Holder is spec.holderIdentity. Empty means that nobody holds the Lease; that nobody acts follows only from Release.
	Holder string
	// Token is the number of the present or last tenure; 0 before the first.
	Token int64
	// Transitions counts tenures.
	Transitions int32
	// Duration is the holder's leaseDuration: the longer one where the Lease tells of two.
	Duration time.Duration
	// AcquireTime and RenewTime are wall-clock microseconds, for people. RenewTime also tells one write of a holder
	// from another, and no AcquireTime is part of a release (Free).
	AcquireTime, RenewTime int64
	// TokenBase is added to every token of a new tenure. It is from 0 to MaxTokenBase.
	TokenBase int64
	// BadTokenBase is what stands there instead, cut short, if that is not such a number. Then nobody acquires the Lease: a token
	// without the base may be one that sinks have seen. Renewals leave it as it is.
	BadTokenBase string

	// Release says how the last tenure ended. It is empty while a tenure lasts, and stays empty when a holder is
	// cleared by anything but a release: then time alone frees the Lease.
	Release Release
	// Handover asks the holder to stop for another candidate.
	Handover Handover
	// History holds the last tenures, newest first. It is shared between records and never changed in place.
	History []PastTenure

	// Runs are those of a job that runs to completion.
	Runs Runs
}

// Release tells how a tenure ended that was ended by its holder, or by the operator with proof of the holder's death.
type Release struct {
	Reason Reason
	// Unclean is true where the process may have left requests on the wire: it was killed or it crashed. Then
	// candidates wait for lockDelay.
	Unclean bool
}

// Handover is a request to hand the Lease over.
type Handover struct {
	// To is the pod that shall be the next holder, AnyPod for any but the present one, empty for no request.
	To string
	// Reason becomes the reason of the release.
	Reason Reason
}

// AnyPod as Handover.To leaves the choice to the candidates.
const AnyPod = "*"

// UnknownHolder is the holder of a Lease that was recreated while a tenure may last that it knows nothing of.
const UnknownHolder = "unknown"

// Reason says why a tenure ended, in the words of the failover history.
type Reason string

// Why tenures end.
const (
	ReasonCreated           Reason = "Created"             // no tenure yet: the operator made the Lease
	ReasonLeaseExpired      Reason = "LeaseExpired"        // the holder stopped renewing for the whole duration
	ReasonProcessExited     Reason = "ProcessExited"       // the process ended by itself
	ReasonPodTerminating    Reason = "PodTerminating"      // the pod was told to stop
	ReasonHolderTerminated  Reason = "HolderTerminated"    // the container is known to be dead
	ReasonNodeLost          Reason = "NodeLost"            // the node is known to be gone
	ReasonRenewFailed       Reason = "RenewFailed"         // the holder could not renew and stopped
	ReasonLeaseDeleted      Reason = "LeaseDeleted"        // the Lease was deleted under the holder
	ReasonLeaseLost         Reason = "LeaseLost"           // someone else wrote the Lease under the holder
	ReasonPreActivateFailed Reason = "PreActivateFailed"   // what was to run before the process failed, so that it never ran
	ReasonStartupFailed     Reason = "StartupProbeFailed"  // the process did not start, by its own probe
	ReasonLivenessFailed    Reason = "LivenessProbeFailed" // the process was not alive, by its own probe
	ReasonPostStartFailed   Reason = "PostStartFailed"     // the process's postStart hook failed
	ReasonRollout           Reason = "RolloutHandover"
	ReasonSwitchover        Reason = "SwitchoverRequested"
	ReasonTokenBaseRaised   Reason = "TokenBaseRaised"
)

// PastTenure is one line of the Lease's own history.
type PastTenure struct {
	Token     int64
	Pod, Node string
	// Acquired and Ended are wall-clock milliseconds of the machines that wrote them. Ended is the last proof that the
	// tenure's process acted: its end where it was released, else its last renewal; 0 while the tenure lasts.
	Acquired, Ended int64
	// Reason is why it ended; empty while it lasts.
	Reason Reason
}

// HistoryLimit bounds Record.History. The codec may keep fewer.
const HistoryLimit = 10

// Free reports whether the Lease is free by proof rather than by time: nobody holds it, and the release marker is that of
// its last tenure. A release leaves no acquire time, and every acquire sets one, also that of a client-go elector, which
// leaves a marker of an earlier tenure in place and may have its holder blanked by somebody else.
func (r Record) Free() bool {
	return r.Holder == "" && r.Release.Reason != "" && r.AcquireTime == 0
}

// MaxTokenBase is the greatest token base that the API accepts. Tokens stay below 2^53 with it, which doubles hold exactly.
const MaxTokenBase = 1 << 52

// NextToken is the token of a tenure won by replacing r. It is known before the write is sent and goes out in it; since
// a compare-and-swap on one revision succeeds once, no two tenures share it. It is greater than each that the record tells
// of, in its history too: the token itself may have been edited. ok is false where there is none, and then nobody acquires.
func (r Record) NextToken() (next int64, ok bool) {
	last := r.Token
	for _, past := range r.History {
		if past.Token <= 2*MaxTokenBase { // else it is forged, and no reason to be stuck
			last = max(last, past.Token)
		}
	}
	if r.BadTokenBase != "" || last == math.MaxInt64 || r.TokenBase > math.MaxInt64-max(0, r.Revision) {
		return 0, false
	}
	return max(r.Revision+r.TokenBase, last+1), true
}

// acquired is the record that makes c the holder. presumed is why the tenure before ended if nobody released it.
func (r Record) acquired(c Config, presumed Reason, wall, nonce int64) Record {
	past := r.closed(presumed)
	r.Token, _ = r.NextToken() // contend has asked whether there is one
	r.Holder = c.Identity.String()
	if r.Transitions < math.MaxInt32 { // the API refuses a negative count, and with it every later tenure
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

// closed is the history with the end of a tenure that nobody released. presumed is why it must have ended.
func (r Record) closed(presumed Reason) []PastTenure {
	past := slices.Clone(r.History)
	if len(past) > 0 && past[0].Reason == "" {
		past[0].Ended = max(0, r.RenewTime/1000) // whatever stands there
		past[0].Reason = presumed
	}
	return past
}

// changedHands reports whether somebody has written another holder, or none, over the one whose tenure it is.
func (r Record) changedHands() bool {
	id, _ := ParseIdentity(r.Holder)
	return len(r.History) > 0 && r.History[0].Token == r.Token && r.History[0].Pod != id.Pod
}

// renewed is the record of the same tenure, one renewal later. It sets right how long others wait for this holder, and when
// it acquired the Lease, and leaves no release marker: if somebody has written parts of a release under a holder, nobody
// is to be able to complete it, perhaps days later, by clearing the holder.
func (r Record) renewed(c Config, acquired, nonce int64) Record {
	r.RenewTime, r.Duration = nonce, c.Duration
	r.AcquireTime, r.Release = acquired, Release{}
	if r.Handover.To == c.Identity.Pod {
		r.Handover = Handover{}
	}
	return r
}

// vacated is the record without a holder whose Lease is free by time or by proof. presumed is why its tenure must have ended if
// nobody released it.
func (r Record) vacated(presumed Reason, nonce int64) Record {
	if !r.Free() {
		r.History = r.closed(presumed)
		r.Release = Release{Reason: presumed}
	}
	r.Holder = ""
	r.AcquireTime, r.RenewTime = 0, nonce
	return r
}

// Released is the record without its holder. The operator calls it too, with proof that the holder is dead.
// wall and nonce are microseconds.
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
