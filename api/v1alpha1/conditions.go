package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/lease"
)

// The condition types of a SingletonJob.
const (
	// ConditionActive: a tenure exists and its process runs.
	ConditionActive = "Active"
	// ConditionProtected: at least one warm standby is ready on another node than the active pod.
	ConditionProtected = "Protected"
	// ConditionProgressing: a rollout, handover or replacement is under way.
	ConditionProgressing = "Progressing"
	// ConditionTimely: the lease leaves time for what a CPU limit makes late, so that a kill comes before a takeover.
	ConditionTimely = "Timely"
)

// The reasons of conditions. ConditionReasons says under which condition and status each stands.
const (
	ReasonRunning             = "Running"
	ReasonNotReady            = "NotReady"
	ReasonElecting            = "Electing"
	ReasonHolderUnreachable   = "HolderUnreachable"
	ReasonForeignHolder       = "ForeignHolder"
	ReasonNoCandidates        = "NoCandidates"
	ReasonCandidatesNotReady  = "CandidatesNotReady"
	ReasonProcessBackOff      = "ProcessBackOff"
	ReasonFailedCreate        = "FailedCreate"
	ReasonPodsFailing         = "PodsFailing"
	ReasonAgentMisconfigured  = "AgentMisconfigured"
	ReasonSuspending          = "Suspending"
	ReasonSuspended           = "Suspended"
	ReasonLeaseConflict       = "LeaseConflict"
	ReasonInvalidSpec         = "InvalidSpec"
	ReasonStandbyReady        = "StandbyReady"
	ReasonNoStandby           = "NoStandby"
	ReasonStandbyOnSameNode   = "StandbyOnSameNode"
	ReasonSingleCandidate     = "SingleCandidate"
	ReasonNoHolder            = "NoHolder"
	ReasonProvisioning        = "Provisioning"
	ReasonRollingOut          = "RollingOut"
	ReasonHandingOver         = "HandingOver"
	ReasonReplacingCandidates = "ReplacingCandidates"
	ReasonScaling             = "Scaling"
	ReasonUpToDate            = "UpToDate"
	ReasonRolloutStalled      = "RolloutStalled"
	ReasonCandidateStuck      = "CandidateStuck"
	ReasonDeleting            = "Deleting"
	ReasonCPULimitTooSmall    = "CPULimitTooSmall"
	ReasonInTime              = "InTime"
)

// ConditionReason is one row of the table of conditions: a reason, where it may stand and what it means.
type ConditionReason struct {
	Condition string
	Status    metav1.ConditionStatus
	Reason    string
	// Meaning is one line for documentation.
	Meaning string
}

// ConditionReasons returns every combination of condition, status and reason that a SingletonJob may show. It is the
// one declaration of them: documentation and tests range over it.
func ConditionReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionActive, yes, ReasonRunning, "a tenure exists and its process runs"},
		{ConditionActive, yes, ReasonNotReady, "a tenure exists and its process runs, but is not ready by its own probes"},
		{ConditionActive, no, ReasonElecting, "no tenure exists; ready candidates contend for the Lease, or wait until the last tenure is certainly over"},
		{ConditionActive, no, ReasonHolderUnreachable, "the holder has stopped renewing; its process is being stopped, or dead, and a standby takes over when the lease expires"},
		{ConditionActive, no, ReasonForeignHolder, "something that is not an agent, such as another elector, holds the Lease; that is not supported"},
		{ConditionActive, no, ReasonNoCandidates, "there is no candidate pod"},
		{ConditionActive, no, ReasonCandidatesNotReady, "candidate pods exist, but none is ready to take a tenure"},
		{ConditionActive, no, ReasonProcessBackOff, "the process keeps exiting; every candidate waits out its restart back-off"},
		{ConditionActive, no, ReasonFailedCreate, "the API server refuses the candidate pods: quota, Pod Security or another admission rule"},
		{ConditionActive, no, ReasonPodsFailing, "candidate pods fail one after another, as those do that a kubelet rejects or evicts; each is recreated after a growing delay"},
		{ConditionActive, no, ReasonAgentMisconfigured, "the agent refused its configuration and did not start"},
		{ConditionActive, no, ReasonSuspending, "spec.suspend is set and the process is being stopped"},
		{ConditionActive, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionActive, no, ReasonDeleting, "the SingletonJob is being deleted and nothing runs any more"},
		{ConditionActive, no, ReasonLeaseConflict, "a Lease of this name exists that is not ours; nothing is touched"},
		{ConditionActive, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},

		{ConditionProtected, yes, ReasonStandbyReady, "a warm standby is ready on another node"},
		{ConditionProtected, no, ReasonNoStandby, "no standby is ready"},
		{ConditionProtected, no, ReasonStandbyOnSameNode, "every ready standby is on the node of the active pod and would be lost with it"},
		{ConditionProtected, no, ReasonSingleCandidate, "spec.candidates is 1, so there is never a standby"},
		{ConditionProtected, no, ReasonNoHolder, "nothing is active, so there is nothing to protect"},
		{ConditionProtected, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionProtected, no, ReasonLeaseConflict, "a Lease of this name exists that is not ours; nothing is touched"},
		{ConditionProtected, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},

		{ConditionProgressing, yes, ReasonProvisioning, "the first candidates are being created"},
		{ConditionProgressing, yes, ReasonRollingOut, "candidates are being replaced by ones of the current template, standbys first"},
		{ConditionProgressing, yes, ReasonHandingOver, "the holder was asked to hand over and has not done so yet"},
		{ConditionProgressing, yes, ReasonReplacingCandidates, "a lost candidate is being replaced"},
		{ConditionProgressing, yes, ReasonScaling, "the number of candidates follows a changed spec.candidates"},
		{ConditionProgressing, yes, ReasonSuspending, "spec.suspend is set and candidates are being removed"},
		{ConditionProgressing, yes, ReasonDeleting, "the SingletonJob is being deleted; nothing is made any more"},
		{ConditionProgressing, no, ReasonUpToDate, "every candidate is made from the current template and ready"},
		{ConditionProgressing, no, ReasonRolloutStalled, "no candidate of the current template becomes ready; the old ones go on"},
		{ConditionProgressing, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionProgressing, no, ReasonFailedCreate, "the API server refuses the candidate pods, or what stands beside them: quota, Pod Security or another admission rule"},
		{ConditionProgressing, no, ReasonPodsFailing, "candidate pods fail one after another, as those do that a kubelet rejects or evicts; each is recreated after a growing delay"},
		{ConditionProgressing, no, ReasonCandidateStuck, "a candidate has not been ready for two minutes; the message says what it waits for"},
		{ConditionProgressing, no, ReasonLeaseConflict, "a Lease of this name exists that is not ours; nothing is touched"},
		{ConditionProgressing, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},

		{ConditionTimely, yes, ReasonInTime, "no CPU limit makes kills later than the lease leaves time for"},
		{ConditionTimely, no, ReasonCPULimitTooSmall, "under its CPU limit the gated container may be killed after the next one has started"},
		{ConditionTimely, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
	}
}

