package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/lease"
)

// The condition types of a SingletonJob.
const (
	// ConditionReady: the process that the present spec asks for runs and is ready. Tools that wait look at this one.
	ConditionReady = "Ready"
	// ConditionActive: a tenure exists and its process runs.
	ConditionActive = "Active"
	// ConditionProtected: at least one warm standby is ready on another node than the active pod.
	ConditionProtected = "Protected"
	// ConditionProgressing: a rollout, handover or replacement is under way.
	ConditionProgressing = "Progressing"
	// ConditionTimely: the lease leaves time for what a CPU limit makes late, so that a kill comes before a takeover.
	ConditionTimely = "Timely"
	// ConditionComplete and ConditionFailed are a Kubernetes Job's: how the run has ended of a job without a schedule.
	ConditionComplete = "Complete"
	ConditionFailed   = "Failed"
	// ConditionScheduled: ticks of spec.schedule are run.
	ConditionScheduled = "Scheduled"
)

// The reasons of conditions. ConditionReasons says under which condition and status each stands.
const (
	ReasonRunning             = "Running"
	ReasonNotReady            = "NotReady"
	ReasonElecting            = "Electing"
	ReasonHolderUnreachable   = "HolderUnreachable"
	ReasonForeignHolder       = "ForeignHolder"
	ReasonUnmanagedHolder     = "UnmanagedHolder"
	ReasonNoCandidates        = "NoCandidates"
	ReasonCandidatesNotReady  = "CandidatesNotReady"
	ReasonProcessBackOff      = "ProcessBackOff"
	ReasonFailedCreate        = "FailedCreate"
	ReasonEntrypointUnknown   = "EntrypointUnknown"
	ReasonPodsFailing         = "PodsFailing"
	ReasonAgentMisconfigured  = "AgentMisconfigured"
	ReasonSuspending          = "Suspending"
	ReasonSuspended           = "Suspended"
	ReasonLeaseConflict       = "LeaseConflict"
	ReasonInvalidSpec         = "InvalidSpec"
	ReasonStandbyReady        = "StandbyReady"
	ReasonNoStandby           = "NoStandby"
	ReasonStandbyOnSameNode   = "StandbyOnSameNode"
	ReasonVolumeNotShared     = "VolumeNotShared"
	ReasonSingleCandidate     = "SingleCandidate"
	ReasonNoHolder            = "NoHolder"
	ReasonProvisioning        = "Provisioning"
	ReasonRollingOut          = "RollingOut"
	ReasonHandingOver         = "HandingOver"
	ReasonSwitchoverBlocked   = "SwitchoverBlocked"
	ReasonReplacingCandidates = "ReplacingCandidates"
	ReasonScaling             = "Scaling"
	ReasonUpToDate            = "UpToDate"
	ReasonRolloutStalled      = "RolloutStalled"
	ReasonCandidateStuck      = "CandidateStuck"
	ReasonDeleting            = "Deleting"
	ReasonCPULimitTooSmall    = "CPULimitTooSmall"
	ReasonInTime              = "InTime"
	ReasonWorkloadMissing     = "WorkloadMissing"
	ReasonWorkloadTaken       = "WorkloadTaken"
	ReasonWorkloadRunning     = "WorkloadRunning"
	ReasonWorkloadSettling    = "WorkloadSettling"

	ReasonRolloutPaused            = "RolloutPaused"
	ReasonRolloutWaits             = "RolloutWaits"
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"

	ReasonCompleted            = "Completed"
	ReasonRunFailed            = "RunFailed"
	ReasonNotDue               = "NotDue"
	ReasonRetrying             = "Retrying"
	ReasonRunComplete          = "RunComplete"
	ReasonNotComplete          = "NotComplete"
	ReasonNotFailed            = "NotFailed"
	ReasonBackoffLimitExceeded = "BackoffLimitExceeded"
	ReasonDeadlineExceeded     = "DeadlineExceeded"
	ReasonFailOnExitCode       = "FailOnExitCode"
	ReasonScheduled            = "Scheduled"
	ReasonAhead                = "Ahead"
	ReasonBadRun               = "BadRun"
	ReasonClocksDisagree       = "ClocksDisagree"
	ReasonResting              = "Resting"
	ReasonOverdue              = "Overdue"
	ReasonNoServerTime         = "NoServerTime"
	ReasonRunRequestInvalid    = "RunRequestInvalid"
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
func ConditionReasons() []ConditionReason { return slices.Clone(conditionReasons) }

var conditionReasons = slices.Concat(readyReasons(), activeReasons(), otherReasons(), runReasons())

// runReasons are those of jobs that run to completion.
func runReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionReady, yes, ReasonCompleted, "the run is complete"},
		{ConditionReady, yes, ReasonNotDue, "no run is due; status.nextTick is the next tick"},
		{ConditionReady, no, ReasonRetrying, "an attempt has failed; the next follows after its delay"},
		{ConditionReady, no, ReasonRunFailed, "the run has failed, and no attempt follows"},
		{ConditionReady, no, ReasonBadRun, "what the Lease says of runs can't be read, so that none is started"},

		{ConditionActive, no, ReasonCompleted, "the run is complete"},
		{ConditionActive, no, ReasonNotDue, "no run is due; status.nextTick is the next tick"},
		{ConditionActive, no, ReasonRetrying, "an attempt has failed; the next follows after its delay"},
		{ConditionActive, no, ReasonRunFailed, "the run has failed, and no attempt follows"},
		{ConditionActive, no, ReasonBadRun, "what the Lease says of runs can't be read, so that none is started"},

		{ConditionProtected, no, ReasonResting, "no run is under way, so there is nothing to protect"},
		{ConditionProgressing, no, ReasonRunRequestInvalid, "a run is asked for by what is no name of a run; the message says what would be one"},

		{ConditionComplete, yes, ReasonRunComplete, "the process has exited with 0"},
		{ConditionComplete, no, ReasonNotComplete, "the process has not exited with 0 yet"},

		{ConditionFailed, yes, ReasonBackoffLimitExceeded, "spec.backoffLimit attempts after the first have failed, too"},
		{ConditionFailed, yes, ReasonDeadlineExceeded, "spec.activeDeadlineSeconds were over"},
		{ConditionFailed, yes, ReasonFailOnExitCode, "the process exited with one of spec.failOnExitCodes"},
		{ConditionFailed, no, ReasonNotFailed, "the run is under way, or complete"},

		{ConditionScheduled, yes, ReasonScheduled, "each tick of spec.schedule is run"},
		{ConditionScheduled, no, ReasonSuspended, "spec.suspend is set; what comes due meanwhile is no tick"},
		{ConditionScheduled, no, ReasonAhead, "clocks were wrong: the Lease accounts for ticks that are yet to come; none is due until then"},
		{ConditionScheduled, no, ReasonClocksDisagree, "clocks of operator and API server differ; until they agree no change of the schedule and no end of a suspension is passed on"},
		{ConditionScheduled, no, ReasonNoServerTime, "no answer of the API server tells the time, by which ticks come due, so that none is started"},
		{ConditionScheduled, no, ReasonOverdue, "a tick is due and no candidate starts it, as where clocks differ; the candidates' logs say why"},
		{ConditionScheduled, no, ReasonBadRun, "what the Lease says of runs can't be read, so that none is started"},
		{ConditionScheduled, no, ReasonLeaseConflict, "a Lease of this name exists that is not ours; nothing is touched"},
		{ConditionScheduled, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
	}
}

func activeReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionActive, yes, ReasonRunning, "a tenure exists and its process runs"},
		{ConditionActive, yes, ReasonNotReady, "a tenure exists and its process runs, but is not ready by its own probes"},
		{ConditionActive, yes, ReasonUnmanagedHolder, "a tenure exists and its process runs, in a pod that is none of the SingletonJob's, such as one that has lost its label"},
		{ConditionActive, no, ReasonElecting, "no tenure exists; ready candidates contend for the Lease, or wait until the last tenure is certainly over"},
		{ConditionActive, no, ReasonHolderUnreachable, "the holder has stopped renewing; its process is being stopped, or dead, and a standby takes over when the lease expires"},
		{ConditionActive, no, ReasonForeignHolder, "something that is not an agent, such as another elector, holds the Lease; that is not supported"},
		{ConditionActive, no, ReasonNoCandidates, "there is no candidate pod"},
		{ConditionActive, no, ReasonCandidatesNotReady, "candidate pods exist, but none is ready to take a tenure"},
		{ConditionActive, no, ReasonProcessBackOff, "the process keeps exiting; every candidate waits out its restart back-off"},
		{ConditionActive, no, ReasonFailedCreate, "the API server refuses the candidate pods: quota, Pod Security or another admission rule"},
		{ConditionActive, no, ReasonEntrypointUnknown, "there is no candidate pod: the gated container sets no command, and what its image runs is not known"},
		{ConditionActive, no, ReasonPodsFailing, "candidate pods fail one after another, as those do that a kubelet rejects or evicts; each is recreated after a growing delay"},
		{ConditionActive, no, ReasonAgentMisconfigured, "the agent refused its configuration and did not start"},
		{ConditionActive, no, ReasonSuspending, "spec.suspend is set and the process is being stopped"},
		{ConditionActive, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionActive, no, ReasonDeleting, "the SingletonJob is being deleted and nothing runs any more"},
		{ConditionActive, no, ReasonLeaseConflict, "a Lease of this name exists that is not ours; nothing is touched"},
		{ConditionActive, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionActive, no, ReasonWorkloadMissing, "the workload that spec.workloadRef names is not there, is being deleted or may not be read; what runs goes on, and nothing is made"},
		{ConditionActive, no, ReasonWorkloadTaken, "an older SingletonJob has the same workload; what runs goes on, and nothing is made"},
		{ConditionActive, no, ReasonWorkloadRunning, "the workload that spec.workloadRef names is not scaled to 0, or pods of it are left, which no lease keeps from acting; what runs goes on, and nothing is started"},
		{ConditionActive, no, ReasonWorkloadSettling, "the workload that spec.workloadRef names is scaled to 0, or was changed, and its controllers have not carried that out yet; what runs goes on, and nothing is started"},
	}
}

func otherReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionProtected, yes, ReasonStandbyReady, "a warm standby is ready on another node"},
		{ConditionProtected, no, ReasonNoStandby, "no standby is ready"},
		{ConditionProtected, no, ReasonStandbyOnSameNode, "every ready standby is on the node of the active pod and would be lost with it"},
		{ConditionProtected, no, ReasonVolumeNotShared, "no standby is ready on another node, and pods on two nodes cannot have one of their claims at a time"},
		{ConditionProtected, no, ReasonSingleCandidate, "spec.candidates is 1, so there is never a standby"},
		{ConditionProtected, no, ReasonNoHolder, "nothing is active, so there is nothing to protect"},
		{ConditionProtected, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionProtected, no, ReasonLeaseConflict, "a Lease of this name exists that is not ours; nothing is touched"},
		{ConditionProtected, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionProtected, no, ReasonWorkloadRunning, "pods of the workload that spec.workloadRef names may act beside the active one: no lease keeps them from it"},

		{ConditionProgressing, yes, ReasonProvisioning, "the first candidates are being created"},
		{ConditionProgressing, yes, ReasonRollingOut, "candidates are being replaced by ones of the current template, standbys first"},
		{ConditionProgressing, yes, ReasonHandingOver, "the holder was asked to hand over and has not done so yet"},
		{ConditionProgressing, yes, ReasonReplacingCandidates, "a lost candidate is being replaced"},
		{ConditionProgressing, yes, ReasonScaling, "the number of candidates follows a changed spec.candidates"},
		{ConditionProgressing, yes, ReasonSuspending, "spec.suspend is set and candidates are being removed"},
		{ConditionProgressing, yes, ReasonDeleting, "the SingletonJob is being deleted; nothing is made any more"},
		{ConditionProgressing, no, ReasonUpToDate, "every candidate is made from the current template and ready"},
		{ConditionProgressing, no, ReasonUnmanagedHolder, "a pod that is none of the SingletonJob's holds the Lease and renews it, so that neither a change of the template nor of the operator reaches what acts"},
		{ConditionProgressing, no, ReasonRolloutStalled, "no candidate of the current template becomes ready; the old ones go on"},
		{ConditionProgressing, no, ReasonProgressDeadlineExceeded, "a rollout waits for a candidate that has not become ready within spec.strategy.progressDeadlineSeconds; the message says why"},
		{ConditionProgressing, no, ReasonRolloutPaused, "spec.strategy.paused is set, and the current template is not rolled out"},
		{ConditionProgressing, no, ReasonRolloutWaits, "the operator puts something else into pods than before, and it is not this job's turn yet; all goes on as it is"},
		{ConditionProgressing, no, ReasonSwitchoverBlocked, "a handover is asked for that can't be had; the message says why"},
		{ConditionProgressing, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionProgressing, no, ReasonFailedCreate, "the API server refuses the candidate pods, or what stands beside them: quota, Pod Security or another admission rule"},
		{ConditionProgressing, no, ReasonEntrypointUnknown, "the gated container sets no command, and what its image runs is not known; the pods that exist stay as they are, and no other is made"},
		{ConditionProgressing, no, ReasonPodsFailing, "candidate pods fail one after another, as those do that a kubelet rejects or evicts; each is recreated after a growing delay"},
		{ConditionProgressing, no, ReasonCandidateStuck, "a candidate has not been ready for spec.strategy.progressDeadlineSeconds; the message says what it waits for"},
		{ConditionProgressing, no, ReasonLeaseConflict, "a Lease of this name exists that is not ours; nothing is touched"},
		{ConditionProgressing, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionProgressing, no, ReasonWorkloadMissing, "the workload that spec.workloadRef names is not there, is being deleted or may not be read; what runs goes on, and nothing is made"},
		{ConditionProgressing, no, ReasonWorkloadTaken, "an older SingletonJob has the same workload; what runs goes on, and nothing is made"},
		{ConditionProgressing, no, ReasonWorkloadRunning, "the workload that spec.workloadRef names is not scaled to 0, or pods of it are left, which no lease keeps from acting; what runs goes on, and nothing is started"},
		{ConditionProgressing, no, ReasonWorkloadSettling, "the workload that spec.workloadRef names is scaled to 0, or was changed, and its controllers have not carried that out yet; what runs goes on, and nothing is started"},

		{ConditionTimely, yes, ReasonInTime, "no CPU limit makes kills later than the lease leaves time for"},
		{ConditionTimely, no, ReasonCPULimitTooSmall, "under its CPU limit the gated container may be killed after the next one has started"},
		{ConditionTimely, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
	}
}

func readyReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionReady, yes, ReasonRunning, "the process of the current template runs and is ready"},
		{ConditionReady, yes, ReasonSuspended, "spec.suspend is set and nothing runs, as was asked for"},
		{ConditionReady, no, ReasonRollingOut, "candidates are being replaced by ones of the current template, standbys first"},
		{ConditionReady, no, ReasonRolloutPaused, "spec.strategy.paused is set, and the current template is not rolled out"},
		{ConditionReady, no, ReasonRolloutStalled, "no candidate of the current template becomes ready; the old ones go on"},
		{ConditionReady, no, ReasonReplacingCandidates, "the active pod is on its way out, and another is to take over"},
		{ConditionReady, no, ReasonNotReady, "a tenure exists and its process runs, but is not ready by its own probes"},
		{ConditionReady, no, ReasonUnmanagedHolder, "a tenure exists and its process runs, in a pod that is none of the SingletonJob's, such as one that has lost its label"},
		{ConditionReady, no, ReasonElecting, "no tenure exists; ready candidates contend for the Lease, or wait until the last tenure is certainly over"},
		{ConditionReady, no, ReasonHolderUnreachable, "the holder has stopped renewing; its process is being stopped, or dead, and a standby takes over when the lease expires"},
		{ConditionReady, no, ReasonForeignHolder, "something that is not an agent, such as another elector, holds the Lease; that is not supported"},
		{ConditionReady, no, ReasonNoCandidates, "there is no candidate pod"},
		{ConditionReady, no, ReasonCandidatesNotReady, "candidate pods exist, but none is ready to take a tenure"},
		{ConditionReady, no, ReasonProcessBackOff, "the process keeps exiting; every candidate waits out its restart back-off"},
		{ConditionReady, no, ReasonFailedCreate, "the API server refuses the candidate pods, or what stands beside them: quota, Pod Security or another admission rule"},
		{ConditionReady, no, ReasonEntrypointUnknown, "the gated container sets no command, and what its image runs is not known; the pods that exist stay as they are, and no other is made"},
		{ConditionReady, no, ReasonPodsFailing, "candidate pods fail one after another, as those do that a kubelet rejects or evicts; each is recreated after a growing delay"},
		{ConditionReady, no, ReasonAgentMisconfigured, "the agent refused its configuration and did not start"},
		{ConditionReady, no, ReasonSuspending, "spec.suspend is set and the process is being stopped"},
		{ConditionReady, no, ReasonDeleting, "the SingletonJob is being deleted; nothing is made any more"},
		{ConditionReady, no, ReasonLeaseConflict, "a Lease of this name exists that is not ours; nothing is touched"},
		{ConditionReady, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionReady, no, ReasonWorkloadMissing, "the workload that spec.workloadRef names is not there, is being deleted or may not be read; what runs goes on, and nothing is made"},
		{ConditionReady, no, ReasonWorkloadTaken, "an older SingletonJob has the same workload; what runs goes on, and nothing is made"},
		{ConditionReady, no, ReasonWorkloadRunning, "the workload that spec.workloadRef names is not scaled to 0, or pods of it are left, which no lease keeps from acting; what runs goes on, and nothing is started"},
		{ConditionReady, no, ReasonWorkloadSettling, "the workload that spec.workloadRef names is scaled to 0, or was changed, and its controllers have not carried that out yet; what runs goes on, and nothing is started"},
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
		{Failover, ChangePostStartFailed, "the process's postStart hook failed, and the process was told to stop"},
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