// The reasons of tenure changes: why the earlier tenure ended, in the words of those who end it. ChangeReasons says which
// type each belongs to.
const (
	ChangeElected             = "Elected"
	ChangeLeaseExpired        = string(lease.ReasonLeaseExpired)
	ChangeProcessExited       = string(lease.ReasonProcessExited)
	ChangeHolderTerminated    = string(lease.ReasonHolderTerminated)
	ChangeNodeLost            = string(lease.ReasonNodeLost)
	ChangeRenewFailed         = string(lease.ReasonRenewFailed)
	ChangeLeaseDeleted        = string(lease.ReasonLeaseDeleted)
	ChangeLeaseLost           = string(lease.ReasonLeaseLost)
	ChangePreActivateFailed   = string(lease.ReasonPreActivateFailed)
	ChangePostStartFailed     = string(lease.ReasonPostStartFailed)
	ChangeStartupFailed       = string(lease.ReasonStartupFailed)
	ChangeLivenessFailed      = string(lease.ReasonLivenessFailed)
	ChangePodTerminating      = string(lease.ReasonPodTerminating)
	ChangeRolloutHandover     = string(lease.ReasonRollout)
	ChangeSwitchoverRequested = string(lease.ReasonSwitchover)
	ChangeTokenBaseRaised     = string(lease.ReasonTokenBaseRaised)
)

// ChangeReason is one row of the table of tenure changes.
type ChangeReason struct {
	Type   TenureChangeType
	Reason string
	// Meaning is one line for documentation.
	Meaning string
}

// ChangeReasons returns every reason that an entry of status.history may show, with its type. It is the one
// declaration of them: documentation, metrics and tests range over it.
func ChangeReasons() []ChangeReason {
	return []ChangeReason{
		{Elected, ChangeElected, "the first tenure: nobody held the Lease before"},
		{Failover, ChangeLeaseExpired, "the holder stopped renewing and its lease ran out"},
		{Failover, ChangeProcessExited, "the process exited by itself and its agent released the Lease"},
		{Failover, ChangePreActivateFailed, "spec.preActivate failed, so the process was not started"},
		{Failover, ChangePostStartFailed, "the process's postStart hook failed, and the process was killed"},
		{Failover, ChangeStartupFailed, "the process failed its startup probe and was stopped"},
		{Failover, ChangeLivenessFailed, "the process failed its liveness probe and was stopped"},
		{Failover, ChangeHolderTerminated, "the holder's container was reported terminated before it could release"},
		{Failover, ChangeNodeLost, "the holder's node was removed or declared out of service"},
		{Failover, ChangeRenewFailed, "the holder could not renew, stopped its process and released in time"},
		{Failover, ChangeLeaseDeleted, "the Lease was deleted under the holder"},
		{Failover, ChangeLeaseLost, "somebody else wrote the Lease under the holder"},
		{Handover, ChangePodTerminating, "the active pod was deleted, evicted or drained and stopped gracefully"},
		{Handover, ChangeRolloutHandover, "a changed template was rolled out"},
		{Handover, ChangeSwitchoverRequested, "somebody asked for another holder"},
		{Handover, ChangeTokenBaseRaised, "spec.fencing.tokenBase was raised, which needs a new token"},
	}
}
